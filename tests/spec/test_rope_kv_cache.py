"""``rope_and_cache_mla``: orders and contractions worked out by hand, public bugs, refusals and laws."""

import doctest
import itertools
from fractions import Fraction

import numpy as np
import pytest

import reference.rope_kv_cache
from reference.errors import OnlyMemorySafety
from reference.floats import FORMATS, FloatArray
from reference.rope_kv_cache import rope_and_cache_mla
from reference.rope_orders import CONTRACTIONS, ORDERS

KEPT = 0x2D
ORDERS_OF = {"float16": list(ORDERS), "bfloat16": [name for name in ORDERS if name != "half_scale"]}
ORDERS_OF["float32"] = ORDERS_OF["bfloat16"]


def result(inputs, rounding="hip", contraction="none"):
    """The three outputs; no input may change or be given back."""
    before = {name: np.copy(getattr(value, "bits", value)) for name, value in inputs.items()}
    outputs = rope_and_cache_mla(**inputs, rounding=rounding, contraction=contraction)
    for name, value in inputs.items():
        assert np.array_equal(before[name], getattr(value, "bits", value)), f"{name} was changed"
        if isinstance(value, FloatArray):
            assert not any(np.shares_memory(output.bits, value.bits) for output in outputs)
    tokens, heads, latent = inputs["q_nope"].shape
    width = inputs["k_pe"].shape[1]
    assert [output.shape for output in outputs[:2]] == [(tokens, heads, latent + width), (tokens, width)]
    assert outputs[2].shape == inputs["kv_cache"].shape
    assert [output.dtype for output in outputs] == [*[inputs["q_pe"].dtype] * 2, inputs["kv_cache"].dtype]
    return outputs


def with_bits(inputs, **bits):
    return inputs | {name: FloatArray(inputs[name].dtype, value) for name, value in bits.items()}


def test_examples_of_the_docstring():
    assert doctest.testmod(reference.rope_kv_cache).failed == 0


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize(
    ("neox", "once", "twice"),
    [(True, [-3, 2, 1, 4], [-1, 2, -3, 4]), (False, [-2, 1, 3, 4], [-1, -2, 3, 4])],
)
def test_both_pairings(rope_call, dtype, neox, once, twice):
    inputs = rope_call(None, [[1, 2, 3, 4]], [[0, 1]], [[1, 0]], dtype=dtype, neox=neox)
    q_out, key, cache = result(inputs)
    assert (q_out.numbers[0, 0].tolist(), key.numbers[0].tolist()) == ([1, *once], once)
    assert cache.numbers[0, 0].tolist() == [1, *once]
    assert result(inputs | {"k_pe": key})[1].numbers[0].tolist() == twice


def test_a_token_without_a_slot_is_rotated_and_a_stale_position_clamped(rope_call):
    inputs = rope_call(
        None, [[1, 2], [3, 4], [5, 6], [7, 8]], [[1], [0]], [[0], [1]], positions=[99, 1, -7, 0], slots=[4, -1, 8]
    )
    for dtype in (np.int32, np.int64):
        narrow = {name: inputs[name].astype(dtype) for name in ("positions", "slot_mapping")}
        q_out, key, cache = result(inputs | narrow)
        assert key.numbers.tolist() == [[-2, 1], [-4, 3], [5, 6], [7, 8]]
        assert q_out.numbers[:, 0, 1:].tolist() == key.numbers.tolist()
        assert cache.bits[1, 0].tolist() == [0x3F80, *key.bits[0]]
        rest = np.ones((2, 4), bool)
        rest[1, 0] = False
        assert np.all(cache.bits[rest] == KEPT)


@pytest.mark.parametrize("slot", [-1, -(2**63), 8, 2**40, 2**63 - 1])
def test_slots_that_are_none(rope_call, slot):
    inputs = rope_call(None, [[1, 2], [3, 4]], [[1]], [[0]], slots=[slot, slot])
    assert np.all(result(inputs)[2].bits == KEPT)


def test_two_tokens_of_one_slot_promise_nothing(rope_call):
    with pytest.raises(OnlyMemorySafety, match="slot 5 is that of two tokens, 2 the second"):
        result(rope_call(None, [[1, 2]] * 3, [[1]], [[0]], slots=[5, -1, 5]))


@pytest.mark.parametrize("cache", ["auto", "float8_e4m3fn"])
@pytest.mark.parametrize(
    "sizes", [{"tokens": 0}, {"heads": 0}, {"latent": 0}, {"width": 0}, {"shape": (0, 4)}, {"shape": (2, 0)}]
)
def test_sizes_of_zero(rope_drawn, cache, sizes):
    inputs = rope_drawn(1, cache=cache, **sizes)
    q_out, key, held = result(inputs)
    latent = inputs["kv_c"].shape[1]
    assert np.array_equal(q_out.bits[..., :latent], inputs["q_nope"].bits)
    written = [slot for slot in inputs["slot_mapping"] if slot < len(held.bits.reshape(-1, latent + key.shape[1]))]
    assert len(written) == (5 if held.bits.size and "tokens" not in sizes else 0)
    if cache == "auto" and written:
        rows = held.bits.reshape(8, -1)[written]
        assert np.array_equal(rows, np.concatenate([inputs["kv_c"].bits, key.bits], axis=1))


@pytest.mark.parametrize(
    ("cache", "numbers", "codes"),
    [
        ("float8_e4m3fn", [1, -0.0, 240, 448, 465], [0x38, 0x80, 0x77, 0x7E, 0x7E]),
        ("float8_e4m3fnuz", [0.5, -0.0, 224, 240, 448], [0x38, 0x00, 0x7E, 0x7F, 0x7F]),
        ("float8_e4m3fn", [np.inf, -np.inf, np.nan], [0x7E, 0xFE, 0x7F]),
        ("float8_e4m3fnuz", [np.inf, -np.inf, np.nan], [0x7F, 0xFF, 0x80]),
    ],
)
@pytest.mark.parametrize("rounding", ["hip", "torch"])
def test_float8_at_its_edges(rope_call, cache, numbers, codes, rounding):
    inputs = rope_call(None, [[0, 0]], [[1]], [[0]], latents=[numbers], cache=cache, dtype="float32")
    assert result(inputs, rounding)[2].bits[0, 0, :-2].tolist() == codes
    typed = inputs | {"kv_cache": FloatArray(cache, inputs["kv_cache"].bits)}
    assert result(typed, rounding)[2].bits[0, 0, :-2].tolist() == codes


@pytest.mark.parametrize(("scale", "number"), [(0.5, 2.0), (None, 1.0), (1.0, 1.0), (4.0, 0.25)])
def test_a_scale_divides(rope_call, scale, number):
    inputs = rope_call(None, [[1, 0]], [[1]], [[0]], cache="float8_e4m3fn", scale=scale)
    for rounding in ORDERS_OF["bfloat16"]:
        codes = result(inputs, rounding)[2].bits[0, 0]
        assert FORMATS["float8_e4m3fn"].decode(codes).tolist() == [number, number, 0.0]


@pytest.mark.parametrize(
    ("scale", "number", "product", "quotient"), [(0.3, 0.00439453125, 8, 7), (1.7, 0.02490234375, 7, 8)]
)
def test_a_reciprocal_is_not_a_division(rope_call, scale, number, product, quotient):
    inputs = rope_call(None, [[0, 0]], [[1]], [[0]], latents=[[number]], cache="float8_e4m3fn", scale=scale)
    codes = {rounding: result(inputs, rounding)[2].bits[0, 0, 0] for rounding in ORDERS_OF["bfloat16"]}
    assert codes == {"hip": product, "triton": product, "torch": quotient, "promote": quotient}


def test_a_scale_is_a_float32(rope_call):
    # 1.0625 is a tie between 1 and 1.125, and a scale a little below 1 in float64 alone does not move it.
    inputs = rope_call(None, [[0, 0]], [[1]], [[0]], latents=[[1.0625]], cache="float8_e4m3fn", scale=1 - 2.0**-40)
    assert [result(inputs, order)[2].bits[0, 0, 0] for order in ORDERS_OF["bfloat16"]] == [0x38] * 4


# x = y = cos = 1 + 2^-7 and sin = 1. x*cos is 1 + 2^-6 + 2^-14; bfloat16 drops 2^-14, whose last place is 2^-7 there.
STEP = 2.0**-7


@pytest.mark.parametrize(
    ("rounding", "contraction", "first", "second"),
    [
        # float32 holds everything: 2^-7 + 2^-14, and 2 + 3 * 2^-7 + 2^-14, just above a tie of last place 2^-6.
        *[("hip", each, STEP + 2.0**-14, 2 + 4 * STEP) for each in CONTRACTIONS],
        # 1 + 2^-6 is what is left of the product; the second sum is the tie, which goes to the even neighbour.
        ("torch", "none", STEP, 2 + 4 * STEP),
        ("torch", "sine", STEP, 2 + 4 * STEP),
        ("torch", "cosine", STEP + 2.0**-14, 2 + 4 * STEP),
        ("triton", "none", STEP, 2 + 4 * STEP),
        ("promote", "none", STEP, 2 + 4 * STEP),
    ],
)
def test_bfloat16_by_hand(rope_call, rounding, contraction, first, second):
    inputs = rope_call(None, [[1 + STEP, 1 + STEP]], [[1 + STEP]], [[1]])
    q_out, key, cache = result(inputs, rounding, contraction)
    assert key.numbers[0].tolist() == [first, second]
    assert q_out.numbers[0, 0].tolist() == cache.numbers[0, 0].tolist() == [1, first, second]


def test_a_float32_table_by_hand(rope_call):
    # cos is just below the tie between 1 and 1 + 2^-7, so bfloat16 makes it 1. As it is, times 2 + 2^-6 it is
    # 2 + 2^-6 + 2^-7 and a bit more than 2^-14: above the tie between 2 + 2^-6 and 2 + 2^-5.
    inputs = rope_call(None, [[2 + 2 * STEP, 0]], [[1 + 2.0**-8 - 2.0**-16]], [[0]], table="float32")
    keys = {rounding: result(inputs, rounding)[1].numbers[0, 0].item() for rounding in ORDERS_OF["bfloat16"]}
    assert keys == {"torch": 2 + 2 * STEP, "triton": 2 + 2 * STEP, "hip": 2 + 4 * STEP, "promote": 2 + 4 * STEP}


def test_what_reaches_the_cache_by_hand(rope_call):
    # Between 1 and 1.125 of float8 the tie is 1.0625. float32 keeps 2^-10 above it, bfloat16 does not.
    inputs = rope_call(None, [[1, 0]], [[1.0625 + 2.0**-10]], [[0]], table="float32", cache="float8_e4m3fn")
    codes = {rounding: result(inputs, rounding)[2].bits[0, 0, 1] for rounding in ORDERS_OF["bfloat16"]}
    assert codes == {"hip": 0x39, "promote": 0x38, "torch": 0x38, "triton": 0x38}
    assert result(inputs)[1].numbers[0, 0] == 1.0625


def test_half_scale_by_hand(rope_call):
    # 1.0625 / (1 - 2^-13) is 1.0626..., above the tie; float16 makes it 1.0625 again.
    inputs = rope_call(
        None,
        [[1.0625, 0]],
        [[1]],
        [[0]],
        latents=[[1.0625]],
        dtype="float16",
        cache="float8_e4m3fn",
        scale=1 - 2.0**-13,
    )
    codes = {rounding: result(inputs, rounding)[2].bits[0, 0, :2].tolist() for rounding in ORDERS}
    assert codes == {**{rounding: [0x39, 0x39] for rounding in ORDERS}, "half_scale": [0x38, 0x38]}
    huge = rope_call(None, [[60000, 1e-4]], [[1]], [[0]], dtype="float16", cache="float8_e4m3fnuz", scale=0.5)
    assert result(huge, "half_scale")[2].bits[0, 0].tolist()[1:] == [0x7F, 0]  # float16 makes an infinity of it


def test_orders_that_coincide(rope_drawn):
    for seed in range(4):
        inputs = rope_drawn(seed, table="bfloat16", cache="float8_e4m3fn")
        both = [result(inputs, rounding) for rounding in ("torch", "promote")]
        assert all(np.array_equal(one.bits, two.bits) for one, two in zip(*both, strict=True))


def nearest(form, number):
    """A fraction rounded to a format in its normal range; Python rounds fractions to even."""
    if number == 0:
        return Fraction(0)
    exponent = len(bin(abs(number.numerator))) - len(bin(number.denominator))
    exponent -= abs(number) < Fraction(2) ** exponent
    unit = Fraction(2) ** (exponent - form.mantissa)
    return round(number / unit) * unit


@pytest.mark.parametrize(("dtype", "rounding"), [(d, o) for d in ORDERS_OF for o in ORDERS_OF[d]])
@pytest.mark.parametrize("neox", [True, False])
def test_three_results_by_fractions(rope_drawn, dtype, rounding, neox):
    inputs = rope_drawn(11, dtype, tokens=8, heads=4, width=12, neox=neox)
    form = FORMATS[dtype]
    arithmetic = FORMATS["float32"] if rounding in ("hip", "promote") else form
    found = {name: result(inputs, rounding, name)[0].numbers[..., 3:] for name in CONTRACTIONS}
    differ = set()
    for token, head, pair in itertools.product(range(8), range(4), range(6)):
        i, j = (pair, pair + 6) if neox else (2 * pair, 2 * pair + 1)
        x, y = (Fraction(inputs["q_pe"].numbers[token, head, lane]) for lane in (i, j))
        row = inputs["positions"][token]
        c, s = (nearest(arithmetic, Fraction(inputs[name].numbers[row, pair])) for name in ("cos", "sin"))
        for lane, a, b in ((i, x, -y), (j, y, x)):
            wanted = {
                "none": nearest(arithmetic, a * c) + nearest(arithmetic, b * s),
                "cosine": a * c + nearest(arithmetic, b * s),
                "sine": nearest(arithmetic, a * c) + b * s,
            }
            for name, exact in wanted.items():
                number = nearest(form, nearest(arithmetic, exact))
                assert found[name][token, head, lane] == number, (name, token, head, lane)
                differ |= {name} if number != found["none"][token, head, lane] else set()
    # Sums of float32 that end in 16 bits seldom show what was contracted.
    assert differ == {"cosine", "sine"} or arithmetic != form


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("neox", [True, False])
def test_no_angle_is_the_identity_up_to_the_sign_of_zero(rope_call, dtype, neox):
    form = FORMATS[dtype]
    bits = np.arange(0, 1 << form.width, (1 << form.width) // 4096 + 1 if form.width == 32 else 16).astype(form.storage)
    bits = bits[np.isfinite(form.decode(bits))][:2048].reshape(16, 128)
    for rounding, contraction in itertools.product(ORDERS_OF[dtype], CONTRACTIONS):
        inputs = rope_call(
            None, np.zeros((16, 128)), np.ones((1, 64)), np.zeros((1, 64)), dtype=dtype, neox=neox, shape=(4, 4)
        )
        _, key, cache = result(with_bits(inputs, k_pe=bits), rounding, contraction)
        assert np.array_equal(key.numbers, form.decode(bits))
        assert np.array_equal(cache.bits.reshape(16, -1)[:, 1:], key.bits)
        zero = form.decode(bits) == 0
        assert np.array_equal(key.bits[~zero], bits[~zero])


@pytest.mark.parametrize("rounding", ORDERS)
@pytest.mark.parametrize("cache", ["auto", "float8_e4m3fn", "float8_e4m3fnuz"])
def test_the_cache_is_latent_and_rotated_key(rope_drawn, rounding, cache):
    """F1 and F2: the cache is cast(latent ++ key), all other rows keep their bytes; q_out is q_nope ++ rotated q_pe."""
    inputs = rope_drawn(3, "float16", cache=cache)
    q_out, key, held = result(inputs, rounding)
    assert np.array_equal(q_out.bits[..., :3], inputs["q_nope"].bits)
    alone = inputs | {"k_pe": FloatArray("float16", inputs["q_pe"].bits[:, 1])}
    assert np.array_equal(q_out.bits[:, 1, 3:], result(alone, rounding)[1].bits)
    rows = held.bits.reshape(8, -1)
    slots = inputs["slot_mapping"]
    assert np.all(np.delete(rows, slots, axis=0) == KEPT)
    if cache == "auto":
        assert np.array_equal(rows[slots], np.concatenate([inputs["kv_c"].bits, key.bits], axis=1))
        return
    # Rotated by no angle, the rounded key is cast alone; "hip" casts what was not rounded.
    still = rope_drawn(3, "float16", cache=cache) | {
        "cos": FloatArray.from_numbers("float16", np.ones((6, 4))),
        "sin": FloatArray.from_numbers("float16", np.zeros((6, 4))),
        "k_pe": key,
    }
    again = result(still, rounding)[2].bits.reshape(8, -1)
    kept = 3 if rounding == "hip" else 11
    assert np.array_equal(again[:, :kept], rows[:, :kept])


def test_a_rotation_keeps_the_length_of_a_pair(rope_drawn):
    """F3: the length of each pair is multiplied by that of (cos, sin), to the precision of float32."""
    inputs = rope_drawn(5, "float32", tokens=8, width=16, neox=False)
    pairs = [array.numbers.reshape(8, 8, 2) for array in (inputs["k_pe"], result(inputs)[1])]
    before, after = (np.hypot(each[..., 0], each[..., 1]) for each in pairs)
    length = np.hypot(inputs["cos"].numbers, inputs["sin"].numbers)[inputs["positions"]]
    # Three roundings of at most half a last place each, of numbers no longer than the pair.
    assert np.abs(after - before * length).max() <= 3 * 2.0**-24 * before.max()


@pytest.mark.parametrize("rounding", ORDERS)
def test_permuted_tokens_permute_the_outputs(rope_drawn, rounding):
    """F5, and the cache stays the same."""
    inputs = rope_drawn(6, "float16", cache="float8_e4m3fn")
    order = np.random.default_rng(6).permutation(5)
    tokens = ("q_nope", "q_pe", "kv_c", "k_pe")
    moved = with_bits(inputs, **{name: inputs[name].bits[order] for name in tokens})
    moved |= {name: inputs[name][order] for name in ("positions", "slot_mapping")}
    (one, key, held), (other, other_key, other_held) = result(inputs, rounding), result(moved, rounding)
    assert np.array_equal(one.bits[order], other.bits)
    assert np.array_equal(key.bits[order], other_key.bits)
    assert np.array_equal(held.bits, other_held.bits)


@pytest.mark.parametrize("cut", [0, 2, 5])
def test_a_batch_in_two_calls_leaves_the_same_cache(rope_drawn, cut):
    """F6."""
    inputs = rope_drawn(7, cache="float8_e4m3fnuz")
    held = inputs["kv_cache"]
    for part in (slice(cut), slice(cut, None)):
        bits = {name: inputs[name].bits[part] for name in ("q_nope", "q_pe", "kv_c", "k_pe")}
        indices = {name: inputs[name][part] for name in ("positions", "slot_mapping")}
        held = result(with_bits(inputs, **bits) | indices | {"kv_cache": held})[2]
    assert np.array_equal(held.bits, result(inputs)[2].bits)


@pytest.mark.parametrize(("rounding", "contraction"), list(itertools.product(ORDERS, CONTRACTIONS)))
def test_both_pairings_do_the_same_to_interleaved_lanes(rope_drawn, rounding, contraction):
    """F7."""
    inputs = rope_drawn(9, "float16", neox=True)
    lanes = np.arange(8).reshape(2, 4).T.ravel()
    interleaved = with_bits(inputs, k_pe=inputs["k_pe"].bits[:, lanes]) | {"is_neox": False}
    keys = [result(each, rounding, contraction)[1].bits for each in (inputs, interleaved)]
    assert np.array_equal(keys[0][:, lanes], keys[1])


@pytest.mark.parametrize("rounding", ["torch", "promote"])
@pytest.mark.parametrize("table", ["input", "float32"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("neox", [True, False])
def test_torch_computes_the_orders_named_after_it(rope_drawn, rounding, table, dtype, neox):
    torch = pytest.importorskip("torch", reason="compares with torch's arithmetic")
    table = dtype if table == "input" else table
    inputs = rope_drawn(
        14, dtype, table=table, tokens=8, heads=4, width=64, neox=neox, cache="float8_e4m3fn", shape=(3, 4)
    )

    def tensor(name):
        form = FORMATS[inputs[name].dtype]
        return torch.from_numpy(inputs[name].bits.copy()).view(getattr(torch, form.name))

    x, kv_c = tensor("k_pe"), tensor("kv_c")
    cos, sin = (tensor(name)[torch.from_numpy(inputs["positions"])] for name in ("cos", "sin"))
    if rounding == "torch":
        cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    pairs = x.chunk(2, -1) if neox else (x[:, ::2], x[:, 1::2])
    turned = (pairs[0] * cos - pairs[1] * sin, pairs[1] * cos + pairs[0] * sin)
    key = (torch.cat(turned, -1) if neox else torch.stack(turned, -1).flatten(-2)).to(x.dtype)
    row = (torch.cat([kv_c, key], -1).float() / torch.tensor(0.3)).to(torch.float8_e4m3fn)
    _, found, held = result(inputs, rounding)
    assert np.array_equal(found.bits, key.view(getattr(torch, f"uint{FORMATS[dtype].width}")).numpy())
    assert np.array_equal(held.bits.reshape(12, -1)[inputs["slot_mapping"]], row.view(torch.uint8).numpy())
