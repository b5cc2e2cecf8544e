"""Contract 6.2: what makes a life none, as where a case file was edited. A rule names the argument and what it is.

What a dispatcher has to refuse itself is a case: of a life of one step, as the domain draws it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from oracles.arrays import Array, Inputs
from oracles.contracts._write_life import FLOATS, cache_of, steps_of
from oracles.contracts._write_machine import PER_STEP, PLAN, TENSORS
from reference.errors import ContractError, OnlyMemorySafety
from reference.floats import FORMATS
from reference.mla_cache_write import mla_cache_write_dispatch
from reference.refusals import is_int

SCALARS: Mapping[str, tuple[type, ...]] = {"is_neox": (bool,), "refilled": (bool,), "cache_dtype": (str,)}
SCALES = ("k_scale", "q_scale")


def complaint(inputs: Inputs) -> str | None:
    """Why these inputs are no life of a dispatcher, in one sentence; ``None`` if they are one.

    In this order: no step, or lists of different lengths; kinds that are no words, rows that are no two ints, and what
    is no tensor where one belongs, or none of floats; scalars of another type; a buffer of several dtypes, where one is
    refilled; a step that must be refused beside others, after which nothing could be told of it.
    """
    try:
        _refuse_bad_lists(inputs)
        for number in range(len(cast(Any, inputs["kind"]))):
            _refuse_bad_step(inputs, number)
        for name in ("cos", "sin", "kv_cache"):
            _refuse_no_tensor(name, name, inputs[name])
        _refuse_bad_scalars(inputs)
        if inputs["refilled"]:
            _refuse_several_dtypes(inputs)
        if len(cast(Any, inputs["kind"])) > 1:
            _refuse_steps_to_be_refused(inputs)
    except ContractError as error:
        return str(error)
    return None


def _refuse_bad_lists(inputs: Inputs) -> None:
    for name in PER_STEP:
        if not isinstance(inputs[name], tuple):
            raise ContractError(name, inputs[name], "it must be a list of what each step has")
    steps = len(cast(Any, inputs["kind"]))
    if not steps:
        raise ContractError("kind", inputs["kind"], "there must be one step at least")
    for name in PER_STEP:
        count = len(cast(Any, inputs[name]))
        if count != steps:
            raise ContractError(name, count, f"there must be one for each step, as of kind, {steps}")


def _refuse_bad_step(inputs: Inputs, number: int) -> None:
    step = {name: cast(Any, inputs[name])[number] for name in PER_STEP}
    if not isinstance(step["kind"], str):
        raise ContractError(f"kind[{number}]", step["kind"], "it must be a word")
    for name in PLAN[1:]:
        rows = step[name]
        if not isinstance(rows, tuple) or len(rows) != 2 or not all(map(is_int, rows)):
            raise ContractError(f"{name}[{number}]", rows, "it must be a list of two ints, the first row and the end")
    for name in TENSORS:
        if name != "slot_mapping" or step[name] is not None:
            _refuse_no_tensor(name, f"{name}[{number}]", step[name])


def _refuse_no_tensor(name: str, place: str, value: Any) -> None:
    if not isinstance(value, Array):
        raise ContractError(place, value, "it must be a tensor")
    if name in FLOATS and value.dtype not in FORMATS and not (name == "kv_cache" and value.dtype == "uint8"):
        raise ContractError(place, value.dtype, f"the dtype must be one of {', '.join(FORMATS)}")
    if not value.data.ndim:
        raise ContractError(place, value.shape, "it must have a dimension")


def _refuse_bad_scalars(inputs: Inputs) -> None:
    for name, types in SCALARS.items():
        if not isinstance(inputs[name], types):
            raise ContractError(name, inputs[name], f"it must be a {types[0].__name__}")
    for name in SCALES:
        value = inputs[name]
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise ContractError(name, value, "it must be a number or None")


def _refuse_several_dtypes(inputs: Inputs) -> None:
    """One buffer, refilled before each step, has one dtype."""
    for name in TENSORS:
        dtypes = [value.dtype for value in cast(tuple[Any, ...], inputs[name]) if value is not None]
        for number, dtype in enumerate(dtypes):
            if dtype != dtypes[0]:
                rule = f"a tensor that is refilled before each step has one dtype, in the first one {dtypes[0]}"
                raise ContractError(f"{name}[{number}]", dtype, rule)


def _refuse_steps_to_be_refused(inputs: Inputs) -> None:
    """A dispatcher that refuses a later step has launched and written by then, as it should."""
    for number, step in enumerate(steps_of(inputs)):
        try:
            mla_cache_write_dispatch(**step, kv_cache=cache_of(inputs))
        except ContractError as error:
            rule = f"{error.rule}; a step that must be refused has to be the only one"
            raise ContractError(f"step {number}: {error.argument}", error.value, rule) from error
        except OnlyMemorySafety:
            continue
