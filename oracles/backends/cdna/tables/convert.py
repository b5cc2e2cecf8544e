"""Vector instructions from one format of numbers to another.

The names for 8-bit floats are the same on both architectures, the formats are not; ``of_architecture`` picks.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from oracles.backends.cdna.tables.rows import VectorRow, table

_NUMBERS = table("""
v_cvt_f32_u32     f<-u      to_f32({0})
v_cvt_f32_i32     f<-i      to_f32({0})
v_cvt_u32_f32     u<-f      to_u32({0})
v_cvt_i32_f32     i<-f      to_i32({0})
v_cvt_flr_i32_f32  i<-f     to_i32(floor({0}))
v_cvt_rpi_i32_f32  i<-f     to_i32(floor(to_f64({0}) + 0.5))
v_cvt_f32_ubyte0  f<-u      to_f32({0} & 0xff)
v_cvt_f32_ubyte1  f<-u      to_f32(({0} >> 8) & 0xff)
v_cvt_f32_ubyte2  f<-u      to_f32(({0} >> 16) & 0xff)
v_cvt_f32_ubyte3  f<-u      to_f32({0} >> 24)
v_cvt_f64_u32     F<-u      to_f64({0})
v_cvt_f64_i32     F<-i      to_f64({0})
v_cvt_u32_f64     u<-F      to_u32({0})
v_cvt_i32_f64     i<-F      to_i32({0})
v_cvt_f64_f32     F<-f      to_f64({0})
v_cvt_f32_f64     f<-F      to_f32({0})
v_cvt_pk_u16_u32  u<-uu     minimum({0}, 0xffff) | (minimum({1}, 0xffff) << 16)
v_cvt_pk_i16_i32  u<-ii     (as_u32(maximum(minimum({0}, 0x7fff), -0x8000)) & 0xffff) \
    | (as_u32(maximum(minimum({1}, 0x7fff), -0x8000)) << 16)
""")

_HALVES = table("""
v_cvt_f32_f16     f<-h      from_f16({0})
v_cvt_f16_f32     h<-fO     to_f16({0}, {1})
v_cvt_pkrtz_f16_f32  u<-ff  to_f16_toward_zero({0}) | (to_f16_toward_zero({1}) << 16)
v_cvt_pk_f16_f32  u<-ffO    to_f16({0}, {2}) | (to_f16({1}, {2}) << 16)
v_cvt_f16_u16     h<-wO     to_f16(to_f32({0} & 0xffff), {1})
v_cvt_f16_i16     h<-w      to_f16(to_f32(signed16({0})))
v_cvt_u16_f16     w<-h      minimum(to_u32(from_f16({0})), 0xffff)
v_cvt_i16_f16     w<-h      as_u32(maximum(minimum(to_i32(from_f16({0})), 0x7fff), -0x8000)) & 0xffff
v_cvt_f32_bf16    f<-w      from_bf16({0})
v_cvt_pk_bf16_f32  u<-ff    to_bf16({0}) | (to_bf16({1}) << 16)
""")

CONVERSIONS: dict[str, VectorRow] = _NUMBERS | _HALVES

_CONVERSIONS_8 = """
v_cvt_f32_{name}     f<-u      from_fp8({{0}}, {format})
v_cvt_pk_f32_{name}  U<-w      pair(as_u32(from_fp8({{0}}, {format})), as_u32(from_fp8({{0}} >> 8, {format})))
v_cvt_pk_{name}_f32  w<-ffO    to_fp8({{0}}, {{2}}, {format}) | (to_fp8({{1}}, {{2}}, {format}) << 8)
"""

# The scale counts by its exponent alone.
_SCALED_8 = """
v_cvt_scalef32_pk_f32_{name}   U<-wu     pair(as_u32(scale(from_fp8({{0}}, {format}), {up})), \
    as_u32(scale(from_fp8({{0}} >> 8, {format}), {up})))
v_cvt_scalef32_pk_f16_{name}   u<-wuO    to_f16(scale(to_f64(from_fp8({{0}}, {format})), {up}), {{2}}) \
    | (to_f16(scale(to_f64(from_fp8({{0}} >> 8, {format})), {up}), {{2}}) << 16)
v_cvt_scalef32_pk_bf16_{name}  u<-wu     to_bf16(scale(from_fp8({{0}}, {format}), {up})) \
    | (to_bf16(scale(from_fp8({{0}} >> 8, {format}), {up})) << 16)
v_cvt_scalef32_f32_{name}      f<-uu     scale(from_fp8({{0}} >> ({{op_sel}} & 3) * 8, {format}), {up})
v_cvt_scalef32_pk_{name}_f32   w<-ffuO   to_fp8(scale(to_f64({{0}}), {down}), {{3}}, {format}) \
    | (to_fp8(scale(to_f64({{1}}), {down}), {{3}}, {format}) << 8)
v_cvt_scalef32_pk_{name}_f16   w<-uuO    to_fp8(scale(to_f64(from_f16({{0}})), {down1}), {{2}}, {format}) \
    | (to_fp8(scale(to_f64(from_f16({{0}} >> 16)), {down1}), {{2}}, {format}) << 8)
v_cvt_scalef32_pk_{name}_bf16  w<-uuO    to_fp8(scale(to_f64(from_bf16({{0}})), {down1}), {{2}}, {format}) \
    | (to_fp8(scale(to_f64(from_bf16({{0}} >> 16)), {down1}), {{2}}, {format}) << 8)
"""


def _of_format(text: str, name: str, number_format: str) -> dict[str, VectorRow]:
    """The rows of a format. A scale is an operand of 32 bits of which bits 23 to 30 hold the exponent and its bias."""
    exponent = "as_i32({{{0}}} >> 23 & 0xff)"
    return table(
        text.format(
            name=name,
            format=number_format,
            up=f"{exponent.format(1)} - 127",
            down=f"127 - {exponent.format(2)}",
            down1=f"127 - {exponent.format(1)}",
        )
    )


_BY_ARCHITECTURE: Mapping[str, Mapping[str, VectorRow]] = MappingProxyType(
    {
        "gfx942": _of_format(_CONVERSIONS_8, "fp8", "E4M3FNUZ") | _of_format(_CONVERSIONS_8, "bf8", "E5M2FNUZ"),
        "gfx950": _of_format(_CONVERSIONS_8 + _SCALED_8, "fp8", "E4M3FN")
        | _of_format(_CONVERSIONS_8 + _SCALED_8, "bf8", "E5M2"),
    }
)


def of_architecture(architecture: str) -> Mapping[str, VectorRow]:
    """The conversions from and to 8-bit floats that ``gfx942`` or ``gfx950`` has."""
    return _BY_ARCHITECTURE[architecture]
