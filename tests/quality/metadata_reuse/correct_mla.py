"""A correct builder for MLA decodes in small methods of plain torch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from correct_builders import Builder, queries_of


@dataclass
class Plan:
    """What the host decides of a step."""

    queries: list
    width: int
    varlen: int
    staged: bool
    prefills: int = 0


class Mla(Builder):
    """Metadata of an MLA decode, pages of one token."""

    BATCH = (
        "num_decodes", "num_decode_tokens", "seq_lens", "paged_kv_indptr", "paged_kv_last_page_len", "qo_indptr",
        "max_qo_len", "min_kv_seq_len",
    )  # fmt: skip
    TABLE = ("paged_kv_indices", "block_table", "slot_mapping")

    def batch_buffers(self):
        rows = self.config.max_graph_rows
        sizes = {"seq_lens": rows, "paged_kv_last_page_len": rows, "paged_kv_indptr": rows + 1, "qo_indptr": rows + 1}
        return {name: self.new(size) for name, size in sizes.items()}

    def table_buffers(self):
        return {"paged_kv_indices": self.new(self.config.max_num_reqs * self.entries(self.config.max_model_len))}

    def entries(self, tokens):
        return tokens + self.config.varlen_width

    # The host's side.

    def plan(self, batch):
        queries = queries_of(batch)
        varlen = self.varlen(batch)
        width = varlen or uniform_width(queries, batch.num_actual_tokens)
        return Plan(queries, width, varlen, batch.full_graph and len(queries) <= self.config.max_graph_rows)

    def varlen(self, batch):
        return self.config.varlen_width if batch.causal and self.spec.causal else 0

    # What depends on the batch alone.

    def batch_fields(self, batch, plan):
        rows = len(plan.queries)
        lengths = self.lengths(batch, plan)
        return {
            "num_decodes": rows,
            "num_decode_tokens": batch.num_actual_tokens,
            "seq_lens": lengths,
            "paged_kv_indptr": self.indptr(lengths),
            "paged_kv_last_page_len": torch.ones(rows, dtype=torch.int32, device=self.device),
            "qo_indptr": self.query_rows(batch, plan),
            "max_qo_len": plan.width or max(plan.queries, default=0),
            "min_kv_seq_len": 1,
        }

    def lengths(self, batch, plan):
        """Kernel lengths: with the queries that rows are given."""
        if plan.varlen:
            return batch.seq_lens + self.upload([plan.varlen - number for number in plan.queries])
        idle = self.upload([number == 0 for number in plan.queries], torch.bool)
        return torch.where(idle, plan.width, batch.seq_lens) if plan.width else batch.seq_lens.clone()

    def indptr(self, lengths):
        return torch.cat([lengths.new_zeros(1), lengths.cumsum(0, dtype=torch.int32)])

    def query_rows(self, batch, plan):
        if not plan.width:
            return batch.query_start_loc.clone()
        return torch.arange(len(plan.queries) + 1, dtype=torch.int32, device=self.device) * plan.width

    def stage_batch(self, fields, batch, plan):
        return {name: self.stage_rows(name, fields[name], plan) for name in self.shared}

    def stage_rows(self, name, values, plan):
        """The beginning of a buffer; behind it are rows that read and write nothing."""
        buffer, count = self.shared[name], values.shape[0]
        flat = {"seq_lens": 0, "paged_kv_last_page_len": 1}
        buffer[:count] = values
        buffer[count:] = flat.get(name, values[-1])
        return buffer[:count]

    # What depends on a table.

    def table_fields(self, batch, plan, block_table, slot_mapping):
        lengths = self.lengths(batch, plan)
        size = block_table.shape[0] * self.entries(block_table.shape[1] * self.spec.block_size)
        if plan.staged:
            size = self.own["paged_kv_indices"].shape[0]
        pages = self.pages(self.indptr(lengths), block_table, size)
        return {"paged_kv_indices": pages, "block_table": block_table, "slot_mapping": slot_mapping}

    def pages(self, indptr, block_table, size):
        """The cache row of every token, then -1."""
        k, columns = self.spec.block_size, block_table.shape[1]
        ends, places = indptr[1:], torch.arange(size, dtype=torch.int32, device=self.device)
        row = (places[:, None] >= ends).sum(1).clamp(max=max(ends.shape[0] - 1, 0))
        token = places - indptr[row]
        column = torch.div(token, k, rounding_mode="floor").to(torch.int64)
        blocks = block_table[row, torch.where(column < columns, column, 0)]
        return self.with_tail(blocks * k + token % k, places < indptr[-1])

    def with_tail(self, pages, there):
        return torch.where(there, pages, -1)

    def stage_table(self, fields, batch, plan):
        return {"paged_kv_indices": self.stage_pages(fields["paged_kv_indices"])}

    def stage_pages(self, pages):
        return self.own["paged_kv_indices"].copy_(pages)


def uniform_width(queries, tokens):
    """Queries of each row of a graph, where rows of several queries are padded to one number; else 0."""
    if not queries or tokens % len(queries) or tokens <= sum(queries):
        return 0
    width, own = tokens // len(queries), [number for number in queries if number]
    padded = queries[: len(own)] == own and all(number == width for number in own)
    return width if width > 1 and padded else 0
