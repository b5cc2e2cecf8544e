"""``mla_cache_write_dispatch``: every split equals one call of 6.1, lives by hand, refusals, several right results."""

import itertools

import numpy as np
import pytest

from reference.errors import ContractError, OnlyMemorySafety
from reference.floats import FloatArray
from reference.mla_cache_write import live, mla_cache_write_dispatch, one_call, right_results_of_life
from reference.rope_kv_cache import rope_and_cache_mla
from reference.rope_orders import CONTRACTIONS

KEPT = 0x2D
ROWS = ("q_nope", "q_pe", "kv_c", "k_pe", "positions")


def step_of(inputs, kind="real", decode=(0, 0), prefill=(0, 0), **changes):
    rows = {"decode_rows": range(*decode), "prefill_rows": range(*prefill)}
    return {"kind": kind, **rows, **inputs, **changes}


def without_cache(step):
    return {name: value for name, value in step.items() if name != "kv_cache"}


def bits(outputs):
    return [output.bits.tobytes() for output in outputs]


def splits(tokens):
    """All pairs of disjoint ranges."""
    ranges = [range(begin, end) for begin in range(tokens + 1) for end in range(begin, tokens + 1)]
    return [(one, other) for one, other in itertools.product(ranges, repeat=2) if not set(one) & set(other)]


def part_of(call, rows, cache):
    """The same call for some of its rows."""
    rows = list(rows)

    def cut(value):
        return FloatArray(value.dtype, value.bits[rows]) if isinstance(value, FloatArray) else value[rows]

    slots = call["slot_mapping"]
    padded = np.concatenate([slots, np.full(len(call["positions"]) - len(slots), -1, slots.dtype)])
    return {**call, **{name: cut(call[name]) for name in ROWS}, "slot_mapping": padded[rows], "kv_cache": cache}


@pytest.mark.parametrize("cache", ["auto", "float8_e4m3fnuz"])
def test_any_split_equals_one_call(rope_drawn, cache):
    """Also if each path is a call of its own, in either order, and the cache goes from one to the next."""
    call = rope_drawn(3, tokens=3, heads=1, latent=2, width=4, cache=cache)
    call["slot_mapping"] = np.array([5, -1, 2])
    q_out, k_pe_out, wanted = rope_and_cache_mla(**call)
    assert np.any(wanted.bits != call["kv_cache"].bits)
    for decode, prefill in splits(3):
        got = mla_cache_write_dispatch(kind="real", decode_rows=decode, prefill_rows=prefill, **call)
        assert bits(got) == bits([q_out, k_pe_out, wanted])
        left = [token for token in range(3) if token not in decode and token not in prefill]
        held = call["kv_cache"]
        for rows in (left, prefill, decode):
            queries, keys, held = rope_and_cache_mla(**part_of(call, rows, held))
            assert queries.bits.tobytes() == q_out.bits[list(rows)].tobytes()
            assert keys.bits.tobytes() == k_pe_out.bits[list(rows)].tobytes()
        assert bits([held]) == bits([wanted])


def test_a_life_by_hand(rope_call):
    """A prompt of two tokens, a warm-up, a measurement, and a decode that takes the prompt's first slot."""
    cos, sin = [[0], [1]], [[1], [0]]
    prompt = rope_call(None, [[1, 2], [3, 4]], cos, sin, slots=[0, 5])
    warm = rope_call(None, [[5, 6]], cos, sin, slots=[-1])
    measured = rope_call(None, [[7, 8]], cos, sin) | {"slot_mapping": None}
    decode = rope_call(None, [[9, 2]], cos, sin, latents=[[3]], slots=[0])
    steps = [
        without_cache(step)
        for step in (
            step_of(prompt, prefill=(0, 2)),
            step_of(warm, "dummy", decode=(0, 1)),
            step_of(measured, "profiling"),
            step_of(decode, decode=(0, 1)),
        )
    ]
    results, cache = live(steps, prompt["kv_cache"])
    assert [keys.numbers.tolist() for _, keys in results] == [[[-2, 1], [3, 4]], [[-6, 5]], [[-8, 7]], [[-2, 9]]]
    assert [queries.numbers[0, 0].tolist() for queries, _ in results] == [
        [1, -2, 1],
        [1, -6, 5],
        [1, -8, 7],
        [1, -2, 9],
    ]
    assert cache.numbers[0, 0].tolist() == [3, -2, 9]
    assert cache.numbers[1, 1].tolist() == [1, 3, 4]
    rest = np.ones((2, 4), bool)
    rest[0, 0] = rest[1, 1] = False
    assert np.all(cache.bits[rest] == KEPT)


def test_a_warm_up_on_slot_0_promises_nothing(rope_call):
    """E10: a warm-up whose slots are zeros."""
    inputs = rope_call(None, [[1, 2]], [[1]], [[0]], slots=[0])
    with pytest.raises(OnlyMemorySafety, match="token 0 of a dummy step has slot 0"):
        mla_cache_write_dispatch(**step_of(inputs, "dummy"))
    for slot in (-1, 8):
        got = mla_cache_write_dispatch(**step_of(inputs | {"slot_mapping": np.array([slot])}, "dummy"))
        assert bits(got[2:]) == bits([inputs["kv_cache"]])


@pytest.mark.parametrize(
    ("changes", "argument", "rule"),
    [
        ({"kind": "warm-up"}, "kind", "one of real, dummy, profiling"),
        ({"decode_rows": range(-1, 1)}, "decode_rows", "consecutive tokens within 0..1"),
        ({"decode_rows": range(1, 0)}, "decode_rows", "consecutive tokens"),
        ({"prefill_rows": range(1, 3)}, "prefill_rows", "consecutive tokens"),
        ({"prefill_rows": range(0, 2, 2)}, "prefill_rows", "consecutive tokens"),
        ({"decode_rows": range(2), "prefill_rows": range(1, 2)}, "prefill_rows", "has token 1 too"),
        ({"slot_mapping": None}, "slot_mapping", "None in a profiling step, and in no other"),
        ({"kind": "profiling"}, "slot_mapping", "None in a profiling step, and in no other"),
        ({"slot_mapping": np.array([0, 1, 2])}, "slot_mapping", "at most 2"),
        ({"q_scale": 1.0}, "q_scale", "None"),
    ],
)
def test_what_is_refused(rope_call, changes, argument, rule):
    step = step_of(rope_call(None, [[1, 2], [3, 4]], [[1]], [[0]]))
    mla_cache_write_dispatch(**step)
    with pytest.raises(ContractError, match=rule) as error:
        mla_cache_write_dispatch(**step | changes)
    assert error.value.argument == argument


@pytest.mark.parametrize("cache", ["auto", "float8_e4m3fn"])
def test_right_results_of_a_life_are_those_of_its_contractions(rope_drawn, cache):
    """Each contraction is right as a whole, and so is any mixture; what the first step alone leaves is not."""
    calls = [rope_drawn(seed, table=None, dtype="float32", cache=cache, scale=None, tokens=3) for seed in (2, 8)]
    steps = [without_cache(step_of(call)) for call in calls]
    shared = {name: steps[0][name] for name in ("cos", "sin", "is_neox")}
    steps[1] |= shared
    start = calls[0]["kv_cache"]
    right = right_results_of_life(steps, start)
    assert set(right) == {"q_out[0]", "k_pe_out[0]", "q_out[1]", "k_pe_out[1]", "kv_cache"}
    lives = {each: live(steps, start, contraction=each) for each in CONTRACTIONS}
    for results, held in lives.values():
        assert right["kv_cache"].accepts(held.bits).all()
        for number, (queries, keys) in enumerate(results):
            assert right[f"q_out[{number}]"].accepts(queries.bits).all()
            assert right[f"k_pe_out[{number}]"].accepts(keys.bits).all()
    if cache == "auto":
        assert len({held.bits.tobytes() for _, held in lives.values()}) > 1, "no contraction shows"
        mixed = lives["cosine"][1].bits.copy()
        mixed[..., ::2] = lives["sine"][1].bits[..., ::2]
        assert right["kv_cache"].accepts(mixed).all()
    assert not right["kv_cache"].accepts(live(steps[:1], start)[1].bits).all()
    unwritten = ~right["kv_cache"].computed[..., -1]
    assert unwritten.any()
    other = lives["none"][1].bits ^ unwritten[..., None]
    assert not right["kv_cache"].accepts(other)[unwritten].any()


def test_a_life_without_steps_has_no_results(rope_call):
    cache = rope_call(None, [[1, 2]], [[1]], [[0]])["kv_cache"]
    assert live([], cache) == ([], cache)
    assert right_results_of_life([], cache) == {}


def test_a_profiling_step_is_a_call_without_slots(rope_call):
    inputs = rope_call(None, [[1, 2]], [[1]], [[0]]) | {"slot_mapping": None}
    call = one_call(without_cache(step_of(inputs, "profiling")), inputs["kv_cache"])
    assert call["slot_mapping"].size == 0
    assert set(call) == set(inputs)
