"""Every way in which the host can wait for the device is named, on the first case that is tried."""

from __future__ import annotations

import pytest

from oracles.backends import by_name as backend_by_name
from oracles.check import Subject, judge
from oracles.contract import Contract
from oracles.providers import loaded, resolve

READS = {
    "item": "item",
    "tolist": "tolist",
    "as_int": "int",
    "as_bool": "bool",
    "condition": "bool",
    "as_index": "index",
    "cpu": "cpu",
    "to_cpu": "cpu",
    "to_the_twin": "cpu",
    "numpy": "numpy",
    "np_asarray": "array",
    "boolean_mask": "boolean mask",
    "nonzero": "nonzero",
    "masked_select": "masked_select",
    "unique": "unique",
    "equal": "equal",
    "repeat_interleave": "repeat_interleave",
    "copy_to_host": "copy_",
    "formatted": "format",
    "pickled": "pickle",
    "storage": "item",
    "in_a_thread": "tolist",
}


@pytest.mark.parametrize("name", READS)
def test_a_host_read_is_named(name: str, here, contract: Contract, inputs_of) -> None:
    # These callables only read, so they may run in this process, and no worker has to be started for each.
    (implementation,) = resolve(f"{here / 'faults_reads.py'}:{name}", [contract], named=True)
    implementation, function = loaded(implementation)
    subject = Subject(contract, implementation, function, backend_by_name("host"))
    # No sequence at all: the first input of the small scope, and as small as an input can be.
    failures = judge(subject, inputs_of([0]))
    assert [failure.key for failure in failures] == [f"host_sync:{READS[name]}"]
