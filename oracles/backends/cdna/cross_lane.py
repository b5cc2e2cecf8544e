"""Moves values between lanes, as the tables say, on arrays."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from oracles.backends.cdna.access import merged
from oracles.backends.cdna.ir import LANES
from oracles.backends.cdna.tables import cross_lane as table
from oracles.backends.cdna.wave import Flags, Wave, Words

Picker = Callable[[Words, "Flags | None"], "tuple[Words, Flags | None]"]

_ZERO = np.zeros(LANES, np.uint32)
_ZERO.flags.writeable = False


def dpp(control: int, row_mask: int, bank_mask: int, bound_ctrl: int) -> Picker:
    """A function of a register and exec that gives each lane's source, and the lanes that may be written."""
    sources = np.array(table.dpp(control))
    valid, written = sources != table.NONE, np.array(table.dpp_written(row_mask, bank_mask))
    sources = np.where(valid, sources, 0)
    whole = valid.all()
    everywhere = None if written.all() else written
    fixed = everywhere if bound_ctrl or whole else written & valid

    def pick(register: Words, mask: Flags | None) -> tuple[Words, Flags | None]:
        if mask is None:
            picked = register[sources]
            return picked if whole else picked * valid, fixed
        usable = mask[sources] if whole else mask[sources] & valid
        lanes = mask if everywhere is None else mask & everywhere
        return register[sources] * usable, lanes if bound_ctrl else lanes & usable

    return pick


def swizzle(wave: Wave, mask: Flags | None, result: int, source: int, lanes: Words) -> None:
    """``ds_swizzle_b32``; ``lanes`` are those to read."""
    v = wave.v
    given = v[source] if mask is None else v[source] * mask
    v[result] = merged(mask, given[lanes], v[result])


def bpermute(wave: Wave, mask: Flags | None, result: int, address: int, source: int, offset: int) -> None:
    """``ds_bpermute_b32``."""
    swizzle(wave, mask, result, source, table.bpermute(wave.v[address] + np.uint32(offset), 0))


def permute(wave: Wave, mask: Flags | None, result: int, address: int, source: int, offset: int) -> None:
    """``ds_permute_b32``. NumPy stores repeated indices in order, so the highest lane counts."""
    v = wave.v
    lanes: Words = table.permute(v[address] + np.uint32(offset), 0)
    given = np.zeros(LANES, np.uint32)
    if mask is None:
        given[lanes] = v[source]
    else:
        given[lanes[mask]] = v[source][mask]
    v[result] = merged(mask, given, v[result])


def swapper(size: int) -> Callable[[Wave, Flags | None, int, int], None]:
    """``v_permlane16_swap_b32`` or ``v_permlane32_swap_b32`` of two registers."""
    orders = [np.array([LANES * operand + lane for operand, lane in side]) for side in table.swapped(size)]

    def swap(wave: Wave, mask: Flags | None, first: int, second: int) -> None:
        v = wave.v
        both = np.concatenate([v[first], v[second]])
        v[first] = merged(mask, both[orders[0]], v[first])
        v[second] = merged(mask, both[orders[1]], v[second])

    return swap


def write_lane(register: Words, lane: int, value: int) -> Words:
    """The register with one lane changed, whether it is on or not."""
    result = register.copy()
    result[table.lane_number(lane)] = value
    return result
