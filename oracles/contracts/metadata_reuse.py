"""Contract 5, metadata reuse: builders that live through steps with several KV-cache groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

import numpy as np

from oracles.arrays import Array, Inputs
from oracles.contract import Contract, Expected, Input, Output, Values
from oracles.contracts import _reuse_domain as domain
from oracles.contracts import _reuse_sketch as sketches
from oracles.contracts import _reuse_story as story
from oracles.contracts import reuse_known
from oracles.contracts._reuse_complaints import complaint
from oracles.contracts._reuse_fields import ABSENT, FIELDS, NONE, NOT_CAPTURED, Builders, fields_of
from oracles.contracts.reuse_bindings import LINEAR_METADATA_REUSE
from oracles.contracts.reuse_mla_bindings import MLA_METADATA_REUSE
from oracles.domain import Source
from reference.metadata_reuse import build, is_staged


def exercise(implementation: Any, arguments: Mapping[str, Any], builders: Builders) -> dict[str, Any]:
    """Live through the steps; copies of all that was seen."""
    from oracles.contracts._reuse_engine import Engine  # not without torch, which takes seconds to import

    return Engine(implementation, builders, arguments).live()


def specified(inputs: Inputs) -> list[tuple[story.Event, dict[str, Any]]]:
    """Every event of a life, and what the specification says of each field."""
    arguments = story.plain_inputs(inputs)
    made: dict[tuple[int, int], Any] = {}
    staged: dict[tuple[int, int], bool] = {}
    for given in story.givens(arguments):
        place = given.step, given.group
        staged[place] = is_staged(given.batch, given.spec, given.config)
        made[place] = build(given.batch, given.spec, given.config, given.block_table, given.slot_mapping)
    absent = dict.fromkeys(fields_of(story.families(arguments)), ABSENT)
    names = {event: FIELDS[arguments["groups"][event.group][0]] for event in story.events(arguments, staged)}
    return [(event, absent | _fields(event, made, own)) for event, own in names.items()]


def _fields(event: story.Event, made: Mapping[tuple[int, int], Any], names: tuple[str, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    metadata, captured = made[event.step, event.group], made.get((event.captured, event.group))
    for name in names:
        value = getattr(metadata, name)
        if event.when != "replayed":
            found[name] = NONE if value is None else value
        elif isinstance(getattr(captured, name), np.ndarray) and name not in NOT_CAPTURED:
            found[name] = story.common(value, value.shape, getattr(captured, name).shape)
    return found


def expected(inputs: Inputs) -> Expected:
    """What is seen, by field, one an event."""
    told = [fields for _, fields in specified(inputs)]
    return Values({name: tuple(fields[name] for fields in told) for name in told[0]})


def resample(inputs: Inputs) -> tuple[Inputs, ...]:
    """None: a life already calls its builders again and again, on buffers that are refilled in place."""
    return ()


def traits(inputs: Inputs) -> frozenset[str]:
    """What a fault may need: these names end up in buckets."""
    groups, steps = cast(tuple[tuple[Any, ...], ...], inputs["groups"]), cast(tuple[Any, ...], inputs["steps"])
    drafts, lengths = cast(tuple[Any, ...], inputs["num_decode_draft_tokens_cpu"]), cast(Any, inputs["seq_lens_cpu"])
    prefilling = cast(tuple[Array | None, ...], inputs["is_prefilling"])
    plans = [plan for plan, _ in steps]
    found = {
        "several_groups": len(groups) > 1,
        "other_spec": len({group for group in groups if group[0] == groups[0][0]}) > 1,
        "several_steps": len(steps) > 1,
        "full_graph": any(cast(tuple[bool, ...], inputs["full_graph"])),
        "shared": inputs["shared"] is True and len(groups) > 1,
        "joins": inputs["joins"] != 0,
        "refilled": inputs["refilled"] is True and len(steps) > 1,
        "updates": "reuse" in plans and len(groups) > 1,
        "all_at_once": "all" in plans and len(groups) > 1,
        "speculative": any(item is not None for item in drafts),
        "prefill": any(item is not None and bool(item.data.any()) for item in prefilling),
        "padding_rows": any(bool((item.data == 0).any()) for item in lengths),
        "mode_none": any(group[0] == "linear" and group[3] == "none" for group in groups),
        "mode_all": any(group[0] == "linear" and group[3] == "all" for group in groups),
        "mode_align": any(group[0] == "linear" and group[3] == "align" for group in groups),
        "varlen": inputs["varlen_width"] != 0,
        **{probe.replace(" ", "_"): any(probe in probes for _, probes in steps) for probe in domain.PROBES},
    }
    return frozenset(name for name, there in found.items() if there)


def sketch(inputs: Inputs) -> str:
    """The life in words."""
    return sketches.sketch(story.plain_inputs(inputs), specified(inputs))


def _inputs() -> tuple[Input, ...]:
    def scalar(name: str, doc: str, *, many: bool = False, compiled: bool = False) -> Input:
        return Input(name=name, role="scalar", doc=doc, many=many, compiled=compiled)

    def device(name: str, doc: str, *, optional: bool = False) -> Input:
        return Input(name=name, role="device", doc=doc, many=True, optional=optional)

    def host(name: str, doc: str, *, optional: bool = False) -> Input:
        return Input(name=name, role="host", doc=doc, many=True, optional=optional)

    return (
        scalar("groups", "for each KV-cache group its family and the fields of its spec", many=True, compiled=True),
        scalar("num_speculative_tokens", "int >= 0, the most drafts of a request", compiled=True),
        scalar("max_num_reqs", "int >= 1, the most requests of a step", compiled=True),
        scalar("max_graph_rows", "int >= 0, rows that the buffers of a graph have", compiled=True),
        scalar("max_model_len", "int >= 1, the most tokens of a sequence", compiled=True),
        scalar("varlen_width", "int >= 0, queries that each row of MLA is given; 0: off", compiled=True),
        scalar("shared", "bool, whether the builders share buffers before the first step"),
        scalar("joins", "int >= 0, the step from which on the last group is there"),
        scalar("refilled", "bool; True: all steps are views of the same tensors, refilled before each"),
        scalar("steps", "for each step how groups behind the first get theirs, and what is asked besides", many=True),
        device("query_start_loc", "for each step int32 [R+1], first token of each request"),
        host("query_start_loc_cpu", "the same values on the host"),
        device("seq_lens", "for each step int32 [R], tokens, the queries included"),
        host("seq_lens_cpu", "the same values on the host"),
        host("is_prefilling", "for each step bool [R] or None, whether prompt tokens are left", optional=True),
        device(
            "num_accepted_tokens",
            "for each step int32 [R] or None, tokens that are kept of the last drafts",
            optional=True,
        ),
        host("num_decode_draft_tokens_cpu", "for each step int32 [R] or None, drafts; -1: none", optional=True),
        scalar("num_actual_tokens", "for each step int, tokens with a graph's padding", many=True),
        scalar("full_graph", "for each step bool, whether its kernels run from a full graph", many=True),
        device("block_tables", "for each step and group int32 [R, M], block ids"),
        device("slot_mappings", "for each step and group int64 [tokens], slots"),
    )


def _contract(
    name: str, summary: str, families: tuple[str, ...], optimized: str, builders: Builders, **upstream: Any
) -> Contract:
    def drawn(source: Source) -> Inputs:
        return domain.draw_life(source, families)

    return Contract(
        family="metadata_reuse",
        name=name,
        section="5",
        summary=summary,
        kind="protocol",
        inputs=_inputs(),
        outputs=tuple(Output(name=field, doc="one an event, see oracles explain") for field in fields_of(families)),
        domain=drawn,
        resample=resample,
        expected=expected,
        traits=traits,
        sketch=sketch,
        call=partial(exercise, builders=builders),
        complains=partial(complaint, families=families),
        remarks=sketches.remarks,
        optimized=optimized,
        runs="triton",
        **upstream,
    )


def itself(implementation: Any, family: str) -> Callable[..., Any]:
    """The implementation is the builder class."""
    return cast(Callable[..., Any], implementation)


def by_family(implementation: Any, family: str) -> Callable[..., Any]:
    """The implementation gives the builder class of a family."""
    return cast(Callable[..., Any], implementation(family))


CONTRACTS = (
    _contract(
        "linear_metadata_reuse",
        "metadata of linear attention, built once a step and reused by all groups",
        (story.LINEAR,),
        "optimized.metadata_reuse:LinearMetadataBuilder",
        itself,
        bindings=LINEAR_METADATA_REUSE,
        known=reuse_known.LINEAR,
    ),
    _contract(
        "mla_metadata_reuse",
        "metadata of MLA decodes, built once a step and reused by all groups",
        (story.MLA,),
        "optimized.metadata_reuse:MlaMetadataBuilder",
        itself,
        bindings=MLA_METADATA_REUSE,
        known=reuse_known.MLA,
    ),
    _contract(
        "mixed_metadata_reuse",
        "both in one batch",
        (story.LINEAR, story.MLA),
        "optimized.metadata_reuse:builder_of",
        by_family,
    ),
)
