"""Correct implementations, the unusual ones too, are accepted without a finding."""

from __future__ import annotations

import pytest

from oracles.domain import Scope

HOST = (
    "correct_host.py:chunk_metadata",
    *(
        f"unusual.py:{name}"
        for name in (
            "returns_a_mapping",
            "returns_a_list",
            "returns_views_of_one_buffer",
            "writes_with_out",
            "caches_by_content",
            "uses_a_thread",
            "prints",
            "changes_the_default_dtype",
            "compares_rows_with_all_offsets",
            "keeps_a_workspace",
            "planner",
        )
    ),
)
KERNELS = ("correct_kernel.py:chunk_metadata", "unusual_kernels.py:one_program_for_everything")


@pytest.mark.parametrize("spec", HOST)
def test_correct_torch_code_is_accepted(spec: str, examine) -> None:
    examined = examine(spec, "host", Scope(1, 2), 40)
    assert [(finding.bucket, finding.detail) for finding in examined.result.findings] == []
    assert examined.result.judged > 200
    assert not examined.result.unsupported


@pytest.mark.parametrize("spec", KERNELS)
def test_correct_kernels_are_accepted(spec: str, examine) -> None:
    # test_six_faults.py adds sampled inputs; the large ones among them take the interpreter some seconds each.
    examined = examine(spec, "interpreter", Scope(1, 2), 4)
    assert [(finding.bucket, finding.detail) for finding in examined.result.findings] == []
    assert examined.result.judged > 200
    assert not examined.result.unsupported
