"""Upstream code for contracts 3.1 and 3.2: vLLM's state columns of linear attention and their staging for CUDA graphs.

What the GDN builder does with a whole batch (3.2 as well, 3.4, 3.5) is in :mod:`oracles.contracts.gdn_bindings`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from oracles.arrays import Inputs
from oracles.contract import Binding, Narrowing
from oracles.contracts._accelerated import accelerated, unclaimed
from oracles.contracts.block_table_bindings import setting_up
from oracles.contracts.gdn_bindings import CLASSIFY, GDN_STAGING, SPEC_TOKEN_PARTITION, SPLIT_DECODES_AND_PREFILLS
from oracles.verdict import Unsupported

__all__ = (
    "CLASSIFY",
    "SPEC_TOKEN_PARTITION",
    "SPLIT_DECODES_AND_PREFILLS",
    "STAGE_DECODE_STATE",
    "STATE_COLUMNS",
)

UTILS = "vllm/v1/attention/backends/utils.py"
KDA = "vllm/models/kimi_k3/nvidia/kda_metadata.py"
MAMBA_UTILS = "vllm/v1/worker/mamba_utils.py"

COLUMNS = "mamba_get_block_table_tensor"
COLUMNS_KERNEL = "_mamba_align_block_table_kernel"
KDA_COLUMNS = "_mamba_get_block_table_tensor"
KDA_STAGING = "stage_spec_decode_metadata"
GROUPS = "MambaSpecDecodeGPUContext.compute_aligned_state_indices"
ADDRESS = "_reinterpret_u64_as_i64"


class _Platform:
    """Stands for vLLM's platform object, which is asked whether launches may overlap: results do not depend on it."""

    def is_arch_support_pdl(self) -> bool:
        return False


SPEC_STUBS: Mapping[str, Any] = {"vllm.v1.kv_cache_interface:MambaSpec": SimpleNamespace}
KDA_STUBS: Mapping[str, Any] = {"vllm.platforms:current_platform": _Platform()}


def _of_table(upstream: Any, table: Any, lengths: Any, mode: str, block_size: int, blocks: int) -> Any:
    """The columns. In mode "none" upstream hands on the table, of which every caller takes the first ``1 + S``.

    Refused with ``Unsupported``: mode "all" in a release that hands on the table there too, as it documents.
    """
    made = upstream(table, lengths, SimpleNamespace(block_size=block_size, num_speculative_blocks=blocks), mode)
    if mode == "all" and made is table:
        raise Unsupported('this release hands on the whole table in mode "all", as its docstrings say')
    return made[:, : 1 + blocks] if mode == "none" else made


def _columns(names: Mapping[str, Any]) -> Callable[..., Any]:
    def state_columns(
        block_table: Any, seq_lens: Any, mamba_cache_mode: str, block_size: int, num_speculative_blocks: int
    ) -> tuple[Any, ...]:
        """The torch operations, upstream's only ones until there was a kernel, and those of CPUs since."""
        table = _of_table(names[COLUMNS], block_table, seq_lens, mamba_cache_mode, block_size, num_speculative_blocks)
        return (table,)

    return state_columns


def _columns_by(name: str) -> Callable[[Mapping[str, Any]], Callable[..., Any]]:
    """An adapter of a function that launches a kernel for an accelerator's tensors."""

    def adapt(names: Mapping[str, Any]) -> Callable[..., Any]:
        def state_columns(
            block_table: Any, seq_lens: Any, mamba_cache_mode: str, block_size: int, num_speculative_blocks: int
        ) -> tuple[Any, ...]:
            given = accelerated(block_table), accelerated(seq_lens)
            made = _of_table(names[name], *given, mamba_cache_mode, block_size, num_speculative_blocks)
            return (unclaimed(made),)

        return state_columns

    return adapt


def _columns_of_groups(names: Mapping[str, Any]) -> Callable[..., Any]:
    def state_columns(
        block_table: Any, seq_lens: Any, mamba_cache_mode: str, block_size: int, num_speculative_blocks: int
    ) -> tuple[Any, ...]:
        """One group of the newer runner, which computes all groups' columns at the start of a step."""
        import torch

        rows, device = block_table.shape[0], block_table.device
        with setting_up(device):
            address = torch.tensor([names[ADDRESS](block_table.data_ptr())], dtype=torch.int64, device=device)
        context = SimpleNamespace(
            is_initialized=True,
            block_size=block_size,
            num_groups=1,
            block_table_ptrs=address,
            aligned_index_block_table_ptrs=address,
            block_table_stride_req=block_table.stride(0),
            aligned_state_indices=torch.empty(1, rows, 1 + num_speculative_blocks, dtype=torch.int32, device=device),
        )
        return (names[GROUPS](context, accelerated(seq_lens), rows)[0],)

    return state_columns


def _staged(names: Mapping[str, Any]) -> Callable[..., Any]:
    def stage_decode_state(
        state_indices: Any,
        query_start_loc: Any,
        num_accepted_tokens: Any,
        batch_size: int,
        state_buffer: Any,
        query_start_loc_buffer: Any,
        num_accepted_buffer: Any,
    ) -> tuple[Any, ...]:
        """The KDA builder's kernel, on the views that the builder hands on afterwards."""
        views = state_buffer[:batch_size], query_start_loc_buffer[: batch_size + 1], num_accepted_buffer[:batch_size]
        names[KDA_STAGING](
            accelerated(state_indices),
            query_start_loc,
            num_accepted_tokens,
            *views,
            num_spec_decodes=state_indices.shape[0],
        )
        return views

    return stage_decode_state


def mode_none(inputs: Inputs) -> bool:
    """A table that is handed on as it is."""
    return inputs["mamba_cache_mode"] == "none"


ALIGNED = Narrowing(
    clause="states are aligned to blocks",
    source=f'{GROUPS}: "compute every Mamba group\'s aligned physical state IDs in one launch"',
    excludes=mode_none,
)

COLUMNS_ARGUMENTS = ("block_table", "seq_lens", "kv_cache_spec", "mamba_cache_mode")
STAGING_ARGUMENTS = (
    "state_indices",
    "query_start_loc",
    "num_accepted_tokens",
    "staged_state_indices",
    "staged_query_start_loc",
    "staged_num_accepted_tokens",
    "num_spec_decodes",
)

STATE_COLUMNS = (
    Binding(
        project="vllm",
        name=COLUMNS,
        symbols={UTILS: (COLUMNS,)},
        signatures={COLUMNS: (COLUMNS_ARGUMENTS,)},
        adapt=_columns,
        runs="host",
        stubs=SPEC_STUBS,
    ),
    Binding(
        project="vllm",
        name=f"{COLUMNS}+{COLUMNS_KERNEL}",
        symbols={UTILS: (COLUMNS, COLUMNS_KERNEL)},
        signatures={COLUMNS: (COLUMNS_ARGUMENTS,)},
        adapt=_columns_by(COLUMNS),
        runs="triton",
        stubs=SPEC_STUBS,
    ),
    Binding(
        project="vllm",
        name=f"kimi_k3.{KDA_COLUMNS}",
        symbols={KDA: (KDA_COLUMNS,)},
        signatures={KDA_COLUMNS: (COLUMNS_ARGUMENTS,)},
        adapt=_columns_by(KDA_COLUMNS),
        runs="triton",
        stubs=KDA_STUBS,
    ),
    Binding(
        project="vllm",
        name=GROUPS,
        symbols={MAMBA_UTILS: (GROUPS, ADDRESS)},
        signatures={GROUPS: (("self", "seq_lens", "num_reqs"),)},
        adapt=_columns_of_groups,
        runs="triton",
        narrowings=(ALIGNED,),
    ),
)
STAGE_DECODE_STATE = (
    Binding(
        project="vllm",
        name=f"kimi_k3.{KDA_STAGING}",
        symbols={KDA: (KDA_STAGING,)},
        signatures={KDA_STAGING: (STAGING_ARGUMENTS,)},
        adapt=_staged,
        runs="triton",
        stubs=KDA_STUBS,
        follow=("vllm.v1.attention.backends.utils",),
    ),
    *GDN_STAGING,
)
