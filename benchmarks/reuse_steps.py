"""Decode steps of a model with many KV-cache groups: what its builders are handed."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from optimized.metadata_reuse import Batch, LinearConfig, LinearSpec, MlaConfig, MlaSpec

BLOCK = 64
"""Tokens a block, of the cache and of state."""


@dataclass(frozen=True)
class Setting:
    """One step: groups of both families over one batch of requests that all verify the same number of drafts."""

    linear: int
    mla: int
    requests: int = 8
    drafts: int = 2
    context: int = 16_384

    @property
    def name(self) -> str:
        """As a table shows it."""
        return f"{self.linear} KDA, {self.mla} MLA, {self.requests} requests, context {self.context:,}"


class Step:
    """The tensors of a setting on the device, the same for every contender."""

    def __init__(self, setting: Setting, device: torch.device) -> None:
        self.setting = setting
        count, queries = setting.requests, 1 + setting.drafts
        starts = torch.arange(count + 1, dtype=torch.int32) * queries
        lengths = torch.full((count,), setting.context, dtype=torch.int32)
        self.values = {
            "query_start_loc": starts.to(device),
            "query_start_loc_cpu": starts,
            "seq_lens": lengths.to(device),
            "seq_lens_cpu": lengths,
            "num_actual_tokens": int(starts[-1]),
            "is_prefilling": torch.zeros(count, dtype=torch.bool),
            "num_accepted_tokens": torch.ones(count, dtype=torch.int32, device=device),
            "num_decode_draft_tokens_cpu": torch.full((count,), setting.drafts, dtype=torch.int32),
            "full_graph": True,
        }
        columns = -(-setting.context // BLOCK) + 1 + setting.drafts
        groups = setting.linear + setting.mla
        tables = torch.arange(1, 1 + groups * count * columns, dtype=torch.int32, device=device)
        self.tables = list(tables.view(groups, count, columns).unbind())
        self.slots = [torch.arange(int(starts[-1]), device=device) + group for group in range(groups)]

    def batch(self, number: int) -> Batch:
        """The batch as an object of its own, as every step of an engine makes one."""
        return Batch(step=number, **self.values)  # type: ignore[arg-type]

    def linear(self) -> tuple[LinearSpec, LinearConfig]:
        """Spec and config of the KDA groups."""
        drafts, count = self.setting.drafts, self.setting.requests
        spec = LinearSpec(
            block_size=BLOCK,
            num_speculative_blocks=drafts,
            mamba_cache_mode="align",
            dtype="bfloat16",
            page_size_bytes=1 << 20,
        )
        return spec, LinearConfig(num_speculative_tokens=drafts, max_num_reqs=count, max_graph_rows=count)

    def mla(self) -> tuple[MlaSpec, MlaConfig]:
        """Spec and config of the MLA groups."""
        spec = MlaSpec(block_size=BLOCK, num_heads=16, kv_cache_dtype="auto", dtype="bfloat16")
        longest = self.tables[0].shape[1] * BLOCK
        count = self.setting.requests
        return spec, MlaConfig(max_num_reqs=count, max_model_len=longest, max_graph_rows=count)
