"""Correct ``sparse_page_indices`` in small steps. Each planted fault replaces a step or wraps the whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

INTEGERS = (torch.int32, torch.int64)
PAD = -1


def refuse(call):
    """Everything that is wrong by the text."""
    shapes = {"req_id_per_token": 1, "topk_indices": 2, "paged_kv_indptr": 1}
    for name, dimensions in shapes.items():
        if getattr(call, name).dim() != dimensions or getattr(call, name).dtype not in INTEGERS:
            raise ValueError(f"{name}: must be int32 or int64 of {dimensions} dimensions")
    if call.block_table.dim() != 2 or call.block_table.dtype != torch.int32:
        raise ValueError("block_table: must be int32 [R, M]")
    if call.paged_kv_indices.dim() != 1 or call.paged_kv_indices.dtype != torch.int32:
        raise ValueError("paged_kv_indices: must be int32 [capacity]")
    refuse_sizes(call)


def refuse_sizes(call):
    if call.block_size < 1 or call.block_stride < call.block_size:
        raise ValueError("block_stride: must be at least block_size, and that at least 1")
    count = call.req_id_per_token.shape[0]
    if call.topk_indices.shape[0] != count or call.paged_kv_indptr.shape[0] != count + 1:
        raise ValueError("topk_indices, paged_kv_indptr: must have a row, and one start more, for each query")


def starts_of(call):
    return call.paged_kv_indptr.to(torch.int64)


def table_of(call):
    return call.block_table


def asked_of(call):
    """The tokens that queries picked."""
    return call.topk_indices.to(torch.int64)


def requests_of(call):
    """The request of each query."""
    return call.req_id_per_token.to(torch.int64)


def elements_of(call):
    return torch.arange(call.paged_kv_indices.shape[0], device=call.paged_kv_indices.device)


def queries_of(call, starts):
    """The query that owns each element; any for those outside."""
    owners = torch.searchsorted(starts[1:].contiguous(), elements_of(call), right=True)
    return owners.clamp(max=call.req_id_per_token.shape[0] - 1)


def columns_of(call, starts, queries):
    """The column of each element's token."""
    return elements_of(call) - starts[queries]


def owned(call, starts):
    """Which elements queries own."""
    return (elements_of(call) >= starts[0]) & (elements_of(call) < starts[-1])


def tokens_of(call, asked, queries, columns):
    """The token of each element; none past the columns."""
    inside = (columns >= 0) & (columns < asked.shape[1])
    return torch.where(inside, asked[queries, torch.where(inside, columns, 0)], PAD)


def picked(call, tokens):
    """Which tokens there are."""
    return tokens >= 0


def known(call, requests):
    """Which requests there are."""
    return (requests >= 0) & (requests < call.block_table.shape[0])


def blocks_at(call, tokens):
    """The column of the table in which each token's block stands."""
    return tokens // call.block_size


def fits(call, places):
    """Which columns of the table there are."""
    return places < call.block_table.shape[1]


def blocks_of(call, table, requests, places):
    """Ids of blocks; requests and places are in the table."""
    return table[requests, places].to(torch.int64)


def slots_of(call, blocks, tokens):
    """Where tokens lie in the cache."""
    return blocks * call.block_stride + tokens % call.block_size


def write(call, starts, slots):
    """The slots of what queries own; the rest stays."""
    buffer = call.paged_kv_indices
    buffer.copy_(torch.where(owned(call, starts), slots.to(torch.int32), buffer))


@dataclass(frozen=True)
class Steps:
    """How slots are found."""

    refuse: Callable[..., Any] = refuse
    starts: Callable[..., Any] = starts_of
    table: Callable[..., Any] = table_of
    asked: Callable[..., Any] = asked_of
    requests: Callable[..., Any] = requests_of
    queries: Callable[..., Any] = queries_of
    columns: Callable[..., Any] = columns_of
    tokens: Callable[..., Any] = tokens_of
    picked: Callable[..., Any] = picked
    known: Callable[..., Any] = known
    places: Callable[..., Any] = blocks_at
    fits: Callable[..., Any] = fits
    blocks: Callable[..., Any] = blocks_of
    slots: Callable[..., Any] = slots_of
    write: Callable[..., Any] = write


def convert(steps=Steps(), /, **call):  # frozen
    """All steps together."""
    call = SimpleNamespace(**call)
    steps.refuse(call)
    if call.req_id_per_token.shape[0]:
        starts = steps.starts(call)
        steps.write(call, starts, padded_slots(steps, call, starts))


def padded_slots(steps, call, starts):
    """The slot of each element, or -1."""
    queries = steps.queries(call, starts)
    tokens = steps.tokens(call, steps.asked(call), queries, steps.columns(call, starts, queries))
    requests, places = steps.requests(call)[queries], steps.places(call, tokens)
    if not call.block_table.numel():
        return torch.full_like(tokens, PAD)
    valid = steps.picked(call, tokens) & steps.known(call, requests) & steps.fits(call, places)
    # Whatever a step calls valid, torch reads inside the table.
    rows, width = call.block_table.shape
    requests = torch.where(valid, requests, 0).clamp(0, rows - 1)
    blocks = steps.blocks(call, steps.table(call), requests, torch.where(valid, places, 0).clamp(0, width - 1))
    return torch.where(valid, steps.slots(call, blocks, tokens), PAD)


def replaces(step):
    """Makes a function that takes a step's place the conversion that has it."""
    return lambda function: partial(convert, Steps(**{step: function}))


def sparse_page_indices(
    *, req_id_per_token, block_table, topk_indices, paged_kv_indptr, block_size, block_stride, paged_kv_indices
):
    convert(**locals())
