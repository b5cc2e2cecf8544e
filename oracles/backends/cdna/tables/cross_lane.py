"""From which lane a lane reads, for the instructions that move values between lanes.

Lanes are numbered 0 to 63; a row has 16 of them, a bank 4. What happens where the lane to read is off or missing is
said at each function, since registers and the mask of lanes that are on belong to whoever executes.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Literal

from oracles.backends.cdna.ir import LANES
from oracles.verdict import Unsupported

NONE = -1
"""Stands for no lane."""

_ROW, _QUAD, _HALF = 16, 4, 32
_ROW_MIRROR, _ROW_HALF_MIRROR, _ROW_BCAST_15, _ROW_BCAST_31 = 0x140, 0x141, 0x142, 0x143
_WAVE = {0x130: (1, False), 0x134: (1, True), 0x138: (-1, False), 0x13C: (-1, True)}


@cache
def dpp(control: int) -> tuple[int, ...]:
    """The lane that each lane's first source comes from under a DPP control, or ``NONE``.

    A lane that reads ``NONE`` or a lane that is off gets 0 with ``bound_ctrl``, else its destination stays.
    """
    return tuple(_dpp_source(control, lane) for lane in range(LANES))


def _dpp_source(control: int, lane: int) -> int:
    place, row, count = lane % _ROW, lane - lane % _ROW, control & 15
    if control < 0x100:
        return lane - lane % _QUAD + (control >> 2 * (lane % _QUAD) & 3)
    if 0x101 <= control <= 0x10F:
        return lane + count if place + count < _ROW else NONE
    if 0x111 <= control <= 0x11F:
        return lane - count if place >= count else NONE
    if 0x121 <= control <= 0x12F:
        return row + (place - count) % _ROW
    if 0x150 <= control <= 0x15F:
        return row + count
    if control in _WAVE:
        step, around = _WAVE[control]
        return (lane + step) % LANES if around or 0 <= lane + step < LANES else NONE
    return _dpp_fixed(control, lane, row, place)


def _dpp_fixed(control: int, lane: int, row: int, place: int) -> int:
    if control == _ROW_MIRROR:
        return row + _ROW - 1 - place
    if control == _ROW_HALF_MIRROR:
        return lane - lane % 8 + 7 - lane % 8
    if control == _ROW_BCAST_15:
        return row - 1 if row else NONE
    if control == _ROW_BCAST_31:
        return _HALF - 1 if lane >= _HALF else NONE
    raise Unsupported(f"DPP control {control:#x} is not known")


@cache
def dpp_written(row_mask: int, bank_mask: int) -> tuple[bool, ...]:
    """The lanes whose destination DPP may change: in rows with a bit set, those of banks with a bit set."""
    return tuple(bool(row_mask >> lane // _ROW & 1 and bank_mask >> lane % _ROW // _QUAD & 1) for lane in range(LANES))


@cache
def swizzle(offset: int) -> tuple[int, ...]:
    """The lane that each lane reads with ``ds_swizzle_b32``; one that is off gives 0.

    Refused with :class:`oracles.verdict.Unsupported`: the rotating and the FFT mode.
    """
    if offset >= 0xC000:
        raise Unsupported(f"ds_swizzle_b32 with offset {offset:#x} rotates or permutes for an FFT, which is not known")
    if offset & 0x8000:
        return tuple(lane - lane % _QUAD + (offset >> 2 * (lane % _QUAD) & 3) for lane in range(LANES))
    keep, set_to, flip = offset & 31, offset >> 5 & 31, offset >> 10 & 31
    return tuple(lane - lane % _HALF + ((lane % _HALF & keep | set_to) ^ flip) for lane in range(LANES))


@cache
def swapped(size: Literal[16, 32]) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]]:
    """What each lane of both operands of ``v_permlane16_swap_b32`` or ``v_permlane32_swap_b32`` gets.

    An entry is the operand, 0 or 1, and the lane of it. Of groups of ``size`` lanes, the odd ones of the first operand
    change places with the even ones of the second.
    """
    first = tuple((1, lane - size) if lane // size % 2 else (0, lane) for lane in range(LANES))
    second = tuple((1, lane) if lane // size % 2 else (0, lane + size) for lane in range(LANES))
    return first, second


def bpermute(address: Any, offset: int) -> Any:
    """The lane that ``ds_bpermute_b32`` reads by an address in bytes, or an array of them; one that is off gives 0."""
    return (address + offset) >> 2 & LANES - 1


def permute(address: Any, offset: int) -> Any:
    """The lane that ``ds_permute_b32`` writes to; one without a writer gets 0, one with several the highest's."""
    return bpermute(address, offset)


def lane_number(scalar: int) -> int:
    """The lane of ``v_readlane_b32`` and ``v_writelane_b32``, which does not have to be on."""
    return scalar % LANES


def first_lane(on: int) -> int:
    """The lane of ``v_readfirstlane_b32``: the lowest that is on, and 0 where none is."""
    return (on & -on).bit_length() - 1 if on else 0
