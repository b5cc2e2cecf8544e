"""What a step of linear attention consists of: its classes of requests, the fields that follow, and where rows go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from optimized.batch_classes import _counts_with_speculation, _counts_without_speculation
from optimized.causal_conv1d_metadata import causal_conv1d_metadata
from optimized.chunk_metadata import chunk_metadata
from optimized.linear_launches import StateRows, StepRows
from optimized.metadata_builder import Step
from optimized.metadata_records import Batch, LinearConfig
from optimized.metadata_refusals import HostRows
from optimized.token_partition import partition

_CONV_BLOCK_TOKENS = 8
_MOST_VIEWS = 4096  # numbers of rows and tokens whose views of a graph's buffers are kept

_Flags = npt.NDArray[np.bool_]
_Fields = dict[str, Any]


class LinearBuffers:
    """A graph's buffers for what depends on the batch alone: of one builder, or of several that share them."""

    def __init__(self, config: LinearConfig, device: torch.device) -> None:
        rows, tokens = config.max_graph_rows, config.max_graph_rows * (config.num_speculative_tokens + 1)
        self.step: Step | None = None
        self.spec_query_start_loc = torch.zeros(rows + 1, dtype=torch.int32, device=device)
        self.non_spec_query_start_loc = torch.zeros(rows + 1, dtype=torch.int32, device=device)
        self.num_accepted_tokens = torch.ones(rows, dtype=torch.int32, device=device)
        self.spec_sequence_masks = torch.zeros(rows, dtype=torch.bool, device=device)
        self.spec_token_indx = torch.zeros(tokens, dtype=torch.int32, device=device)
        self.non_spec_token_indx = torch.zeros(tokens, dtype=torch.int32, device=device)
        self._views: dict[tuple[int, int], _Fields] = {}

    def device(self) -> torch.device:
        """Asked of a tensor each time, because "cuda" is "cuda:0" there."""
        return self.spec_query_start_loc.device

    def of_decodes(self, num_rows: int) -> _Fields:
        """The views that a step without speculation has."""
        views = self._views.get((num_rows, -1))
        if views is None:
            views = {"non_spec_query_start_loc": self.non_spec_query_start_loc[: num_rows + 1]}
            self._keep((num_rows, -1), views)
        return views

    def of_speculation(self, num_rows: int, num_tokens: int) -> _Fields:
        """The views that a step of nothing but speculation has."""
        views = self._views.get((num_rows, num_tokens))
        if views is None:
            views = {
                "spec_query_start_loc": self.spec_query_start_loc[: num_rows + 1],
                "spec_sequence_masks": self.spec_sequence_masks[:num_rows],
                "spec_token_indx": self.spec_token_indx[:num_tokens],
                "non_spec_token_indx": self.non_spec_token_indx[:0],
                "num_accepted_tokens": self.num_accepted_tokens[:num_rows],
            }
            self._keep((num_rows, num_tokens), views)
        return views

    def _keep(self, key: tuple[int, int], views: _Fields) -> None:
        if len(self._views) == _MOST_VIEWS:
            self._views.clear()
        self._views[key] = views


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Plan:
    """How the states of a step are made of any table. It outlives the build, for updates."""

    seq_lens: torch.Tensor
    rows: StateRows
    num_spec: int
    num_others: int
    first_prefill: int | None
    """among the requests that do not speculate; ``None`` without prefills"""
    staged: bool

    def allocated(self) -> tuple[torch.Tensor, _Fields]:
        """A new tensor for the states, and the fields that lie in it."""
        num_spec_states = self.num_spec * self.rows.width if self.num_spec else 0
        states = self.seq_lens.new_empty((num_spec_states + self.num_others,))
        if not self.num_spec:
            others, fields = states, {"non_spec_state_indices_tensor": states}
        else:
            fields = {"spec_state_indices_tensor": states[:num_spec_states].view(self.num_spec, self.rows.width)}
            if self.first_prefill is None:
                return states, fields
            others = fields["non_spec_state_indices_tensor"] = states[num_spec_states:]
        if self.first_prefill is not None:
            fields["prefill_state_indices"] = others[self.first_prefill :] if self.first_prefill else others
        return states, fields


@dataclass(slots=True, kw_only=True, eq=False)
class LinearStep:
    """A step's plan, what its launch writes besides states, and the fields that depend on the batch alone."""

    plan: Plan
    rows: StepRows
    fields: _Fields
    num_prefills: int
    other_starts: npt.NDArray[np.int64]
    """on the host, of the requests that do not speculate; needed with prefills"""

    def add_chunks(self, config: LinearConfig) -> None:
        """Launch what prefills need besides; once the step's own launch is made."""
        first, fields = self.plan.first_prefill, self.fields
        starts = torch.from_numpy(self.other_starts)
        prefill_starts = fields["prefill_query_start_loc"]
        fields["chunk_indices"], fields["chunk_offsets"] = chunk_metadata(
            cu_seqlens=prefill_starts, cu_seqlens_cpu=starts[first:], chunk_size=config.chunk_size
        )
        *columns, fields["num_conv_blocks"] = causal_conv1d_metadata(query_start_loc=starts, block_m=_CONV_BLOCK_TOKENS)
        sent = _sent(torch.stack(columns), prefill_starts.device)
        fields["batch_ptr"], fields["token_chunk_offset_ptr"] = sent[0], sent[1]


def without_speculation(batch: Batch, host: HostRows, config: LinearConfig, buffers: LinearBuffers) -> LinearStep:
    """The step of decodes and prefills; with ``buffers`` to be staged in if it can be."""
    counts = _counts_without_speculation(host.starts, host.queries, _first_chunks(host))
    num_decodes, num_prefills, _, num_decode_tokens, _, _ = counts
    num_requests, fields = host.queries.size, _counted(batch, counts)
    rows, staged = StepRows(), False
    if num_prefills:
        flags = batch.seq_lens.new_empty((num_requests,), dtype=torch.bool)
        prefill_starts = fields["non_spec_query_start_loc"] = batch.query_start_loc
        fields["has_initial_state"] = fields["prefill_has_initial_state"] = flags
        if num_decodes:
            number = num_requests - num_decodes + 1
            prefill_starts = batch.seq_lens.new_empty((number,))
            rows = StepRows(prefill_starts, number, num_decodes, num_requests, num_decode_tokens)
            fields["prefill_has_initial_state"] = flags[num_decodes:]
        fields["prefill_query_start_loc"] = prefill_starts
        rows = rows._replace(flags_out=flags, num_flags=num_requests)
    elif batch.full_graph and num_requests <= config.max_graph_rows:
        staged, num_live = True, _rows_with_queries(host.queries)
        fields.update(buffers.of_decodes(num_requests))
        rows = StepRows(buffers.non_spec_query_start_loc, num_requests + 1, 0, num_live)
    else:
        fields["non_spec_query_start_loc"] = batch.query_start_loc
    plan = Plan(
        seq_lens=batch.seq_lens,
        rows=StateRows(num_live if staged else num_requests, num_requests, 1),
        num_spec=0,
        num_others=num_requests,
        first_prefill=num_decodes if num_prefills else None,
        staged=staged,
    )
    return LinearStep(plan=plan, rows=rows, fields=fields, num_prefills=num_prefills, other_starts=host.starts)


def with_speculation(
    batch: Batch, host: HostRows, mask: _Flags, width: int, config: LinearConfig, buffers: LinearBuffers
) -> LinearStep:
    """The step in which the requests of ``mask`` speculate, with ``width`` states each; likewise."""
    num_spec, num_requests = np.count_nonzero(mask), mask.size
    if num_spec < num_requests:
        counts = _counts_with_speculation(host.queries, mask)
    else:
        counts = 0, 0, num_requests, 0, 0, int(host.starts[-1])
    fields = _counted(batch, counts)
    fields["spec_sequence_masks_cpu"] = torch.from_numpy(mask)
    queries = host.queries[mask] if num_spec < num_requests else host.queries
    first = int(queries[0])
    if first and not np.count_nonzero(queries != first):
        fields["uniform_spec_sequence_length"] = first
    if counts[1]:
        return _with_both(batch, host, mask, width, fields)
    return _only_speculation(batch, host, width, config, buffers, fields)


def _only_speculation(
    batch: Batch, host: HostRows, width: int, config: LinearConfig, buffers: LinearBuffers, fields: _Fields
) -> LinearStep:
    num_requests, num_spec = host.queries.size, fields["num_spec_decodes"]
    num_tokens = min(num_spec * (config.num_speculative_tokens + 1), int(host.starts[-1]))
    staged = batch.full_graph and num_requests <= config.max_graph_rows
    if staged:
        fields.update(buffers.of_speculation(num_requests, num_tokens))
        rows = StepRows(
            starts_out=buffers.spec_query_start_loc,
            num_starts=num_requests + 1,
            last_start=num_spec,
            accepted=batch.num_accepted_tokens,
            accepted_out=buffers.num_accepted_tokens,
            num_accepted=num_requests,
            masks_out=buffers.spec_sequence_masks,
            num_masks=num_requests,
            tokens_out=buffers.spec_token_indx,
            num_tokens=num_tokens,
        )
    else:
        masks = batch.seq_lens.new_empty((num_requests,), dtype=torch.bool)
        tokens = batch.seq_lens.new_empty((num_tokens,))
        rows = StepRows(masks_out=masks, num_masks=num_requests, tokens_out=tokens, num_tokens=num_tokens)
        accepted: Any = batch.num_accepted_tokens
        fields["spec_query_start_loc"] = batch.query_start_loc[: num_spec + 1]
        fields["spec_sequence_masks"], fields["num_accepted_tokens"] = masks, accepted[:num_spec]
        fields["spec_token_indx"], fields["non_spec_token_indx"] = tokens, tokens.new_empty((0,))
    plan = Plan(
        seq_lens=batch.seq_lens,
        rows=StateRows(num_spec, num_requests if staged else num_spec, width),
        num_spec=num_spec,
        num_others=0,
        first_prefill=None,
        staged=staged,
    )
    return LinearStep(plan=plan, rows=rows, fields=fields, num_prefills=0, other_starts=host.starts[:1])


def _with_both(batch: Batch, host: HostRows, mask: _Flags, width: int, fields: _Fields) -> LinearStep:
    num_requests, num_spec = mask.size, fields["num_spec_decodes"]
    num_others = num_requests - num_spec
    new = batch.seq_lens.new_empty
    masks, flags = new((num_requests,), dtype=torch.bool), new((num_others,), dtype=torch.bool)
    accepted = new((num_spec,))
    tokens, other_tokens, starts, other_starts = partition(
        batch.query_start_loc, host.starts, fields["spec_sequence_masks_cpu"]
    )
    fields["spec_token_indx"], fields["non_spec_token_indx"] = tokens, other_tokens
    fields["spec_query_start_loc"] = starts
    fields["non_spec_query_start_loc"] = fields["prefill_query_start_loc"] = other_starts
    fields["spec_sequence_masks"], fields["num_accepted_tokens"] = masks, accepted
    fields["has_initial_state"] = fields["prefill_has_initial_state"] = flags
    others = ~mask
    places = np.where(mask, np.cumsum(mask) - 1, -np.cumsum(others, dtype=np.int64)).astype(np.int32)
    sent = _sent(torch.from_numpy(places), batch.seq_lens.device)
    plan = Plan(
        seq_lens=batch.seq_lens,
        rows=StateRows(num_requests, num_requests, width, num_spec * width, sent),
        num_spec=num_spec,
        num_others=num_others,
        first_prefill=0,
        staged=False,
    )
    rows = StepRows(
        accepted=batch.num_accepted_tokens,
        accepted_out=accepted,
        num_accepted=num_requests,
        masks_out=masks,
        num_masks=num_requests,
        flags_out=flags,
        num_flags=num_requests,
    )
    packed = np.concatenate(([0], np.cumsum(host.queries[others])))
    return LinearStep(plan=plan, rows=rows, fields=fields, num_prefills=fields["num_prefills"], other_starts=packed)


def _counted(batch: Batch, counts: tuple[int, int, int, int, int, int]) -> _Fields:
    num_decodes, num_prefills, num_spec_decodes, num_decode_tokens, num_prefill_tokens, num_spec_decode_tokens = counts
    return {
        "num_prefills": num_prefills,
        "num_prefill_tokens": num_prefill_tokens,
        "num_decodes": num_decodes,
        "num_decode_tokens": num_decode_tokens,
        "num_spec_decodes": num_spec_decodes,
        "num_spec_decode_tokens": num_spec_decode_tokens,
        "num_actual_tokens": batch.num_actual_tokens,
    }


def _first_chunks(host: HostRows) -> Any:
    """Which requests begin; ``None``, which is the same as none and takes less time, if nobody prefills."""
    if host.prefilling is None or not host.prefilling.any():
        return None
    return host.prefilling & (host.queries > 0) & (host.lengths <= host.queries)


def _rows_with_queries(queries: npt.NDArray[np.int64]) -> int:
    """Rows up to the last one with a query; the rest is padding."""
    if queries.size and queries[-1]:
        return queries.size
    rows = np.flatnonzero(queries)
    return int(rows[-1]) + 1 if rows.size else 0


def _sent(values: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A tensor of the host's, on its way to the device."""
    # A new buffer each time: the copy out of the last one may not have begun. Torch reuses those that are done.
    staged = torch.empty(values.shape, dtype=values.dtype, pin_memory=device.type == "cuda")
    staged.copy_(values)
    return torch.empty_like(staged, device=device, pin_memory=False).copy_(staged, non_blocking=True)
