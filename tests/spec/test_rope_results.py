"""Which results of ``rope_and_cache_mla`` are right, what is said of the others, and what is refused."""

import re

import numpy as np
import pytest

from reference.errors import ContractError
from reference.floats import FORMATS, FloatArray
from reference.rope_kv_cache import rope_and_cache_mla
from reference.rope_orders import CONTRACTIONS
from reference.rope_results import explain, right_results

KEPT = 0x2D


def floats(dtype, *shape):
    if dtype in FORMATS:
        return FloatArray.from_numbers(dtype, np.ones(shape))
    return FloatArray(dtype, np.ones(shape, f"uint{8 * np.dtype(dtype).itemsize}"))


NO_SCALES = (0.0, -1.0, np.inf, np.nan, 1, True, "1", 1e-60, 1e39)
OTHER_FLOAT8 = {"cache_dtype": "float8_e4m3fn", "kv_cache": floats("float8_e4m3fnuz", 2, 4, 11)}


def test_the_copy_keeps_nan_payloads_and_arithmetic_may_give_any_nan(rope_call):
    inputs = rope_call(None, [[1, 2]], [[1]], [[0]], latents=[[0, 0]], dtype="float16")
    odd = np.array([0x7D01, 0xFE37], np.uint16)
    inputs = inputs | {
        "kv_c": FloatArray("float16", odd[None]),
        "q_nope": FloatArray("float16", odd[None, None]),
        "k_pe": FloatArray("float16", np.array([[0x7D01, 0x3C00]], np.uint16)),
    }
    q_out, key, cache = rope_and_cache_mla(**inputs)
    assert q_out.bits[0, 0, :2].tolist() == cache.bits[0, 0, :2].tolist() == odd.tolist()
    assert key.bits[0].tolist() == [0x7E00, 0x7E00]
    right = right_results(inputs)["kv_cache"]
    given = cache.bits.copy()
    assert right.accepts(given).all()
    given[0, 0] = [0x7E00, 0xFE00, 0xFC01, 0x7FFF]
    assert right.accepts(given)[0, 0].tolist() == [False, False, True, True]
    assert right.canonical(given)[0, 0].tolist() == [0x7E00, 0xFE00, 0x7E00, 0x7E00]
    given[0, 1, 0] = 0x7E01
    assert right.accepts(given)[0, 1].tolist() == [False, True, True, True]


def test_any_nan_of_float8_is_right_where_something_was_converted(rope_call):
    inputs = rope_call(None, [[1, 2]], [[1]], [[0]], latents=[[np.nan]], cache="float8_e4m3fn", shape=(1, 2))
    given = rope_and_cache_mla(**inputs)[2].bits.copy()
    assert given[0, 0, 0] == 0x7F
    given[0, 0, 0], given[0, 1, 0] = 0xFF, 0x7F
    assert np.argwhere(~right_results(inputs)["kv_cache"].accepts(given)).tolist() == [[0, 1, 0]]


@pytest.mark.parametrize("rounding", ["hip", "torch", "promote", "triton"])
def test_right_results_are_the_three(rope_drawn, rounding):
    inputs = rope_drawn(4, "float32", tokens=8, heads=4, width=16, cache="float8_e4m3fn", shape=(3, 4))
    right = right_results(inputs, rounding)
    found = {name: rope_and_cache_mla(**inputs, rounding=rounding, contraction=name) for name in CONTRACTIONS}
    for place, name in enumerate(("q_out", "k_pe_out", "kv_cache")):
        bits = {contraction: outputs[place].bits for contraction, outputs in found.items()}
        mixed = np.choose(np.random.default_rng(1).integers(0, 3, bits["none"].shape), list(bits.values()))
        assert right[name].accepts(mixed).all()
        assert np.array_equal(right[name].wanted(mixed), mixed)
        wrong = mixed ^ 0x10
        assert not right[name].accepts(wrong).any()
        assert np.array_equal(right[name].wanted(wrong), bits["none"])
    assert (found["none"][0].bits != found["cosine"][0].bits).any()


def explained(inputs, given, output, place):
    right = right_results(inputs)[output]
    index = tuple(int(each) for each in np.argwhere(~right.accepts(given[place].bits))[0])
    return explain(inputs, output, index, int(given[place].bits[index]))


@pytest.mark.parametrize("cache", ["auto", "float8_e4m3fn"])
def test_a_wrong_element_is_explained(rope_drawn, cache):
    inputs = rope_drawn(12, cache=cache, tokens=8, heads=2, width=32, shape=(3, 4))
    still = {"cos": floats("float32", 6, 16), "sin": FloatArray("float32", np.zeros((6, 16), np.uint32))}
    mistakes = {
        'order "torch"': rope_and_cache_mla(**inputs, rounding="torch"),
        "the other pairing of lanes": rope_and_cache_mla(**inputs | {"is_neox": not inputs["is_neox"]}),
        "no rotation": rope_and_cache_mla(**inputs | still),
        "the next position": rope_and_cache_mla(**inputs | {"positions": inputs["positions"] + 1}),
    }
    for words, given in mistakes.items():
        for place, output in enumerate(("q_out", "k_pe_out", "kv_cache")):
            found = explained(inputs, given, output, place)
            assert any(suspect.startswith(words) for suspect in found.suspects), (output, found)
            assert re.match(
                rf"{output}\[.*\]: token \d, .*rotated lane \d+, order \"hip\"\n  got 0x\w+ \(.*\), right 0x",
                str(found),
            )
            assert any("products" in step for step in found.steps)


@pytest.mark.parametrize(
    ("words", "change"),
    [
        ("no scale", {"k_scale": None}),
        ("the scale's reciprocal", {"k_scale": 1 / 0.3}),
        ("float8_e4m3fnuz instead of float8_e4m3fn", {"cache_dtype": "float8_e4m3fnuz"}),
    ],
)
def test_wrong_float8_is_explained(rope_drawn, words, change):
    inputs = rope_drawn(13, cache="float8_e4m3fn")
    found = explained(inputs, rope_and_cache_mla(**inputs | change), "kv_cache", 2)
    assert words in found.suspects
    assert "which is not rotated" in found.element
    assert "scaled with 0.30000001192092896" in found.steps[-1]


def test_what_is_right_or_was_not_to_be_written_is_explained(rope_call):
    inputs = rope_call(None, [[1, 2], [3, 4]], [[1]], [[0]], slots=[3, -1])
    assert explain(inputs, "kv_cache", (0, 3, 1), 0x3F80).suspects == ()
    found = explain(inputs, "kv_cache", (0, 2, 1), 0x3F80)
    assert found.right == {"none": KEPT}
    assert found.element == "kv_cache[0, 2, 1]: no token has this slot, it keeps its bits"
    found = explain(inputs, "q_out", (1, 0, 0), 0)
    assert str(found).splitlines()[1:] == ["  got 0x0000 (0.0), right 0x3f80 (1.0)", "  lane 0 is 1.0"]
    assert "got 0x0001" in str(explain(inputs, "k_pe_out", (1, 1), 1))


@pytest.mark.parametrize(
    ("change", "argument", "rule"),
    [
        ({"q_nope": floats("bfloat16", 5, 3)}, "q_nope", "3 dimensions"),
        ({"q_nope": floats("float64", 5, 2, 3)}, "q_nope", "float16 or bfloat16 or float32"),
        ({"q_nope": floats("int16", 5, 2, 3)}, "q_nope", "float16 or bfloat16 or float32"),
        ({"q_nope": floats("float8_e4m3fn", 5, 2, 3)}, "q_nope", "float16 or bfloat16 or float32"),
        ({"q_pe": floats("float16", 5, 2, 8)}, "q_pe", "bfloat16"),
        ({"q_pe": floats("bfloat16", 5, 8)}, "q_pe", "3 dimensions"),
        ({"kv_c": floats("float32", 5, 3)}, "kv_c", "bfloat16"),
        ({"kv_c": floats("bfloat16", 5, 1, 3)}, "kv_c", "2 dimensions"),
        ({"k_pe": floats("float16", 5, 8)}, "k_pe", "bfloat16"),
        ({"k_pe": floats("bfloat16", 5, 1, 8)}, "k_pe", "2 dimensions"),
        ({"cos": floats("float16", 6, 4)}, "cos", "bfloat16 or float32"),
        ({"cos": floats("float32", 4)}, "cos", "2 dimensions"),
        ({"sin": floats("bfloat16", 6, 4)}, "sin", "float32"),
        ({"positions": np.zeros(5, np.int16)}, "positions", "int32 or int64"),
        ({"positions": np.zeros((5, 1), np.int64)}, "positions", "one dimension"),
        ({"slot_mapping": np.zeros(5, np.float32)}, "slot_mapping", "int32 or int64"),
        *[({"k_scale": scale}, "k_scale", "positive and finite") for scale in NO_SCALES],
        ({"q_scale": 1.0}, "q_scale", "it must be None"),
        ({"is_neox": 1}, "is_neox", "it must be a bool"),
        ({"cache_dtype": "fp8"}, "cache_dtype", "one of auto, float8_e4m3fn, float8_e4m3fnuz"),
        ({"cache_dtype": None}, "cache_dtype", "one of auto"),
        ({"kv_cache": floats("bfloat16", 8, 11)}, "kv_cache", "3 dimensions"),
        ({"kv_cache": floats("float16", 2, 4, 11)}, "kv_cache", "bfloat16"),
        ({"kv_cache": floats("uint8", 2, 4, 11)}, "kv_cache", "bfloat16"),
        ({"cache_dtype": "float8_e4m3fn"}, "kv_cache", "uint8 or float8_e4m3fn"),
        (OTHER_FLOAT8, "kv_cache", "uint8 or float8_e4m3fn"),
        ({"q_pe": floats("bfloat16", 4, 2, 8)}, "q_pe", r"\(5, 2, 8\), as of q_nope"),
        ({"q_pe": floats("bfloat16", 5, 3, 8)}, "q_pe", r"\(5, 2, 8\), as of q_nope"),
        ({"q_pe": floats("bfloat16", 5, 2, 7), "k_pe": floats("bfloat16", 5, 7)}, "q_pe", "must be even, not 7"),
        ({"kv_c": floats("bfloat16", 4, 3)}, "kv_c", r"\(5, 3\), as of q_nope"),
        ({"kv_c": floats("bfloat16", 5, 4)}, "kv_c", r"\(5, 3\), as of q_nope"),
        ({"k_pe": floats("bfloat16", 5, 6)}, "k_pe", r"\(5, 8\), as of q_pe"),
        ({"k_pe": floats("bfloat16", 6, 8)}, "k_pe", r"\(5, 8\), as of q_pe"),
        ({"cos": floats("float32", 0, 4), "sin": floats("float32", 0, 4)}, "cos", "at least one row"),
        ({"cos": floats("float32", 6, 8), "sin": floats("float32", 6, 8)}, "cos", r"\(6, 4\), as of q_pe"),
        ({"sin": floats("float32", 5, 4)}, "sin", r"\(6, 4\), as of cos"),
        ({"positions": np.zeros(4, np.int64)}, "positions", r"\(5,\), as of q_nope"),
        ({"slot_mapping": np.arange(6)}, "slot_mapping", "at most 5"),
        ({"kv_cache": floats("bfloat16", 2, 4, 12)}, "kv_cache", r"\(2, 4, 11\)"),
        ({"rounding": "cuda"}, "rounding", "one of hip, torch, promote, triton, half_scale"),
        ({"rounding": "half_scale"}, "rounding", "must be float16 for it, not bfloat16"),
        ({"contraction": "both"}, "contraction", "one of none, cosine, sine"),
    ],
)  # fmt: skip
def test_refusals_name_the_argument_and_the_rule(rope_drawn, change, argument, rule):
    inputs = rope_drawn(2)
    held = inputs["kv_cache"].bits.copy()
    with pytest.raises(ContractError, match=rule) as refusal:
        rope_and_cache_mla(**inputs | change)
    assert refusal.value.argument == argument
    assert np.array_equal(held, inputs["kv_cache"].bits)
    if argument not in ("rounding", "contraction"):
        with pytest.raises(ContractError, match=rule):
            right_results(inputs | change)
