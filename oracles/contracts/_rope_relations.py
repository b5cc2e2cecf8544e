"""Laws of contract 6.1, rope_and_cache_mla, that need no second implementation and hold in every rounding order.

Every law speaks of inputs for which the contract gives values. Elements are compared by their bits; a NaN of arithmetic
equals any other, and a zero the other where a law says so. Norms and float8 latents may be off by what rounding leaves.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import numpy.typing as npt

from oracles.arrays import Array, Inputs, Outputs, plain_value
from oracles.contract import Relation
from oracles.contracts._law_arrays import difference, one, shaped
from oracles.contracts._laws import Function, relation
from reference.floats import FORMATS, FloatFormat
from reference.rope_kv_cache import scale_of
from reference.rope_orders import lanes_of_pairs

Bits = npt.NDArray[np.unsignedinteger]
Numbers = npt.NDArray[np.float64]
Parts = dict[str, Bits]

PER_TOKEN = ("q_nope", "q_pe", "kv_c", "k_pe", "positions")
OUTPUTS = ("q_out", "k_pe_out", "kv_cache")


def _form(inputs: Inputs) -> FloatFormat:
    return FORMATS[one(inputs, "q_pe").dtype]


def _cache_form(inputs: Inputs) -> FloatFormat:
    name = cast(str, inputs["cache_dtype"])
    return _form(inputs) if name == "auto" else FORMATS[name]


def _latent(inputs: Inputs) -> int:
    return one(inputs, "kv_c").shape[1]


def _bits(array: Array) -> Bits:
    return array.data.view(f"uint{8 * array.data.itemsize}")


def _of(function: Function, inputs: Inputs) -> Parts:
    """All outputs by their bits, with one NaN for those that arithmetic or a conversion may give."""
    tokens, heads, latent = one(inputs, "q_nope").shape
    width = one(inputs, "q_pe").shape[2]
    shapes = ((tokens, heads, latent + width), (tokens, width), one(inputs, "kv_cache").shape)
    outputs: Outputs = function(inputs)
    found: Parts = {}
    for name, shape in zip(OUTPUTS, shapes, strict=True):
        form = _cache_form(inputs) if name == "kv_cache" else _form(inputs)
        found[name] = shaped(name, plain_value(outputs[name]), shape).view(form.storage)
    found["q_out"][..., latent:] = _form(inputs).canonical(found["q_out"][..., latent:])
    found["k_pe_out"] = _form(inputs).canonical(found["k_pe_out"])
    return found


def _slots(inputs: Inputs) -> dict[int, tuple[int, int]]:
    """The block and the place of each token that is written."""
    blocks, size, _ = one(inputs, "kv_cache").shape
    slots = enumerate(one(inputs, "slot_mapping").data.tolist())
    return {token: divmod(slot, size) for token, slot in slots if 0 <= slot < blocks * size}


def _rows(inputs: Inputs, cache: Bits) -> tuple[list[int], Bits]:
    """Tokens that are written, and what the cache holds of them; one NaN for what was computed."""
    slots, first = _slots(inputs), _latent(inputs) if inputs["cache_dtype"] == "auto" else 0
    rows = np.array([cache[place] for place in slots.values()], cache.dtype).reshape(len(slots), cache.shape[2])
    rows[:, first:] = _cache_form(inputs).canonical(rows[:, first:])
    return list(slots), rows


def _changed(old: Array, bits: npt.ArrayLike) -> Array:
    """Other bits of any shape in place of the old ones, contiguous if they have another shape."""
    data = np.ascontiguousarray(bits).astype(_bits(old).dtype).view(old.data.dtype)
    return old.with_values(data) if data.shape == old.shape else Array(old.dtype, data)


def _taken(inputs: Inputs, tokens: Any) -> Inputs:
    """The batch of some tokens of this one, all of which have an element in the slot mapping."""
    given = one(inputs, "slot_mapping").data
    slots = np.full(one(inputs, "positions").shape, -1, given.dtype)
    slots[: given.size] = given
    taken = {name: one(inputs, name).data[tokens] for name in PER_TOKEN} | {"slot_mapping": slots[tokens]}
    return {
        **inputs,
        **{name: Array(one(inputs, name).dtype, np.ascontiguousarray(part)) for name, part in taken.items()},
    }


def _table(inputs: Inputs, cos: float, sin: float) -> Inputs:
    """The same angle in every row and lane."""
    form, shape = FORMATS[one(inputs, "cos").dtype], one(inputs, "cos").shape
    numbers = {"cos": cos, "sin": sin}
    tables = {name: _changed(one(inputs, name), form.encode(np.full(shape, n))) for name, n in numbers.items()}
    return {**inputs, **tables}


def _same(what: str, found: Parts, wanted: Parts, inputs: Inputs) -> str | None:
    return _same_results(what, found, wanted, inputs) or _same_elsewhere(what, found, wanted, inputs)


def _same_results(what: str, found: Parts, wanted: Parts, inputs: Inputs) -> str | None:
    """The same without slots of no token; in written ones, NaN of arithmetic are one."""
    for name in OUTPUTS[:2]:
        problem = difference(f"{what}, {name}", found[name], wanted[name])
        if problem:
            return problem
    rows = (_rows(inputs, parts["kv_cache"])[1] for parts in (found, wanted))
    return difference(f"{what}, written rows of kv_cache", *rows)


def _same_elsewhere(what: str, found: Parts, wanted: Parts, inputs: Inputs) -> str | None:
    kept = np.ones(found["kv_cache"].shape, np.bool_)
    for place in _slots(inputs).values():
        kept[place] = False
    pair = (np.where(kept, parts["kv_cache"], 0) for parts in (found, wanted))
    return difference(f"{what}, kv_cache", *pair)


def _copies_are_exact(function: Function, inputs: Inputs) -> str | None:
    found, latent = _of(function, inputs), _latent(inputs)
    problem = difference("q_out", found["q_out"][..., :latent], _bits(one(inputs, "q_nope")))
    if problem or inputs["cache_dtype"] != "auto":
        return problem
    tokens, rows = _rows(inputs, found["kv_cache"])
    return difference("written latents", rows[:, :latent], _bits(one(inputs, "kv_c"))[tokens])


def _other_slots_keep_their_bits(function: Function, inputs: Inputs) -> str | None:
    cache, results = one(inputs, "kv_cache"), []
    for before in (_bits(cache), ~_bits(cache)):
        results.append(_of(function, {**inputs, "kv_cache": _changed(cache, before)}))
        problem = _same_elsewhere("beside the input", results[-1], {"kv_cache": before}, inputs)
        if problem:
            return problem
    return _same_results("with another cache before", results[1], results[0], inputs)


def _cached_keys_are_returned(function: Function, inputs: Inputs) -> str | None:
    found, latent = _of(function, inputs), _latent(inputs)
    tokens, rows = _rows(inputs, found["kv_cache"])
    keys = found["k_pe_out"][tokens]
    if inputs["cache_dtype"] == "auto":
        return difference("written keys", rows[:, latent:], keys)
    lanes = min(latent, keys.shape[1])
    latents = _bits(one(inputs, "kv_c")).copy()
    latents[:, :lanes] = found["k_pe_out"][:, :lanes]
    again = _of(function, {**inputs, "kv_c": _changed(one(inputs, "kv_c"), latents)})
    wanted = _rows(inputs, again["kv_cache"])[1][:, :lanes]
    return difference("written keys", rows[:, latent : latent + lanes], wanted)


def _pairs(inputs: Inputs, rotated: Numbers) -> tuple[Numbers, Numbers]:
    first, second = lanes_of_pairs(rotated.shape[-1], inputs["is_neox"] is True)
    return rotated[..., first], rotated[..., second]


def _before_and_after(inputs: Inputs, found: Parts) -> list[tuple[str, Numbers, Numbers]]:
    """Numbers of queries and keys, those that are rotated, before and after."""
    form, latent = _form(inputs), _latent(inputs)
    return [
        ("q_out", form.decode(_bits(one(inputs, "q_pe"))), form.decode(found["q_out"][..., latent:])),
        ("k_pe_out", form.decode(_bits(one(inputs, "k_pe"))), form.decode(found["k_pe_out"])),
    ]


def _turned(function: Function, inputs: Inputs, cos: float, sin: float, what: str) -> str | None:
    """Whether pairs of finite numbers are turned exactly, up to the sign of zero."""
    for name, before, after in _before_and_after(inputs, _of(function, _table(inputs, cos, sin))):
        (x, y), (first, second) = _pairs(inputs, before), _pairs(inputs, after)
        with np.errstate(invalid="ignore"):
            wanted = x * cos - y * sin, y * cos + x * sin
            finite = np.isfinite(x) & np.isfinite(y)
        for place, (left, right) in enumerate(zip((first, second), wanted, strict=True)):
            pair = (np.where(finite, numbers, 0.0) for numbers in (left, right))
            problem = difference(f"{what}, {name}, lane {place} of pairs", *pair)
            if problem:
                return problem
    return None


def _rotation_keeps_the_norm(function: Function, inputs: Inputs) -> str | None:
    rows = np.clip(one(inputs, "positions").data, 0, one(inputs, "cos").shape[0] - 1)
    table = FORMATS[one(inputs, "cos").dtype]
    cos, sin = (table.decode(_bits(one(inputs, name)))[rows] for name in ("cos", "sin"))
    form = _form(inputs)
    # The table, both products, their sum and the result are rounded at most once each: five relative errors of at most
    # half a last place, or of an absolute one among the smallest numbers. Six leave room for their products.
    unit, least = 2.0 ** -(form.mantissa + 1), 2.0 ** (1 - form.bias - form.mantissa)
    for name, before, after in _before_and_after(inputs, _of(function, inputs)):
        c, s = (part[:, None] if before.ndim == 3 else part for part in (cos, sin))
        (x, y), (first, second) = _pairs(inputs, before), _pairs(inputs, after)
        with np.errstate(all="ignore"):
            size = (np.abs(x) + np.abs(y)) * (np.abs(c) + np.abs(s))
            wanted = np.hypot(x, y) * np.hypot(c, s)
            bound = 2 * (6 * unit * size + 4 * least * (1 + np.abs(x) + np.abs(y)))
            wrong = np.isfinite(size) & (size < form.decode(form.largest) / 2)
            wrong &= ~(np.abs(np.hypot(first, second) - wanted) <= bound)
        if wrong.any():
            at = tuple(np.argwhere(wrong)[0].tolist())
            norm = np.hypot(first, second)[at]
            return f"{name}, pair {list(at)}: the norm is {norm}, {wanted[at]} follows from the law"
    return None


def _latents_round_to_neighbours(function: Function, inputs: Inputs) -> str | None:
    form, latent = _cache_form(inputs), _latent(inputs)
    tokens, rows = _rows(inputs, _of(function, inputs)["kv_cache"])
    numbers = _form(inputs).decode(_bits(one(inputs, "kv_c")))[tokens]
    largest = form.decode(form.largest)
    with np.errstate(all="ignore"):
        scaled = np.clip(
            numbers / scale_of(cast("float | None", inputs["k_scale"])).astype(np.float64), -largest, largest
        )
        got = form.decode(rows[:, :latent])
        # Half a step of float8, and what a quotient in float16 or a product with a rounded reciprocal is off by.
        exponent = np.maximum(np.floor(np.log2(np.maximum(np.abs(scaled), 2.0**-60))), 1 - form.bias)
        bound = np.exp2(exponent - form.mantissa - 1) + np.abs(scaled) * 2.0**-10 + 2.0**-25
        wrong = ~np.isnan(scaled) & ~(np.abs(got - scaled) <= bound)
        wrong |= np.isnan(scaled) & ~np.isnan(got)
    if not wrong.any():
        return None
    row, lane = np.argwhere(wrong)[0].tolist()
    return (
        f"latent lane {lane} of token {tokens[row]} is {got[row, lane]}, which does not lie next to {scaled[row, lane]}"
    )


def _tokens_are_free_to_move(function: Function, inputs: Inputs) -> str | None:
    found = _of(function, _taken(inputs, slice(None, None, -1)))
    for name in OUTPUTS[:2]:
        found[name] = found[name][::-1]
    return _same("with tokens reversed", found, _of(function, inputs), inputs)


def _parts_join(function: Function, inputs: Inputs) -> str | None:
    cut = one(inputs, "positions").data.size // 2
    first = _of(function, _taken(inputs, slice(0, cut)))
    cache = _changed(one(inputs, "kv_cache"), first["kv_cache"])
    joined = _of(function, {**_taken(inputs, slice(cut, None)), "kv_cache": cache})
    for name in OUTPUTS[:2]:
        joined[name] = np.concatenate([first[name], joined[name]])
    return _same(f"with tokens from {cut} on in a call of their own", joined, _of(function, inputs), inputs)


def _heads_are_free_to_move(function: Function, inputs: Inputs) -> str | None:
    turned = {name: _changed(one(inputs, name), _bits(one(inputs, name))[:, ::-1]) for name in ("q_nope", "q_pe")}
    found = _of(function, {**inputs, **turned})
    found["q_out"] = found["q_out"][:, ::-1]
    return _same("with heads reversed", found, _of(function, inputs), inputs)


def _pairings_interleave(function: Function, inputs: Inputs) -> str | None:
    width, is_neox = one(inputs, "q_pe").shape[2], inputs["is_neox"] is True
    own, other = (
        np.concatenate([np.arange(width)[lanes] for lanes in lanes_of_pairs(width, neox)])
        for neox in (is_neox, not is_neox)
    )
    moved: dict[str, Array] = {}
    for name in ("q_pe", "k_pe"):
        bits = np.empty_like(_bits(one(inputs, name)))
        bits[..., other] = _bits(one(inputs, name))[..., own]
        moved[name] = _changed(one(inputs, name), bits)
    found, wanted = _of(function, {**inputs, **moved, "is_neox": not is_neox}), _of(function, inputs)
    latent = _latent(inputs)
    back = {name: bits.copy() for name, bits in found.items()}
    back["q_out"][..., latent + own] = found["q_out"][..., latent + other]
    back["k_pe_out"][..., own] = found["k_pe_out"][..., other]
    for place in _slots(inputs).values():
        back["kv_cache"][place][latent + own] = found["kv_cache"][place][latent + other]
    return _same("with the other pairing of lanes in its order", back, wanted, inputs)


def _positions_are_clamped(function: Function, inputs: Inputs) -> str | None:
    positions = one(inputs, "positions")
    inside = positions.with_values(np.clip(positions.data, 0, one(inputs, "cos").shape[0] - 1))
    found = _of(function, {**inputs, "positions": inside})
    return _same("with positions in the table", found, _of(function, inputs), inputs)


def _slots_outside_are_none(function: Function, inputs: Inputs) -> str | None:
    slots = one(inputs, "slot_mapping")
    there = np.isin(np.arange(slots.data.size), list(_slots(inputs)))
    other = {**inputs, "slot_mapping": slots.with_values(np.where(there, slots.data, -1))}
    return _same("with -1 for slots outside", _of(function, other), _of(function, inputs), inputs)


def _idle_scales_change_nothing(function: Function, inputs: Inputs) -> str | None:
    scale = inputs["k_scale"]
    if inputs["cache_dtype"] == "auto":
        others: tuple[float | None, ...] = (None, 0.25)
    else:
        others = (1.0,) if scale is None else (None,) if scale == 1.0 else (float(scale_of(cast(float, scale))),)
    for other in others:
        found = _of(function, {**inputs, "k_scale": other})
        problem = _same(f"with k_scale={other}", found, _of(function, inputs), inputs)
        if problem:
            return problem
    return None


def _has_tokens(inputs: Inputs) -> bool:
    return one(inputs, "positions").data.size > 0


def _several_tokens(inputs: Inputs) -> bool:
    return one(inputs, "positions").data.size > 1


def _keys_are_not_rounded_between(inputs: Inputs) -> bool:
    """With float8, some orders round a key to 16 bits before the cache; float32 is what all of them compute in."""
    exact = inputs["cache_dtype"] == "auto" or one(inputs, "q_pe").dtype == "float32"
    return exact and bool(_slots(inputs))


RELATIONS: tuple[Relation, ...] = (
    relation("copies_are_exact", "q_nope, and with auto kv_c, come out bit for bit.", _copies_are_exact, _has_tokens),
    relation(
        "other_slots_keep_their_bits",
        "Slots of no token keep their bits, and nothing else depends on what the cache held.",
        _other_slots_keep_their_bits,
    ),
    relation(
        "cached_keys_are_returned",
        "The cached key is the returned one; in float8, what a latent of its numbers is cached as.",
        _cached_keys_are_returned,
        _keys_are_not_rounded_between,
    ),
    relation(
        "no_angle_is_the_identity",
        "With cos 1 and sin 0, finite pairs stay what they are, up to the sign of zero.",
        lambda function, inputs: _turned(function, inputs, 1.0, 0.0, "without an angle"),
        _has_tokens,
    ),
    relation(
        "a_quarter_turn_is_made_once",
        "With cos 0 and sin 1, a finite pair (x, y) becomes (-y, x), up to the sign of zero.",
        lambda function, inputs: _turned(function, inputs, 0.0, 1.0, "with a quarter turn"),
        _has_tokens,
    ),
    relation(
        "rotation_keeps_the_norm",
        "A pair's norm is multiplied by that of (cos, sin), within the errors of five roundings.",
        _rotation_keeps_the_norm,
        _has_tokens,
    ),
    relation(
        "latents_round_to_neighbours",
        "A float8 latent lies within half a step of the scaled number, a saturated one at the largest.",
        _latents_round_to_neighbours,
        lambda inputs: inputs["cache_dtype"] != "auto" and bool(_slots(inputs)),
    ),
    relation(
        "tokens_are_free_to_move",
        "Tokens in reverse order, with positions and slots, give the same; one past the slot mapping has slot -1.",
        _tokens_are_free_to_move,
        _several_tokens,
    ),
    relation(
        "parts_join",
        "Two calls with the first and the other tokens, on one cache, give what one call gives.",
        _parts_join,
        _several_tokens,
    ),
    relation(
        "heads_are_free_to_move",
        "Heads in reverse order come out in reverse order; keys and cache do not change.",
        _heads_are_free_to_move,
        lambda inputs: _has_tokens(inputs) and one(inputs, "q_pe").shape[1] > 1,
    ),
    relation(
        "pairings_interleave",
        "Lanes put in the order of the other pairing, rotated so and put back, give the same.",
        _pairings_interleave,
        lambda inputs: _has_tokens(inputs) and one(inputs, "q_pe").shape[2] > 2,
    ),
    relation(
        "positions_are_clamped",
        "Positions outside the table are its first or last row.",
        _positions_are_clamped,
        lambda inputs: not np.isin(one(inputs, "positions").data, np.arange(one(inputs, "cos").shape[0])).all(),
    ),
    relation(
        "slots_outside_are_none",
        "A slot that the cache does not have is as -1.",
        _slots_outside_are_none,
        lambda inputs: len(_slots(inputs)) < one(inputs, "slot_mapping").data.size,
    ),
    relation(
        "idle_scales_change_nothing",
        "With auto the scale changes nothing; None is 1, and another scale is what float32 holds of it.",
        _idle_scales_change_nothing,
    ),
)
"""The laws of contract 6.1."""
