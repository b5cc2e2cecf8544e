"""Dispatchers that are right, but for what they return or declare."""

from __future__ import annotations

from correct_dispatch import mla_cache_write_dispatch


def nothing(**inputs):
    mla_cache_write_dispatch(**inputs)


def queries_alone(**inputs):
    return mla_cache_write_dispatch(**inputs)[0]


def no_keys(**inputs):
    return mla_cache_write_dispatch(**inputs)[0], None


def lists_of_tensors(**inputs):
    return [[tensor] for tensor in mla_cache_write_dispatch(**inputs)]


def mapping_without_keys(**inputs):
    return {"q_out": mla_cache_write_dispatch(**inputs)[0]}


def four_results(**inputs):
    return (*mla_cache_write_dispatch(**inputs), inputs["kv_cache"], 1)


def unknown_order(**inputs):
    return mla_cache_write_dispatch(**inputs)


unknown_order.rounding = "hop"
