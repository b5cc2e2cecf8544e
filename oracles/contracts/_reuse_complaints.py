"""Contract 5: what makes a life none, as where a case file was edited. A rule names the argument and what it is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy.typing as npt

from oracles.arrays import Array, Inputs
from oracles.contracts import _reuse_story as story
from oracles.contracts._reuse_domain import DTYPES, KV_CACHE_DTYPES, PLANS, PROBES
from reference.errors import ContractError, OnlyMemorySafety
from reference.metadata_reuse import Config, MlaSpec, Spec, buffers, build
from reference.refusals import refuse_bad_int

LEAST = {
    "num_speculative_tokens": 0,
    "max_num_reqs": 1,
    "max_graph_rows": 0,
    "max_model_len": 1,
    "varlen_width": 0,
}
OPTIONAL = ("is_prefilling", "num_accepted_tokens", "num_decode_draft_tokens_cpu")
PER_GROUP = ("block_tables", "slot_mappings")
MOST_ELEMENTS = 1 << 24


def complaint(inputs: Inputs, families: Sequence[str]) -> str | None:
    """Why these inputs are no life of builders of these families, in one sentence; ``None`` if they are one.

    In this order: sizes and flags; steps, their words too; groups, their specs too; lists of another length than there
    are steps or groups, and what is in them; tensors without end; a batch or a table that the specification refuses or
    promises nothing for.
    """
    try:
        _refuse_bad_sizes(inputs)
        _refuse_bad_steps(inputs["steps"])
        _refuse_bad_groups(inputs["groups"], families)
        refuse_bad_int("joins", inputs["joins"], 0)
        if cast(int, inputs["joins"]) >= len(cast(Any, inputs["steps"])):
            raise ContractError("joins", inputs["joins"], "it must be the number of a step")
        _refuse_bad_lists(inputs)
        if inputs["refilled"]:
            _refuse_several_dtypes(inputs)
    except ContractError as error:
        return str(error)
    return _unspecified(story.plain_inputs(inputs))


def _refuse_bad_sizes(inputs: Inputs) -> None:
    for name, least in LEAST.items():
        refuse_bad_int(name, inputs[name], least)
    for name in ("shared", "refilled"):
        _refuse_no_bool(name, inputs[name])


def _refuse_no_bool(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise ContractError(name, value, "it must be a bool")


def _refuse_no_list(name: str, value: Any, rule: str) -> None:
    if not isinstance(value, tuple):
        raise ContractError(name, value, f"it must be a list {rule}")


def refuse_unknown(name: str, value: Any, words: Sequence[str]) -> None:
    """Refuse what is none of these words."""
    if value not in words:
        raise ContractError(name, value, f"it must be one of {', '.join(words)}")


def _refuse_bad_steps(steps: Any) -> None:
    _refuse_no_list("steps", steps, "of steps")
    if not steps:
        raise ContractError("steps", steps, "there must be one at least")
    for number, step in enumerate(steps):
        name = f"steps[{number}]"
        if not isinstance(step, tuple) or len(step) != 2:
            raise ContractError(name, step, "it must be a list of two, a plan and the list of what is asked besides")
        plan, probes = step
        refuse_unknown(f"{name}[0]", plan, PLANS)
        _refuse_no_list(f"{name}[1]", probes, "of what is asked besides")
        for place, probe in enumerate(probes):
            refuse_unknown(f"{name}[1][{place}]", probe, PROBES)


def _refuse_bad_groups(groups: Any, families: Sequence[str]) -> None:
    _refuse_no_list("groups", groups, "of groups")
    for number, group in enumerate(groups):
        name = f"groups[{number}]"
        if not isinstance(group, tuple) or len(group) != 6:
            raise ContractError(name, group, "it must be a list of six, a family and the fields of its spec")
        refuse_unknown(f"{name}[0]", group[0], families)
        dtype = 4
        refuse_unknown(f"{name}[{dtype}]", group[dtype], DTYPES)
        if group[0] == story.MLA:
            refuse_unknown(f"{name}[3]", group[3], KV_CACHE_DTYPES)
        try:
            story.spec_of(group)
        except ContractError as error:
            raise ContractError(f"{name}: {error.argument}", error.value, error.rule) from error
    missing = [family for family in families if family not in {group[0] for group in groups}]
    if missing:
        raise ContractError("groups", groups, f"there must be one at least of the family {missing[0]}")


def _refuse_bad_lists(inputs: Inputs) -> None:
    steps, groups = len(cast(Any, inputs["steps"])), len(cast(Any, inputs["groups"]))
    counts = dict.fromkeys(story.PER_STEP, steps) | dict.fromkeys(PER_GROUP, steps * groups)
    for name, count in counts.items():
        values = inputs[name]
        _refuse_no_list(name, values, "of what each step has")
        values = cast(tuple[Any, ...], values)
        if len(values) != count:
            each = f"step, {steps}" if name in story.PER_STEP else f"step and group, {steps} times {groups}"
            raise ContractError(name, len(values), f"there must be one for each {each}")
        for number, value in enumerate(values):
            _refuse_bad_item(name, f"{name}[{number}]", value)


def _refuse_bad_item(name: str, place: str, value: Any) -> None:
    if name == "num_actual_tokens":
        refuse_bad_int(place, value, 0)
    elif name == "full_graph":
        _refuse_no_bool(place, value)
    elif not isinstance(value, Array) and not (value is None and name in OPTIONAL):
        raise ContractError(place, value, f"it must be a tensor{' or None' if name in OPTIONAL else ''}")


def _refuse_several_dtypes(inputs: Inputs) -> None:
    """One buffer, refilled before each step, has one dtype."""
    groups = len(cast(Any, inputs["groups"]))
    for name in (*story.PER_STEP, *PER_GROUP):
        many = groups if name in PER_GROUP else 1
        first: dict[int, str] = {}
        for number, value in enumerate(cast(tuple[Any, ...], inputs[name])):
            if isinstance(value, Array):
                dtype = first.setdefault(number % many, value.dtype)
                if value.dtype != dtype:
                    rule = f"a tensor that is refilled before each step has one dtype, in an earlier one {dtype}"
                    raise ContractError(f"{name}[{number}]", value.dtype, rule)


def _refuse_too_large(spec: Spec, config: Config, block_table: npt.NDArray[Any]) -> None:
    """No life that is drawn has a buffer or a list of pages as large; an edited number must not take all memory."""
    sizes = [math.prod(shape) for shape, _ in buffers(spec, config).values()]
    if isinstance(spec, MlaSpec):
        sizes.append(block_table.size * spec.block_size)
    else:
        sizes.append(block_table.size * (1 + spec.num_speculative_blocks))
    if max(sizes) > MOST_ELEMENTS:
        rule = f"with these sizes no tensor may have more than {MOST_ELEMENTS:,} elements"
        raise ContractError("groups and sizes", max(sizes), rule)


def _unspecified(arguments: Mapping[str, Any]) -> str | None:
    """What keeps the specification from saying what each build gives."""
    for given in story.givens(arguments):
        place = f"step {given.step}, group {given.group}"
        try:
            _refuse_too_large(given.spec, given.config, given.block_table)
            build(given.batch, given.spec, given.config, given.block_table, given.slot_mapping)
        except ContractError as error:
            return f"{place}: {error}"
        except OnlyMemorySafety as error:
            return f"{place}: nothing is promised for it: {error}"
    return None
