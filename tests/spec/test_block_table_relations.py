"""The laws of block tables (4.2, 4.4, 4.6) hold on the specification, and each one catches faults planted here."""

import functools

import numpy as np
import pytest

from oracles.arrays import array
from oracles.contract import Values
from oracles.contracts import by_name

GATHER, KERNEL, WINDOWED = (
    by_name(f"block_table.{name}")
    for name in ("gather_block_tables", "kernel_block_table", "gather_block_tables_windowed")
)
LAWS = [(contract, law) for contract in (GATHER, KERNEL, WINDOWED) for law in contract.relations]
each_law = pytest.mark.parametrize(("contract", "law"), LAWS, ids=[f"{c.name}-{law.name}" for c, law in LAWS])
SAMPLED, MANY, SEED = 40, 200, 11


def specification(inputs):
    contract = KERNEL if "stride" in inputs else WINDOWED if "window_reach" in inputs else GATHER
    answer = contract.expected(inputs)
    assert isinstance(answer, Values), f"a law asks for an answer to inputs without one: {answer}"
    return answer.outputs


@each_law
def test_holds_on_sampled_inputs_and_applies_to_many_of_them(contract, law, applications, sampled):
    assert applications(law, sampled(contract.full_name, SAMPLED, SEED), specification) >= SAMPLED // 3


@each_law
def test_holds_on_every_small_input(contract, law, small):
    for inputs in small(contract.full_name):
        assert law.holds(specification, inputs) is None


def explode(inputs):
    raise AssertionError("a law that does not apply must not call the function")


def test_no_law_applies_without_groups_or_blocks():
    nothing = {"block_tables": (), "num_blocks": array(np.zeros((0, 2)), "int32"), "idx_mapping": array([1], "int32")}
    windows = {"num_computed_tokens": array([3, 4], "int32"), "window_reach": (), "block_sizes": ()}
    no_rows = {"block_table": array(np.zeros((0, 3)), "int32"), "blocks_per_kernel_block": 2, "stride": 2}
    for inputs, contract in (({**nothing, "out": ()}, GATHER), ({**nothing, **windows, "out": ()}, WINDOWED)):
        assert [law.name for law in contract.relations if law.holds(explode, inputs)] == []
    assert [law.name for law in KERNEL.relations if law.holds(explode, no_rows)] == []


def out(inputs):
    return [table.copy() for table in specification(inputs)["out"]]


def edited(edit):
    """The specification with each group's table changed by ``edit(inputs, group, table, buffer)``."""

    @functools.wraps(edit)
    def wrong(inputs):
        buffers = [buffer.data for buffer in inputs["out"]]
        return {"out": tuple(edit(inputs, group, table, buffers[group]) for group, table in enumerate(out(inputs)))}

    return wrong


def with_other(change):
    """The specification asked about other inputs."""

    @functools.wraps(change)
    def wrong(inputs):
        return specification(change(inputs))

    return wrong


def by_batch_row(inputs, values):
    """Numbers of requests, where row ``b`` of the batch is taken for request ``b``."""
    wrong = values.copy()
    for row, request in enumerate(inputs["idx_mapping"].data.tolist()):
        if 0 <= request < values.shape[-1] and row < values.shape[-1]:
            wrong[..., request] = values[..., row]
    return wrong


@with_other
def takes_rows_for_requests(inputs):
    rows = inputs["idx_mapping"]
    return {**inputs, "idx_mapping": rows.with_values(np.arange(rows.data.size))}


@with_other
def counts_of_the_batch_row(inputs):
    counts = inputs["num_blocks"]
    return {**inputs, "num_blocks": counts.with_values(by_batch_row(inputs, counts.data))}


@with_other
def counts_of_the_first_group(inputs):
    counts = inputs["num_blocks"]
    return {**inputs, "num_blocks": counts.with_values(np.broadcast_to(counts.data[:1], counts.shape))}


@with_other
def copies_whole_rows(inputs):
    counts = inputs["num_blocks"]
    return {**inputs, "num_blocks": counts.with_values(np.full(counts.shape, 1 << 20))}


@with_other
def one_block_too_many(inputs):
    counts = inputs["num_blocks"]
    return {**inputs, "num_blocks": counts.with_values(np.minimum(counts.data, 1 << 20) + 1)}


@edited
def keeps_what_is_not_written(inputs, group, table, buffer):
    return np.where(table == 0, buffer, table)


@edited
def keeps_padding_rows(inputs, group, table, buffer):
    return np.where(np.arange(len(table))[:, None] >= inputs["idx_mapping"].data.size, buffer, table)


@edited
def adds_to_the_buffer(inputs, group, table, buffer):
    return table + buffer


@edited
def ids_of_16_bits(inputs, group, table, buffer):
    return table & 0xFFFF


@edited
def negative_ids_are_null(inputs, group, table, buffer):
    return np.maximum(table, 0)


@edited
def knows_the_first_row_only(inputs, group, table, buffer):
    return np.where(np.arange(len(table))[:, None] == 0, table, 0)


@edited
def newest_block_first(inputs, group, table, buffer):
    return np.array([[*row[row != 0][::-1], *row[row == 0]] for row in table], np.int32).reshape(table.shape)


@edited
def first_group_everywhere(inputs, group, table, buffer):
    first = out(inputs)[0]
    return first if first.shape == table.shape else table


def bounds(inputs, group, reach=None):
    reach = inputs["window_reach"][group] if reach is None else reach
    computed = [int(tokens) for tokens in inputs["num_computed_tokens"].data]
    rows = [row if 0 <= row < len(computed) else None for row in inputs["idx_mapping"].data.tolist()]
    first = [0 if row is None else max(computed[row] - reach, 0) // inputs["block_sizes"][group] for row in rows]
    return np.array(first + [0] * (len(inputs["out"][group].data) - len(first)), object).reshape(-1, 1)


@edited
def reach_0_hides_all_that_is_computed(inputs, group, table, buffer):
    return np.where(np.arange(table.shape[1]) < bounds(inputs, group), 0, table)


@edited
def window_rounds_up(inputs, group, table, buffer):
    hidden = (np.arange(table.shape[1]) <= bounds(inputs, group)) & (inputs["window_reach"][group] > 0)
    return np.where(hidden, 0, table)


@edited
def hides_the_window_itself(inputs, group, table, buffer):
    hidden = (np.arange(table.shape[1]) > bounds(inputs, group)) & (inputs["window_reach"][group] > 0)
    return np.where(hidden, 0, table)


@with_other
def tokens_of_the_batch_row(inputs):
    computed = inputs["num_computed_tokens"]
    return {**inputs, "num_computed_tokens": computed.with_values(by_batch_row(inputs, computed.data))}


@with_other
def no_windows(inputs):
    return {**inputs, "window_reach": (0,) * len(inputs["window_reach"])}


def cut(edit):
    """The specification of 4.4 with its parts ``[R, M, k]`` changed by ``edit(inputs, parts)``."""

    @functools.wraps(edit)
    def wrong(inputs):
        table, count = specification(inputs)["kernel_table"], inputs["blocks_per_kernel_block"]
        parts = table.reshape(*inputs["block_table"].shape, count)
        return {"kernel_table": edit(inputs, parts.copy()).reshape(table.shape)}

    return wrong


@cut
def parts_count_down(inputs, parts):
    return parts[:, :, ::-1]


@cut
def null_has_no_parts(inputs, parts):
    return np.where(inputs["block_table"].data[:, :, None] == 0, 0, parts)


@cut
def part_by_part(inputs, parts):
    return parts.transpose(0, 2, 1)


@cut
def parts_turn_with_the_column(inputs, parts):
    return np.stack([np.roll(parts[:, c], c, axis=-1) for c in range(parts.shape[1])], axis=1)


@cut
def at_most_eight_parts(inputs, parts):
    return np.minimum(parts, parts[:, :, :1] + 7)


@cut
def the_last_row_is_forgotten(inputs, parts):
    parts[-1:] = 0
    return parts


@with_other
def without_gaps(inputs):
    return {**inputs, "stride": inputs["blocks_per_kernel_block"]}


CAUGHT_BY = {
    "rows_are_free_to_move": [takes_rows_for_requests, counts_of_the_batch_row, knows_the_first_row_only],
    "requests_are_free_to_move": [takes_rows_for_requests, counts_of_the_batch_row],
    "groups_do_not_meet": [counts_of_the_first_group, first_group_everywhere],
    "blocks_are_free_to_move": [ids_of_16_bits, negative_ids_are_null],
    "only_blocks_of_the_batch_matter": [copies_whole_rows, one_block_too_many],
    "parts_join": [takes_rows_for_requests, counts_of_the_batch_row, knows_the_first_row_only],
    "a_smaller_batch_leaks_nothing": [keeps_padding_rows, keeps_what_is_not_written],
    "twice_is_once": [adds_to_the_buffer],
    "the_buffer_leaks_nothing": [keeps_padding_rows, keeps_what_is_not_written, adds_to_the_buffer],
    "a_block_more_keeps_the_earlier": [newest_block_first, one_block_too_many, counts_of_the_first_group],
}
CAUGHT_IN_WINDOWS = {
    "requests_are_free_to_move": [tokens_of_the_batch_row],
    "no_reach_is_no_window": [reach_0_hides_all_that_is_computed, copies_whole_rows],
    "blocks_before_the_window_are_hidden": [window_rounds_up, tokens_of_the_batch_row, no_windows],
    "windows_move_forward": [hides_the_window_itself],
}
CAUGHT_IN_PARTS = {
    "blocks_are_free_to_move": [part_by_part, parts_turn_with_the_column],
    "parts_belong_to_the_id": [part_by_part, parts_turn_with_the_column, the_last_row_is_forgotten],
    "parts_lead_back": [parts_count_down, null_has_no_parts, without_gaps, at_most_eight_parts],
    "rows_join": [the_last_row_is_forgotten],
    "a_wider_stride_adds_the_id": [without_gaps],
    "cut_twice_is_cut_once": [at_most_eight_parts, parts_turn_with_the_column],
    "slots_stay_where_they_are": [parts_count_down, part_by_part, null_has_no_parts],
}
CAUGHT = [
    (contract, law, fault)
    for contract, table in (
        (GATHER, CAUGHT_BY),
        (WINDOWED, CAUGHT_BY),
        (WINDOWED, CAUGHT_IN_WINDOWS),
        (KERNEL, CAUGHT_IN_PARTS),
    )
    for law, faults in table.items()
    for fault in faults
]


@each_law
def test_every_law_has_a_planted_fault(contract, law):
    assert any((contract.name, law.name) == (one.name, name) for one, name, _ in CAUGHT)


@pytest.mark.parametrize(
    ("contract", "name", "fault"), CAUGHT, ids=[f"{c.name}-{name}-{fault.__name__}" for c, name, fault in CAUGHT]
)
def test_catches_a_planted_fault(contract, name, fault, small, sampled):
    law = next(law for law in contract.relations if law.name == name)
    drawn = [*small(contract.full_name), *sampled(contract.full_name, MANY, SEED)]
    problems = (law.holds(fault, inputs) for inputs in drawn)
    found = next((problem for problem in problems if problem), None)
    assert found, f"{name} accepts a wrong function on every input"
    assert "\n" not in found


def one_group_less(inputs):
    return {"out": tuple(out(inputs)[:-1])}


def a_row_less(inputs):
    if "stride" in inputs:
        return {"kernel_table": specification(inputs)["kernel_table"][:-1]}
    return {"out": tuple(table[:-1] for table in out(inputs))}


@each_law
def test_outputs_of_a_wrong_shape_break_every_law(contract, law, sampled):
    faults = [a_row_less] if contract is KERNEL else [a_row_less, one_group_less]
    for fault in faults:
        problems = {law.holds(fault, inputs) for inputs in sampled(contract.full_name, SAMPLED, SEED)[:20]} - {None}
        assert problems
        assert all("shape" in problem or "no list" in problem for problem in problems)
