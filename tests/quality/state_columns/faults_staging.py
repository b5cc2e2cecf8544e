"""Faults of ``stage_decode_state``: the correct steps with one of them replaced, or the whole wrapped."""

from __future__ import annotations

import torch
from correct_staging import BUFFERS, refuse, replaces, stage, stage_accepted, stage_starts, stage_states, views_of

_cache: dict = {}


# States.


@replaces("states")
def padding_keeps_old_states(call, rows):
    call.state_buffer[:rows] = call.state_indices


@replaces("states")
def padding_has_state_minus_one(call, rows):
    stage_states(call, rows)
    call.state_buffer[rows : call.batch_size] = -1


@replaces("states")
def padding_has_the_last_rows_state(call, rows):
    stage_states(call, rows)
    if rows:
        call.state_buffer[rows : call.batch_size] = call.state_indices[-1]


@replaces("states")
def pads_one_row_only(call, rows):
    call.state_buffer[:rows] = call.state_indices
    call.state_buffer[rows : min(rows + 1, call.batch_size)] = 0


@replaces("states")
def pads_the_first_column_only(call, rows):
    call.state_buffer[:rows] = call.state_indices
    call.state_buffer[rows : call.batch_size, :1] = 0


@replaces("states")
def clears_the_whole_buffer(call, rows):
    call.state_buffer.zero_()
    stage_states(call, rows)


@replaces("states")
def pads_one_row_past_the_graph(call, rows):
    stage_states(call, rows)
    call.state_buffer[call.batch_size : call.batch_size + 1] = 0


@replaces("states")
def stages_the_first_column_only(call, rows):
    before = call.state_buffer[:rows, 1:].clone()
    stage_states(call, rows)
    call.state_buffer[:rows, 1:] = before


@replaces("states")
def forgets_the_last_row(call, rows):
    before = call.state_buffer[max(rows - 1, 0) : rows].clone()
    stage_states(call, rows)
    call.state_buffer[max(rows - 1, 0) : rows] = before


@replaces("states")
def takes_null_states_for_padding(call, rows):
    stage_states(call, rows)
    call.state_buffer[:rows].mul_((call.state_indices[:, :1] > 0).to(torch.int32))


@replaces("states")
def passes_states_through_floats(call, rows):
    stage_states(call, rows)
    call.state_buffer[:rows] = call.state_indices.to(torch.float32).to(torch.float64).clamp(max=(1 << 31) - 1)


# Starts.


@replaces("starts")
def padding_keeps_old_starts(call, rows):
    call.query_start_loc_buffer[: rows + 1] = call.query_start_loc


@replaces("starts")
def padding_starts_at_zero(call, rows):
    stage_starts(call, rows)
    call.query_start_loc_buffer[rows + 1 : call.batch_size + 1] = 0


@replaces("starts")
def padding_repeats_the_start_before_the_last(call, rows):
    stage_starts(call, rows)
    call.query_start_loc_buffer[rows + 1 : call.batch_size + 1] = call.query_start_loc[max(rows - 1, 0)]


@replaces("starts")
def padding_has_a_token_each(call, rows):
    stage_starts(call, rows)
    places = torch.arange(call.batch_size - rows, device=call.query_start_loc.device)
    call.query_start_loc_buffer[rows + 1 : call.batch_size + 1] += (places + 1).to(torch.int32)


@replaces("starts")
def forgets_the_end_of_the_graph(call, rows):
    before = call.query_start_loc_buffer[call.batch_size :].clone()
    stage_starts(call, rows)
    if rows < call.batch_size:
        call.query_start_loc_buffer[call.batch_size :] = before


@replaces("starts")
def repeats_the_last_start_to_the_end(call, rows):
    stage_starts(call, rows)
    call.query_start_loc_buffer[rows + 1 :] = call.query_start_loc[rows]


@replaces("starts")
def begins_at_zero(call, rows):
    stage_starts(call, rows)
    call.query_start_loc_buffer[:1] = 0


@replaces("starts")
def has_no_start_without_rows(call, rows):
    stage_starts(call, rows) if rows else call.query_start_loc_buffer[: call.batch_size + 1].zero_()


@replaces("starts")
def clamps_starts(call, rows):
    stage_starts(call, rows)
    call.query_start_loc_buffer[: call.batch_size + 1].clamp_(min=0)


# Accepted counts.


@replaces("accepted")
def padding_accepts_nothing(call, rows):
    call.num_accepted_buffer[:rows] = call.num_accepted_tokens
    call.num_accepted_buffer[rows : call.batch_size] = 0


@replaces("accepted")
def padding_keeps_old_counts(call, rows):
    call.num_accepted_buffer[:rows] = call.num_accepted_tokens


@replaces("accepted")
def pads_counts_to_the_end(call, rows):
    stage_accepted(call, rows)
    call.num_accepted_buffer[rows:] = 1


@replaces("accepted")
def clamps_counts_to_the_columns(call, rows):
    stage_accepted(call, rows)
    call.num_accepted_buffer[:rows].clamp_(min=1, max=call.state_indices.shape[1])


@replaces("accepted")
def reads_int64_as_pairs_of_int32(call, rows):
    stage_accepted(call, rows)
    pairs = call.num_accepted_tokens.contiguous()
    call.num_accepted_buffer[:rows] = (pairs.view(torch.int32) if rows else pairs)[:rows]


# Addresses.


def _believed(tensor, *strides):
    """The tensor as somebody sees it who believes in these strides."""
    return tensor.as_strided(tensor.shape, strides)


@replaces("accepted")
def ignores_the_stride_of_counts(call, rows):
    call.num_accepted_tokens = _believed(call.num_accepted_tokens, 1)
    stage_accepted(call, rows)


@replaces("starts")
def ignores_the_stride_of_starts(call, rows):
    call.query_start_loc = _believed(call.query_start_loc, 1)
    stage_starts(call, rows)


@replaces("states")
def assumes_tight_states(call, rows):
    call.state_indices = _believed(call.state_indices, call.state_indices.shape[1], call.state_indices.stride(1))
    stage_states(call, rows)


@replaces("states")
def assumes_neighbouring_columns(call, rows):
    call.state_indices = _believed(call.state_indices, call.state_indices.stride(0), 1)
    stage_states(call, rows)


@replaces("states")
def assumes_a_tight_buffer(call, rows):
    buffer = call.state_buffer
    call.state_buffer = _believed(buffer, buffer.shape[1], buffer.stride(1))
    stage_states(call, rows)
    call.state_buffer = buffer


@replaces("starts")
def assumes_a_tight_start_buffer(call, rows):
    buffer = call.query_start_loc_buffer
    call.query_start_loc_buffer = _believed(buffer, 1)
    stage_starts(call, rows)
    call.query_start_loc_buffer = buffer


# Cheats.


def stages_padding_only(**inputs):
    views = stage(**inputs)
    for view, value in zip(views, (0, 0, 1), strict=True):
        view.fill_(value)
    return views


def returns_what_is_there(**inputs):
    kept = [inputs[name].clone() for name in BUFFERS]
    views = stage(**inputs)
    for name, before in zip(BUFFERS, kept, strict=True):
        inputs[name].copy_(before)
    return views


def caches_by_identity(**inputs):
    if _cache.get("states") is not inputs["state_indices"]:
        _cache.update(states=inputs["state_indices"], views=[view.clone() for view in stage(**inputs)])
    views = stage(**inputs)
    for view, kept in zip(views, _cache["views"], strict=True):
        view.copy_(kept)
    return views


def caches_by_shape(**inputs):
    views = stage(**inputs)
    key = (inputs["state_indices"].shape, inputs["batch_size"], inputs["state_buffer"].shape)
    for view, kept in zip(views, _cache.setdefault(key, [view.clone() for view in views]), strict=True):
        view.copy_(kept)
    return views


def stages_into_tensors_of_its_own(**inputs):
    own = {name: inputs[name].clone() for name in BUFFERS}
    return stage(**inputs | own)


@replaces("views")
def returns_copies_of_the_buffers(call):
    return tuple(view.clone() for view in views_of(call))


@replaces("views")
def returns_whole_buffers(call):
    return tuple(getattr(call, name) for name in BUFFERS)


@replaces("views")
def returns_rows_of_the_step(call):
    call.batch_size = call.state_indices.shape[0]
    return views_of(call)


def writes_one_row_too_far(**inputs):
    views, buffer = stage(**inputs), inputs["num_accepted_buffer"]
    buffer.as_strided((buffer.shape[0] + 1,), buffer.stride())[-1] = 1
    return views


def writes_between_rows(**inputs):
    views, buffer = stage(**inputs), inputs["state_buffer"]
    gap = buffer.stride(0) - buffer.shape[1] * buffer.stride(1)
    if buffer.shape[0] > 1 and gap > 0:
        buffer.as_strided((1,), (1,), buffer.storage_offset() + buffer.stride(0) - 1).zero_()
    return views


def clamps_counts_in_place(**inputs):
    views = stage(**inputs)
    inputs["num_accepted_tokens"].clamp_(min=1, max=1)
    return views


@replaces("accepted")
def reads_counts_on_the_host(call, rows):
    for row, count in enumerate(call.num_accepted_tokens.tolist()):
        call.num_accepted_buffer[row : row + 1] = count
    call.num_accepted_buffer[rows : call.batch_size] = 1


@replaces("starts")
def asks_for_the_last_start(call, rows):
    stage_starts(call, rows)
    call.query_start_loc_buffer[rows + 1 : call.batch_size + 1] = int(call.query_start_loc[-1])


# Refusals.


@replaces("refuse")
def accepts_batches_past_the_capacity(call):
    call.batch_size = min(call.batch_size, call.state_buffer.shape[0])
    refuse(call)


@replaces("refuse")
def accepts_fewer_rows_than_requests(call):
    call.batch_size = max(call.batch_size, call.state_indices.shape[0])
    refuse(call)


@replaces("refuse")
def accepts_other_columns(call):
    width = min(call.state_buffer.shape[1], call.state_indices.shape[1])
    call.state_buffer, call.state_indices = call.state_buffer[:, :width], call.state_indices[:, :width]
    refuse(call)


@replaces("refuse")
def refuses_empty_steps(call):
    refuse(call)
    if not call.state_indices.shape[0]:
        raise ValueError("state_indices: must have a row")


@replaces("refuse")
def refuses_full_graphs(call):
    refuse(call)
    if call.batch_size == call.state_buffer.shape[0]:
        raise ValueError("batch_size: must be below the capacity")


@replaces("refuse")
def asserts_tight_states(call):
    refuse(call)
    assert call.state_indices.is_contiguous()


def refuses_after_it_has_written(**inputs):
    inputs["num_accepted_buffer"][:1] = 1
    return stage(**inputs)
