"""The laws of slot mappings (4.3, 4.5) hold on the specification, and each one catches faults planted here."""

import functools
import itertools

import numpy as np
import pytest

from oracles.arrays import array
from oracles.contract import Values
from oracles.contracts import by_name

PLAIN, HYBRID = (by_name(f"block_table.{name}") for name in ("slot_mapping", "slot_mapping_hybrid"))
LAWS = [(contract, law) for contract in (PLAIN, HYBRID) for law in contract.relations]
each_law = pytest.mark.parametrize(("contract", "law"), LAWS, ids=[f"{c.name}-{law.name}" for c, law in LAWS])
PAD = -1
SAMPLED, MANY = 40, 200

LEAST = {"smaller_blocks_keep_slots": SAMPLED // 8}
"""Blocks of one token have no smaller ones, and ids near 2^31 leave no room."""


def specification(inputs):
    answer = (HYBRID if "enabled" in inputs else PLAIN).expected(inputs)
    assert isinstance(answer, Values), f"a law asks for an answer to inputs without one: {answer}"
    return answer.outputs


@each_law
def test_holds_on_sampled_inputs_and_applies_to_many_of_them(contract, law, sampled, applications):
    assert applications(law, sampled(contract.full_name), specification) >= LEAST.get(law.name, SAMPLED // 4)


@each_law
def test_holds_on_every_small_input(contract, law, small):
    for inputs in small(contract.full_name):
        assert law.holds(specification, inputs) is None


def step(positions, **changes):
    inputs = {
        "block_table": array([[5, 6], [9, 2]], "int32"),
        "idx_mapping": array([1], "int32"),
        "query_start_loc": array([1, 1 + len(positions)], "int32"),
        "positions": array([0, *positions], "int32"),
        "block_size": 4,
        "cp_size": 1,
        "cp_rank": 0,
        "cp_interleave": 1,
        "slot_mapping": array(range(50, 52 + len(positions)), "int64"),
    }
    return inputs | changes


def switched_off(positions):
    inputs = step(positions, kernel_block_size=2, enabled=False)
    return {name: inputs[name] for name in (item.name for item in HYBRID.inputs)}


def explode(inputs):
    raise AssertionError("a law that does not apply must not call the function")


def test_no_other_law_applies_to_a_group_that_is_switched_off():
    asked = {"twice_is_once", "switched_off_is_padding"}
    for law in HYBRID.relations:
        if law.name not in asked:
            assert law.holds(explode, switched_off([3, 4])) is None


def test_laws_about_tokens_do_not_apply_without_any():
    for law in PLAIN.relations:
        if law.name in ("slots_lead_back", "ranks_cover_each_token_once", "a_cut_row_keeps_its_slots"):
            assert law.holds(explode, step([])) is None


def test_positions_stay_in_the_range_of_their_dtype():
    for law in PLAIN.relations:
        assert law.holds(specification, step([(1 << 31) - 1])) is None


def test_the_last_slot_of_block_minus_1_is_no_padding():
    table = array([[-1, 6], [7, -1]], "int32")
    for law in PLAIN.relations:
        assert law.holds(specification, step([2, 3, 4, 7], block_table=table)) is None


def edited(edit):
    """The specification with the slots changed by ``edit(inputs, slots, buffer)``."""

    @functools.wraps(edit)
    def wrong(inputs):
        slots, buffer = specification(inputs)["slot_mapping"].copy(), inputs["slot_mapping"].data
        return {"slot_mapping": edit(inputs, slots, buffer)}

    return wrong


def with_other(change):
    """The specification asked about other inputs."""

    @functools.wraps(change)
    def wrong(inputs):
        return specification(inputs | change(inputs))

    return wrong


def starts(inputs):
    return np.minimum(inputs["query_start_loc"].data, inputs["positions"].data.size)


@with_other
def takes_rows_for_requests(inputs):
    rows = inputs["idx_mapping"]
    return {"idx_mapping": rows.with_values(np.arange(rows.data.size))}


@with_other
def positions_from_the_first_token_of_the_row(inputs):
    positions, begins = inputs["positions"].data.copy(), starts(inputs)
    for begin, end in itertools.pairwise(begins):
        positions[begin:end] = np.arange(end - begin)
    return {"positions": inputs["positions"].with_values(positions)}


@with_other
def the_last_token_is_forgotten(inputs):
    begins = inputs["query_start_loc"].data.copy()
    begins[-1] = max(begins[-1] - 1, begins[-2]) if len(begins) > 1 else begins[-1]
    return {"query_start_loc": inputs["query_start_loc"].with_values(begins)}


@with_other
def first_start_taken_for_zero(inputs):
    begins = inputs["query_start_loc"]
    return {"query_start_loc": begins.with_values(begins.data - begins.data[0])}


@with_other
def clamps_positions_to_the_row(inputs):
    size = inputs.get("kernel_block_size", inputs["block_size"])
    last = max(inputs["block_table"].shape[1] * size * inputs["cp_size"] - 1, 0)
    return {"positions": inputs["positions"].with_values(np.minimum(inputs["positions"].data, last))}


@with_other
def every_rank_owns_every_token(inputs):
    return {"cp_size": 1, "cp_rank": 0}


@with_other
def interleaves_single_tokens(inputs):
    return {"cp_interleave": 1}


@with_other
def all_ranks_take_the_first_ones_tokens(inputs):
    return {"cp_rank": 0}


@with_other
def looks_up_by_the_managers_blocks(inputs):
    return {"kernel_block_size": inputs["block_size"]} if "enabled" in inputs else {}


@with_other
def owners_by_kernel_blocks(inputs):
    return {"block_size": inputs["kernel_block_size"], "cp_interleave": 1} if "enabled" in inputs else {}


@with_other
def a_ring_of_two_blocks(inputs):
    positions, ring = inputs["positions"], 2 * inputs["block_size"] * inputs["cp_size"]
    return {"positions": positions.with_values(np.where(positions.data < 0, PAD, positions.data % ring))}


@edited
def masks_offsets_as_if_blocks_were_powers_of_two(inputs, slots, buffer):
    size, begin, end = inputs.get("kernel_block_size", inputs["block_size"]), *starts(inputs)[[0, -1]]
    own, positions = slots[begin:end], inputs["positions"].data[begin:end]
    if inputs["cp_size"] == 1:
        slots[begin:end] = np.where(own == PAD, PAD, own // size * size + (positions & (size - 1)))
    return slots


@edited
def the_last_rank_owns_nothing(inputs, slots, buffer):
    own = slice(starts(inputs)[0], starts(inputs)[-1])
    if inputs["cp_rank"] == inputs["cp_size"] - 1 > 0:
        slots[own] = PAD
    return slots


@edited
def forgets_the_place_in_the_block(inputs, slots, buffer):
    own = slice(starts(inputs)[0], starts(inputs)[-1])
    slots[own] -= np.maximum(slots[own], 0) % inputs.get("kernel_block_size", inputs["block_size"])
    return slots


@edited
def slots_of_32_bits(inputs, slots, buffer):
    return slots.astype(np.int32).astype(np.int64)


@edited
def pads_existing_tokens_only(inputs, slots, buffer):
    count = inputs["positions"].data.size
    return np.concatenate([slots[:count], buffer[count:]])


@edited
def pads_nothing(inputs, slots, buffer):
    return np.where(slots == PAD, buffer, slots)


@edited
def pads_the_whole_buffer_first(inputs, slots, buffer):
    slots[: starts(inputs)[0]] = PAD
    return slots


@edited
def adds_to_the_buffer(inputs, slots, buffer):
    return slots + buffer


@edited
def knows_the_first_row_only(inputs, slots, buffer):
    slots[starts(inputs)[1:2].sum() :] = PAD
    return slots


@edited
def null_blocks_have_no_slots(inputs, slots, buffer):
    own = slice(starts(inputs)[0], starts(inputs)[-1])
    size = inputs.get("kernel_block_size", inputs["block_size"])
    slots[own] = np.where(slots[own] // size == 0, PAD, slots[own])
    return slots


@edited
def the_interleave_must_divide_blocks_on_one_rank_too(inputs, slots, buffer):
    return slots if inputs["block_size"] % inputs["cp_interleave"] == 0 else np.full(slots.shape, PAD)


@edited
def own_blocks_are_taken_for_switched_off(inputs, slots, buffer):
    off = inputs.get("kernel_block_size") == inputs["block_size"]
    return np.full(slots.shape, PAD) if off else slots


def leaves_the_buffer_when_switched_off(inputs):
    off = inputs.get("enabled") is False
    return {"slot_mapping": inputs["slot_mapping"].data} if off else specification(inputs)


CAUGHT_BY = {
    "rows_are_free_to_move": [takes_rows_for_requests, knows_the_first_row_only],
    "requests_are_free_to_move": [takes_rows_for_requests],
    "slots_move_with_their_block": [slots_of_32_bits, null_blocks_have_no_slots],
    "parts_join": [pads_the_whole_buffer_first, knows_the_first_row_only, takes_rows_for_requests],
    "a_smaller_batch_leaks_nothing": [pads_existing_tokens_only, pads_nothing],
    "twice_is_once": [adds_to_the_buffer],
    "only_the_tokens_in_front_are_kept": [
        pads_existing_tokens_only,
        pads_nothing,
        pads_the_whole_buffer_first,
        adds_to_the_buffer,
    ],
    "tokens_in_front_only_shift": [first_start_taken_for_zero, pads_the_whole_buffer_first],
    "a_cut_row_keeps_its_slots": [positions_from_the_first_token_of_the_row, knows_the_first_row_only],
    "one_more_token_keeps_the_earlier": [the_last_token_is_forgotten, positions_from_the_first_token_of_the_row],
    "ranks_cover_each_token_once": [
        every_rank_owns_every_token,
        all_ranks_take_the_first_ones_tokens,
        the_last_rank_owns_nothing,
        clamps_positions_to_the_row,
        the_last_token_is_forgotten,
        forgets_the_place_in_the_block,
    ],
    "slots_lead_back": [
        interleaves_single_tokens,
        takes_rows_for_requests,
        positions_from_the_first_token_of_the_row,
        every_rank_owns_every_token,
    ],
    "a_block_in_front_moves_positions": [positions_from_the_first_token_of_the_row, a_ring_of_two_blocks],
    "smaller_blocks_keep_slots": [masks_offsets_as_if_blocks_were_powers_of_two],
    "alone_the_interleave_is_idle": [the_interleave_must_divide_blocks_on_one_rank_too],
}
CAUGHT_WITH_KERNEL_BLOCKS = {
    "slots_lead_back": [looks_up_by_the_managers_blocks, owners_by_kernel_blocks],
    "smaller_blocks_keep_slots": [looks_up_by_the_managers_blocks],
    "own_blocks_are_plain": [own_blocks_are_taken_for_switched_off],
    "switched_off_is_padding": [leaves_the_buffer_when_switched_off],
}
CAUGHT = [
    (contract, law, fault)
    for contract, table in ((PLAIN, CAUGHT_BY), (HYBRID, CAUGHT_BY), (HYBRID, CAUGHT_WITH_KERNEL_BLOCKS))
    for law, faults in table.items()
    for fault in faults
]


@each_law
def test_every_law_has_a_planted_fault(contract, law):
    assert any((contract.name, law.name) == (one.name, name) for one, name, _ in CAUGHT)


@pytest.mark.parametrize(
    ("contract", "name", "fault"), CAUGHT, ids=[f"{c.name}-{name}-{fault.__name__}" for c, name, fault in CAUGHT]
)
def test_catches_a_planted_fault(contract, name, fault, sampled, small):
    law = next(law for law in contract.relations if law.name == name)
    problems = (law.holds(fault, inputs) for inputs in [*small(contract.full_name), *sampled(contract.full_name, MANY)])
    found = next((problem for problem in problems if problem), None)
    assert found, f"{name} accepts a wrong function on every input"
    assert "\n" not in found


def a_slot_less(inputs):
    return {"slot_mapping": specification(inputs)["slot_mapping"][:-1]}


@each_law
def test_outputs_of_a_wrong_shape_break_every_law(contract, law, sampled):
    problems = {law.holds(a_slot_less, inputs) for inputs in sampled(contract.full_name)[:20]} - {None}
    assert problems
    assert all("has shape" in problem for problem in problems)
