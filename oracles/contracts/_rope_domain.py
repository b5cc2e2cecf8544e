"""Contract 6.1, rope_and_cache_mla: the inputs it is tried on, its answers, and what is special about an input."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

import numpy as np

from oracles.arrays import Array, Inputs, Value, array, contiguous_strides
from oracles.contract import Expected, OnlyMemorySafety, Refused, Values
from oracles.contracts._garbage import draw_dtype, draw_flavour, garbage
from oracles.contracts._rope_orders import DEFAULT, declared_order, told
from oracles.contracts._rope_values import Numbers, floats
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

SHAPES = ((1, 2, 2), (2, 6, 4), (1, 16, 8), (3, 24, 10), (2, 64, 64), (16, 512, 64), (128, 512, 64))
"""Heads, L and P: small ones, some of which are no powers of two, then those of DeepSeek-V3 on 8 ranks and on one."""

FEW_TOKENS = 3
"""Tokens of a case with the large shapes, whose reference takes long."""

LAYOUTS = ("contiguous", "rows apart", "lanes apart", "sliced", "rows far apart", "heads outside")
"""Of a float tensor: as slices of one projection are, or transposed, as a batched product by head leaves queries."""

FAR = (1 << 31) + 16
"""A stride past 32 bits."""

SCALES = (None, 1.0, 0.5, 2.8e-3, 7.0, 97.0)
"""With 7, ties of float8 have exact multiples in 16 bits, of which quotients and products with 1/7 round apart; 2.8e-3
has another reciprocal in float32 where it is not rounded to float32 first."""


def domain(source: Source) -> Inputs:
    """A mixed batch, its cache and its slots; slots and positions that mean nothing; or an input that is refused."""
    flavour = draw_flavour(source)
    if flavour == "refused":
        return _refused(source)
    heads, latent, rope = source.choose(SHAPES, weights=(6, 6, 4, 4, 3, 2, 1), small=1)
    most = FEW_TOKENS if heads * rope > 256 else 9
    tokens = source.integer(0, most, near=(0, 1, 2, 3, most), small=3)
    dtype = source.choose(INPUT_DTYPES, weights=(3, 2, 2), small=1)
    cache_dtype = source.choose(CACHES, small=3)
    k_scale = source.choose(SCALES, small=1) if cache_dtype != "auto" else source.choose((None, 0.3), small=1)
    numbers = Numbers(source, dtype, cache_dtype, k_scale or 1.0)
    table_dtype = source.choose((dtype, "float32"), weights=(2, 1), small=1)
    rows = source.choose((5, 1, 2, 64), small=1)
    cos, sin = numbers.table(rows, rope // 2, table_dtype)
    types = draw_dtype(source), draw_dtype(source)
    far = (1 << 31) - 4 if types[1] == "int32" else source.choose((1 << 32, (1 << 31) - 4), small=1)
    slots, cache = _draw_cache(source, numbers, tokens, latent + rope, dtype, cache_dtype, flavour, far)
    positions = [source.integer(0, rows - 1, near=(0, rows - 1), small=1) for _ in range(tokens)]
    views = source.choose((False, True), small=1)
    if positions and (flavour == "garbage" or source.pick(2, weights=(4, 1), small=1)):
        source.event("position: outside the table")
        positions[-1] = garbage(source, types[0], near=(rows, -1))
    return {
        "q_nope": _view(source, numbers.draw(tokens, heads, latent), dtype, views),
        "q_pe": _view(source, numbers.draw(tokens, heads, rope), dtype, views),
        "kv_c": _view(source, numbers.draw(tokens, latent), dtype, views),
        "k_pe": _view(source, numbers.draw(tokens, rope), dtype, views),
        "cos": _view(source, cos, table_dtype, views),
        "sin": _view(source, sin, table_dtype, views),
        "positions": source.view(positions, types[0], small=1),
        "slot_mapping": source.view(slots, types[1], small=1),
        "k_scale": k_scale,
        "q_scale": None,
        # Small scopes have one pair, which is the same for both.
        "is_neox": source.choose((True, False), small=1),
        "cache_dtype": cache_dtype,
        "kv_cache": cache,
    }


def _view(source: Source, bits: Any, dtype: str, views: bool) -> Array:
    """Contiguous, or with ``views`` in one of :data:`LAYOUTS`."""
    plain = floats(bits, dtype)
    if not views:
        return plain
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
    if layout == "rows far apart" and 1 < plain.shape[0] <= FEW_TOKENS:
        return Array(dtype, plain.data, (FAR, *others))
    return Array(dtype, plain.data, (first + source.choose((2, 64, 6), small=1), *others))


def _draw_cache(
    source: Source, numbers: Numbers, tokens: int, width: int, dtype: str, cache_dtype: str, flavour: str, far: int
) -> tuple[list[int], Array]:
    """A cache of a few blocks, and where tokens go: to slots of their own, to none, or to such as there are not."""
    block_size = source.choose((2, 1, 4, 16), small=1)
    blocks = -(-max(tokens, 1) // block_size) + source.integer(0, 2, near=(1,), small=1)
    capacity = blocks * block_size
    first = source.choose((0, capacity - tokens), small=1)
    slots = [first + token for token in range(tokens)]
    if source.choose((False, True), small=1):
        slots.reverse()
    kinds = ("live", "none", "past the last", "far away")
    for token in range(tokens):
        kind = source.choose(kinds, weights=(6, 2, 1, 1), small=2) if token < 4 else "live"
        if kind != "live":
            source.event(f"slot: {kind}")
            slots[token] = {"none": -1, "past the last": capacity, "far away": far + token}[kind]
    if flavour == "garbage" and tokens > 1:
        slots[0] = slots[-1] if source.choose((True, False), small=1) else -7
    count = (
        source.integer(0, tokens, near=(tokens, tokens), small=1) if source.pick(2, weights=(4, 1), small=1) else tokens
    )
    stored = dtype if cache_dtype == "auto" else source.choose(("uint8", cache_dtype), small=1)
    bits = _cache_bits(numbers, (blocks, block_size, width), stored)
    plain = Array(stored, bits)
    layouts = ("contiguous", "padded pages", "padded rows", "heads first", "lanes apart", "pages far apart")
    known = len(layouts) if blocks <= FEW_TOKENS else len(layouts) - 1
    layout = source.choose(layouts[:known], weights=(12, 4, 4, 2, 1, 2)[:known], small=1)
    if layout == "contiguous":
        return slots[:count], plain
    source.event(f"cache: {layout}")
    strides = {
        "padded pages": (block_size * width + 8, width, 1),
        "padded rows": (block_size * (width + 6), width + 6, 1),
        "heads first": (width, blocks * width, 1),
        "lanes apart": (2 * block_size * width, 2 * width, 2),
        "pages far apart": (FAR, width, 1),
    }[layout]
    return slots[:count], Array(stored, plain.data, strides)


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
    if any(arrays[name].data.ndim != 3 for name in ("q_nope", "q_pe", "kv_cache")):
        return frozenset()
    blocks, block_size, _ = arrays["kv_cache"].shape
    slots, positions = arrays["slot_mapping"].data.tolist(), arrays["positions"].data.tolist()
    heads, rope = arrays["q_pe"].shape[1:]
    rows = arrays["cos"].shape[0]
    found = {
        "no_tokens": not positions,
        "several_tokens": len(positions) > 1,
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
        "cache_strided": arrays["kv_cache"].strides is not None,
        "strided": any(value.strides is not None for name, value in arrays.items() if name != "kv_cache"),
    }
    return frozenset(name for name, there in found.items() if there)
