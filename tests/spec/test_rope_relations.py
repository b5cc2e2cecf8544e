"""The laws of rope_and_cache_mla (6.1) hold on the specification in every rounding order, and each catches faults."""

import functools

import numpy as np
import pytest

from oracles.arrays import array
from oracles.contract import Values
from oracles.contracts import _rope_domain as rope
from oracles.contracts import by_name
from oracles.domain import Sampler, Scope, walk
from reference.floats import BFLOAT16, FLOAT8_E4M3FN, FORMATS

CONTRACT = by_name("rope_kv_cache.rope_and_cache_mla")
each_law = pytest.mark.parametrize("law", CONTRACT.relations, ids=[law.name for law in CONTRACT.relations])
SAMPLED, MANY = 24, 100

LEAST = {"cached_keys_are_returned": 8, "positions_are_clamped": 4}
"""Keys that are rounded twice are no latents; positions in the table need no clamp."""

MOST_ELEMENTS = 20_000
"""Of a case that is asked here: the large shapes repeat what small ones say, and take seconds."""


@functools.cache
def sampled(count=SAMPLED):
    drawn = (CONTRACT.domain(Sampler(5, number)) for number in range(4 * count))
    cheap = (inputs for inputs in drawn if inputs["q_nope"].data.size < MOST_ELEMENTS)
    return [inputs for inputs in cheap if isinstance(CONTRACT.expected(inputs), Values)][:count]


@functools.cache
def small():
    walked = (inputs for inputs, _ in walk(CONTRACT.domain, Scope(1, 1)))
    return [inputs for inputs in walked if isinstance(CONTRACT.expected(inputs), Values)]


def specification(inputs, rounding="hip"):
    answer = rope.expected(inputs, rounding)
    assert isinstance(answer, Values), f"a law asks for an answer to inputs without one: {answer}"
    return answer.outputs


@each_law
def test_holds_on_sampled_inputs_and_applies_to_many_of_them(law, applications):
    assert applications(law, sampled(), specification) >= LEAST.get(law.name, SAMPLED // 4)


@each_law
@pytest.mark.parametrize("rounding", ["torch", "promote", "triton", "half_scale"])
def test_holds_in_every_rounding_order(law, rounding):
    fitting = [one for one in sampled(MANY) if rounding != "half_scale" or one["q_pe"].dtype == "float16"]
    for inputs in fitting[:8]:
        assert law.holds(functools.partial(specification, rounding=rounding), inputs) is None


@each_law
def test_holds_on_small_inputs(law):
    for inputs in small()[::4]:
        assert law.holds(specification, inputs) is None


def with_other(change):
    """The specification asked about other inputs."""

    @functools.wraps(change)
    def wrong(inputs):
        return specification(inputs | change(inputs))

    return wrong


def edited(edit):
    """The specification whose outputs, copies of them, ``edit(inputs, q_out, k_pe_out, kv_cache)`` changes."""

    @functools.wraps(edit)
    def wrong(inputs):
        outputs = {name: value.data.copy() for name, value in specification(inputs).items()}
        edit(inputs, *(value.view(f"uint{8 * value.itemsize}") for value in outputs.values()))
        return outputs

    return wrong


def tokens_of(inputs):
    return inputs["positions"].data.size


@with_other
def pairs_as_neox_always(inputs):
    return {"is_neox": True}


@with_other
def takes_the_next_position(inputs):
    positions = inputs["positions"]
    return {"positions": positions.with_values(np.clip(positions.data, 0, 1 << 20) + 1)}


@with_other
def numbers_tokens_from_zero(inputs):
    return {"positions": array(np.arange(tokens_of(inputs)), "int64")}


@with_other
def takes_positions_past_the_table_for_the_first(inputs):
    positions, rows = inputs["positions"], inputs["cos"].shape[0]
    return {"positions": positions.with_values(np.where(positions.data < rows, positions.data, 0))}


@with_other
def doubles_the_sine(inputs):
    form = FORMATS[inputs["sin"].dtype]
    twice = form.encode(form.decode(inputs["sin"].data.view(form.storage)) * 2)
    return {"sin": inputs["sin"].with_values(twice.view(inputs["sin"].data.dtype))}


@with_other
def swaps_sine_and_cosine(inputs):
    return {"cos": inputs["sin"], "sin": inputs["cos"]}


@with_other
def turns_the_other_way(inputs):
    sin = inputs["sin"]
    bits = sin.data.view(f"uint{8 * sin.data.itemsize}")
    return {"sin": sin.with_values((bits ^ (1 << (8 * sin.data.itemsize - 1))).astype(bits.dtype).view(sin.data.dtype))}


@with_other
def ignores_the_scale(inputs):
    return {"k_scale": None}


@with_other
def halves_without_a_scale(inputs):
    return {"k_scale": 2.0 if inputs["k_scale"] is None else inputs["k_scale"]}


@with_other
def writes_slots_outside_to_the_first(inputs):
    slots, (blocks, size, _) = inputs["slot_mapping"], inputs["kv_cache"].shape
    outside = slots.data >= blocks * size
    first_is_free = 0 not in slots.data and outside.sum() == 1
    return {"slot_mapping": slots.with_values(np.where(outside, 0, slots.data))} if first_is_free else {}


@with_other
def writes_the_first_token_only(inputs):
    slots = inputs["slot_mapping"]
    return {"slot_mapping": slots.with_values(np.where(np.arange(slots.data.size) == 0, slots.data, -1))}


def rotates_twice(inputs):
    first = specification(inputs)
    latent = inputs["kv_c"].shape[1]
    again = {
        "q_pe": inputs["q_pe"].with_values(first["q_out"].data[..., latent:]),
        "k_pe": inputs["k_pe"].with_values(first["k_pe_out"].data),
    }
    return specification(inputs | again)


@edited
def never_rotates(inputs, q_out, k_pe_out, kv_cache):
    q_out[..., inputs["kv_c"].shape[1] :] = inputs["q_pe"].data.view(q_out.dtype)
    k_pe_out[:] = inputs["k_pe"].data.view(k_pe_out.dtype)


@edited
def returns_the_key_unrotated(inputs, q_out, k_pe_out, kv_cache):
    k_pe_out[:] = inputs["k_pe"].data.view(k_pe_out.dtype)


@edited
def passes_copies_through_float64(inputs, q_out, k_pe_out, kv_cache):
    q_out[:] = FORMATS[inputs["q_pe"].dtype].canonical(q_out)


@edited
def clears_slots_of_no_token(inputs, q_out, k_pe_out, kv_cache):
    kv_cache[kv_cache == inputs["kv_cache"].data.view(kv_cache.dtype)] = 0


@edited
def adds_to_what_the_cache_held(inputs, q_out, k_pe_out, kv_cache):
    kv_cache += (kv_cache != inputs["kv_cache"].data.view(kv_cache.dtype)) * inputs["kv_cache"].data.view(
        kv_cache.dtype
    )


@edited
def heads_share_the_first_one(inputs, q_out, k_pe_out, kv_cache):
    q_out[:] = q_out[:, :1]


@edited
def forgets_queries_of_the_last_token(inputs, q_out, k_pe_out, kv_cache):
    q_out[-1:] = 0


@edited
def truncates_float8(inputs, q_out, k_pe_out, kv_cache):
    if inputs["cache_dtype"] != "auto":
        kv_cache -= (kv_cache & 0x7F > 0x20) & (kv_cache != inputs["kv_cache"].data.view(np.uint8))


CAUGHT_BY = {
    "copies_are_exact": [passes_copies_through_float64],
    "other_slots_keep_their_bits": [clears_slots_of_no_token, adds_to_what_the_cache_held],
    "cached_keys_are_returned": [returns_the_key_unrotated],
    "no_angle_is_the_identity": [swaps_sine_and_cosine],
    "a_quarter_turn_is_made_once": [rotates_twice, never_rotates, turns_the_other_way, pairs_as_neox_always],
    "rotation_keeps_the_norm": [doubles_the_sine, rotates_twice, takes_the_next_position, pairs_as_neox_always],
    "latents_round_to_neighbours": [ignores_the_scale, halves_without_a_scale, truncates_float8],
    "tokens_are_free_to_move": [numbers_tokens_from_zero, forgets_queries_of_the_last_token],
    "parts_join": [numbers_tokens_from_zero, writes_the_first_token_only, forgets_queries_of_the_last_token],
    "heads_are_free_to_move": [heads_share_the_first_one],
    "pairings_interleave": [pairs_as_neox_always],
    "positions_are_clamped": [takes_positions_past_the_table_for_the_first],
    "slots_outside_are_none": [writes_slots_outside_to_the_first],
    "idle_scales_change_nothing": [halves_without_a_scale],
}
CAUGHT = [(law, fault) for law, faults in CAUGHT_BY.items() for fault in faults]


def test_every_law_has_a_planted_fault():
    assert [law.name for law in CONTRACT.relations] == list(CAUGHT_BY)


@pytest.mark.parametrize(("name", "fault"), CAUGHT, ids=[f"{name}-{fault.__name__}" for name, fault in CAUGHT])
def test_catches_a_planted_fault(name, fault):
    law = next(law for law in CONTRACT.relations if law.name == name)
    problems = (law.holds(fault, inputs) for inputs in sampled(MANY))
    found = next((problem for problem in problems if problem), None)
    assert found, f"{name} accepts a wrong function on every input"
    assert "\n" not in found


def a_token_less(inputs):
    return {name: value.data[:-1] for name, value in specification(inputs).items()}


@each_law
def test_outputs_of_a_wrong_shape_break_every_law(law):
    problems = {law.holds(a_token_less, inputs) for inputs in sampled()} - {None}
    assert problems
    assert all("has shape" in problem for problem in problems)


def two_tokens(**changes):
    """Two tokens of one head, with pairs (1, 2) and (3, 4), and slots 1 and none."""

    def floats(numbers):
        return array(BFLOAT16.encode(np.array(numbers)), "bfloat16")

    inputs = {
        "q_nope": floats([[[5.0]], [[6.0]]]),
        "q_pe": floats([[[1.0, 2.0]], [[3.0, 4.0]]]),
        "kv_c": floats([[7.0], [8.0]]),
        "k_pe": floats([[1.0, 2.0], [3.0, 4.0]]),
        "cos": floats([[1.0], [0.0]]),
        "sin": floats([[0.0], [1.0]]),
        "positions": array([1, 9], "int64"),
        "slot_mapping": array([1, -1], "int64"),
        "k_scale": None,
        "q_scale": None,
        "is_neox": True,
        "cache_dtype": "auto",
        "kv_cache": floats(np.zeros((1, 2, 3))),
    }
    return inputs | changes


def test_laws_hold_where_every_number_is_worked_out():
    inputs = two_tokens()
    keys = BFLOAT16.decode(specification(inputs)["k_pe_out"].data)
    assert keys.tolist() == [[-2.0, 1.0], [-4.0, 3.0]]
    for law in CONTRACT.relations:
        assert law.holds(specification, inputs) is None


def test_a_saturated_latent_lies_at_the_largest_number():
    cache = array(np.zeros((1, 2, 3)), "uint8")
    inputs = two_tokens(cache_dtype="float8_e4m3fn", k_scale=2.0**-8, kv_cache=cache)
    latent = specification(inputs)["kv_cache"].data[0, 1, 0]
    assert latent == FLOAT8_E4M3FN.largest
    law = next(law for law in CONTRACT.relations if law.name == "latents_round_to_neighbours")
    assert law.holds(specification, inputs) is None
