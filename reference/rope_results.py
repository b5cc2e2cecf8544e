"""Which results of ``rope_and_cache_mla`` are right, and what would have given one that is wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from reference.errors import ContractError
from reference.floats import FORMATS, Bits, FloatArray, FloatFormat, Mask, Numbers
from reference.rope_kv_cache import rope_and_cache_mla, rows_of_tokens, scale_of, slots_of_tokens
from reference.rope_orders import CONTRACTIONS, ORDERS, lanes_of_pairs, sum_of_products

OUTPUTS = ("q_out", "k_pe_out", "kv_cache")


@dataclass(frozen=True, eq=False)
class RightResults:
    """All right results of one output: an element is right if it has the bits of any of them.

    ``form``
        the format of the elements; of a cache of bytes, the float8 format.
    ``results``
        contraction -> bits, all of the output's shape. Different elements may follow different contractions.
    ``computed``
        which elements are results of arithmetic or of a conversion: of these any NaN is as good as another. The others
        are copies, or are not written, and have exact bits.
    """

    name: str
    form: FloatFormat
    results: Mapping[str, Bits]
    computed: Mask

    def canonical(self, bits: npt.ArrayLike) -> Bits:
        """The same bits, with one and the same NaN in every computed element that is one."""
        return np.where(self.computed, self.form.canonical(bits), bits).astype(self.form.storage)

    def accepts(self, bits: npt.ArrayLike) -> Mask:
        """Which elements of an implementation's output are right."""
        given = self.canonical(bits)
        right = np.zeros(given.shape, dtype=np.bool_)
        for result in self.results.values():
            right |= given == self.canonical(result)
        return right

    def wanted(self, bits: npt.ArrayLike) -> Bits:
        """What to show as expected beside an output: its own bits where they are right, else the uncontracted ones."""
        return np.where(self.accepts(bits), bits, self.results["none"]).astype(self.form.storage)


def right_results(inputs: Mapping[str, Any], rounding: str = "hip") -> dict[str, RightResults]:
    """All right results by output: ``q_out``, ``k_pe_out`` and ``kv_cache``.

    ``inputs`` are those of :func:`~reference.rope_kv_cache.rope_and_cache_mla` by name, without ``rounding`` and
    ``contraction``. What it refuses, or promises no values for, raises here too.
    """
    found = {name: rope_and_cache_mla(**inputs, rounding=rounding, contraction=name) for name in CONTRACTIONS}
    results = {}
    for place, name in enumerate(OUTPUTS):
        bits = {contraction: outputs[place].bits for contraction, outputs in found.items()}
        results[name] = RightResults(name, _format(inputs, name), bits, _computed(inputs, name, bits["none"].shape))
    return results


def _format(inputs: Mapping[str, Any], name: str) -> FloatFormat:
    as_float8 = name == "kv_cache" and inputs["cache_dtype"] != "auto"
    return FORMATS[inputs["cache_dtype"] if as_float8 else inputs["q_nope"].dtype]


def _computed(inputs: Mapping[str, Any], name: str, shape: tuple[int, ...]) -> Mask:
    computed = np.zeros(shape, dtype=np.bool_)
    latent = inputs["kv_c"].shape[1]
    if name == "k_pe_out":
        computed[:] = True
    elif name == "q_out":
        computed[:, :, latent:] = True
    else:
        first = latent if inputs["cache_dtype"] == "auto" else 0
        for place in slots_of_tokens(inputs["slot_mapping"], inputs["kv_cache"]).values():
            computed[place][first:] = True
    return computed


@dataclass(frozen=True)
class Explanation:
    """One element of an output: what it had to be, how it is worked out, and what would have given what it is.

    ``element``
        the element in words: token, head and lane.
    ``got``
        its bits in the implementation's output.
    ``right``
        contraction -> right bits.
    ``steps``
        each step of the declared order, with what it rounds to.
    ``suspects``
        mistakes, each of which alone would have given ``got``; empty if none of those tried does.
    """

    element: str
    got: int
    right: Mapping[str, int]
    steps: tuple[str, ...]
    suspects: tuple[str, ...]
    form: FloatFormat

    def __str__(self) -> str:
        right = dict.fromkeys(self._shown(bits) for bits in self.right.values())
        lines = [self.element, f"got {self._shown(self.got)}, right {' or '.join(right)}", *self.steps]
        return "\n  ".join([*lines, *(f"would be right with: {suspect}" for suspect in self.suspects)])

    def _shown(self, bits: int) -> str:
        return f"0x{bits:0{self.form.width // 4}x} ({self.form.decode(bits).item()!r})"


def explain(
    inputs: Mapping[str, Any], name: str, index: tuple[int, ...], got: int, rounding: str = "hip"
) -> Explanation:
    """Explain element ``index`` of output ``name`` where an implementation gave the bits ``got``.

    ``inputs`` are as in :func:`right_results`; ``rounding`` is the order that the implementation declares.
    """
    form = _format(inputs, name)
    tokens: dict[tuple[int, ...], int] = {
        place: token for token, place in slots_of_tokens(inputs["slot_mapping"], inputs["kv_cache"]).items()
    }
    if name == "kv_cache" and index[:2] not in tokens:
        kept = {"none": int(inputs["kv_cache"].bits[index])}
        return Explanation(f"{name}{list(index)}: no token has this slot, it keeps its bits", got, kept, (), (), form)
    element = _Element(
        name=name,
        token=tokens[index[:2]] if name == "kv_cache" else index[0],
        head=index[1] if name == "q_out" else None,
        column=index[-1],
        lane=index[-1] - (0 if name == "k_pe_out" else inputs["kv_c"].shape[1]),
    )
    right = {each: element.bits(inputs, rounding, each) for each in CONTRACTIONS}
    suspects: tuple[str, ...] = ()
    if form.canonical(got) not in form.canonical(list(right.values())):
        suspects = tuple(_suspects(inputs, element, got, rounding))
    words = f'{name}{list(index)}: {element}, order "{rounding}"'
    return Explanation(words, got, right, tuple(_steps(inputs, element, rounding)), suspects, form)


@dataclass(frozen=True)
class _Element:
    """``lane`` counts rotated lanes and is negative before them; ``column`` counts from the output's first one."""

    name: str
    token: int
    head: int | None
    column: int
    lane: int

    def __str__(self) -> str:
        of_head = "" if self.head is None else f"head {self.head}, "
        return f"token {self.token}, {of_head}" + (
            f"rotated lane {self.lane}" if self.lane >= 0 else f"lane {self.column}, which is not rotated"
        )

    def alone(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The same call with this token, head and row of the table only, and a cache of one slot, the token's."""
        row = rows_of_tokens(inputs["positions"], inputs["cos"])[self.token]
        tokens, heads = slice(self.token, self.token + 1), slice(self.head or 0, (self.head or 0) + 1)
        parts = {"q_nope": (tokens, heads), "q_pe": (tokens, heads), "kv_c": tokens, "k_pe": tokens}
        parts |= {"cos": slice(row, row + 1), "sin": slice(row, row + 1)}
        cut = {name: FloatArray(inputs[name].dtype, inputs[name].bits[part]) for name, part in parts.items()}
        cache = np.zeros((1, 1, inputs["kv_cache"].shape[2]), inputs["kv_cache"].bits.dtype)
        cut["kv_cache"] = FloatArray(inputs["kv_cache"].dtype, cache)
        return {**inputs, **cut, "positions": np.zeros(1, np.int64), "slot_mapping": np.zeros(1, np.int64)}

    def bits(self, inputs: Mapping[str, Any], rounding: str, contraction: str) -> int:
        """The element's bits in this call."""
        outputs = rope_and_cache_mla(**self.alone(inputs), rounding=rounding, contraction=contraction)
        return int(outputs[OUTPUTS.index(self.name)].bits[..., self.column].item())


def _suspects(inputs: Mapping[str, Any], element: _Element, got: int, rounding: str) -> Iterator[str]:
    for words, changed, order in _mistakes(inputs, rounding):
        for contraction in CONTRACTIONS:
            try:
                bits = element.bits(changed, order, contraction)
            except ContractError:
                break
            form = _format(changed, element.name)
            if form.canonical(bits) == form.canonical(got):
                yield words if contraction == "none" else f"{words}, {contraction} product not rounded"
                break


def _mistakes(inputs: Mapping[str, Any], rounding: str) -> Iterator[tuple[str, dict[str, Any], str]]:
    """A mistake in words, the inputs with which the contract does the same, and the order."""

    def with_(**changes: Any) -> dict[str, Any]:
        return {**inputs, **changes}

    def table(name: str, numbers: npt.ArrayLike) -> FloatArray:
        return FloatArray.from_numbers(inputs[name].dtype, numbers)

    for order in ORDERS:
        if order != rounding:
            yield f'order "{order}"', with_(), order
    cos, sin, positions = inputs["cos"], inputs["sin"], inputs["positions"]
    yield "the other pairing of lanes", with_(is_neox=not inputs["is_neox"]), rounding
    yield "no rotation", with_(cos=table("cos", np.ones(cos.shape)), sin=table("sin", np.zeros(sin.shape))), rounding
    yield "the opposite rotation", with_(sin=table("sin", -sin.numbers)), rounding
    yield "the next position", with_(positions=positions + 1), rounding
    yield "the position before", with_(positions=positions - 1), rounding
    if inputs["cache_dtype"] == "auto":
        return
    yield "no scale", with_(k_scale=None), rounding
    yield "the scale's reciprocal", with_(k_scale=float(1 / scale_of(inputs["k_scale"]).astype(np.float64))), rounding
    for name in ("float8_e4m3fn", "float8_e4m3fnuz"):
        if name != inputs["cache_dtype"]:
            other = FloatArray("uint8", inputs["kv_cache"].bits)
            yield f"{name} instead of {inputs['cache_dtype']}", with_(cache_dtype=name, kv_cache=other), rounding


def _steps(inputs: Mapping[str, Any], element: _Element, rounding: str) -> Iterator[str]:
    order, form = ORDERS[rounding], FORMATS[inputs["q_nope"].dtype]
    one, as_float8 = element.alone(inputs), element.name == "kv_cache" and inputs["cache_dtype"] != "auto"
    if element.lane >= 0:
        arithmetic = order.arithmetic(form, FORMATS[inputs["cos"].dtype])
        before, words = _rotation(one, element, arithmetic)
        yield from words
        if not (as_float8 and order.caches_exactly):
            before = form.round(before)
            yield f"{_named(before)} in {form.name}"
    else:
        source = one["q_nope" if element.name == "q_out" else "kv_c"]
        before = np.full(len(CONTRACTIONS), source.numbers[..., element.column].item())
        yield f"lane {element.column} is {before[0].item()!r}"
    if as_float8:
        scale = scale_of(inputs["k_scale"])
        yield f"{_named(order.scaled(before, scale))} scaled with {scale.item()!r} ({order.scales_by})"


def _rotation(one: Mapping[str, Any], element: _Element, arithmetic: FloatFormat) -> tuple[Numbers, list[str]]:
    """The sums of one rotated lane, one for each contraction, and how they come about."""
    source = one["q_pe" if element.name == "q_out" else "k_pe"]
    numbers, width, lane = source.numbers.reshape(-1), source.shape[-1], element.lane
    members = [list(range(width))[part] for part in lanes_of_pairs(width, one["is_neox"])]
    first = lane in members[0]
    pair = members[0 if first else 1].index(lane)
    other = members[1 if first else 0][pair]
    cos, sin = (arithmetic.round(one[name].numbers[0, pair]) for name in ("cos", "sin"))
    a, b = numbers[lane], -numbers[other] if first else numbers[other]
    sums = np.array([sum_of_products(a, cos, b, sin, arithmetic, each) for each in CONTRACTIONS])
    with np.errstate(invalid="ignore"):
        products = [arithmetic.round(a * cos).item(), arithmetic.round(b * sin).item()]
    return sums, [
        f"lane {lane} is {numbers[lane].item()!r}, lane {other} of its pair {numbers[other].item()!r}, "
        f"cos {cos.item()!r}, sin {sin.item()!r} in {arithmetic.name}",
        f"products {products[0]!r} and {products[1]!r} in {arithmetic.name}",
        f"{_named(sums)} summed in {arithmetic.name}",
    ]


def _named(numbers: Numbers) -> str:
    """The numbers of the three contractions, or one where they are the same."""
    values = [repr(number.item()) for number in numbers]
    if len(set(values)) == 1:
        return values[0]
    return ", ".join(f"{value} ({each})" for value, each in zip(values, CONTRACTIONS, strict=True))
