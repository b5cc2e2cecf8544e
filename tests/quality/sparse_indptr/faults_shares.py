"""Faults of ``dcp_local_seq_lens``: the correct steps with one of them replaced, or the whole wrapped."""

from __future__ import annotations

import cheats
import torch
from correct_shares import ranks_of, refuse, replaces, result, share, turn

# Lengths.


@replaces("counted")
def takes_negative_lengths_for_lengths(call, lengths):
    return lengths


@replaces("counted")
def takes_negative_lengths_for_far_ones(call, lengths):
    return lengths.abs()


@replaces("counted")
def an_empty_sequence_has_a_token(call, lengths):
    return lengths.clamp(min=1)


@replaces("counted")
def the_last_token_is_not_counted(call, lengths):
    return (lengths - 1).clamp(min=0)


@replaces("counted")
def knows_4096_tokens(call, lengths):
    return lengths.clamp(0, 4096)


# Shares.


@replaces("whole")
def rounds_are_of_ranks(call, lengths):
    return lengths // call.dcp_size * call.interleave


@replaces("whole")
def forgets_the_rounds(call, lengths):
    return lengths * 0


@replaces("whole")
def counts_rounds_as_tokens(call, lengths):
    return lengths // (call.dcp_size * call.interleave)


@replaces("left")
def the_rest_is_of_a_turn(call, lengths):
    return lengths % (call.dcp_size * call.interleave) % call.interleave


@replaces("turn")
def nobody_gets_the_rest(call, rest, ranks):
    return rest * 0 + ranks * 0


@replaces("turn")
def the_first_rank_gets_the_rest(call, rest, ranks):
    return rest * (ranks == 0)


@replaces("turn")
def every_rank_gets_a_turn(call, rest, ranks):
    return rest.clamp(max=call.interleave) + ranks * 0


@replaces("turn")
def forgets_the_lower_bound(call, rest, ranks):
    return (rest - ranks * call.interleave).clamp(max=call.interleave)


@replaces("turn")
def forgets_the_upper_bound(call, rest, ranks):
    return (rest - ranks * call.interleave).clamp(min=0)


@replaces("turn")
def whole_turns_only(call, rest, ranks):
    return turn(call, rest, ranks) // call.interleave * call.interleave


@replaces("turn")
def rounds_turns_up(call, rest, ranks):
    return (turn(call, rest, ranks) > 0) * call.interleave


@replaces("turn")
def one_token_a_turn(call, rest, ranks):
    return (rest + call.dcp_size - 1 - ranks) // call.dcp_size


@replaces("turn")
def ranks_begin_at_1(call, rest, ranks):
    return turn(call, rest, ranks + 1)


@replaces("turn")
def ranks_in_falling_order(call, rest, ranks):
    return turn(call, rest, call.dcp_size - 1 - ranks)


@replaces("turn")
def the_rank_is_not_scaled(call, rest, ranks):
    return (rest - ranks).clamp(0, call.interleave)


def even_shares(**call):
    return share(**call | {"interleave": 1})


def parts_of_equal_length(**call):
    """Each rank gets a piece that is as long as the others."""
    ranks = 1 if call["dcp_rank"] is not None else call["dcp_size"]
    lengths = call["seq_lens"].to(torch.int64).clamp(min=0)
    size = max(call["dcp_size"], 1)
    shares = ((lengths + size - 1) // size)[..., None].expand(*lengths.shape, ranks)
    share(**call)
    return ((shares if call["dcp_rank"] is None else shares[..., 0]).to(torch.int32),)


# Ranks and shapes.


@replaces("ranks")
def no_rank_is_the_first(call):
    return ranks_of(call)[:1].expand(call.dcp_size if call.dcp_rank is None else 1)


@replaces("ranks")
def every_rank_is_the_first(call):
    return ranks_of(call) * 0


@replaces("ranks")
def rank_0_is_none(call):
    """``if dcp_rank`` for ``if dcp_rank is not None``."""
    return torch.arange(call.dcp_size, device=call.seq_lens.device).flip(0) if not call.dcp_rank else ranks_of(call)


@replaces("result")
def ranks_come_first(call, shares):
    return result(call, shares.movedim(-1, 0) if call.dcp_rank is None else shares)


@replaces("result")
def one_rank_keeps_its_axis(call, shares):
    return shares.to(torch.int32)


@replaces("result")
def a_number_becomes_a_vector(call, shares):
    found = result(call, shares)
    return found.reshape(1) if found.dim() == 0 else found


@replaces("result")
def flattens_lengths(call, shares):
    return result(call, shares.reshape(-1, shares.shape[-1]))


@replaces("result")
def returns_int64(call, shares):
    return result(call, shares).to(torch.int64)


@replaces("result")
def leaves_lengths_past_the_64th_unwritten(call, shares):
    found = result(call, shares)
    made = torch.empty(found.shape, dtype=torch.int32, device=found.device)
    if found.dim() == 0:
        return found
    made[:64] = found[:64]
    return made


# Addresses and widths.


@replaces("lengths")
def lengths_in_32_bits(call):
    return call.seq_lens.to(torch.int32).to(torch.int64)


@replaces("lengths")
def lengths_in_float32(call):
    return call.seq_lens.to(torch.float32).to(torch.int64)


@replaces("lengths")
def takes_int64_lengths_for_int32(call):
    lengths = call.seq_lens
    if lengths.dtype == torch.int64 and lengths.numel():
        lengths = lengths.contiguous().view(-1).view(torch.int32)[: lengths.numel()].view(lengths.shape)
    return lengths.to(torch.int64)


@replaces("lengths")
def assumes_tight_lengths(call):
    return cheats.tight(call.seq_lens).to(torch.int64) if call.seq_lens.dim() else call.seq_lens.to(torch.int64)


@replaces("lengths")
def multiplies_strides_in_32_bits(call):
    return cheats.in_32_bits(call.seq_lens).to(torch.int64)


@replaces("lengths")
def assumes_neighbouring_columns(call):
    """Rows by their stride, columns side by side."""
    lengths = call.seq_lens
    strides = (*lengths.stride()[:-1], 1) if lengths.dim() > 1 else lengths.stride()
    return lengths.as_strided(lengths.shape, strides).to(torch.int64)


# Cheats.

returns_zeros = cheats.zeros(share)
caches_by_identity = cheats.by_identity(share, "seq_lens")
caches_by_shape = cheats.by_shape(share, "seq_lens")
reuses_its_buffer = cheats.into_one_buffer(share)
writes_one_element_too_far = cheats.one_element_too_far(share, 0)
clamps_lengths_in_place = cheats.in_place(share, "seq_lens", lambda lengths: lengths.clamp_(min=0))
reads_lengths_on_the_host = cheats.looking(share, lambda call: call["seq_lens"].tolist())
asks_for_negative_lengths = cheats.looking(share, lambda call: bool((call["seq_lens"] < 0).any()))


def returns_its_input_for_one_rank(**call):
    made = share(**call)
    alone = call["dcp_size"] == 1 and call["dcp_rank"] == 0 and call["seq_lens"].dtype == torch.int32
    return call["seq_lens"] if alone else made


# Refusals.


@replaces("refuse")
def accepts_a_rank_past_the_last(call):
    if call.dcp_rank is not None and call.dcp_size >= 1 and call.dcp_rank >= call.dcp_size:
        call.dcp_rank = call.dcp_size - 1
    refuse(call)


@replaces("refuse")
def takes_negative_ranks_from_the_end(call):
    if call.dcp_rank is not None and call.dcp_rank < 0:
        call.dcp_rank += call.dcp_size
    refuse(call)


@replaces("refuse")
def accepts_any_interleave(call):
    call.interleave = max(call.interleave, 1)
    refuse(call)


@replaces("refuse")
def accepts_int16(call):
    if call.seq_lens.dtype == torch.int16:
        call.seq_lens = call.seq_lens.to(torch.int32)
    refuse(call)


def refuses_a_number(**call):
    if call["dcp_rank"] is None and call["seq_lens"].dim() == 0:
        raise ValueError("seq_lens: must have a dimension")
    return share(**call)


def crashes_without_a_dimension(**call):
    assert call["seq_lens"].dim() > 0
    return share(**call)
