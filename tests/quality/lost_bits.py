"""Makes faults of correct code that only inputs show which are rarely drawn: far strides below 2^31, and many rows.

A kernel that multiplies an index by a stride in 32 bits, because both fit, is wrong where the product does not. Here
such a product loses its upper bit, so that what is read or written lies between the tensor's elements.
"""

from __future__ import annotations

import torch

MOST = 1 << 31


def places(tensor, axis):
    """Where each element is looked for, in elements from the first one."""
    found = torch.zeros((1,) * tensor.dim(), dtype=torch.int64)
    for number, (count, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        products = torch.arange(count) * stride
        if number == axis and stride < MOST:
            products = products % MOST
        found = found + products.reshape([-1 if other == number else 1 for other in range(tensor.dim())])
    return found


def flat(tensor):
    """All memory that the tensor lies in."""
    span = sum((count - 1) * stride for count, stride in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    return tensor.as_strided((span if tensor.numel() else 0,), (1,))


def in_32_bits(tensor, axis):
    """A copy as such a kernel reads the tensor; one without that axis stays itself."""
    return flat(tensor)[places(tensor, axis)] if tensor.numel() and axis < tensor.dim() else tensor


def changed(values, change):
    """What a change makes of a tensor, or of the first one of several."""
    return change(values) if isinstance(values, torch.Tensor) else [change(item) for item in values]


def reads_in_32_bits(function, name, axis=0):
    """The function with products of one tensor's indices along an axis in 32 bits."""
    return lambda **call: function(**call | {name: changed(call[name], lambda tensor: in_32_bits(tensor, axis))})


def writes_in_32_bits(function, name, axis=0):
    """The function with products of a buffer's indices along an axis in 32 bits."""

    def write(**call):
        buffers = call[name] if isinstance(call[name], list | tuple) else [call[name]]
        copies = [buffer.clone() for buffer in buffers]
        result = function(**call | {name: copies if isinstance(call[name], list | tuple) else copies[0]})
        for buffer, copy in zip(buffers, copies, strict=True):
            if buffer.numel():
                flat(buffer)[places(buffer, axis)] = copy
        return result

    return write


def repeats_after(function, name, programs):
    """The function as a kernel of so many programs, each of which goes on with what it loaded for its first row."""

    def repeated(tensor):
        return tensor[torch.arange(tensor.shape[0]) % programs]

    return lambda **call: function(**call | {name: changed(call[name], repeated)})
