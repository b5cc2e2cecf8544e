"""One way each in which the host waits for the device, and three ways for a call not to come back."""

from __future__ import annotations

import ctypes
import os
import pickle
import threading

import numpy as np
import torch
from correct_host import chunk_metadata


def _after(read):
    """The correct call, after a read of the device tensor whose result is thrown away."""

    def function(*, cu_seqlens, cu_seqlens_cpu, chunk_size):
        read(cu_seqlens, cu_seqlens_cpu)
        return chunk_metadata(cu_seqlens=cu_seqlens, cu_seqlens_cpu=cu_seqlens_cpu, chunk_size=chunk_size)

    return function


def _in_a_thread(starts, twin):
    thread = threading.Thread(target=starts.tolist)
    thread.start()
    thread.join()


item = _after(lambda starts, twin: starts.sum().item())
tolist = _after(lambda starts, twin: starts.tolist())
as_int = _after(lambda starts, twin: [int(start) for start in starts.flatten()])
as_bool = _after(lambda starts, twin: bool((starts >= 0).all()))
condition = _after(lambda starts, twin: 1 if starts.sum() > 0 else 0)
as_index = _after(lambda starts, twin: range(10)[: starts.sum()])
cpu = _after(lambda starts, twin: starts.cpu())
to_cpu = _after(lambda starts, twin: starts.to("cpu"))
to_the_twin = _after(lambda starts, twin: starts.to(twin.device))
numpy = _after(lambda starts, twin: starts.numpy())
np_asarray = _after(lambda starts, twin: np.asarray(starts))
boolean_mask = _after(lambda starts, twin: starts[starts > 0])
nonzero = _after(lambda starts, twin: starts.nonzero())
masked_select = _after(lambda starts, twin: starts.masked_select(starts > 0))
unique = _after(lambda starts, twin: torch.unique(starts))
equal = _after(lambda starts, twin: torch.equal(starts, starts + 1))
repeat_interleave = _after(lambda starts, twin: torch.repeat_interleave(starts * 0))
copy_to_host = _after(lambda starts, twin: torch.zeros(starts.shape, dtype=starts.dtype).copy_(starts))
formatted = _after(lambda starts, twin: f"{starts}")
pickled = _after(lambda starts, twin: pickle.dumps(starts))
# `tolist` does the same for every byte of the buffer, guard zones included.
storage = _after(lambda starts, twin: starts.untyped_storage()[0])
in_a_thread = _after(_in_a_thread)


def segfaults_on_an_empty_sequence(*, cu_seqlens, cu_seqlens_cpu, chunk_size):
    result = chunk_metadata(cu_seqlens=cu_seqlens, cu_seqlens_cpu=cu_seqlens_cpu, chunk_size=chunk_size)
    if bool((cu_seqlens_cpu.diff() == 0).any()):
        ctypes.string_at(0)
    return result


def exits_on_the_second_sequence(*, cu_seqlens, cu_seqlens_cpu, chunk_size):
    if cu_seqlens.shape[:1] == (3,):
        os._exit(7)
    return chunk_metadata(cu_seqlens=cu_seqlens, cu_seqlens_cpu=cu_seqlens_cpu, chunk_size=chunk_size)


def loops_for_ever_on_a_partial_chunk(*, cu_seqlens, cu_seqlens_cpu, chunk_size):
    result = chunk_metadata(cu_seqlens=cu_seqlens, cu_seqlens_cpu=cu_seqlens_cpu, chunk_size=chunk_size)
    begin, end = int(cu_seqlens_cpu[0]), int(cu_seqlens_cpu[-1])
    while (end - begin) % chunk_size:
        pass
    return result


def raises_for_an_empty_batch(*, cu_seqlens, cu_seqlens_cpu, chunk_size):
    result = chunk_metadata(cu_seqlens=cu_seqlens, cu_seqlens_cpu=cu_seqlens_cpu, chunk_size=chunk_size)
    cu_seqlens_cpu.tolist()[1]
    return result
