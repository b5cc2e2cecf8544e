"""Faults of ``gather_block_tables_windowed``: what it adds to ``gather_block_tables``, replaced."""

from __future__ import annotations

from dataclasses import replace

import torch
from correct_gather import first_of, gather, refuse, refuse_call, replaces, select

_cache: dict = {}


def _window(group):
    """The reach and the block size of a group."""
    return group.call["window_reach"][group.number], group.call["block_sizes"][group.number]


def _computed(group, requests):
    return group.call["num_computed_tokens"][requests].to(torch.int64)


def _with(group, **arguments):
    """The group of a call with other arguments."""
    return replace(group, call=group.call | arguments)


# Where a window begins.


@replaces("first")
def rounds_up(group, requests):
    reach, size = _window(group)
    return -((reach - _computed(group, requests)).clamp(max=0) // size) if reach else requests * 0


@replaces("first")
def keeps_one_block_more(group, requests):
    return (first_of(group, requests) - 1).clamp(min=0)


@replaces("owned")
def hides_one_block_more(columns, first, counts):
    return (columns > first - (first == 0).long()) & (columns < counts)


@replaces("first")
def reach_ends_one_token_early(group, requests):
    reach, size = _window(group)
    return (_computed(group, requests) - reach + 1).clamp(min=0) // size if reach else requests * 0


@replaces("first")
def reach_ends_one_token_late(group, requests):
    reach, size = _window(group)
    return (_computed(group, requests) - reach - 1).clamp(min=0) // size if reach else requests * 0


@replaces("first")
def ignores_the_reach(group, requests):
    reach, size = _window(group)
    return _computed(group, requests).clamp(min=0) // size if reach else requests * 0


@replaces("first")
def takes_no_window_for_one_of_no_tokens(group, requests):
    reach, size = _window(group)
    return (_computed(group, requests) - reach).clamp(min=0) // size


@replaces("first")
def ignores_windows(group, requests):
    return requests * 0


@replaces("first")
def rounds_both_alone(group, requests):
    reach, size = _window(group)
    return (_computed(group, requests).clamp(min=0) // size - reach // size).clamp(min=0) if reach else requests * 0


@replaces("first")
def computed_tokens_by_batch_row(group, requests):
    rows = torch.arange(requests.shape[0], device=requests.device)
    return first_of(group, rows % group.table.shape[0])


@replaces("first")
def takes_the_first_groups_reach(group, requests):
    return first_of(_with(group, window_reach=group.call["window_reach"][:1] * len(group.call["out"])), requests)


@replaces("first")
def takes_the_first_groups_block_size(group, requests):
    return first_of(_with(group, block_sizes=group.call["block_sizes"][:1] * len(group.call["out"])), requests)


@replaces("first")
def subtracts_in_32_bits(group, requests):
    reach, size = _window(group)
    left = _computed(group, requests).to(torch.int32) - reach
    return left.clamp(min=0).to(torch.int64) // size if reach else requests * 0


@replaces("first")
def ignores_the_stride_of_computed_tokens(group, requests):
    computed = group.call["num_computed_tokens"]
    return first_of(_with(group, num_computed_tokens=computed.as_strided(computed.shape, (1,))), requests)


@replaces("first")
def hides_the_whole_row_of_negative_counts(group, requests):
    reach, size = _window(group)
    left = _computed(group, requests) - reach
    return torch.where(left < -reach, group.width, left.clamp(min=0) // size) if reach else requests * 0


# What stands in hidden columns.


@replaces("select")
def moves_blocks_to_the_front(group, shown, blocks):
    order = (~shown).long().sort(dim=1, stable=True).indices
    return select(group, shown, blocks).gather(1, order)


@replaces("select")
def hidden_columns_hold_minus_one(group, shown, blocks):
    behind = shown.flip(1).cummax(1).values.flip(1)
    return torch.where(shown, blocks, torch.where(behind, -1, 0))


@replaces("select")
def hidden_columns_keep_what_they_held(group, shown, blocks):
    behind = shown.to(torch.int32).flip(1).cummax(1).values.flip(1) > 0
    return torch.where(shown, blocks, torch.where(behind, group.buffer[: shown.shape[0]], 0))


@replaces("owned")
def counts_begin_at_the_window(columns, first, counts):
    return (columns >= first) & (columns < counts + first)


@replaces("owned")
def forgets_the_counts(columns, first, counts):
    return (columns >= first) & (counts > 0)


# Cheats.


def caches_by_identity_of_computed_tokens(**call):
    if _cache.get("computed") is not call["num_computed_tokens"]:
        gather(**call)
        _cache.update(computed=call["num_computed_tokens"], tables=[buffer.clone() for buffer in call["out"]])
    for buffer, table in zip(call["out"], _cache["tables"], strict=True):
        buffer.copy_(table)


def clamps_computed_tokens_in_place(**call):
    gather(**call)
    call["num_computed_tokens"].clamp_(min=0)


@replaces("first")
def reads_computed_tokens_on_the_host(group, requests):
    first = first_of(group, requests)
    return first if not first.numel() or first.max().item() else torch.zeros_like(first)


def writes_before_its_tables(**call):
    gather(**call)
    for buffer in call["out"]:
        if buffer.numel():
            buffer.as_strided((1,), (1,), buffer.storage_offset() - 1).zero_()


# Refusals.


@replaces("refuse")
def accepts_negative_reaches(call):
    refuse_call(call | {"window_reach": [max(reach, 0) for reach in call["window_reach"]]})


@replaces("refuse")
def accepts_one_reach_for_all_groups(call):
    reaches = call["window_reach"]
    refuse_call(call | {"window_reach": reaches * len(call["out"]) if len(reaches) == 1 else reaches})
    call["window_reach"] = list(reaches) * len(call["out"])


@replaces("refuse")
def checks_what_4_2_checks(call):
    refuse(*(call[name] for name in ("block_tables", "num_blocks", "idx_mapping", "out")))


def refuses_groups_without_a_window(**call):
    refuse_call(call)
    if 0 in call["window_reach"]:
        raise ValueError("window_reach: must be at least 1")
    gather(**call)
