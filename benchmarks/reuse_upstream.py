"""vLLM's GDN builder as a contender: its own methods on prepared records, without the adapter around them."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import click

from benchmarks.reuse_steps import Step
from oracles.contracts import by_name
from oracles.providers import resolve

Run = Callable[[int], Any]


def upstream(spec: str, step: Step) -> tuple[Run, Run]:
    """A step of N builds, and one of a build and N - 1 updates, for the KDA groups of a setting.

    The records of the batch are made beforehand, and so are the state columns that an update takes in mode "align":
    both are the engine's work and not timed. The metadata of this project is timed with its batch record.
    """
    contract = by_name("metadata_reuse.linear_metadata_reuse")
    found = [item for item in resolve(spec, [contract], named=True) if item.name == "GDNAttentionMetadataBuilder"]
    if not found or found[0].unsupported:
        raise click.UsageError(f"{spec}: {found[0].unsupported if found else 'it has no GDNAttentionMetadataBuilder'}")
    construct = found[0].load()
    groups = range(step.setting.linear)
    builders = [construct(*step.linear(), step.tables[0].device)._upstream for _ in groups]
    commons = [_common(step, group) for group in groups]
    accepted, drafts = step.values["num_accepted_tokens"], step.values["num_decode_draft_tokens_cpu"]
    columns = [step.tables[group][:, : 1 + step.setting.drafts].contiguous() for group in groups]

    def builds(number: int) -> list[Any]:
        for builder in builders:
            builder.mamba_aligned_state_indices = None
        return [builder.build(0, common, accepted, drafts) for builder, common in zip(builders, commons, strict=True)]

    def updates(number: int) -> list[Any]:
        for builder, column in zip(builders, columns, strict=True):
            builder.mamba_aligned_state_indices = column
        first = builders[0].build(0, commons[0], accepted, drafts)
        rest = zip(builders[1:], step.tables[1:], step.slots[1:], strict=False)
        return [first, *(builder.update_block_table(first, table, slots) for builder, table, slots in rest)]

    return builds, updates


def _common(step: Step, group: int) -> Any:
    """What the builder reads of the engine's record in a step without prefills."""
    values = step.values
    count, queries = step.setting.requests, 1 + step.setting.drafts
    return SimpleNamespace(
        query_start_loc=values["query_start_loc"],
        query_start_loc_cpu=values["query_start_loc_cpu"],
        seq_lens=values["seq_lens"],
        seq_lens_cpu_upper_bound=values["seq_lens_cpu"],
        num_reqs=count,
        num_actual_tokens=values["num_actual_tokens"],
        max_query_len=queries,
        max_seq_len=step.setting.context,
        block_table_tensor=step.tables[group],
        slot_mapping=step.slots[group],
        is_prefilling=values["is_prefilling"],
    )
