"""The laws of the class BlockTables (4.1) hold on the specification, and each one catches faults planted here."""

import itertools
from copy import deepcopy

import numpy as np
import pytest

from oracles.arrays import array
from oracles.contract import Values
from oracles.contracts import by_name
from reference.block_table import BlockTables
from reference.errors import ContractError

CONTRACT = by_name("block_table.BlockTables")
BY_NAME = {law.name: law for law in CONTRACT.relations}
each_law = pytest.mark.parametrize("law", CONTRACT.relations, ids=list(BY_NAME))
NAME, SAMPLED, MANY, SEED = CONTRACT.full_name, 40, 200, 3

LEAST = dict.fromkeys(("clearing_is_overwriting_with_nothing", "overwriting_is_clearing_and_appending"), SAMPLED // 6)
"""Not every life has a request that is done, or one that comes back."""


def specification(inputs):
    answer = CONTRACT.expected(inputs)
    assert isinstance(answer, Values), f"a law asks for an answer to inputs without one: {answer}"
    return answer.outputs


def life(kind):
    """A life lived by objects of a class, which refuses with ``ContractError``."""

    def lived(inputs):
        tables = kind(*(inputs[name] for name in ("block_sizes", "max_num_reqs", "max_num_blocks_per_group")))
        shown = []
        for name, *values in inputs["operations"]:
            try:
                if name == "gather":
                    shown.append(tables.gather(inputs["idx_mappings"][values[0]].data, values[1]))
                else:
                    getattr(tables, name)(*values)
            except ContractError:
                continue
        return {"tables": tuple(shown)}

    lived.__name__ = kind.__name__
    return lived


@each_law
def test_holds_on_sampled_inputs_and_applies_to_many_of_them(law, applications, sampled):
    assert applications(law, sampled(NAME, SAMPLED, SEED), specification) >= LEAST.get(law.name, SAMPLED // 4)


@each_law
def test_holds_on_every_small_input(law, small):
    for inputs in small(NAME):
        assert law.holds(life(BlockTables), inputs) is None


def explode(inputs):
    raise AssertionError("a law that does not apply must not call the function")


@pytest.mark.parametrize(
    ("operations", "rows"),
    [([], [0, 1]), ([("gather", 0, 2)], [0, 1]), ([("apply",), ("gather", 0, 2)], [1, 0])],
    ids=["nothing", "no apply", "not in order"],
)
def test_laws_about_the_end_need_a_look_at_all_rows(operations, rows):
    inputs = {
        "block_sizes": (16,),
        "max_num_reqs": 2,
        "max_num_blocks_per_group": (3,),
        "operations": tuple(operations),
        "idx_mappings": (array(rows, "int32"),),
        "idx_buffer": None,
    }
    for name in ("looking_changes_nothing", "staged_is_not_seen", "cleared_is_null", "there_and_back_is_nothing"):
        assert BY_NAME[name].holds(explode, inputs) is None


class NewBlocksInFront(BlockTables):
    def append(self, req, ids_per_group, overwrite):
        held = [[] for _ in ids_per_group] if overwrite else deepcopy(self._staged[req])
        super().append(req, ids_per_group, overwrite)
        self._staged[req] = [[*new, *old] for new, old in zip(ids_per_group, held, strict=True)]


class OnlyTheLastAppendCounts(BlockTables):
    """What is staged for a request replaces what was staged for it before."""

    def append(self, req, ids_per_group, overwrite):
        super().append(req, ids_per_group, overwrite)
        if not overwrite:
            groups = zip(self._staged[req], self._applied[req], ids_per_group, strict=True)
            counts = [(own, min(len(applied), len(own) - len(new)), new) for own, applied, new in groups]
            self._staged[req] = [[*own[:count], *new] for own, count, new in counts]


class OverwriteKeepsTheTail(BlockTables):
    def append(self, req, ids_per_group, overwrite):
        held = deepcopy(self._staged.get(req))
        super().append(req, ids_per_group, overwrite)
        if overwrite:
            self._staged[req] = [own + old[len(own) :] for own, old in zip(self._staged[req], held, strict=True)]


class ClearForgetsTheLastGroup(BlockTables):
    def clear(self, req):
        held = deepcopy(self._staged.get(req))
        super().clear(req)
        self._staged[req][-1:] = held[-1:]


class TwoBuffers(BlockTables):
    """Every apply shows the other buffer, and fills it only if something was staged."""

    def apply(self):
        other, self._other = getattr(self, "_other", {n: self._no_blocks() for n in self._staged}), self._applied
        changed = self._staged != getattr(self, "_last", None)
        self._applied = deepcopy(self._staged) if changed else other
        self._last = deepcopy(self._staged)


class MoveOntoItselfErases(BlockTables):
    def move(self, src, dst):
        super().move(src, dst)
        if src == dst:
            self._staged[src] = self._no_blocks()


class SwapOfTheFirstGroup(BlockTables):
    def swap(self, a, b):
        super().swap(a, b)
        self._staged[a][1:], self._staged[b][1:] = self._staged[b][1:], self._staged[a][1:]


class SwapIsAMove(BlockTables):
    def swap(self, a, b):
        super().swap(a, b)
        if a != b:
            self._staged[a] = self._no_blocks()


class AppendsGroupByGroup(BlockTables):
    def append(self, req, ids_per_group, overwrite):
        try:
            super().append(req, ids_per_group, overwrite)
        except ContractError as error:
            if error.argument == "ids_per_group" and len(ids_per_group) == len(self._capacities):
                for own, new, most in zip(self._staged[req], ids_per_group, self._capacities, strict=True):
                    if len(own) + len(new) > most:
                        break
                    own += new
            raise


class GatherUsesUp(BlockTables):
    """What was gathered once is gone until the next apply."""

    def gather(self, idx_mapping, num_reqs_padded):
        shown = super().gather(idx_mapping, num_reqs_padded)
        self._applied = {request: self._no_blocks() for request in self._applied}
        return shown


class GatherShowsWhatIsStaged(BlockTables):
    def gather(self, idx_mapping, num_reqs_padded):
        self.apply()
        return super().gather(idx_mapping, num_reqs_padded)


class ClearsAtOnce(BlockTables):
    def clear(self, req):
        super().clear(req)
        self._applied[req] = self._no_blocks()


class MoveLeavesTheSource(BlockTables):
    def move(self, src, dst):
        held = deepcopy(self._staged.get(src))
        super().move(src, dst)
        self._staged[src] = held


class TakesRowsForRequests(BlockTables):
    def gather(self, idx_mapping, num_reqs_padded):
        super().gather(idx_mapping, num_reqs_padded)
        return super().gather(np.arange(idx_mapping.size), num_reqs_padded)


class RequestZeroIsNobody(BlockTables):
    def clear(self, req):
        if req != 0:
            super().clear(req)

    def append(self, req, ids_per_group, overwrite):
        super().append(req, ids_per_group, overwrite and req != 0)


class CountsOfTheFirstGroup(BlockTables):
    def gather(self, idx_mapping, num_reqs_padded):
        shown = super().gather(idx_mapping, num_reqs_padded)
        used = [(table != 0).sum(axis=1)[:, None] for table in shown[:1]] * len(shown)
        return tuple(np.where(np.arange(t.shape[1]) < n, t, 0) for t, n in zip(shown, used, strict=True))


class IdsOf16Bits(BlockTables):
    def gather(self, idx_mapping, num_reqs_padded):
        return tuple(table & 0xFFFF for table in super().gather(idx_mapping, num_reqs_padded))


CAUGHT_BY = {
    "appends_come_in_pieces": [NewBlocksInFront, OnlyTheLastAppendCounts],
    "overwriting_is_clearing_and_appending": [OverwriteKeepsTheTail],
    "clearing_is_overwriting_with_nothing": [ClearForgetsTheLastGroup, OverwriteKeepsTheTail],
    "applying_twice_is_once": [TwoBuffers],
    "idle_moves_change_nothing": [MoveOntoItselfErases, SwapIsAMove],
    "refused_operations_change_nothing": [AppendsGroupByGroup],
    "looking_changes_nothing": [GatherUsesUp],
    "staged_is_not_seen": [GatherShowsWhatIsStaged, ClearsAtOnce],
    "cleared_is_null": [ClearForgetsTheLastGroup],
    "moves_and_swaps_take_rows_along": [MoveLeavesTheSource, SwapOfTheFirstGroup, SwapIsAMove],
    "there_and_back_is_nothing": [MoveLeavesTheSource, SwapOfTheFirstGroup],
    "rows_are_free_to_move": [TakesRowsForRequests],
    "requests_are_free_to_move": [RequestZeroIsNobody],
    "groups_do_not_meet": [CountsOfTheFirstGroup],
    "blocks_are_free_to_move": [IdsOf16Bits],
}
CAUGHT = [(name, fault) for name, faults in CAUGHT_BY.items() for fault in faults]


def test_every_law_has_a_planted_fault():
    assert set(CAUGHT_BY) == set(BY_NAME)


@pytest.mark.parametrize(("name", "fault"), CAUGHT, ids=[f"{name}-{fault.__name__}" for name, fault in CAUGHT])
def test_catches_a_planted_fault(name, fault, small, sampled):
    problems = (
        BY_NAME[name].holds(life(fault), inputs) for inputs in itertools.chain(small(NAME), sampled(NAME, MANY, SEED))
    )
    found = next((problem for problem in problems if problem), None)
    assert found, f"{name} accepts a wrong class on every input"
    assert "\n" not in found


def without_the_last_gather(inputs):
    return {"tables": life(BlockTables)(inputs)["tables"][:-1]}


def without_the_last_group(inputs):
    return {"tables": tuple(shown[:-1] for shown in life(BlockTables)(inputs)["tables"])}


def without_the_last_row(inputs):
    return {"tables": tuple(tuple(table[:-1] for table in shown) for shown in life(BlockTables)(inputs)["tables"])}


@each_law
@pytest.mark.parametrize("fault", [without_the_last_gather, without_the_last_group, without_the_last_row])
def test_outputs_of_a_wrong_shape_break_every_law(law, fault, sampled):
    problems = {law.holds(fault, inputs) for inputs in sampled(NAME, SAMPLED, SEED)[:20]} - {None}
    assert problems
    assert all("gathers, not" in problem or "groups, not" in problem or "has shape" in problem for problem in problems)
