"""Contract 5: a life in words, as ``oracles explain`` shows it, and what is said of many lives together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from oracles.contracts import _reuse_story as story
from oracles.contracts._reuse_fields import ABSENT, ACCEPTED, NONE, REJECTED
from reference.metadata_reuse import ReuseFacts, is_staged, reuse_key, why_not_reused

UPDATED = {"reuse": "updated", "all": "updated, all at once"}
LEGEND = (
    "(updated: where its builder accepts what the first group's has built, else built; kept: looked at again once all\n"
    " groups have theirs; replayed: what a graph reads that was captured before.\n"
    f" In results {NONE} stands for None, and {ABSENT} also for a field that is not looked at.)"
)


def sketch(arguments: story.Arguments, told: Sequence[tuple[story.Event, Mapping[str, Any]]]) -> str:
    """Groups and steps, then the number and the words of each event: results are told as ``field[number]``.

    ``told`` are the events, and what the specification says of the fields.
    """
    lines = [f"group {number}: {group}" for number, group in enumerate(arguments["groups"])]
    how: dict[tuple[int, int], str] = {}
    for step, (_, probes) in enumerate(arguments["steps"]):
        batch = story.batch_of(arguments, step)
        queries = np.diff(batch.query_start_loc_cpu).tolist()
        graph = ", full graph" if batch.full_graph else ""
        asked = f"; asked for: {', '.join(probes)}" if probes else ""
        lines.append(f"step {step}: queries {queries}, lengths {batch.seq_lens_cpu.tolist()}{graph}{asked}")
        prefills = {event.group for event, fields in told if event.step == step and _has_prefills(event, fields)}
        how |= {(step, group): way for group, way in _ways(arguments, step, prefills).items()}
    for number, (event, _) in enumerate(told):
        lines.append(f"  [{number}] {event.told(how[event.step, event.group] if event.when == 'made' else '')}")
    return "\n".join([*lines, LEGEND])


def _has_prefills(event: story.Event, fields: Mapping[str, Any]) -> bool:
    return event.when == "made" and fields.get("num_prefills", 0) > 0


def _ways(arguments: story.Arguments, step: int, prefills: set[int]) -> dict[int, str]:
    """How each group of a step gets its metadata, and which rule keeps it from reusing the first one's."""
    plan, _ = arguments["steps"][step]
    found = {}
    for family in story.families(arguments):
        first, *others = story.groups_of(arguments, family, step)
        found[first] = "built"
        for group in others:
            rule = None if plan == "build" else _broken_rule(arguments, step, group, first, prefills)
            found[group] = UPDATED.get(plan, "built") if rule is None else f"built, because of {rule}"
    return found


def _broken_rule(arguments: story.Arguments, step: int, group: int, first: int, prefills: set[int]) -> str | None:
    """Why a group's builder may not reuse what the first group's built in the same step."""
    batch = story.batch_of(arguments, step)
    specs = [story.spec_of(arguments["groups"][number]) for number in (first, group)]
    config = story.config_of(arguments, arguments["groups"][first][0])
    facts = ReuseFacts(
        source_key=reuse_key(specs[0], config),
        key=reuse_key(specs[1], config),
        full_graph=batch.full_graph,
        has_prefills=first in prefills,
        staged=is_staged(batch, specs[0], config),
        shared=not story.is_alone(arguments, group),
    )
    return why_not_reused(facts)


def remarks(noted: Mapping[str, int]) -> str:
    """Which family's updates were never judged, because its builders rejected all that they may accept."""
    never = {
        family: noted[f"{family} {REJECTED}"]
        for family in (story.LINEAR, story.MLA)
        if noted.get(f"{family} {REJECTED}") and not noted.get(f"{family} {ACCEPTED}")
    }
    return "; ".join(
        f"no reuse of {family} metadata was judged, only builds: can_reuse_metadata was False all {count:,} times "
        "that it could have been True"
        for family, count in never.items()
    )
