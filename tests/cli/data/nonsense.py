"""Callables that return or raise what no contract allows, each in one way."""

import os
import sys

import torch
from good import chunk_metadata as good


def wrong_value(**inputs):
    indices, offsets = good(**inputs)
    return indices, offsets + 1


def strided_is_wrong(**inputs):
    indices, offsets = good(**inputs)
    return (indices, offsets + 1) if inputs["cu_seqlens"].stride(0) == 2 else (indices, offsets)


def calls_sys_exit(**inputs):
    sys.exit()


def raises_keyboard_interrupt(**inputs):
    raise KeyboardInterrupt


def raises_system_exit(**inputs):
    raise SystemExit(3)


def raises_memory_error(**inputs):
    raise MemoryError("out of everything")


def raises_recursion_error(**inputs):
    return raises_recursion_error(**inputs)


def raises_key_error(**inputs):
    return {}["missing"]


def raises_generator_exit(**inputs):
    raise GeneratorExit


class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError("this exception cannot be printed")


def raises_unprintable(**inputs):
    raise Unprintable


def raises_megabytes(**inputs):
    raise RuntimeError("x" * 20_000_000)


def raises_surrogates(**inputs):
    raise RuntimeError("not text: \udcff")


def raises_markup(**inputs):
    raise RuntimeError("[red]not markup[/] \x1b[35mviolet")


def resizes_input(**inputs):
    result = good(**inputs)
    inputs["cu_seqlens"].untyped_storage().resize_(0)
    return result


def resizes_to_huge(**inputs):
    result = good(**inputs)
    inputs["cu_seqlens"].resize_(10_000)
    return result


def allocates_50_gb(**inputs):
    return torch.ones(50 << 30, dtype=torch.uint8), torch.ones(1)


def allocates_50_gb_of_bytes(**inputs):
    return bytearray(50 << 30), None


def huge_outputs(**inputs):
    return torch.zeros(10_000, 10_000, dtype=torch.int32), torch.zeros(10_000, dtype=torch.int64)


def huge_lists(**inputs):
    return [0] * 10_000_000, [1]


def none(**inputs):
    return None


def string(**inputs):
    return "chunk_indices"


def nested_lists(**inputs):
    return [[0, [1]], [[2]]], [[]]


def deep_list(**inputs):
    nest = []
    for _ in range(100_000):
        nest = [nest]
    return nest, nest


def cyclic_list(**inputs):
    nest = []
    nest.append(nest)
    return nest, nest


def generator(**inputs):
    return (item for item in good(**inputs))


def requires_grad(**inputs):
    return tuple(item.double().requires_grad_() for item in good(**inputs))


def complex_tensors(**inputs):
    return tuple(item.to(torch.complex64) for item in good(**inputs))


def sparse_tensors(**inputs):
    return tuple(item.to_sparse() for item in good(**inputs))


def meta_tensors(**inputs):
    return tuple(item.to("meta") for item in good(**inputs))


def float_tensors(**inputs):
    return tuple(item.double() for item in good(**inputs))


def bfloat16_tensors(**inputs):
    return tuple(item.bfloat16() for item in good(**inputs))


def quantized_tensors(**inputs):
    return tuple(torch.quantize_per_tensor(item.float(), 1.0, 0, torch.qint8) for item in good(**inputs))


def numpy_arrays(**inputs):
    return tuple(item.numpy() for item in good(**inputs))


class Tensorlike(torch.Tensor):
    pass


def subclass_tensors(**inputs):
    return tuple(item.as_subclass(Tensorlike) for item in good(**inputs))


def inputs_back(**inputs):
    return inputs["cu_seqlens"], inputs["cu_seqlens"]


def mutates(**inputs):
    result = good(**inputs)
    if inputs["cu_seqlens"].numel():
        inputs["cu_seqlens"] += 1
    return result


class BadMapping(dict):
    def keys(self):
        raise RuntimeError("no keys")

    def __iter__(self):
        os._exit(9)

    __contains__ = __getitem__ = __iter__


def bad_mapping(**inputs):
    return BadMapping(a=1)


def wrong_arguments():
    return None


def forgets_a_row(**inputs):
    indices, offsets = good(**inputs)
    written = torch.empty_like(indices)
    written[:2] = indices[:2]
    return written, offsets


def raises_where_it_may_not(**inputs):
    good(**inputs)
    raise ValueError("not today")
