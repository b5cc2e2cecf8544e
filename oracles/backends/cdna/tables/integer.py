"""Vector instructions on integers and bits."""

from __future__ import annotations

from oracles.backends.cdna.tables.rows import VectorRow, table

MOVES = table("""
v_mov_b32         u<-u      {0}
v_mov_b64         U<-U      {0}
v_not_b32         u<-u      ~{0}
v_bfrev_b32       u<-u      reverse_bits({0})
v_ffbh_u32        u<-u      select({0} == 0, 0xffffffff, leading_zeros({0}))
v_ffbh_i32        u<-i      select(({0} == 0) | ({0} == -1), 0xffffffff, leading_zeros(as_u32({0} ^ ({0} >> 31))))
v_ffbl_b32        u<-u      select({0} == 0, 0xffffffff, trailing_zeros({0}))
v_bcnt_u32_b32    u<-uu     count_bits({0}) + {1}
v_mbcnt_lo_u32_b32  u<-uu   count_bits({0} & lower_lanes(0)) + {1}
v_mbcnt_hi_u32_b32  u<-uu   count_bits({0} & lower_lanes(1)) + {1}
v_cndmask_b32     u<-uum    select({2}, {1}, {0})
""")

BITS = table("""
v_and_b32         u<-uu     {0} & {1}
v_or_b32          u<-uu     {0} | {1}
v_xor_b32         u<-uu     {0} ^ {1}
v_xnor_b32        u<-uu     ~({0} ^ {1})
v_and_or_b32      u<-uuu    ({0} & {1}) | {2}
v_or3_b32         u<-uuu    {0} | {1} | {2}
v_bfi_b32         u<-uuu    ({0} & {1}) | (~{0} & {2})
v_bfm_b32         u<-uu     ones({0} & 31) << ({1} & 31)
v_bfe_u32         u<-uuu    ({0} >> ({1} & 31)) & ones({2} & 31)
v_bfe_i32         i<-iuu    select(({2} & 31) == 0, 0, \
    ({0} >> as_i32({1} & 31)) << as_i32((32 - {2}) & 31) >> as_i32((32 - {2}) & 31))
v_bitop3_b32      u<-uuu    truth({0}, {1}, {2}, {bitop3})
v_perm_b32        u<-uuu    permute_bytes({0}, {1}, {2})
v_alignbit_b32    u<-uuu    low(pair({1}, {0}) >> wide({2} & 31))
v_alignbyte_b32   u<-uuu    low(pair({1}, {0}) >> wide(({2} & 3) * 8))
v_lshlrev_b32     u<-uu     {1} << ({0} & 31)
v_lshrrev_b32     u<-uu     {1} >> ({0} & 31)
v_ashrrev_i32     i<-ui     {1} >> as_i32({0} & 31)
v_lshl_or_b32     u<-uuu    ({0} << ({1} & 31)) | {2}
v_lshlrev_b64     U<-uU     {1} << wide({0} & 63)
v_lshrrev_b64     U<-uU     {1} >> wide({0} & 63)
v_ashrrev_i64     I<-uI     {1} >> as_i64(wide({0} & 63))
""")

SUMS = table("""
v_add_u32         u<-uu     {0} + {1}
v_sub_u32         u<-uu     {0} - {1}
v_subrev_u32      u<-uu     {1} - {0}
v_add_i32         i<-ii     {0} + {1}
v_sub_i32         i<-ii     {0} - {1}
v_add_co_u32      um<-uu    add_carry({0}, {1})
v_sub_co_u32      um<-uu    subtract_borrow({0}, {1})
v_subrev_co_u32   um<-uu    subtract_borrow({1}, {0})
v_addc_co_u32     um<-uum   add_carry({0}, {1}, {2})
v_subb_co_u32     um<-uum   subtract_borrow({0}, {1}, {2})
v_subbrev_co_u32  um<-uum   subtract_borrow({1}, {0}, {2})
v_add3_u32        u<-uuu    {0} + {1} + {2}
v_lshl_add_u32    u<-uuu    ({0} << ({1} & 31)) + {2}
v_add_lshl_u32    u<-uuu    ({0} + {1}) << ({2} & 31)
v_xad_u32         u<-uuu    ({0} ^ {1}) + {2}
v_lshl_add_u64    U<-UuU    ({0} << wide({1} & 7)) + {2}
v_sad_u32         u<-uuu    maximum({0}, {1}) - minimum({0}, {1}) + {2}
""")

PRODUCTS = table("""
v_mul_lo_u32      u<-uu     {0} * {1}
v_mul_hi_u32      u<-uu     high(wide({0}) * wide({1}))
v_mul_hi_i32      i<-ii     as_i32(high(as_u64(wide({0}) * wide({1}))))
v_mul_u32_u24     u<-uu     ({0} & 0xffffff) * ({1} & 0xffffff)
v_mul_hi_u32_u24  u<-uu     high(wide({0} & 0xffffff) * wide({1} & 0xffffff))
v_mul_i32_i24     i<-ii     ({0} << 8 >> 8) * ({1} << 8 >> 8)
v_mul_hi_i32_i24  i<-ii     as_i32(high(as_u64(wide({0} << 8 >> 8) * wide({1} << 8 >> 8))))
v_mad_u32_u24     u<-uuu    ({0} & 0xffffff) * ({1} & 0xffffff) + {2}
v_mad_i32_i24     i<-iii    ({0} << 8 >> 8) * ({1} << 8 >> 8) + {2}
v_mad_u64_u32     Um<-uuU   add_carry(wide({0}) * wide({1}), {2})
v_mad_i64_i32     Im<-iiI   add_sign(wide({0}) * wide({1}), {2})
""")

ORDER = table("""
v_min_u32         u<-uu     minimum({0}, {1})
v_max_u32         u<-uu     maximum({0}, {1})
v_min_i32         i<-ii     minimum({0}, {1})
v_max_i32         i<-ii     maximum({0}, {1})
v_min3_u32        u<-uuu    minimum(minimum({0}, {1}), {2})
v_max3_u32        u<-uuu    maximum(maximum({0}, {1}), {2})
v_med3_u32        u<-uuu    maximum(minimum({0}, {1}), minimum(maximum({0}, {1}), {2}))
v_min3_i32        i<-iii    minimum(minimum({0}, {1}), {2})
v_max3_i32        i<-iii    maximum(maximum({0}, {1}), {2})
v_med3_i32        i<-iii    maximum(minimum({0}, {1}), minimum(maximum({0}, {1}), {2}))
""")

CLAMPED_INTEGER = table("""
v_add_u32         u<-uu     add_clamped({0}, {1})
v_sub_u32         u<-uu     subtract_clamped({0}, {1})
v_subrev_u32      u<-uu     subtract_clamped({1}, {0})
v_add_i32         i<-ii     add_clamped({0}, {1})
v_sub_i32         i<-ii     subtract_clamped({0}, {1})
""")
"""What the same names do with the modifier ``clamp``."""

RELATIONS = {"lt": "<", "eq": "==", "le": "<=", "gt": ">", "ne": "!=", "ge": ">="}
"""The integer comparisons by the two letters in a mnemonic; scalar ones say ``lg`` for ``ne``."""

_COMPARED = {"u32": "u", "i32": "i", "u64": "U", "i64": "I"}

COMPARES = {
    f"v_cmp_{relation}_{name}": VectorRow("m", letter * 2, f"{{0}} {operator} {{1}}")
    for relation, operator in RELATIONS.items()
    for name, letter in _COMPARED.items()
} | {
    f"v_cmp_{relation}_{name}": VectorRow("m", "ww", f"{opened}{{0}}{closed} {operator} {opened}{{1}}{closed}")
    for relation, operator in RELATIONS.items()
    for name, opened, closed in (("u16", "(", " & 0xffff)"), ("i16", "signed16(", ")"))
}

INTEGER = MOVES | BITS | SUMS | PRODUCTS | ORDER | COMPARES
