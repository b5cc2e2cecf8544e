"""Adapter of vLLM's GDN builder and its runner for contract 5: what is reused, what updates write, how lives end."""

from __future__ import annotations

import copy
from pathlib import Path
from types import SimpleNamespace

import pytest

from oracles import known
from oracles.case import Case
from oracles.contracts import by_name, reuse_bindings
from oracles.contracts._reuse_upstream import MOVED, NO_INDICES, OWN, REFILLED, UNSHARED, GdnLife
from oracles.domain import Sampler
from oracles.providers.archives import ArchiveTree
from oracles.providers.binding import LiftedBinding, chosen
from oracles.verdict import Unsupported
from reference.metadata_records import Batch, LinearConfig, LinearSpec

pytestmark = pytest.mark.upstream
torch = pytest.importorskip("torch")

CONTRACT = by_name("metadata_reuse.linear_metadata_reuse")
CORPUS = Path(__file__).parents[2] / "corpus" / "metadata_reuse"
LIVES = 25
"""Drawn lives whose faults are foretold. Release tests ask hundreds."""


@pytest.fixture(scope="module")
def loaded():
    """The adapter of each wheel, once."""
    return {}


@pytest.fixture
def builder(released, loaded):
    """The adapter, constructed as the contract's builders are."""
    if released not in loaded:
        [binding] = reuse_bindings.LINEAR_METADATA_REUSE
        tree = ArchiveTree(released)
        choice = chosen(tree, binding, {})
        loaded[released] = choice.lacking or LiftedBinding(lambda: tree, binding, choice)()
    if isinstance(loaded[released], str):
        pytest.skip(loaded[released])
    return loaded[released]


def made(builder, mode="none", **fields):
    """A builder of a group whose graphs have four rows."""
    spec = LinearSpec(
        **{"block_size": 4, "num_speculative_blocks": 0, "dtype": "bfloat16", "page_size_bytes": 4096, **fields},
        mamba_cache_mode=mode,
    )
    config = LinearConfig(num_speculative_tokens=0, max_num_reqs=4, max_graph_rows=4)
    return builder(spec, config, torch.device("cpu"))


def decodes(*lengths, full_graph=False, step=0):
    """A step of one query a request."""
    starts = torch.arange(len(lengths) + 1, dtype=torch.int32)
    seq_lens = torch.tensor(lengths, dtype=torch.int32)
    return Batch(
        step=step, query_start_loc=starts, query_start_loc_cpu=starts, seq_lens=seq_lens, seq_lens_cpu=seq_lens,
        num_actual_tokens=len(lengths), full_graph=full_graph,
    )  # fmt: skip


def table(*rows):
    return torch.tensor(rows, dtype=torch.int32)


SLOTS = torch.arange(2)


def states(metadata):
    return metadata.non_spec_state_indices_tensor.tolist()


def test_a_group_reuses_what_another_built_in_the_same_step(builder) -> None:
    first, other = made(builder), made(builder)
    batch = decodes(5, 6, full_graph=True)
    built = first.build(batch, table([1], [2]), SLOTS)
    assert other.can_reuse_metadata(built, batch)
    updated = other.update_block_table(built, table([3], [4]), SLOTS)
    assert (states(built), states(updated)) == ([1, 2], [3, 4])
    assert updated.non_spec_query_start_loc is built.non_spec_query_start_loc


def test_the_runner_reuses_nothing_of_other_steps_specs_and_copies(builder) -> None:
    first, other = made(builder), made(builder)
    batch, later = decodes(5, 6), decodes(6, 7, step=1)
    old = first.build(batch, table([1], [2]), SLOTS)
    assert not made(builder, dtype="float16").can_reuse_metadata(old, batch)
    assert not other.can_reuse_metadata(copy.copy(old), batch)
    assert not other.can_reuse_metadata(old, later)
    first.build(later, table([1], [2]), SLOTS)
    assert not other.can_reuse_metadata(old, later)


def test_one_builder_for_two_groups_overwrites_the_states_of_the_first(builder) -> None:
    only, batch = made(builder), decodes(5, 6, full_graph=True)
    built = only.build(batch, table([11], [21]), SLOTS)
    assert only.can_reuse_metadata(built, batch)
    only.update_block_table(built, table([111], [121]), SLOTS)
    assert states(built) == [111, 121]


def test_an_update_knows_no_aligned_columns(builder, released) -> None:
    batch, rows = decodes(5, 6), ([1, 2, 3], [4, 5, 6])
    first, other = made(builder, "align"), made(builder, "align")
    built = first.build(batch, table(*rows), SLOTS)
    assert states(built) == [2, 5]
    with pytest.raises(AssertionError):
        other.update_block_table(built, table(*rows), SLOTS)
    first, other = made(builder, "all"), made(builder, "all")
    built = first.build(batch, table(*rows), SLOTS)
    assert states(built) == ([1, 4] if released.name.startswith("vllm-0.31") else [2, 5])
    assert states(other.update_block_table(built, table(*rows), SLOTS)) == [1, 4]


@pytest.mark.parametrize(
    ("case", "end"),
    [
        ("unshared-buffers", UNSHARED),
        ("build-after-a-captured-update", MOVED),
        ("one-builder-for-two-groups", OWN),
        ("batch-refilled-in-place", REFILLED),
        ("update-without-aligned-indices", NO_INDICES),
        ("update-in-mode-all", None),
    ],
)
def test_it_is_foretold_where_a_life_ends(case: str, end: str | None) -> None:
    assert GdnLife(Case.load(CORPUS / f"{case}.json").inputs).live().end == end


def test_drawn_lives_show_what_is_foretold_and_nothing_else(builder, released) -> None:
    from oracles.backends import by_name as backend_by_name
    from oracles.check import Subject, judge

    [binding] = reuse_bindings.LINEAR_METADATA_REUSE
    implementation = SimpleNamespace(
        provider=ArchiveTree(released).label, name=binding.name, narrowings=binding.narrowings, refuses=False,
        refusal_types=(ValueError,), graphs=False,
    )  # fmt: skip
    entries = known.applicable(CONTRACT, implementation, "host")
    assert entries
    shown: set[str] = set()
    for number in range(LIVES):
        inputs = CONTRACT.domain(Sampler(11, number))
        try:
            keys = {
                item.key for item in judge(Subject(CONTRACT, implementation, builder, backend_by_name("host")), inputs)
            }
        except Unsupported:
            continue
        matching = [item.entry for item in entries if item.matches(inputs)]
        assert keys <= {key for entry in matching for key in entry.shows}, number
        assert all(keys & set(entry.shows) for entry in matching), number
        shown |= {entry.id for entry in matching}
    assert len(shown) >= 5
