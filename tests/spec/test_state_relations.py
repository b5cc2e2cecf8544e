"""The laws of state columns (3.1, 3.2) hold on the specification, and each one catches faults planted here."""

import functools

import numpy as np
import pytest

from oracles.arrays import array
from oracles.contract import Values
from oracles.contracts import by_name

COLUMNS, STAGING = (by_name(f"state_columns.{name}") for name in ("state_columns", "stage_decode_state"))
LAWS = [(contract, law) for contract in (COLUMNS, STAGING) for law in contract.relations]
each_law = pytest.mark.parametrize(("contract", "law"), LAWS, ids=[f"{c.name}-{law.name}" for c, law in LAWS])
SAMPLED, MANY = 40, 200


def specification(inputs):
    answer = (STAGING if "state_buffer" in inputs else COLUMNS).expected(inputs)
    assert isinstance(answer, Values), f"a law asks for an answer to inputs without one: {answer}"
    return answer.outputs


@each_law
def test_holds_on_sampled_inputs_and_applies_to_many_of_them(contract, law, sampled, applications):
    assert applications(law, sampled(contract.full_name), specification) >= SAMPLED // 4


@each_law
def test_holds_on_every_small_input(contract, law, small):
    for inputs in small(contract.full_name):
        assert law.holds(specification, inputs) is None


def step(lengths, **changes):
    inputs = {
        "block_table": array([[5, 6, 7]] * len(lengths), "int32"),
        "seq_lens": array(lengths, "int32"),
        "mamba_cache_mode": "align",
        "block_size": 4,
        "num_speculative_blocks": 1,
    }
    return inputs | changes


def test_lengths_stay_in_the_range_of_their_dtype():
    for law in COLUMNS.relations:
        assert law.holds(specification, step([(1 << 31) - 1, -(1 << 31)])) is None


def test_blocks_of_more_tokens_than_lengths_count_are_one_block():
    for law in COLUMNS.relations:
        assert law.holds(specification, step([9, (1 << 31) - 1], block_size=1 << 40)) is None


def test_tables_without_columns_are_null():
    for law in COLUMNS.relations:
        assert law.holds(specification, step([9, 1], block_table=array(np.zeros((2, 0)), "int32"))) is None


def test_starts_stay_in_the_range_of_their_dtype(small):
    largest = {"query_start_loc": array([(1 << 31) - 1] * 2, "int32")}
    inputs = next(inputs for inputs in small(STAGING.full_name) if inputs["state_indices"].shape[0] == 1) | largest
    for law in STAGING.relations:
        assert law.holds(specification, inputs) is None


def edited(edit):
    """The specification with its columns, or its buffers, changed by ``edit(inputs, ...)``."""

    @functools.wraps(edit)
    def wrong(inputs):
        outputs = {name: np.array(value) for name, value in specification(inputs).items()}
        edit(inputs, outputs)
        if "state_buffer" not in inputs:
            return outputs
        rows = inputs["batch_size"]
        for view, buffer, more in zip(VIEWS, BUFFERS, (0, 1, 0), strict=True):
            outputs[view] = outputs[buffer][: rows + more]
        return outputs

    return wrong


def with_other(change):
    """The specification asked about other inputs."""

    @functools.wraps(change)
    def wrong(inputs):
        return specification(inputs | change(inputs))

    return wrong


VIEWS = ("state_indices_staged", "query_start_loc_staged", "num_accepted_tokens_staged")
BUFFERS = ("state_buffer", "query_start_loc_buffer", "num_accepted_buffer")


def lengths_as(inputs, change):
    lengths = inputs["seq_lens"]
    top = np.iinfo(lengths.data.dtype).max
    return {"seq_lens": lengths.with_values(np.minimum(change(lengths.data.astype(np.int64)), top))}


# Wrong columns


@with_other
def takes_the_block_of_the_next_token(inputs):
    return lengths_as(inputs, lambda lengths: np.where(lengths > 0, lengths + (lengths < 1 << 40), lengths))


@with_other
def rounds_up(inputs):
    return lengths_as(inputs, lambda lengths: np.where(lengths > 1, lengths - 1 + inputs["block_size"], lengths))


@with_other
def knows_every_request_by_the_first_length(inputs):
    return lengths_as(inputs, lambda lengths: np.resize(lengths[:1], lengths.shape))


@with_other
def takes_mode_all_for_none(inputs):
    wide = inputs["block_table"].shape[1] > inputs["num_speculative_blocks"]
    return {"mamba_cache_mode": "none"} if inputs["mamba_cache_mode"] == "all" and wide else {}


@with_other
def looks_at_lengths_in_mode_none(inputs):
    return {"mamba_cache_mode": "align"}


@with_other
def takes_negative_lengths_for_positive(inputs):
    return lengths_as(inputs, lambda lengths: np.where(lengths < 0, np.minimum(-lengths, 1 << 40), lengths))


@with_other
def shifts_by_powers_of_two(inputs):
    return {"block_size": 1 << (inputs["block_size"].bit_length() - 1)}


@edited
def clamps_columns(inputs, outputs):
    found, width = outputs["state_indices"], inputs["block_table"].shape[1]
    if width:
        last = inputs["block_table"].data[:, -1:]
        outputs["state_indices"] = np.where(found == 0, last, found)


@edited
def pads_with_minus_one(inputs, outputs):
    outputs["state_indices"][outputs["state_indices"] == 0] = -1


@edited
def counts_columns_from_the_end(inputs, outputs):
    outputs["state_indices"] = outputs["state_indices"][:, ::-1]


@edited
def knows_the_first_row_only(inputs, outputs):
    outputs["state_indices"][1:] = 0


@edited
def takes_every_row_for_the_first(inputs, outputs):
    outputs["state_indices"][1:] = outputs["state_indices"][:1]


@edited
def ids_of_16_bits(inputs, outputs):
    outputs["state_indices"] = outputs["state_indices"].astype(np.int16).astype(np.int32)


@edited
def the_speculative_columns_follow_the_first_block(inputs, outputs):
    columns = inputs["block_table"].data[:, 1 : outputs["state_indices"].shape[1]]
    outputs["state_indices"][:, 1 : 1 + columns.shape[1]] = columns


@with_other
def the_last_column_of_the_table_is_null(inputs):
    table = inputs["block_table"].data.copy()
    table[:, -1:] = 0
    return {"block_table": inputs["block_table"].with_values(table)}


@edited
def the_largest_id_is_null(inputs, outputs):
    outputs["state_indices"][outputs["state_indices"] == inputs["block_table"].data.max(initial=0)] = 0


# Wrong staging


@edited
def padding_keeps_old_states(inputs, outputs):
    rows = inputs["state_indices"].shape[0]
    outputs["state_buffer"][rows:] = inputs["state_buffer"].data[rows:]


@edited
def padding_keeps_old_starts(inputs, outputs):
    rows = inputs["state_indices"].shape[0]
    outputs["query_start_loc_buffer"][rows + 1 :] = inputs["query_start_loc_buffer"].data[rows + 1 :]


@edited
def padding_gets_the_last_row(inputs, outputs):
    rows, graph = inputs["state_indices"].shape[0], inputs["batch_size"]
    outputs["state_buffer"][rows:graph] = outputs["state_buffer"][max(rows - 1, 0)] if rows else 0


@edited
def padding_accepts_nothing(inputs, outputs):
    outputs["num_accepted_buffer"][inputs["state_indices"].shape[0] : inputs["batch_size"]] = 0


@edited
def padding_starts_at_zero(inputs, outputs):
    outputs["query_start_loc_buffer"][inputs["state_indices"].shape[0] + 1 : inputs["batch_size"] + 1] = 0


@edited
def clears_what_is_behind(inputs, outputs):
    outputs["state_buffer"][inputs["batch_size"] :] = 0


@edited
def pads_accepted_counts_to_the_end(inputs, outputs):
    outputs["num_accepted_buffer"][inputs["state_indices"].shape[0] :] = 1


@edited
def adds_to_the_buffer(inputs, outputs):
    outputs["num_accepted_buffer"] += inputs["num_accepted_buffer"].data


@edited
def sorts_accepted_counts(inputs, outputs):
    rows = inputs["state_indices"].shape[0]
    outputs["num_accepted_buffer"][:rows] = np.sort(outputs["num_accepted_buffer"][:rows])


@edited
def starts_from_zero(inputs, outputs):
    graph = inputs["batch_size"]
    outputs["query_start_loc_buffer"][: graph + 1] -= inputs["query_start_loc"].data[0].astype(np.int32)


@edited
def reads_int64_as_pairs_of_int32(inputs, outputs):
    counts = inputs["num_accepted_tokens"].data
    outputs["num_accepted_buffer"][: counts.size] = counts.view(np.int32)[: counts.size]


@edited
def leaves_the_last_row(inputs, outputs):
    rows = inputs["state_indices"].shape[0]
    outputs["state_buffer"][rows - 1 : rows] = inputs["state_buffer"].data[rows - 1 : rows]


def returns_copies_from_before(inputs):
    outputs = dict(specification(inputs))
    outputs["state_indices_staged"] = inputs["state_buffer"].data[: inputs["batch_size"]]
    return outputs


CAUGHT_IN_COLUMNS = {
    "rows_are_free_to_move": [knows_the_first_row_only, knows_every_request_by_the_first_length],
    "blocks_are_free_to_move": [ids_of_16_bits, the_largest_id_is_null],
    "parts_join": [knows_the_first_row_only, takes_every_row_for_the_first],
    "fewer_blocks_are_a_prefix": [counts_columns_from_the_end],
    "null_columns_behind_are_idle": [clamps_columns, the_last_column_of_the_table_is_null],
    "one_prefix_in_mode_none": [rounds_up, looks_at_lengths_in_mode_none, counts_columns_from_the_end],
    "two_modes_are_one": [takes_mode_all_for_none],
    "lengths_below_one_are_one": [takes_negative_lengths_for_positive, takes_the_block_of_the_next_token],
    "a_token_more_moves_on_at_a_boundary": [
        looks_at_lengths_in_mode_none,
        takes_the_block_of_the_next_token,
        the_speculative_columns_follow_the_first_block,
    ],
    "a_block_in_front_moves_on": [takes_mode_all_for_none, the_speculative_columns_follow_the_first_block],
    "blocks_of_one_token_count_blocks": [shifts_by_powers_of_two, takes_the_block_of_the_next_token],
    "columns_lead_back": [
        takes_the_block_of_the_next_token,
        rounds_up,
        shifts_by_powers_of_two,
        clamps_columns,
        pads_with_minus_one,
        takes_mode_all_for_none,
        takes_every_row_for_the_first,
    ],
}
CAUGHT_IN_STAGING = {
    "views_are_the_beginnings": [returns_copies_from_before],
    "rows_of_the_step_are_copied": [leaves_the_last_row, reads_int64_as_pairs_of_int32, sorts_accepted_counts],
    "padding_is_null_rows": [
        padding_keeps_old_states,
        padding_keeps_old_starts,
        padding_accepts_nothing,
        padding_gets_the_last_row,
        padding_starts_at_zero,
    ],
    "twice_is_once": [adds_to_the_buffer],
    "a_smaller_batch_leaks_nothing": [padding_keeps_old_states, padding_keeps_old_starts, padding_gets_the_last_row],
    "a_smaller_graph_keeps_what_is_behind": [clears_what_is_behind, pads_accepted_counts_to_the_end],
    "a_larger_graph_adds_padding": [padding_keeps_old_states, padding_accepts_nothing],
    "only_rows_of_the_graph_are_written": [
        clears_what_is_behind,
        pads_accepted_counts_to_the_end,
        adds_to_the_buffer,
        leaves_the_last_row,
    ],
    "rows_are_free_to_move": [sorts_accepted_counts, leaves_the_last_row],
    "starts_only_shift": [starts_from_zero, padding_starts_at_zero],
    "widths_are_idle": [reads_int64_as_pairs_of_int32],
}
CAUGHT = [
    (contract, law, fault)
    for contract, table in ((COLUMNS, CAUGHT_IN_COLUMNS), (STAGING, CAUGHT_IN_STAGING))
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


def a_row_less(inputs):
    return {name: value[:-1] for name, value in specification(inputs).items()}


@each_law
def test_outputs_of_a_wrong_shape_break_every_law(contract, law, sampled):
    problems = {law.holds(a_row_less, inputs) for inputs in sampled(contract.full_name)[:20]} - {None}
    assert problems
    assert all("has shape" in problem for problem in problems)
