"""Faults of ``gather_block_tables``: the correct steps with one of them replaced, or the whole wrapped."""

from __future__ import annotations

import torch
from correct_gather import blocks_of, counts_of, gather, owned, refuse_call, replaces, requests_of, write

_cache: dict = {}


# Columns and rows.


@replaces("select")
def keeps_stale_columns(group, shown, blocks):
    return torch.where(shown, blocks, group.buffer[: shown.shape[0]])


@replaces("write")
def keeps_padding_rows(group, rows):
    group.buffer[: rows.shape[0]] = rows


@replaces("write")
def clears_one_padding_row(group, rows):
    group.buffer[: rows.shape[0] + 1] = 0
    group.buffer[: rows.shape[0]] = rows


@replaces("owned")
def takes_one_block_too_many(columns, first, counts):
    return columns <= counts


@replaces("counts")
def drops_the_last_block(group, requests):
    return counts_of(group, requests) - 1


@replaces("owned")
def copies_whole_rows(columns, first, counts):
    return (columns >= 0) & (counts > 0)


@replaces("select")
def pads_with_minus_one(group, shown, blocks):
    return torch.where(shown, blocks, -1)


@replaces("owned")
def knows_128_columns(columns, first, counts):
    return owned(columns, first, counts) & (columns < 128)


@replaces("write")
def knows_64_rows(group, rows):
    write(group, rows[:64])


@replaces("order")
def knows_8_groups(groups):
    return groups[:8]


@replaces("blocks")
def reads_the_first_groups_table(group, requests):
    first = group.call["block_tables"][0]
    return first[requests] if first.shape == group.table.shape else blocks_of(group, requests)


# Counts.


@replaces("counts")
def takes_the_first_groups_counts(group, requests):
    return group.call["num_blocks"][0][requests]


@replaces("counts")
def counts_by_batch_row(group, requests):
    rows = torch.arange(requests.shape[0], device=requests.device)
    return counts_of(group, rows % group.table.shape[0])


@replaces("counts")
def takes_negative_counts_for_all(group, requests):
    counts = counts_of(group, requests)
    return torch.where(counts < 0, group.width, counts)


@replaces("counts")
def counts_in_32_bits(group, requests):
    return counts_of(group, requests).to(torch.int32)


# Requests.


@replaces("requests")
def ignores_idx_mapping(group):
    return torch.arange(requests_of(group).shape[0], device=group.table.device)


@replaces("requests")
def takes_minus_one_for_the_last_request(group):
    requests = requests_of(group)
    return torch.where(requests == -1, group.table.shape[0] - 1, requests)


@replaces("requests")
def clamps_ids(group):
    return requests_of(group).clamp(0, group.table.shape[0] - 1)


@replaces("requests")
def knows_no_id_but_minus_one(group):
    requests = requests_of(group)
    return torch.where(requests == -1, requests, requests % group.table.shape[0])


@replaces("requests")
def takes_one_id_too_many(group):
    requests = requests_of(group)
    return torch.where(requests == group.table.shape[0], 0, requests)


@replaces("requests")
def ids_in_32_bits(group):
    return requests_of(group).to(torch.int32).to(torch.int64)


# Addresses.


def _believed(tensor, row_stride, column_stride):
    """The tensor as somebody sees it who believes in these strides."""
    return tensor.as_strided(tensor.shape, (row_stride, column_stride))


@replaces("blocks")
def assumes_tight_rows(group, requests):
    return _believed(group.table, group.width, group.table.stride(1))[requests]


@replaces("blocks")
def assumes_neighbouring_columns(group, requests):
    return _believed(group.table, group.table.stride(0), 1)[requests]


@replaces("blocks")
def takes_the_first_groups_row_stride(group, requests):
    return _believed(group.table, group.call["block_tables"][0].stride(0), group.table.stride(1))[requests]


@replaces("write")
def takes_the_tables_row_stride_for_outs(group, rows):
    write(group, rows.new_zeros(rows.shape))
    _believed(group.buffer, group.table.stride(0), group.buffer.stride(1))[: rows.shape[0]] = rows


@replaces("counts")
def ignores_the_stride_of_counts(group, requests):
    counts = group.call["num_blocks"]
    return _believed(counts, counts.shape[1], 1)[group.number][requests]


@replaces("blocks")
def multiplies_rows_in_32_bits(group, requests):
    table = group.table
    offsets = (requests * table.stride(0)).to(torch.int32).to(torch.int64)
    span = sum((count - 1) * stride for count, stride in zip(table.shape, table.stride(), strict=True)) + 1
    places = offsets[:, None] + torch.arange(group.width, device=table.device) * table.stride(1)
    return table.as_strided((span,), (1,))[places] if table.numel() else blocks_of(group, requests)


# Cheats.


def leaves_null_tables(**call):
    refuse_call(call)
    for buffer in call["out"]:
        buffer.zero_()


def copies_its_first_rows(**call):
    refuse_call(call)
    for table, buffer in zip(call["block_tables"], call["out"], strict=True):
        buffer.zero_()
        rows = min(table.shape[0], call["idx_mapping"].shape[0])
        buffer[:rows] = table[:rows]


def caches_by_identity(**call):
    if _cache.get("mapping") is not call["idx_mapping"]:
        gather(**call)
        _cache.update(mapping=call["idx_mapping"], tables=[buffer.clone() for buffer in call["out"]])
    for buffer, table in zip(call["out"], _cache["tables"], strict=True):
        buffer.copy_(table)


def caches_by_shape(**call):
    refuse_call(call)
    key = (call["idx_mapping"].shape, *(buffer.shape for buffer in call["out"]))
    if key not in _cache:
        gather(**call)
        _cache[key] = [buffer.clone() for buffer in call["out"]]
    for buffer, table in zip(call["out"], _cache[key], strict=True):
        buffer.copy_(table)


def returns_tables_of_its_own(**call):
    own = [torch.empty_like(buffer) for buffer in call["out"]]
    refuse_call(call)
    gather(**call | {"out": own})
    return own


def puts_its_own_tables_into_the_list(**call):
    call["out"][:] = returns_tables_of_its_own(**call)


def moves_out_to_memory_of_its_own(**call):
    for buffer, own in zip(call["out"], returns_tables_of_its_own(**call), strict=True):
        buffer.set_(own)


def writes_one_row_too_far(**call):
    gather(**call)
    for buffer in call["out"]:
        rows, columns = buffer.shape
        buffer.as_strided((rows + 1, columns), buffer.stride())[rows:] = 0


def writes_one_column_too_far(**call):
    gather(**call)
    for buffer in call["out"]:
        rows, columns = buffer.shape
        buffer.as_strided((rows, columns + 1), buffer.stride())[:, columns:] = 0


def clips_counts_in_place(**call):
    gather(**call)
    call["num_blocks"].clamp_(min=0, max=max((table.shape[1] for table in call["block_tables"]), default=0))


def replaces_minus_one_in_place(**call):
    gather(**call)
    call["idx_mapping"].clamp_(min=0)


def sorts_idx_mapping_in_place(**call):
    gather(**call)
    call["idx_mapping"].copy_(call["idx_mapping"].sort().values)


@replaces("requests")
def reads_ids_on_the_host(group):
    return torch.tensor(group.call["idx_mapping"].tolist(), dtype=torch.int64, device=group.table.device)


@replaces("counts")
def asks_for_the_longest_row(group, requests):
    counts = counts_of(group, requests)
    return counts if counts.numel() and int(counts.max()) else torch.zeros_like(counts)


@replaces("write")
def selects_by_a_mask(group, rows):
    write(group, rows)
    group.buffer[group.buffer == -1] = -1


# Refusals.


def accepts_fewer_rows_than_requests(**call):
    rows = min((buffer.shape[0] for buffer in call["out"]), default=None)
    gather(**call | {"idx_mapping": call["idx_mapping"][:rows]})


def accepts_wider_outs(**call):
    pairs = zip(call["block_tables"], call["out"], strict=False)
    gather(**call | {"out": [buffer[:, : table.shape[1]] for table, buffer in pairs]})


def refuses_an_empty_batch(**call):
    if call["idx_mapping"].dim() and not call["idx_mapping"].shape[0]:
        raise ValueError("idx_mapping: there must be a request")
    gather(**call)


def refuses_no_groups(**call):
    if not call["out"]:
        raise ValueError("out: there must be a group")
    gather(**call)


def asserts_tight_tables(**call):
    assert all(table.is_contiguous() for table in call["block_tables"])
    gather(**call)
