"""Contract 6.1, where the elements of its tensors lie: as views of other tensors have them, or far apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from oracles.arrays import Array, array, contiguous_strides
from oracles.contracts._rope_values import floats
from oracles.domain import Source, far_stride

LAYOUTS = ("contiguous", "rows apart", "lanes apart", "sliced", "rows far apart", "heads outside")
"""Of a float tensor: as slices of one projection are, or transposed, as a batched product by head leaves queries."""

CACHE_LAYOUTS = ("contiguous", "padded pages", "padded rows", "heads first", "lanes apart", "pages far apart")

FAR = (1 << 31) + 16
"""A stride past 32 bits."""

MOST_FAR_ROWS = 3
"""Rows that may lie as far apart as that: more would need more memory than a device has."""

MOST_FAR_ELEMENTS = 4096
"""Elements of a cache whose blocks do: the surroundings of each are watched by themselves."""

_TABLE = {"cos": 0, "sin": 0, "positions": 0}

FAR_INPUTS: tuple[Mapping[str, int], ...] = (
    {"q_nope": 0, "q_pe": 0, **_TABLE},
    {"q_nope": 1, "q_pe": 1, **_TABLE},
    {"kv_c": 0, "k_pe": 0, "slot_mapping": 0},
)
FAR_CACHES: tuple[Mapping[str, int], ...] = ({"kv_cache": 0}, {"kv_cache": 1})
"""Tensors, and the axes along which they lie far apart: tokens and heads, rows of the table; blocks of the cache and
places in them. Lanes never do: nobody keeps the lanes of one head gigabytes apart.

Triton compiles for whether a pointer's tensor has less than 2 GiB, and contracts allow two compilations of a mode.
Therefore cases with a far cache have block sizes of their own, and others no other sets of far tensors than these.
"""


@dataclass(frozen=True)
class Layouts:
    """Draws where elements lie: contiguous, with ``views`` in one of :data:`LAYOUTS`, or far apart along an axis.

    The strides of the axes ``far`` fit in 32 bits, and their products with the last index do not. Compilers take such
    a stride for an int32, in which the product wraps; one past 32 bits they take for an int64.
    """

    source: Source
    views: bool = False
    far: Mapping[str, int] = field(default_factory=dict)

    def of(self, name: str, bits: Any, dtype: str) -> Array:
        """A float tensor."""
        plain = floats(bits, dtype)
        if name in self.far:
            return self._far_apart(name, plain)
        if not self.views:
            return plain
        source = self.source
        layouts = LAYOUTS if plain.data.ndim == 3 else LAYOUTS[:-1]
        layout = source.choose(layouts, weights=(12, 4, 2, 2, 1, 3)[: len(layouts)], small=1)
        if layout == "contiguous":
            return plain
        source.event(f"layout: {layout}")
        first, *others = contiguous_strides(plain.shape)
        if layout == "sliced":
            return Array(dtype, plain.data, None, 1 + source.pick(7, small=1))
        if layout == "heads outside":
            tokens, _, lanes = plain.shape
            return Array(dtype, plain.data, (lanes, max(tokens, 1) * lanes, 1))
        if layout == "lanes apart":
            return Array(dtype, plain.data, (2 * first, *(2 * stride for stride in others)))
        if layout == "rows far apart" and 1 < plain.shape[0] <= MOST_FAR_ROWS:
            return Array(dtype, plain.data, (FAR, *others))
        return Array(dtype, plain.data, (first + source.choose((2, 64, 6), small=1), *others))

    def of_numbers(self, name: str, numbers: list[int], dtype: str) -> Array:
        """Positions or slots."""
        if self.far:
            plain = array(numbers, dtype)
            return self._far_apart(name, plain) if name in self.far else plain
        return self.source.view(numbers, dtype, small=1)

    def of_cache(self, bits: Any, dtype: str) -> Array:
        """The cache, as a layer's part of a larger allocation is, or with its places in blocks outside."""
        source, plain = self.source, Array(dtype, bits)
        if self.far:
            return self._far_apart("kv_cache", plain) if "kv_cache" in self.far else plain
        blocks, block_size, width = plain.shape
        may_be_far = blocks <= MOST_FAR_ROWS and plain.data.size <= MOST_FAR_ELEMENTS
        known = len(CACHE_LAYOUTS) if may_be_far else len(CACHE_LAYOUTS) - 1
        layout = source.choose(CACHE_LAYOUTS[:known], weights=(12, 4, 4, 2, 1, 2)[:known], small=1)
        if layout == "contiguous":
            return plain
        source.event(f"cache: {layout}")
        strides = {
            "padded pages": (block_size * width + 8, width, 1),
            "padded rows": (block_size * (width + 6), width + 6, 1),
            "heads first": (width, blocks * width, 1),
            "lanes apart": (2 * block_size * width, 2 * width, 2),
            "pages far apart": (FAR, width, 1),
        }[layout]
        return Array(dtype, plain.data, strides)

    def _far_apart(self, name: str, plain: Array) -> Array:
        axis, shape = self.far[name], plain.shape
        self.source.event(f"far apart: {name}, axis {axis}")
        others = contiguous_strides(shape[:axis] + shape[axis + 1 :])
        return Array(plain.dtype, plain.data, (*others[:axis], far_stride(shape[axis]), *others[axis:]))


def is_far(value: Array) -> bool:
    """Whether a product of an index and a stride does not fit in 32 bits."""
    steps = zip(value.shape, value.layout, strict=True)
    return bool(value.data.size) and any((count - 1) * stride >= 1 << 31 for count, stride in steps)
