"""How elements of tensors are written for people: as the numbers that they are, with their bits where those matter.

NumPy has no bfloat16 and no float8, so their elements are kept as integers. What a person reads is the number; exactly,
so that no two patterns look alike except NaN, of which the bits are written too: ``nan (0x7fc1)``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

NATIVE = ("float16", "float32", "float64")
"""Floats that NumPy has."""


def bits(data: npt.ArrayLike) -> npt.NDArray[Any]:
    """The elements by their bits, floats as unsigned integers; what is no float as it is."""
    held = np.asarray(data)
    return held.view(f"uint{8 * held.itemsize}") if held.dtype.kind == "f" else held


def plain(dtype: str, element: Any) -> str:
    """One element: a float as a number, everything else as Python writes it."""
    number = _number(dtype, element)
    if number is None:
        return str(element)
    return with_bits(dtype, element) if math.isnan(number) else repr(number)


def with_bits(dtype: str, element: Any) -> str:
    """One element, a float with its bits: ``-0.5 (0xbf00)``. For where two of them are compared."""
    number = _number(dtype, element)
    if number is None:
        return str(element)
    held = np.asarray(element)
    return f"{number!r} (0x{int(bits(held)):0{2 * held.itemsize}x})"


def listed(dtype: str, data: npt.NDArray[Any], longest: int | None = None) -> str:
    """All elements in nested brackets, cut to ``longest`` characters."""
    text = ""
    for part in _parts(dtype, data):
        text += part
        if longest is not None and len(text) > longest:
            return text[: longest - 3] + "..."
    return text


def shortened(dtype: str, data: npt.NDArray[Any], most: int, first: int) -> str:
    """All elements in nested brackets, of more than ``most`` the first few in order, and the last one."""
    flat = data.ravel()
    if flat.size <= most:
        return listed(dtype, data)
    shown = ", ".join(plain(dtype, element) for element in flat[:first])
    return f"[{shown}, ... {plain(dtype, flat[-1])}]"


def _parts(dtype: str, data: npt.NDArray[Any]) -> Iterator[str]:
    if data.ndim == 0:
        yield plain(dtype, data[()])
        return
    yield "["
    for at, item in enumerate(data):
        yield ", " if at else ""
        yield from _parts(dtype, np.asarray(item))
    yield "]"


def _number(dtype: str, element: Any) -> float | None:
    """What an element is worth; ``None`` where the dtype is no float, or none that is known here."""
    held = np.asarray(element)
    if dtype in NATIVE:
        return float(bits(held).view(np.dtype(dtype)))
    if dtype == "bfloat16":
        return float((bits(held).astype(np.uint32) << 16).view(np.float32))
    if dtype in FLOAT8:
        return FLOAT8[dtype][int(bits(held)) & 0xFF]
    return None


def _float8(bias: int, nan: tuple[int, ...]) -> list[float]:
    """What each pattern of a float8 with four bits of exponent and three of fraction is worth."""
    worth = []
    for pattern in range(256):
        exponent, fraction = pattern >> 3 & 15, pattern & 7
        size = math.ldexp(fraction + 8 * (exponent > 0), max(exponent, 1) - bias - 3)
        worth.append(math.nan if pattern in nan else -size if pattern & 0x80 else size)
    return worth


FLOAT8 = {"float8_e4m3fn": _float8(7, (0x7F, 0xFF)), "float8_e4m3fnuz": _float8(8, (0x80,))}
"""What each pattern of the formats with eight bits is worth."""
