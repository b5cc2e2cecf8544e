"""Faults of ``state_columns``: the correct steps with one of them replaced, or the whole wrapped."""

from __future__ import annotations

import torch
from correct_columns import blocks_of, columns_of, find_columns, first_of, inside, lengths_of, refuse, replaces

_cache: dict = {}


# The first column.


@replaces("first")
def takes_the_block_of_the_next_token(call, lengths):
    return lengths.clamp(min=0) // call.block_size


@replaces("first")
def rounds_up(call, lengths):
    return -((1 - lengths.clamp(min=1)) // call.block_size)


@replaces("first")
def takes_the_block_before_the_last(call, lengths):
    return (first_of(call, lengths) - 1).clamp(min=0)


@replaces("first")
def begins_past_a_full_block(call, lengths):
    return first_of(call, lengths) + (lengths > 0) * (lengths % call.block_size == 0)


@replaces("first")
def counts_empty_requests_from_the_end(call, lengths):
    return torch.where(lengths > 0, first_of(call, lengths), max(call.block_table.shape[1] - 1, 0))


@replaces("first")
def takes_absolute_lengths(call, lengths):
    return first_of(call, lengths.abs())


@replaces("first")
def shifts_by_powers_of_two(call, lengths):
    return (lengths.clamp(min=1) - 1) >> (call.block_size.bit_length() - 1)


@replaces("first")
def knows_blocks_of_up_to_16_tokens(call, lengths):
    return (lengths.clamp(min=1) - 1) // min(call.block_size, 16)


@replaces("first")
def takes_the_longest_requests_column(call, lengths):
    first = first_of(call, lengths)
    return first.max().expand(first.shape) if first.numel() else first


@replaces("first")
def takes_the_first_requests_column(call, lengths):
    return first_of(call, lengths)[:1].expand(lengths.shape)


@replaces("lengths")
def lengths_in_32_bits(call):
    return call.seq_lens.to(torch.int32).to(torch.int64)


@replaces("lengths")
def reads_int64_as_pairs_of_int32(call):
    return call.seq_lens.contiguous().view(torch.int32)[: call.seq_lens.shape[0]].to(torch.int64)


# Modes.


@replaces("aligned")
def takes_all_for_none(call):
    return call.mamba_cache_mode == "align"


@replaces("aligned")
def aligns_in_every_mode(call):
    return True


@replaces("aligned")
def aligns_where_nobody_speculates(call):
    return call.mamba_cache_mode != "none" and not call.num_speculative_blocks


# The other columns.


@replaces("columns")
def repeats_the_first_column(call, first):
    return columns_of(call, first) * 0 + first[:, None]


@replaces("columns")
def speculative_columns_follow_the_first_block(call, first):
    columns = columns_of(call, first) - first[:, None]
    return torch.where(columns == 0, first[:, None], columns)


@replaces("columns")
def speculative_columns_lie_in_front(call, first):
    return columns_of(call, first).flip(1)


@replaces("columns")
def has_no_room_for_the_last_block(call, first):
    return columns_of(call, first)[:, :-1] if call.num_speculative_blocks else columns_of(call, first)


@replaces("columns")
def has_a_column_more(call, first):
    return torch.cat([columns_of(call, first), columns_of(call, first)[:, -1:] + 1], 1)


# Past the row.


@replaces("inside")
def clamps_past_the_row(call, columns):
    return inside(call, columns.clamp(max=call.block_table.shape[1] - 1))


@replaces("inside")
def forgets_the_last_column(call, columns):
    return columns < max(call.block_table.shape[1] - 1, 1)


@replaces("inside")
def has_no_block_where_the_last_column_is_missing(call, columns):
    return inside(call, columns[:, -1:]).expand(columns.shape)


@replaces("inside")
def empty_requests_have_no_block(call, columns):
    return inside(call, columns) & (call.seq_lens > 0)[:, None]


@replaces("select")
def pads_with_minus_one(call, there, blocks):
    return torch.where(there, blocks, -1)


@replaces("select")
def absurd_ids_are_null(call, there, blocks):
    return torch.where(there & (blocks >= 0), blocks, 0)


def reads_the_next_row(**inputs):
    """Past the row lies the next one; only behind the last row is nothing."""
    found, table = find_columns(**inputs), inputs["block_table"]
    if inputs["mamba_cache_mode"] == "none":
        return found
    size, lengths = inputs["block_size"], inputs["seq_lens"].to(torch.int64)
    first = ((lengths.clamp(min=1) - 1) // size)[:, None]
    rows = torch.arange(table.shape[0], device=table.device)[:, None]
    places = rows * table.shape[1] + first + torch.arange(found.shape[1], device=table.device)
    flat = torch.cat([table.reshape(-1), table.new_zeros(1)])
    return flat[places.clamp(max=table.numel())]


# Addresses.


def _believed(tensor, *strides):
    """The tensor as somebody sees it who believes in these strides."""
    return tensor.as_strided(tensor.shape, strides)


def _through(call, table, columns):
    """Blocks of another table."""
    seen = type(call)(**{**vars(call), "block_table": table})
    return blocks_of(seen, columns)


@replaces("blocks")
def assumes_tight_rows(call, columns):
    table = call.block_table
    return _through(call, _believed(table, table.shape[1], table.stride(1)), columns)


@replaces("blocks")
def assumes_neighbouring_columns(call, columns):
    return _through(call, _believed(call.block_table, call.block_table.stride(0), 1), columns)


@replaces("lengths")
def ignores_the_stride_of_lengths(call):
    return _believed(call.seq_lens, 1).to(torch.int64)


@replaces("blocks")
def multiplies_rows_in_32_bits(call, columns):
    table = call.block_table
    if not table.numel():
        return blocks_of(call, columns)
    rows = torch.arange(table.shape[0], device=table.device)
    offsets = (rows * table.stride(0)).to(torch.int32).to(torch.int64)[:, None]
    span = sum((count - 1) * stride for count, stride in zip(table.shape, table.stride(), strict=True)) + 1
    places = offsets + columns.clamp(0, table.shape[1] - 1) * table.stride(1)
    return table.as_strided((span,), (1,))[places]


@replaces("select")
def knows_64_rows(call, there, blocks):
    rows = torch.arange(blocks.shape[0], device=blocks.device)[:, None]
    return torch.where(there & (rows < 64), blocks, 0)


# Cheats.


def returns_null(**inputs):
    return torch.zeros_like(find_columns(**inputs))


def returns_the_prefix(**inputs):
    found, table = find_columns(**inputs), inputs["block_table"]
    more = found.shape[1] - table.shape[1]
    return torch.cat([table, table.new_zeros(table.shape[0], max(more, 0))], 1)[:, : found.shape[1]]


def caches_by_identity(**inputs):
    if _cache.get("lengths") is not inputs["seq_lens"]:
        _cache.update(lengths=inputs["seq_lens"], columns=find_columns(**inputs))
    return _cache["columns"].clone()


def caches_by_shape(**inputs):
    key = (inputs["block_table"].shape, inputs["num_speculative_blocks"])
    return _cache.setdefault(key, find_columns(**inputs)).clone()


def reuses_one_output_buffer(**inputs):
    found = find_columns(**inputs)
    return _cache.setdefault(found.shape, found.clone()).copy_(found)


def writes_one_column_too_far(**inputs):
    found = find_columns(**inputs)
    made = torch.empty(found.shape, dtype=found.dtype, device=found.device)
    made.as_strided((found.numel() + 1,), (1,)).zero_()
    return made.copy_(found)


def leaves_null_unwritten(**inputs):
    found = find_columns(**inputs)
    made = torch.empty(found.shape, dtype=found.dtype, device=found.device)
    return torch.where(found == 0, made, found)


def clamps_lengths_in_place(**inputs):
    found = find_columns(**inputs)
    inputs["seq_lens"].clamp_(min=0)
    return found


def clears_unused_columns_in_place(**inputs):
    found = find_columns(**inputs)
    inputs["block_table"][:, 1:].mul_((inputs["seq_lens"] > inputs["block_size"])[:, None])
    return found


@replaces("lengths")
def reads_lengths_on_the_host(call):
    return torch.tensor(call.seq_lens.tolist(), dtype=torch.int64, device=call.seq_lens.device)


@replaces("first")
def asks_for_the_longest(call, lengths):
    first = first_of(call, lengths)
    return first if first.numel() and int(lengths.max()) > call.block_size else torch.zeros_like(first)


@replaces("select")
def selects_by_a_mask(call, there, blocks):
    blocks = blocks.clone()
    blocks[~there] = 0
    return blocks


def returns_int64(**inputs):
    return find_columns(**inputs).to(torch.int64)


# Refusals.


@replaces("refuse")
def accepts_narrow_tables(call):
    mode, call.mamba_cache_mode = call.mamba_cache_mode, "align" if call.mamba_cache_mode == "none" else "no mode"
    refuse(call) if mode == "none" else None
    call.mamba_cache_mode = mode
    if mode != "none":
        refuse(call)


@replaces("refuse")
def takes_unknown_modes_for_align(call):
    if call.mamba_cache_mode not in ("none", "all"):
        call.mamba_cache_mode = "align"
    refuse(call)


@replaces("refuse")
def accepts_fewer_lengths(call):
    if call.block_table.dim() == 2 and call.seq_lens.shape[0] < call.block_table.shape[0]:
        call.block_table = call.block_table[: call.seq_lens.shape[0]]
    refuse(call)


@replaces("refuse")
def accepts_negative_blocks(call):
    call.num_speculative_blocks = max(call.num_speculative_blocks, 0)
    refuse(call)


@replaces("refuse")
def refuses_narrow_tables_in_every_mode(call):
    refuse(call)
    if call.block_table.shape[1] <= call.num_speculative_blocks:
        raise ValueError("block_table: must have a column for each state")


@replaces("refuse")
def refuses_an_empty_batch(call):
    refuse(call)
    if not call.block_table.shape[0]:
        raise ValueError("block_table: must have a row")


@replaces("refuse")
def asserts_tight_tables(call):
    refuse(call)
    assert call.block_table.is_contiguous()


@replaces("blocks")
def gathers_past_the_row(call, columns):
    """As upstream's torch code does."""
    return call.block_table.gather(1, columns)


@replaces("lengths")
def divides_lengths_of_one_dtype(call):
    """As if no length were int64."""
    return lengths_of(call).to(call.seq_lens.dtype) if call.seq_lens.dtype == torch.int32 else call.seq_lens[:0]
