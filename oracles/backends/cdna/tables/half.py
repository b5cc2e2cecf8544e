"""Vector instructions on 16 bits: integers and floats.

A float's operation is done in 32 bits and rounded to 16, which gives what rounding the exact result gives: 32 bits have
more than twice the digits. The exception, three exact operands in one sum, goes through an odd 64-bit result.
"""

from __future__ import annotations

from oracles.backends.cdna.tables.rows import VectorRow, table

_INTEGER = table("""
v_add_u16         w<-ww     ({0} + {1}) & 0xffff
v_sub_u16         w<-ww     ({0} - {1}) & 0xffff
v_subrev_u16      w<-ww     ({1} - {0}) & 0xffff
v_add_i16         w<-ww     ({0} + {1}) & 0xffff
v_sub_i16         w<-ww     ({0} - {1}) & 0xffff
v_mul_lo_u16      w<-ww     (({0} & 0xffff) * ({1} & 0xffff)) & 0xffff
v_mad_u16         w<-www    (({0} & 0xffff) * ({1} & 0xffff) + {2}) & 0xffff
v_mad_i16         w<-www    (({0} & 0xffff) * ({1} & 0xffff) + {2}) & 0xffff
v_mad_u32_u16     u<-wwu    ({0} & 0xffff) * ({1} & 0xffff) + {2}
v_mad_i32_i16     i<-wwi    signed16({0}) * signed16({1}) + {2}
v_lshlrev_b16     w<-ww     ({1} << ({0} & 15)) & 0xffff
v_lshrrev_b16     w<-ww     ({1} & 0xffff) >> ({0} & 15)
v_ashrrev_i16     w<-ww     as_u32(signed16({1}) >> as_i32({0} & 15)) & 0xffff
v_min_u16         w<-ww     minimum({0} & 0xffff, {1} & 0xffff)
v_max_u16         w<-ww     maximum({0} & 0xffff, {1} & 0xffff)
v_min_i16         w<-ww     as_u32(minimum(signed16({0}), signed16({1}))) & 0xffff
v_max_i16         w<-ww     as_u32(maximum(signed16({0}), signed16({1}))) & 0xffff
v_min3_u16        w<-www    minimum(minimum({0} & 0xffff, {1} & 0xffff), {2} & 0xffff)
v_max3_u16        w<-www    maximum(maximum({0} & 0xffff, {1} & 0xffff), {2} & 0xffff)
v_med3_u16        w<-www    maximum(minimum({0} & 0xffff, {1} & 0xffff), \
    minimum(maximum({0} & 0xffff, {1} & 0xffff), {2} & 0xffff))
v_min3_i16        w<-www    as_u32(minimum(minimum(signed16({0}), signed16({1})), signed16({2}))) & 0xffff
v_max3_i16        w<-www    as_u32(maximum(maximum(signed16({0}), signed16({1})), signed16({2}))) & 0xffff
v_med3_i16        w<-www    as_u32(maximum(minimum(signed16({0}), signed16({1})), \
    minimum(maximum(signed16({0}), signed16({1})), signed16({2})))) & 0xffff
v_bitop3_b16      w<-www    truth({0}, {1}, {2}, {bitop3}) & 0xffff
""")

_FLOAT = table("""
v_add_f16         h<-hhO    to_f16(from_f16({0}) + from_f16({1}), {2})
v_sub_f16         h<-hhO    to_f16(from_f16({0}) - from_f16({1}), {2})
v_subrev_f16      h<-hhO    to_f16(from_f16({1}) - from_f16({0}), {2})
v_mul_f16         h<-hhO    to_f16(from_f16({0}) * from_f16({1}), {2})
v_fma_f16         h<-hhhO   to_f16(fma_odd(from_f16({0}), from_f16({1}), from_f16({2})), {3})
v_min_f16         h<-hh     to_f16(min_number(from_f16({0}), from_f16({1})))
v_max_f16         h<-hh     to_f16(max_number(from_f16({0}), from_f16({1})))
v_min3_f16        h<-hhh    to_f16(min_number(min_number(from_f16({0}), from_f16({1})), from_f16({2})))
v_max3_f16        h<-hhh    to_f16(max_number(max_number(from_f16({0}), from_f16({1})), from_f16({2})))
v_med3_f16        h<-hhh    to_f16(middle(from_f16({0}), from_f16({1}), from_f16({2})))
v_ldexp_f16       h<-hwO    to_f16(scale(from_f16({0}), signed16({1})), {2})
v_trunc_f16       h<-h      to_f16(truncate(from_f16({0})))
v_floor_f16       h<-h      to_f16(floor(from_f16({0})))
v_ceil_f16        h<-h      to_f16(ceil(from_f16({0})))
v_rndne_f16       h<-h      to_f16(round_even(from_f16({0})))
v_rcp_f16         h<-hO     to_f16(reciprocal(from_f16({0})), {1})
v_rsq_f16         h<-h      to_f16(reciprocal_root(from_f16({0})))
v_sqrt_f16        h<-h      to_f16(root(from_f16({0})))
v_exp_f16         h<-hO     to_f16(exp2(from_f16({0})), {1})
v_log_f16         h<-h      to_f16(log2(from_f16({0})))
v_sin_f16         h<-h      to_f16(sine(from_f16({0})))
v_cos_f16         h<-h      to_f16(cosine(from_f16({0})))
v_div_fixup_f16   h<-hhh    to_f16(div_fixup(from_f16({0}), from_f16({1}), from_f16({2})))
v_frexp_mant_f16  h<-h      to_f16(mantissa(from_f16({0})))
v_frexp_exp_i16_f16  w<-h   as_u32(exponent(from_f16({0}))) & 0xffff
v_pack_b32_f16    u<-hh     ({0} & 0xffff) | ({1} << 16)
""")

CLAMPED_HALF = table("""
v_add_u16         w<-ww     minimum(({0} & 0xffff) + ({1} & 0xffff), 0xffff)
v_sub_u16         w<-ww     as_u32(maximum(as_i32({0} & 0xffff) - as_i32({1} & 0xffff), 0))
v_subrev_u16      w<-ww     as_u32(maximum(as_i32({1} & 0xffff) - as_i32({0} & 0xffff), 0))
v_mad_u16         w<-www    minimum(({0} & 0xffff) * ({1} & 0xffff) + ({2} & 0xffff), 0xffff)
v_add_i16         w<-ww     as_u32(minimum(maximum(signed16({0}) + signed16({1}), -32768), 32767)) & 0xffff
v_sub_i16         w<-ww     as_u32(minimum(maximum(signed16({0}) - signed16({1}), -32768), 32767)) & 0xffff
v_mad_i16         w<-www    as_u32(minimum(maximum(signed16({0}) * signed16({1}) + signed16({2}), -32768), 32767)) \
    & 0xffff
""")
"""What integer instructions on 16 bits do with the modifier ``clamp``."""

HALF: dict[str, VectorRow] = _INTEGER | _FLOAT

KEEPS_OTHER_HALF = frozenset({
    "v_mad_u16", "v_mad_i16", "v_fma_f16", "v_div_fixup_f16", "v_add_i16", "v_sub_i16", "v_bitop3_b16",
    "v_min3_u16", "v_max3_u16", "v_med3_u16", "v_min3_i16", "v_max3_i16", "v_med3_i16",
    "v_min3_f16", "v_max3_f16", "v_med3_f16",
    "v_cvt_pk_fp8_f32", "v_cvt_pk_bf8_f32",
    "v_cvt_scalef32_pk_fp8_f32", "v_cvt_scalef32_pk_bf8_f32",
    "v_cvt_scalef32_pk_fp8_f16", "v_cvt_scalef32_pk_bf8_f16",
    "v_cvt_scalef32_pk_fp8_bf16", "v_cvt_scalef32_pk_bf8_bf16",
})  # fmt: skip
"""Instructions with a result of 16 bits that leave the other half of the register as it was; others clear it."""
