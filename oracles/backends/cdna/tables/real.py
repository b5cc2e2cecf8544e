"""Vector instructions on floats of 32 and 64 bits."""

from __future__ import annotations

from oracles.backends.cdna.tables.rows import VectorRow, table

ARITHMETIC = table("""
v_add_f32         f<-ff     {0} + {1}
v_sub_f32         f<-ff     {0} - {1}
v_subrev_f32      f<-ff     {1} - {0}
v_mul_f32         f<-ff     {0} * {1}
v_fma_f32         f<-fff    fma({0}, {1}, {2})
v_fmac_f32        f<-ffD    fma({0}, {1}, {2})
v_fmamk_f32       f<-fff    fma({0}, {1}, {2})
v_fmaak_f32       f<-fff    fma({0}, {1}, {2})
v_add_f64         F<-FF     {0} + {1}
v_mul_f64         F<-FF     {0} * {1}
v_fma_f64         F<-FFF    fma({0}, {1}, {2})
v_fmac_f64        F<-FFD    fma({0}, {1}, {2})
""")

ORDER = table("""
v_min_f32         f<-ff     min_number({0}, {1})
v_max_f32         f<-ff     max_number({0}, {1})
v_min3_f32        f<-fff    min_number(min_number({0}, {1}), {2})
v_max3_f32        f<-fff    max_number(max_number({0}, {1}), {2})
v_med3_f32        f<-fff    middle({0}, {1}, {2})
v_min_f64         F<-FF     min_number({0}, {1})
v_max_f64         F<-FF     max_number({0}, {1})
""")

ROUNDING = table("""
v_trunc_f32       f<-f      truncate({0})
v_floor_f32       f<-f      floor({0})
v_ceil_f32        f<-f      ceil({0})
v_rndne_f32       f<-f      round_even({0})
v_fract_f32       f<-f      select({0} - floor({0}) >= 1.0, 0.9999999403953552, {0} - floor({0}))
v_trunc_f64       F<-F      truncate({0})
v_floor_f64       F<-F      floor({0})
v_ceil_f64        F<-F      ceil({0})
v_rndne_f64       F<-F      round_even({0})
""")

FUNCTIONS = table("""
v_rcp_f32         f<-f      reciprocal({0})
v_rcp_iflag_f32   f<-f      reciprocal({0})
v_rsq_f32         f<-f      reciprocal_root({0})
v_sqrt_f32        f<-f      root({0})
v_exp_f32         f<-f      exp2({0})
v_log_f32         f<-f      log2({0})
v_sin_f32         f<-f      sine({0})
v_cos_f32         f<-f      cosine({0})
v_rcp_f64         F<-F      reciprocal({0})
v_rsq_f64         F<-F      reciprocal_root({0})
v_sqrt_f64        F<-F      root({0})
v_ldexp_f32       f<-fi     scale({0}, {1})
v_ldexp_f64       F<-Fi     scale({0}, {1})
v_frexp_mant_f32  f<-f      mantissa({0})
v_frexp_exp_i32_f32  i<-f   exponent({0})
v_frexp_mant_f64  F<-F      mantissa({0})
v_frexp_exp_i32_f64  i<-F   exponent({0})
v_div_scale_f32   fm<-fff   div_scale({0}, {1}, {2})
v_div_fmas_f32    f<-fffV   div_fmas({0}, {1}, {2}, {3})
v_div_fixup_f32   f<-fff    div_fixup({0}, {1}, {2})
v_div_scale_f64   Fm<-FFF   div_scale({0}, {1}, {2})
v_div_fmas_f64    F<-FFFV   div_fmas({0}, {1}, {2}, {3})
v_div_fixup_f64   F<-FFF    div_fixup({0}, {1}, {2})
""")

_RELATIONS = {
    "lt": "{0} < {1}",
    "eq": "{0} == {1}",
    "le": "{0} <= {1}",
    "gt": "{0} > {1}",
    "lg": "({0} < {1}) | ({0} > {1})",
    "ge": "{0} >= {1}",
    "o": "({0} == {0}) & ({1} == {1})",
    "u": "({0} != {0}) | ({1} != {1})",
    "nge": "~({0} >= {1})",
    "nlg": "~(({0} < {1}) | ({0} > {1}))",
    "ngt": "~({0} > {1})",
    "nle": "~({0} <= {1})",
    "neq": "~({0} == {1})",
    "nlt": "~({0} < {1})",
}

COMPARES = {
    f"v_cmp_{relation}_{name}": VectorRow("m", letter * 2, expression.format(*operands))
    for relation, expression in _RELATIONS.items()
    for name, letter, operands in (
        ("f16", "h", ("from_f16({0})", "from_f16({1})")),
        ("f32", "f", ("{0}", "{1}")),
        ("f64", "F", ("{0}", "{1}")),
    )
} | table("""
v_cmp_class_f16   m<-hu     in_class({0} & 0xffff, {1})
v_cmp_class_f32   m<-fu     in_class({0}, {1})
v_cmp_class_f64   m<-Fu     in_class({0}, {1})
""")

REAL = ARITHMETIC | ORDER | ROUNDING | FUNCTIONS | COMPARES
