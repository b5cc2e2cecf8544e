"""Contract 6.1, rope_and_cache_mla: the inputs it is tried on, its answers, and what is special about an input."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

import numpy as np

from oracles.arrays import Array, Inputs, Value, array
from oracles.contract import Expected, OnlyMemorySafety, Refused, Values
from oracles.contracts._garbage import draw_dtype, draw_flavour, garbage
from oracles.contracts._rope_layouts import FAR_CACHES, FAR_INPUTS, Layouts, is_far
from oracles.contracts._rope_orders import DEFAULT, declared_order, told
from oracles.contracts._rope_values import STYLES, Numbers, floats
from oracles.domain import Source
from reference import errors
from reference.floats import FloatArray
from reference.rope_kv_cache import rope_and_cache_mla
from reference.rope_results import RightResults, explain, right_results

OUTPUTS = ("q_out", "k_pe_out", "kv_cache")
RECENT = 4
"""Inputs whose answers are kept: the freshness protocol goes to and fro between two."""

INPUT_DTYPES = ("bfloat16", "float16", "float32")
FLOAT8 = ("float8_e4m3fn", "float8_e4m3fnuz")
CACHES = ("auto", *FLOAT8)

DIMENSIONS = {
    **dict.fromkeys(("q_nope", "q_pe", "kv_cache"), 3),
    **dict.fromkeys(("kv_c", "k_pe", "cos", "sin"), 2),
    **dict.fromkeys(("positions", "slot_mapping"), 1),
}

SHAPES = ((1, 2, 2), (2, 6, 4), (1, 16, 8), (3, 24, 10), (2, 64, 64), (16, 512, 64), (128, 512, 64))
"""Heads, L and P: small ones, some of which are no powers of two, then those of DeepSeek-V3 on 8 ranks and on one."""

FEW_TOKENS = 3
"""Tokens of a case with the large shapes, whose reference takes long."""

USUAL_TOKENS = 9
"""Tokens of a case with another shape, unless it is about many."""

SCALES = (None, 1.0, 0.5, 2.8e-3, 7.0, 97.0, 7.8)
"""With 7, ties of float8 have exact multiples in 16 bits, of which quotients and products with 1/7 round apart. 2.8e-3
and 7.8 have another reciprocal in float32 where they are not rounded to float32 first; with 7.8 an eighth of the ties
of either float8 tells the two apart, whatever the input's dtype."""


@dataclass(frozen=True)
class Theme:
    """What a case is about: sizes that few samples would have, drawn so that they matter.

    Every token then has a slot, with the last one of the cache among them, and the last row of the table is used.
    Small scopes walk the options named ``walked``, and have the first of all others.
    """

    name: str = ""
    walked: str = ""
    shapes: Sequence[tuple[int, int, int]] = SHAPES
    tokens: Sequence[int] = range(USUAL_TOKENS + 1)
    block_sizes: Sequence[int] = (2, 1, 4, 16, 3)
    far: Sequence[Mapping[str, int]] = ({},)
    cache_dtypes: Sequence[str] = CACHES
    scales: Sequence[float | None] = SCALES
    rows: Sequence[int] = (5, 64)
    styles: Sequence[str] = STYLES

    def small(self, options: str) -> int:
        """How many of its options small scopes walk."""
        return len(getattr(self, options)) if options == self.walked else 1


PLAIN = Theme(walked="cache_dtypes", rows=(5, 1, 2, 64))
MANY = Theme("many tokens", walked="tokens", shapes=SHAPES[:2], tokens=(17, 33, 65, 129))
ODD_BLOCKS = Theme(
    "odd blocks", walked="block_sizes", shapes=SHAPES[:3], tokens=range(2, USUAL_TOKENS + 1), block_sizes=(3, 48, 784)
)
_FAR_SHAPES, _FAR_TOKENS = ((3, 2, 2), (5, 6, 4)), (3, 6)
FAR_APART = Theme("far apart", walked="far", shapes=_FAR_SHAPES, tokens=_FAR_TOKENS, block_sizes=(2,), far=FAR_INPUTS)
FAR_CACHE = Theme("far cache", walked="far", shapes=_FAR_SHAPES, tokens=_FAR_TOKENS, block_sizes=(4,), far=FAR_CACHES)
INEXACT_SCALE = Theme(
    "inexact scale",
    walked="cache_dtypes",
    shapes=SHAPES[1:3],
    tokens=range(2, USUAL_TOKENS + 1),
    cache_dtypes=FLOAT8,
    scales=(7.8,),
    styles=("ties",),
)
THEMES = (PLAIN, MANY, ODD_BLOCKS, FAR_APART, FAR_CACHE, INEXACT_SCALE)


def domain(source: Source) -> Inputs:
    """A mixed batch, its cache and its slots; slots and positions that mean nothing; or an input that is refused."""
    flavour = draw_flavour(source)
    if flavour == "refused":
        return _refused(source)
    theme = source.choose(THEMES, weights=(14, 1, 2, 2, 1, 1)) if flavour == "engine" else PLAIN
    if theme is not PLAIN:
        source.event(f"theme: {theme.name}")
    far = source.choose(theme.far, small=theme.small("far"))
    heads, latent, rope = source.choose(theme.shapes, weights=(6, 6, 4, 4, 3, 2, 1)[: len(theme.shapes)], small=1)
    tokens = _draw_tokens(source, theme, heads * rope)
    dtype = source.choose(INPUT_DTYPES, weights=(3, 2, 2), small=1)
    cache_dtype = source.choose(theme.cache_dtypes, small=theme.small("cache_dtypes"))
    k_scale = source.choose(theme.scales, small=1) if cache_dtype != "auto" else source.choose((None, 0.3), small=1)
    numbers = Numbers(source, dtype, cache_dtype, k_scale or 1.0, styles=theme.styles)
    table_dtype = source.choose((dtype, "float32"), weights=(2, 1), small=1)
    rows = source.choose(theme.rows, small=1)
    cos, sin = numbers.table(rows, rope // 2, table_dtype)
    types = draw_dtype(source), draw_dtype(source)
    slots, shape = _draw_slots(source, theme, tokens, types[1], garbled=flavour == "garbage")
    stored = dtype if cache_dtype == "auto" else source.choose(("uint8", cache_dtype), small=1)
    bits = _cache_bits(numbers, (*shape, latent + rope), stored)
    layouts = Layouts(source, far=far)
    cache = layouts.of_cache(bits, stored)
    positions = _draw_positions(source, theme, tokens, rows, types[0], garbled=flavour == "garbage")
    layouts = Layouts(source, source.choose((False, True), small=1) and not far, far)
    return {
        "q_nope": layouts.of("q_nope", numbers.draw(tokens, heads, latent), dtype),
        "q_pe": layouts.of("q_pe", numbers.draw(tokens, heads, rope), dtype),
        "kv_c": layouts.of("kv_c", numbers.draw(tokens, latent), dtype),
        "k_pe": layouts.of("k_pe", numbers.draw(tokens, rope), dtype),
        "cos": layouts.of("cos", cos, table_dtype),
        "sin": layouts.of("sin", sin, table_dtype),
        "positions": layouts.of_numbers("positions", positions, types[0]),
        "slot_mapping": layouts.of_numbers("slot_mapping", slots, types[1]),
        "k_scale": k_scale,
        "q_scale": None,
        # Small scopes have one pair, which is the same for both.
        "is_neox": source.choose((True, False), small=1),
        "cache_dtype": cache_dtype,
        "kv_cache": cache,
    }


def _draw_tokens(source: Source, theme: Theme, rotated: int) -> int:
    if theme is not PLAIN:
        return source.choose(theme.tokens, small=theme.small("tokens"))
    most = FEW_TOKENS if rotated > 256 else USUAL_TOKENS
    return source.integer(0, most, near=(0, 1, 2, 3, most), small=3)


def _draw_slots(
    source: Source, theme: Theme, tokens: int, dtype: str, *, garbled: bool
) -> tuple[list[int], tuple[int, int]]:
    """Where tokens go, to slots of their own, to none, or to such as there are not; and blocks of what size."""
    far = (1 << 31) - 4 if dtype == "int32" else source.choose((1 << 32, (1 << 31) - 4), small=1)
    block_size = source.choose(theme.block_sizes, small=theme.small("block_sizes"))
    blocks = -(-max(tokens, 1) // block_size) + source.integer(0, 2, near=(1,), small=1)
    if theme is not PLAIN:
        blocks += 2
    capacity = blocks * block_size
    first = source.choose((0, capacity - tokens) if theme is PLAIN else (capacity - tokens,), small=1)
    slots = [first + token for token in range(tokens)]
    if source.choose((False, True), small=1):
        slots.reverse()
    if theme is PLAIN:
        slots = _spoiled(source, slots, capacity, far, garbled=garbled)
    return slots, (blocks, block_size)


def _spoiled(source: Source, slots: list[int], capacity: int, far: int, *, garbled: bool) -> list[int]:
    """Some slots that are none, or none for the last tokens."""
    kinds = ("live", "none", "past the last", "far away")
    tokens, live = len(slots), True
    for token in range(min(tokens, 4)):
        kind = source.choose(kinds, weights=(6, 2, 1, 1), small=2)
        if kind != "live":
            live = False
            source.event(f"slot: {kind}")
            slots[token] = {"none": -1, "past the last": capacity, "far away": far + token}[kind]
    if garbled and tokens > 1:
        slots[0] = slots[-1] if source.choose((True, False), small=1) else -7
    if tokens and source.pick(2, weights=(4, 1), small=2 if live else 1):
        return slots[: tokens - source.integer(1, tokens, near=(1,), small=1)]
    return slots


def _draw_positions(source: Source, theme: Theme, tokens: int, rows: int, dtype: str, *, garbled: bool) -> list[int]:
    """Rows of the table, the last of which may be none."""
    few = min(tokens, USUAL_TOKENS)
    positions = [source.integer(0, rows - 1, near=(0, rows - 1), small=1) for _ in range(few)]
    positions += [token % rows for token in range(few, tokens)]
    if theme is not PLAIN:
        positions[-1] = rows - 1
    elif positions and (garbled or source.pick(2, weights=(4, 1), small=1)):
        source.event("position: outside the table")
        positions[-1] = garbage(source, dtype, near=(rows, -1))
    return positions


def _cache_bits(numbers: Numbers, shape: tuple[int, ...], stored: str) -> Any:
    if stored == numbers.form_name:
        return floats(numbers.draw(*shape), stored).data
    size = int(np.prod(shape))
    return (np.arange(size) * 37 % 251).astype(np.uint8).reshape(shape)


def _refused(source: Source) -> Inputs:
    numbers = Numbers.plain("bfloat16")
    cos, sin = numbers.table(2, 2, "bfloat16")
    inputs: dict[str, Value] = {
        "q_nope": floats(numbers.draw(2, 1, 2), "bfloat16"),
        "q_pe": floats(numbers.draw(2, 1, 4), "bfloat16"),
        "kv_c": floats(numbers.draw(2, 2), "bfloat16"),
        "k_pe": floats(numbers.draw(2, 4), "bfloat16"),
        "cos": floats(cos, "bfloat16"),
        "sin": floats(sin, "bfloat16"),
        "positions": array([0, 1], "int64"),
        "slot_mapping": array([0, 1], "int64"),
        "k_scale": None,
        "q_scale": None,
        "is_neox": True,
        "cache_dtype": "auto",
        "kv_cache": floats(numbers.draw(1, 2, 6), "bfloat16"),
    }
    one = floats(numbers.draw(2, 1, 3), "bfloat16")
    wrong: dict[str, dict[str, Value]] = {
        "unknown cache dtype": {"cache_dtype": "fp8"},
        "odd P": {"q_pe": one, "k_pe": floats(numbers.draw(2, 3), "bfloat16")},
        "k_scale 0": {"k_scale": 0.0},
        "k_scale negative": {"k_scale": -1.0},
        "q_scale": {"q_scale": 1.0},
        "more slots than tokens": {"slot_mapping": array([0, 1, -1], "int64")},
        "heads": {"q_nope": floats(numbers.draw(2, 2, 2), "bfloat16")},
        "tokens": {"kv_c": floats(numbers.draw(3, 2), "bfloat16")},
        "cache width": {"kv_cache": floats(numbers.draw(1, 2, 5), "bfloat16")},
        "another dtype": {"k_pe": Array("float16", np.zeros((2, 4), np.float16))},
        "another table": {"sin": floats(numbers.draw(1, 2), "bfloat16")},
        "cache of bytes": {"kv_cache": array(np.zeros((1, 2, 6)), "uint8")},
        "float positions": {"positions": array([0, 1], "float32")},
    }
    fault = source.choose(tuple(wrong))
    source.event(f"refused: {fault}")
    return inputs | wrong[fault]


def as_reference(inputs: Inputs) -> dict[str, Any]:
    """The inputs as the reference takes them: floats with their dtype, indices plain."""
    floating = ("q_nope", "q_pe", "kv_c", "k_pe", "cos", "sin", "kv_cache")
    return {
        name: FloatArray.of(value.dtype, value.data) if name in floating else value.data
        for name, value in inputs.items()
        if isinstance(value, Array)
    } | {name: value for name, value in inputs.items() if not isinstance(value, Array)}


def expected(inputs: Inputs, rounding: str = DEFAULT) -> Expected:
    """The specification's answer, of the right results the uncontracted one."""
    try:
        outputs = rope_and_cache_mla(**as_reference(inputs), rounding=rounding)
    except errors.ContractError as error:
        return Refused(error.argument, str(error))
    except errors.OnlyMemorySafety as error:
        return OnlyMemorySafety(str(error))
    cache = cast(Array, inputs["kv_cache"])
    dtypes = (cast(Array, inputs["q_nope"]).dtype, cast(Array, inputs["q_nope"]).dtype, cache.dtype)
    named = zip(OUTPUTS, outputs, dtypes, strict=True)
    return Values({name: floats(output.bits, dtype) for name, output, dtype in named})


T = TypeVar("T")


class Recent(Generic[T]):
    """What was worked out for the last few inputs, which are asked about several times each. Inputs do not change."""

    def __init__(self, work: Callable[[Inputs], T]) -> None:
        self._work = work
        self._kept: deque[tuple[Inputs, T]] = deque(maxlen=RECENT)

    def __call__(self, inputs: Inputs) -> T:
        for known, value in self._kept:
            if known is inputs:
                return value
        self._kept.append((inputs, self._work(inputs)))
        return self._kept[-1][1]


def settled_elements(right: RightResults, got: Any) -> Any:
    """One output with every right element as the specification has it; what has another shape as it is."""
    wanted = right.results["none"]
    if not isinstance(got, np.ndarray) or got.shape != wanted.shape or got.itemsize != wanted.itemsize:
        return got
    bits = got.view(wanted.dtype)
    return np.where(right.accepts(bits), wanted, bits).astype(wanted.dtype).view(got.dtype)


class Judge:
    """What several right results need, for callables of one rounding order."""

    def __init__(self, rounding: str) -> None:
        self.rounding = rounding
        self.expected = Recent(lambda inputs: expected(inputs, rounding))
        self._right = Recent(lambda inputs: right_results(as_reference(inputs), rounding))

    def settle(self, inputs: Inputs, outputs: Any) -> dict[str, Any]:
        """Every right element as the specification has it."""
        settled = dict(outputs)
        if not isinstance(self.expected(inputs), Values):
            return settled
        for name, right in self._right(inputs).items():
            if name in outputs:
                settled[name] = settled_elements(right, outputs[name])
        return settled

    def explains(self, inputs: Inputs, name: str, index: tuple[int, ...], got: Any) -> str:
        """Token, head and lane of a wrong element, how it is worked out, and what would have given it."""
        storage = self._right(inputs)[name].form.storage
        bits = int(np.asarray(got).view(storage))
        found = explain(as_reference(inputs), name, index, bits, self.rounding)
        as_bytes = name == "kv_cache" and cast(Array, inputs["kv_cache"]).dtype == "uint8"
        return told(found, f"{name}{list(index)}", as_bytes=as_bytes)


def declared(function: Any) -> dict[str, Any]:
    """What differs in the contract of a callable that declares a rounding order; refused: an unknown one."""
    judge = Judge(declared_order(function))
    return {"expected": judge.expected, "settle": judge.settle, "explains": judge.explains}


def resample(inputs: Inputs) -> tuple[Inputs, ...]:
    """All values the other way round, table and slots too, where that is another answer."""
    first = expected(inputs)
    if not isinstance(first, Values):
        return ()
    names = ("q_nope", "q_pe", "kv_c", "k_pe", "cos", "sin", "positions", "slot_mapping")
    turned = {name: _turned(cast(Array, inputs[name])) for name in names}
    other = expected(dict(inputs) | turned)
    if not isinstance(other, Values):
        return ()
    return (dict(inputs) | turned,) if _bits(other) != _bits(first) else ()


def _turned(value: Array) -> Array:
    return value.with_values(value.data.ravel()[::-1])


def _bits(values: Values) -> list[bytes]:
    return [cast(Array, output).data.tobytes() for output in values.outputs.values()]


def traits(inputs: Inputs) -> frozenset[str]:
    """What a fault may need: these names end up in buckets."""
    arrays = {name: value for name, value in inputs.items() if isinstance(value, Array)}
    if any(value.data.ndim != DIMENSIONS[name] for name, value in arrays.items()):
        return frozenset()
    blocks, block_size, _ = arrays["kv_cache"].shape
    slots, positions = arrays["slot_mapping"].data.tolist(), arrays["positions"].data.tolist()
    heads, rope = arrays["q_pe"].shape[1:]
    rows = arrays["cos"].shape[0]
    found = {
        "no_tokens": not positions,
        "several_tokens": len(positions) > 1,
        "many_tokens": len(positions) > USUAL_TOKENS,
        "several_heads": heads > 1,
        "no_slot": -1 in slots,
        "slot_outside": any(slot < -1 or slot >= blocks * block_size for slot in slots),
        "last_slot": blocks * block_size - 1 in slots,
        "fewer_slots": len(slots) < len(positions),
        "position_outside": any(not 0 <= position < rows for position in positions),
        "float8": inputs["cache_dtype"] != "auto",
        "fnuz": inputs["cache_dtype"] == "float8_e4m3fnuz",
        "scaled": inputs["k_scale"] not in (None, 1.0),
        "interleaved": inputs["is_neox"] is False,
        "float32_table": arrays["cos"].dtype != arrays["q_pe"].dtype,
        "float32": arrays["q_pe"].dtype == "float32",
        "float16": arrays["q_pe"].dtype == "float16",
        "odd_sizes": any(size & (size - 1) for size in (arrays["kv_c"].shape[-1], rope)),
        "odd_block_size": bool(block_size & (block_size - 1)),
        "far": any(is_far(value) for value in arrays.values()),
        "cache_strided": arrays["kv_cache"].strides is not None,
        "strided": any(value.strides is not None for name, value in arrays.items() if name != "kv_cache"),
    }
    return frozenset(name for name, there in found.items() if there)
