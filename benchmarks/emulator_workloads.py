"""Launches that the emulated chips and Triton's interpreter both make: this project's kernels and vLLM's.

Importing this module imports Triton, whose mode is that of the environment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from oracles.arrays import Inputs, array
from oracles.contract import Refused, Values
from oracles.contracts import by_name
from oracles.domain import Sampler
from oracles.memory import Memory, values_of
from oracles.providers import resolve
from oracles.providers.lifter import Lifted, Lifter
from oracles.providers.projects import project
from oracles.providers.upstream import open_tree

CHUNKS = by_name("chunk_metadata.chunk_metadata")
ON_HOST = {item.name for item in CHUNKS.inputs if item.role != "device"}
MOST_ROWS = 300
"""Sampled inputs with more chunks are left out: the interpreter takes a millisecond for some dozen rows."""

Random = np.random.Generator
Tensors = dict[str, Any]
Launch = Callable[[Tensors], tuple[torch.Tensor, ...]]


@dataclass(frozen=True)
class Workload:
    """``inputs`` makes arrays and numbers; ``launch`` takes them as guarded tensors and returns what was written."""

    name: str
    inputs: Callable[[int], list[Inputs]]
    launch: Launch
    expected: Callable[[Inputs], list[Any]] | None = None
    host: frozenset[str] = frozenset()

    def placed(self, memory: Memory, inputs: Inputs) -> Tensors:
        """The inputs in guarded memory."""
        return {
            name: values_of(value, memory, name, device=name not in self.host, writable=name.startswith("out"))
            for name, value in inputs.items()
        }


def workloads(vllm: str) -> Iterator[Workload]:
    """This project's kernels, and vLLM's if the spec of its sources is given."""
    ours = resolve("optimized", [CHUNKS], named=True)[0].load()
    yield _chunks("ours: chunk_metadata, sampled", ours, _sampled)
    yield _chunks("ours: chunk_metadata, 60 sequences", ours, lambda count: _batches(count, 60, 700))
    # From 1,025 sequences on, several share a program.
    yield _chunks("ours: chunk_metadata, 1,200 sequences", ours, lambda count: _batches(max(count // 6, 1), 1200, 4))
    if not vllm:
        return
    theirs = {each.name: each for each in resolve(vllm, [CHUNKS], named=True)}["prepare_chunk_metadata_device"].load()
    yield _chunks("vLLM: _chunk_metadata_kernel", theirs, lambda count: _batches(count, 60, 700))
    about = project("vllm")
    lifter = Lifter(
        open_tree(vllm.partition(":")[2], about),
        project=(about.package,),
        stubs=about.stubs(),
        follow=(*about.follow, "vllm.v1.worker.gpu.buffer_utils"),
    )
    yield from _page_tables(lifter)
    yield from _block_tables(lifter)
    yield from _sparse_attention(lifter)


# --- chunk metadata ---------------------------------------------------------------------------------------------------


def _chunks(name: str, function: Callable[..., Any], inputs: Callable[[int], list[Inputs]]) -> Workload:
    def launch(given: Tensors) -> tuple[torch.Tensor, ...]:
        result: tuple[torch.Tensor, ...] = function(**given)
        return result

    return Workload(name, inputs, launch, _expected, frozenset(ON_HOST))


def _expected(inputs: Inputs) -> list[Any]:
    expected = CHUNKS.expected(inputs)
    assert isinstance(expected, Values)
    return [expected.outputs[output.name] for output in CHUNKS.outputs]


def _sampled(count: int) -> list[Inputs]:
    """Inputs as ``oracles check`` draws them, without those that launch nothing."""
    found: list[Inputs] = []
    index = 0
    while len(found) < count:
        inputs = CHUNKS.domain(Sampler(0, index))
        index += 1
        expected = CHUNKS.expected(inputs)
        if isinstance(expected, Refused) or not isinstance(expected, Values):
            continue
        if inputs["cu_seqlens"].data.size > 1 and len(expected.outputs["chunk_indices"]) <= MOST_ROWS:  # type: ignore[union-attr]
            found.append(inputs)
    return found


def _batches(count: int, most: int, longest: int) -> list[Inputs]:
    """``most`` sequences, or up to a tenth fewer, of up to ``longest`` tokens in chunks of 64."""
    random = np.random.default_rng(most)
    found: list[Inputs] = []
    for _ in range(count):
        lengths = random.integers(0, longest, int(random.integers(most - most // 10, most + 1)))
        starts = np.concatenate([[0], np.cumsum(lengths)])
        found.append({"cu_seqlens": array(starts, "int32"), "cu_seqlens_cpu": array(starts, "int32"), "chunk_size": 64})
    return found


# --- vLLM's other kernels ---------------------------------------------------------------------------------------------


def _drawn(draw: Callable[[Random], Inputs]) -> Callable[[int], list[Inputs]]:
    return lambda count: [draw(np.random.default_rng(number)) for number in range(count)]


def _starts(random: Random, requests: int, longest: int) -> Any:
    return np.concatenate([[0], np.cumsum(random.integers(1, longest, requests))])


def _page_tables(lifter: Lifter) -> Iterator[Workload]:
    lifted = lifter.lift("vllm/v1/attention/backends/mla/rocm_aiter_mla.py", ["_expand_page_indices_kernel"])

    def draw(random: Random) -> Inputs:
        requests = int(random.integers(1, 6))
        starts = _starts(random, requests, 300)
        return {
            "starts": array(starts, "int32"),
            "tokens": array(np.diff(starts), "int32"),
            "table": array(random.integers(0, 1000, (requests, 20)), "int32"),
            "out": array(np.zeros(int(starts[-1])), "int32"),
        }

    def launch(given: Tensors) -> tuple[torch.Tensor, ...]:
        table = given["table"]
        lifted["_expand_page_indices_kernel"][(table.shape[0], 1)](
            given["out"], table, table.stride(0), table.stride(1), given["starts"], given["tokens"],
            KERNEL_BLOCK_SIZE=16, BLOCK_SIZE=1024, CLAMP_TAIL=False,
        )  # fmt: skip
        return (given["out"],)

    yield Workload("vLLM: _expand_page_indices_kernel", _drawn(draw), launch)
    yield _aligned(lifter.lift("vllm/v1/attention/backends/utils.py", ["_mamba_align_block_table_kernel"]))


def _aligned(lifted: Lifted) -> Workload:
    def draw(random: Random) -> Inputs:
        requests = int(random.integers(1, 9))
        return {
            "lengths": array(random.integers(1, 16 * 16, requests), "int32"),
            "table": array(random.integers(0, 1000, (requests, 24)), "int32"),
            "out": array(np.zeros((requests, 5)), "int32"),
        }

    def launch(given: Tensors) -> tuple[torch.Tensor, ...]:
        table, out = given["table"], given["out"]
        lifted["_mamba_align_block_table_kernel"][(table.shape[0],)](
            out, table, table.stride(0), table.stride(1), given["lengths"], 1, 16, out.shape[1], BLOCK=8
        )
        return (out,)

    return Workload("vLLM: _mamba_align_block_table_kernel", _drawn(draw), launch)


def _block_tables(lifter: Lifter) -> Iterator[Workload]:
    lifted = lifter.lift(
        "vllm/v1/worker/gpu/block_table.py", ["_gather_block_tables_kernel", "_compute_slot_mappings_kernel"]
    )

    def draw(random: Random) -> Inputs:
        requests, groups, columns = int(random.integers(1, 6)), 2, 40
        starts = _starts(random, requests, 200)
        tables = {f"table{n}": array(random.integers(0, 900, (8, columns)), "int32") for n in range(groups)}
        outs = {f"out{n}": array(np.full((8, columns), -7), "int32") for n in range(groups)}
        positions = np.concatenate([np.arange(length) for length in np.diff(starts)])
        return {
            **tables, **outs,
            "mapping": array(random.permutation(8)[:requests], "int32"),
            "counts": array(random.integers(1, columns, (groups, 8)), "int32"),
            "starts": array(starts, "int32"),
            "positions": array(positions, "int64"),
            "sizes": array([16, 32], "int32"),
            "flags": array([True, True], "bool"),
            "out_slots": array(np.full((groups, int(starts[-1]) + 40), -7), "int64"),
            "strides": array([columns, columns], "int64"),
        }  # fmt: skip

    yield Workload("vLLM: _gather_block_tables_kernel", _drawn(draw), lambda given: _gather(lifted, given))
    yield Workload("vLLM: _compute_slot_mappings_kernel", _drawn(draw), lambda given: _slots(lifted, given))


def _pointers(given: Tensors, name: str) -> torch.Tensor:
    return torch.tensor([given[f"{name}{n}"].data_ptr() for n in range(2)], dtype=torch.uint64)


def _gather(lifted: Lifted, given: Tensors) -> tuple[torch.Tensor, ...]:
    requests = given["mapping"].shape[0]
    lifted["_gather_block_tables_kernel"][(2, requests + 1)](
        given["mapping"], _pointers(given, "table"), _pointers(given, "out"), given["strides"], given["counts"],
        given["counts"].stride(0), requests, given["sizes"], given["sizes"], given["sizes"],
        MASK_SLIDING_WINDOW=False, BLOCK_SIZE=1024,
    )  # fmt: skip
    return given["out0"], given["out1"]


def _slots(lifted: Lifted, given: Tensors) -> tuple[torch.Tensor, ...]:
    out = given["out_slots"]
    lifted["_compute_slot_mappings_kernel"][(2, given["mapping"].shape[0] + 1)](
        out.shape[1], given["mapping"], given["starts"], given["positions"], _pointers(given, "table"),
        given["strides"], given["sizes"], given["flags"], given["flags"], out, out.stride(0), 0,
        CP_SIZE=1, CP_INTERLEAVE=1, PAD_ID=-1, TRITON_BLOCK_SIZE=1024,
    )  # fmt: skip
    return (out,)


def _sparse_attention(lifter: Lifter) -> Iterator[Workload]:
    names = ("generate_sparse_seqlen_kernel", "_convert_req_index_to_global_index_kernel")
    lifted = lifter.lift("vllm/v1/attention/backends/mla/rocm_aiter_mla_sparse.py", names)

    def lengths(random: Random) -> Inputs:
        starts = _starts(random, int(random.integers(1, 7)), 90)
        return {
            "starts": array(starts, "int32"),
            "lengths": array(np.diff(starts) + random.integers(0, 3000, starts.size - 1), "int32"),
            "out": array(np.zeros(int(starts[-1])), "int32"),
        }

    def launch(given: Tensors) -> tuple[torch.Tensor, ...]:
        lifted[names[0]][(given["lengths"].shape[0], 2)](given["lengths"], given["starts"], given["out"], 2048, 64)
        return (given["out"],)

    yield Workload(f"vLLM: {names[0]}", _drawn(lengths), launch)

    def tokens(random: Random) -> Inputs:
        count = int(random.integers(1, 6))
        starts = _starts(random, count, 257)
        return {
            "requests": array(random.integers(0, 3, count), "int32"),
            "table": array(random.integers(0, 500, (3, 16)), "int32"),
            "tokens": array(random.integers(-1, 16 * 16, (count, 256)), "int32"),
            "starts": array(starts, "int32"),
            "out": array(np.zeros(int(starts[-1])), "int32"),
        }

    def convert(given: Tensors) -> tuple[torch.Tensor, ...]:
        lifted[names[1]][(given["requests"].shape[0], 2)](
            given["requests"], given["table"], given["tokens"], given["starts"], given["out"],
            16, 16, 16, 128, *given["table"].stride(), *given["tokens"].stride(),
        )  # fmt: skip
        return (given["out"],)

    yield Workload(f"vLLM: {names[1]}", _drawn(tokens), convert)


def as_mapping(vllm: str) -> Mapping[str, Workload]:
    """The workloads by name."""
    return {workload.name: workload for workload in workloads(vllm)}
