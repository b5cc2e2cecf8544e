"""Ways to cheat that suit every function: what is remembered between calls, written outside, or read on the host."""

from __future__ import annotations

import torch


def by_identity(function, name):
    """Gives the earlier results as long as one argument is the same object."""
    kept: dict = {}

    def cached(**call):
        if kept.get("object") is not call[name]:
            kept.update(object=call[name], results=function(**call))
        return tuple(result.clone() if isinstance(result, torch.Tensor) else result for result in kept["results"])

    return cached


def by_shape(function, name):
    """Gives the results of the first call whose argument had this shape, and equal ints."""
    kept: dict = {}

    def cached(**call):
        scalars = [value for value in call.values() if not isinstance(value, torch.Tensor)]
        key = (call[name].shape, call[name].dtype, *scalars)
        if key not in kept:
            kept[key] = function(**call)
        return tuple(result.clone() if isinstance(result, torch.Tensor) else result for result in kept[key])

    return cached


def into_one_buffer(function):
    """Gives views of memory that the next call writes again."""
    kept: dict = {}

    def reused(**call):
        made = function(**call)
        views = []
        for number, result in enumerate(made):
            if isinstance(result, torch.Tensor):
                new = torch.zeros(1 << 16, dtype=result.dtype, device=result.device)
                own = kept.setdefault((number, result.dtype), new)
                result = own[: result.numel()].view(result.shape).copy_(result)
            views.append(result)
        return tuple(views)

    return reused


def one_element_too_far(function, place):
    """Writes behind the last element of a result."""

    def far(**call):
        made = list(function(**call))
        own = torch.empty(made[place].shape, dtype=made[place].dtype, device=made[place].device).copy_(made[place])
        own.as_strided((own.numel() + 1,), (1,))[-1] = 0
        made[place] = own
        return tuple(made)

    return far


def zeros(function):
    """Results of the right shapes, full of zeros."""

    def empty(**call):
        made = function(**call)
        return tuple(torch.zeros_like(result) if isinstance(result, torch.Tensor) else 0 for result in made)

    return empty


def in_place(function, name, change):
    """Changes an argument when it is done."""

    def changing(**call):
        made = function(**call)
        change(call[name])
        return made

    return changing


def looking(function, look):
    """Looks at its arguments on the host first."""

    def reading(**call):
        look(call)
        return function(**call)

    return reading


def as_int32(tensor):
    """An int64 tensor taken for one of int32 with as many elements."""
    if tensor.dtype == torch.int32:
        return tensor
    return tensor.contiguous().view(torch.int32)[: tensor.shape[0]]


def tight(tensor):
    """A tensor as if it were contiguous."""
    strides = [1] * tensor.dim()
    for axis in reversed(range(tensor.dim() - 1)):
        strides[axis] = strides[axis + 1] * tensor.shape[axis + 1]
    return tensor.as_strided(tensor.shape, strides)


def in_32_bits(tensor):
    """A tensor whose strides alone do not fit."""
    return tensor.as_strided(tensor.shape, [stride % (1 << 31) for stride in tensor.stride()])
