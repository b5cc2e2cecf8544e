"""A correct builder for linear attention in small methods of plain torch."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import torch
from correct_builders import Builder, queries_of, staged

CONV_BLOCK = 8
LEAST_PROGRAMS = 1024


@dataclass
class Plan:
    """What the host decides of a step."""

    queries: list
    mask: list
    states: list
    decodes: int = 0
    prefills: int = 0
    decode_tokens: int = 0
    prefill_tokens: int = 0
    staged: bool = False

    @property
    def speculating(self):
        return [row for row, drafted in enumerate(self.mask) if drafted]

    @property
    def others(self):
        return [row for row, drafted in enumerate(self.mask) if not drafted]

    @property
    def real(self):
        """Rows up to the last one with a query."""
        return max((row + 1 for row, number in enumerate(self.queries) if number), default=0)


class Linear(Builder):
    """Metadata of linear attention."""

    BATCH = (
        "num_prefills", "num_prefill_tokens", "num_decodes", "num_decode_tokens", "num_spec_decodes",
        "num_spec_decode_tokens", "num_actual_tokens", "uniform_spec_sequence_length", "has_initial_state",
        "spec_query_start_loc", "non_spec_query_start_loc", "prefill_query_start_loc", "prefill_has_initial_state",
        "spec_sequence_masks", "spec_sequence_masks_cpu", "spec_token_indx", "non_spec_token_indx",
        "num_accepted_tokens", "chunk_indices", "chunk_offsets", "batch_ptr", "token_chunk_offset_ptr",
        "num_conv_blocks",
    )  # fmt: skip
    TABLE = ("spec_state_indices_tensor", "non_spec_state_indices_tensor", "prefill_state_indices")

    def batch_buffers(self):
        rows = self.config.max_graph_rows
        tokens = rows * (self.config.num_speculative_tokens + 1)
        names = {"spec_query_start_loc": rows + 1, "non_spec_query_start_loc": rows + 1, "num_accepted_tokens": rows}
        found = {name: self.new(size) for name, size in (names | {"spec_token_indx": tokens}).items()}
        return found | {"spec_sequence_masks": self.new(rows, dtype=torch.bool)}

    def table_buffers(self):
        rows, extra = self.config.max_graph_rows, self.spec.num_speculative_blocks
        return {
            "spec_state_indices_tensor": self.new(rows, 1 + extra),
            "non_spec_state_indices_tensor": self.new(rows),
        }

    # The host's side.

    def plan(self, batch):
        queries, lengths = queries_of(batch), batch.seq_lens_cpu.tolist()
        mask = self.mask_of(batch, len(queries))
        states = [length > number for length, number in zip(lengths, queries, strict=True)]
        plan = Plan(queries, mask, states)
        if any(mask):
            numbers = [number for number, drafted in zip(queries, mask, strict=True) if number and not drafted]
            plan.prefills, plan.prefill_tokens = len(numbers), sum(numbers)
        else:
            self.split(batch, plan)
        plan.staged = self.is_staged(batch, plan)
        return plan

    def mask_of(self, batch, rows):
        drafts = batch.num_decode_draft_tokens_cpu
        if drafts is None or not self.config.num_speculative_tokens:
            return [False] * rows
        return [number >= 0 for number in drafts.tolist()]

    def split(self, batch, plan):
        """Decodes come first; a request that has no state yet is a prefill."""
        rows = range(len(plan.queries))
        flags = [False for _ in rows] if batch.is_prefilling is None else batch.is_prefilling.tolist()
        begins = [bool(plan.queries[row] and flags[row] and not plan.states[row]) for row in rows]
        first = next((row for row in rows if plan.queries[row] > 1 or begins[row]), len(rows))
        behind = [number for number in plan.queries[first:] if number]
        plan.decodes, plan.prefills = first, len(behind)
        plan.decode_tokens = sum(plan.queries[:first])
        plan.prefill_tokens = sum(plan.queries[first : first + len(behind)])

    def is_staged(self, batch, plan):
        return batch.full_graph and not plan.prefills and len(plan.queries) <= self.config.max_graph_rows

    # What depends on the batch alone.

    def batch_fields(self, batch, plan):
        fields = dict.fromkeys(self.BATCH) | self.counts(batch, plan)
        if not any(plan.mask):
            fields["non_spec_query_start_loc"] = batch.query_start_loc.clone()
        elif plan.prefills:
            fields |= self.parted(batch, plan)
        else:
            fields |= self.speculation(batch, plan)
        return fields | self.chunks(plan) if plan.prefills else fields

    def counts(self, batch, plan):
        drafted = [plan.queries[row] for row in plan.speculating]
        uniform = drafted[0] if len(set(drafted)) == 1 else 0
        return {
            "num_prefills": plan.prefills,
            "num_prefill_tokens": plan.prefill_tokens,
            "num_decodes": plan.decodes,
            "num_decode_tokens": plan.decode_tokens,
            "num_spec_decodes": len(drafted),
            "num_spec_decode_tokens": sum(plan.queries) - plan.prefill_tokens if drafted else 0,
            "num_actual_tokens": batch.num_actual_tokens,
            "uniform_spec_sequence_length": uniform or None,
        }

    def masks(self, plan):
        return {
            "spec_sequence_masks": self.upload(plan.mask, torch.bool),
            "spec_sequence_masks_cpu": torch.tensor(plan.mask),
        }

    def speculation(self, batch, plan):
        rows = len(plan.speculating)
        tokens = min(rows * (self.config.num_speculative_tokens + 1), sum(plan.queries))
        return self.masks(plan) | {
            "spec_query_start_loc": batch.query_start_loc[: rows + 1].clone(),
            "spec_token_indx": torch.arange(tokens, dtype=torch.int32, device=self.device),
            "non_spec_token_indx": self.upload([]),
            "num_accepted_tokens": batch.num_accepted_tokens[:rows].clone(),
        }

    def parted(self, batch, plan):
        starts = list(accumulate(plan.queries, initial=0))
        parts = {
            name: [token for row in rows for token in range(starts[row], starts[row + 1])]
            for name, rows in (("spec_token_indx", plan.speculating), ("non_spec_token_indx", plan.others))
        }
        return self.masks(plan) | {
            **{name: self.upload(tokens) for name, tokens in parts.items()},
            "spec_query_start_loc": self.upload(self.starts_of(plan, plan.speculating)),
            "non_spec_query_start_loc": self.upload(self.starts_of(plan, plan.others)),
            "num_accepted_tokens": batch.num_accepted_tokens[self.upload(plan.speculating, torch.int64)],
        }

    def starts_of(self, plan, rows):
        return list(accumulate((plan.queries[row] for row in rows), initial=0))

    def chunks(self, plan):
        """What prefill kernels need: their starts from 0, chunks of them, blocks of all that do not speculate."""
        numbers, states = [plan.queries[row] for row in plan.others], [plan.states[row] for row in plan.others]
        behind = numbers[plan.decodes :]
        cut = [-(-number // self.config.chunk_size) for number in behind]
        blocks = pieces([-(-number // CONV_BLOCK) for number in numbers])
        return {
            "has_initial_state": self.upload(states, torch.bool),
            "prefill_query_start_loc": self.upload(list(accumulate(behind, initial=0))),
            "prefill_has_initial_state": self.upload(states[plan.decodes :], torch.bool),
            "chunk_indices": self.upload(pieces(cut)).view(-1, 2),
            "chunk_offsets": self.upload(list(accumulate(cut, initial=0)), torch.int64),
            "batch_ptr": self.programs([request for request, _ in blocks]),
            "token_chunk_offset_ptr": self.programs([block for _, block in blocks]),
            "num_conv_blocks": len(blocks),
        }

    def programs(self, values):
        """One element a program of the convolution, most of which have no work."""
        return staged(self.new(2 * max(LEAST_PROGRAMS, len(values))), self.upload(values), None, -1)

    def stage_batch(self, fields, batch, plan):
        rows = len(plan.queries)
        if not any(plan.mask):
            starts, real = batch.query_start_loc, plan.real
            own = {"non_spec_query_start_loc": (starts[: real + 1], rows + 1, starts[real])}
        else:
            drafted = len(plan.speculating)
            own = {
                "spec_query_start_loc": (fields["spec_query_start_loc"], rows + 1, batch.query_start_loc[drafted]),
                "num_accepted_tokens": (fields["num_accepted_tokens"], rows, 1),
                "spec_sequence_masks": (fields["spec_sequence_masks"], rows, False),
                "spec_token_indx": (fields["spec_token_indx"], fields["spec_token_indx"].shape[0], 0),
            }
        return {name: staged(self.shared[name], *values) for name, values in own.items()}

    # What depends on a table.

    def table_fields(self, batch, plan, block_table, slot_mapping):
        fields = dict.fromkeys(self.TABLE)
        states = self.states(batch, block_table)
        if not any(plan.mask):
            fields["non_spec_state_indices_tensor"] = states[:, 0].clone()
        else:
            fields["spec_state_indices_tensor"] = states[self.upload(plan.speculating, torch.int64)]
            if plan.prefills:
                fields["non_spec_state_indices_tensor"] = states[self.upload(plan.others, torch.int64), 0]
        if plan.prefills:
            fields["prefill_state_indices"] = fields["non_spec_state_indices_tensor"][plan.decodes :].clone()
        return fields

    def states(self, batch, block_table):
        """Columns of state of each row; NULL past its end."""
        wide = torch.arange(1 + self.spec.num_speculative_blocks, device=self.device)
        columns = self.first_columns(batch)[:, None] + wide
        found = block_table.gather(1, columns.clamp(max=block_table.shape[1] - 1))
        return torch.where(columns < block_table.shape[1], found, 0)

    def first_columns(self, batch):
        if self.spec.mamba_cache_mode == "none":
            return torch.zeros_like(batch.seq_lens, dtype=torch.int64)
        last = torch.div(batch.seq_lens.to(torch.int64) - 1, self.spec.block_size, rounding_mode="floor")
        return last.clamp(min=0)

    def stage_table(self, fields, batch, plan):
        name = "spec_state_indices_tensor" if any(plan.mask) else "non_spec_state_indices_tensor"
        return {name: self.stage_states(name, fields[name][: self.real_rows(plan)], len(plan.queries))}

    def real_rows(self, plan):
        """Rows that are no padding."""
        return len(plan.speculating) if any(plan.mask) else plan.real

    def stage_states(self, name, states, rows):
        return staged(self.own[name], states, rows, 0)


def pieces(counts):
    """The owner and number of each of so many pieces."""
    return [(owner, piece) for owner, count in enumerate(counts) for piece in range(count)]
