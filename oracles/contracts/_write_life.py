"""Contract 6.2: what the specification says of a life, and how it is told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np

from oracles.arrays import Array, Inputs, flat, plain_value
from oracles.contract import Expected, OnlyMemorySafety, Refused, Values
from oracles.contracts._rope_domain import Recent, settled_elements
from oracles.contracts._rope_orders import DEFAULT, declared_order, told
from oracles.contracts._rope_values import floats
from oracles.contracts._write_machine import PER_STEP, PLAN
from reference import errors
from reference.floats import FloatArray
from reference.mla_cache_write import live, one_call, right_results_of_life
from reference.rope_kv_cache import rope_and_cache_mla, slots_of_tokens
from reference.rope_results import RightResults, explain

OUTPUTS = ("q_out", "k_pe_out", "rotated_again", "written_again")
FLOATS = ("q_nope", "q_pe", "kv_c", "k_pe", "cos", "sin", "kv_cache")
SHARED = ("cos", "sin", "k_scale", "q_scale", "is_neox", "cache_dtype")

Step = dict[str, Any]


def steps_of(inputs: Inputs) -> list[Step]:
    """The steps as the reference takes them."""
    columns = {name: cast(tuple[Any, ...], inputs[name]) for name in PER_STEP}
    shared = {name: _plain(name, inputs[name]) for name in SHARED}
    found = []
    for number, kind in enumerate(columns["kind"]):
        rows = {name: range(*columns[name][number]) for name in PLAN[1:]}
        tensors = {name: _plain(name, values[number]) for name, values in columns.items() if name not in PLAN}
        found.append({"kind": kind, **rows, **tensors, **shared})
    return found


def _plain(name: str, value: Any) -> Any:
    if not isinstance(value, Array):
        return value
    return FloatArray.of(value.dtype, value.data) if name in FLOATS else value.data


def cache_of(inputs: Inputs) -> FloatArray:
    """The cache before the first step."""
    return cast(FloatArray, _plain("kv_cache", inputs["kv_cache"]))


def expected(inputs: Inputs, rounding: str = DEFAULT) -> Expected:
    """The specification's answer, of the right results the uncontracted one."""
    steps = steps_of(inputs)
    try:
        results, cache = live(steps, cache_of(inputs), rounding)
    except errors.ContractError as error:
        return Refused(error.argument, str(error))
    except errors.OnlyMemorySafety as error:
        return OnlyMemorySafety(str(error))
    none = tuple(np.zeros(len(step["positions"]), np.int32) for step in steps)
    return Values(
        {
            "q_out": tuple(floats(queries.bits, queries.dtype) for queries, _ in results),
            "k_pe_out": tuple(floats(keys.bits, keys.dtype) for _, keys in results),
            "rotated_again": none,
            "written_again": none,
            "kv_cache": floats(cache.bits, cache.dtype),
        }
    )


def resample(inputs: Inputs) -> tuple[Inputs, ...]:
    """None: a life already calls its dispatcher again and again, on buffers that are refilled in place."""
    return ()


class Judge:
    """What several right results need, for dispatchers of one rounding order."""

    def __init__(self, rounding: str) -> None:
        self.rounding = rounding
        self.expected = Recent(lambda inputs: expected(inputs, rounding))
        self._right = Recent(lambda inputs: right_results_of_life(steps_of(inputs), cache_of(inputs), rounding))

    def settle(self, inputs: Inputs, outputs: Any) -> dict[str, Any]:
        """Every right element as the specification has it."""
        answer = self.expected(inputs)
        if not isinstance(answer, Values) or _is_uncontracted(answer, outputs):
            return dict(outputs)
        right = self._right(inputs)
        return {name: _settled(right, name, value) for name, value in outputs.items()}

    def explains(self, inputs: Inputs, name: str, index: tuple[int, ...], got: Any) -> str:
        """Step, token and path of a wrong element, how it is worked out, and what would have given it."""
        steps, place = steps_of(inputs), name.split("[")
        if place[0] in OUTPUTS[2:]:
            done = "rotated" if place[0] == "rotated_again" else "written"
            number = int(place[1][:-1])
            return f"{_told(steps[number], number, index[0])} was {done} by more than one call of a path"
        right = self._right(inputs)[name]
        bits = int(np.asarray(got).view(right.form.storage))
        if place[0] != "kv_cache":
            number = int(place[1][:-1])
            words = f"{_told(steps[number], number, index[0])}; "
            return words + self._explained(steps[number], cache_of(inputs), place[0], index, bits)
        writers = _writers(steps, cache_of(inputs), index[:2])
        words = f"slot {_slot(inputs, index)}"
        if bits == int(cache_of(inputs).bits[index]):
            words += ", as it was before the first step"
        if not writers:
            return f"{words}, belongs to no token of any step"
        number, token = writers[-1]
        words += f", last written by {_told(steps[number], number, token)}; "
        return words + self._explained(steps[number], cache_of(inputs), "kv_cache", index, bits)

    def _explained(self, step: Step, cache: FloatArray, name: str, index: tuple[int, ...], bits: int) -> str:
        call = one_call(step, cache)
        found = explain(call, name, index, bits, self.rounding)
        as_bytes = name == "kv_cache" and cache.dtype == "uint8"
        words = told(found, f"{name}{list(index)}", as_bytes=as_bytes)
        queries, keys, _ = rope_and_cache_mla(**call, rounding=self.rounding)
        latent = call["q_nope"].shape[2]
        once = FloatArray(queries.dtype, np.ascontiguousarray(queries.bits[:, :, latent:]))
        twice = rope_and_cache_mla(**{**call, "q_pe": once, "k_pe": keys}, rounding=self.rounding)
        if int(twice[("q_out", "k_pe_out", "kv_cache").index(name)].bits[index]) == bits:
            words += "\n  would be right with: a second rotation"
        return words


def _is_uncontracted(answer: Values, outputs: Mapping[str, Any]) -> bool:
    """Whether the outputs are those of the answer, so that no other right result is needed."""
    given = flat(outputs)
    return all(
        isinstance(given.get(name), np.ndarray) and given[name].tobytes() == plain_value(wanted).tobytes()
        for name, wanted in flat(answer.outputs).items()
    )


def _settled(right: Mapping[str, RightResults], name: str, value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_settled(right, f"{name}[{number}]", item) for number, item in enumerate(value))
    return settled_elements(right[name], value) if name in right else value


def declared(function: Any) -> dict[str, Any]:
    """What differs in the contract of a dispatcher that declares a rounding order; refused: an unknown one."""
    judge = Judge(declared_order(function))
    return {"expected": judge.expected, "settle": judge.settle, "explains": judge.explains}


def _writers(steps: Sequence[Step], cache: FloatArray, place: tuple[int, ...]) -> list[tuple[int, int]]:
    """Step and token of each write to a place of the cache, in order."""
    return [
        (number, token)
        for number, step in enumerate(steps)
        for token, written in slots_of_tokens(one_call(step, cache)["slot_mapping"], cache).items()
        if written == place
    ]


def _slot(inputs: Inputs, index: Sequence[int]) -> int:
    return index[0] * cast(Array, inputs["kv_cache"]).shape[1] + index[1]


def path_of(step: Step, token: int) -> str:
    """Which path takes a token."""
    if token in step["decode_rows"]:
        return "decode"
    return "prefill" if token in step["prefill_rows"] else "unfused"


def _told(step: Step, number: int, token: int) -> str:
    return f"token {token} of step {number}, a {step['kind']} one, on the {path_of(step, token)} path"


def traits(inputs: Inputs) -> frozenset[str]:
    """What a fault may need: these names end up in buckets."""
    steps, cache = steps_of(inputs), cache_of(inputs)
    if any(_is_odd(step) for step in steps):
        return frozenset()
    paths = {path_of(step, token) for step in steps for token in range(len(step["positions"]))}
    real = [step for step in steps if step["kind"] == "real"]
    slots = [slot for step in real for slot in step["slot_mapping"].tolist()]
    capacity, rows = cache.shape[0] * cache.shape[1], inputs["cos"].shape[0]  # type: ignore[union-attr]
    found = {
        **{kind: any(step["kind"] == kind for step in steps) for kind in ("real", "dummy", "profiling")},
        **{path: path in paths for path in ("decode", "prefill", "unfused")},
        "several_steps": len(steps) > 1,
        "several_tokens": any(len(step["positions"]) > 1 for step in steps),
        "no_tokens": any(not len(step["positions"]) for step in steps),
        "prefill_first": any(_is_prefill_first(step) for step in steps),
        "no_slot": -1 in slots,
        "slot_outside": any(slot >= capacity for slot in slots),
        "fewer_slots": any(
            len(step["slot_mapping"]) < len(step["positions"]) for step in steps if step["kind"] == "real"
        ),
        "slot_of_two_steps": len(slots) != len(set(slots)),
        "position_outside": any(not 0 <= row < rows for step in steps for row in step["positions"].tolist()),
        "float8": inputs["cache_dtype"] != "auto",
        "interleaved": inputs["is_neox"] is False,
        "float32_table": inputs["cos"].dtype != steps[0]["q_pe"].dtype,  # type: ignore[union-attr]
        "refilled": inputs["refilled"] is True,
        "cache_strided": inputs["kv_cache"].strides is not None,  # type: ignore[union-attr]
    }
    return frozenset(name for name, there in found.items() if there)


def _is_odd(step: Step) -> bool:
    """Whether a step has slots where there are none, or none where there are: its kind is refused."""
    return (step["slot_mapping"] is None) is not bool(step["kind"] == "profiling")


def _is_prefill_first(step: Step) -> bool:
    decode, prefill = step["decode_rows"], step["prefill_rows"]
    return bool(decode and prefill and prefill.start < decode.start)


def sketch(inputs: Inputs) -> str:
    """One line a step, then one a token: its path, its position, and its slot."""
    if isinstance(expected(inputs), Refused):
        return ""  # the reason is told anyway, and such a step need not make sense
    return "\n".join(line for number, step in enumerate(steps_of(inputs)) for line in _lines(number, step, inputs))


def _lines(number: int, step: Step, inputs: Inputs) -> Iterator[str]:
    cache, positions = cache_of(inputs), step["positions"].tolist()
    slots = [] if step["slot_mapping"] is None else step["slot_mapping"].tolist()
    places = slots_of_tokens(np.asarray(slots, np.int64), cache) if len(set(slots)) == len(slots) else {}
    words = {"real": "", "dummy": ", nothing may be written", "profiling": ", no slots yet"}[step["kind"]]
    yield f"step {number}: {step['kind']}, tokens {len(positions)}{words}"
    for token, position in enumerate(positions):
        slot = f"slot {slots[token]}" if token < len(slots) else "no slot"
        to = f", written to block {places[token][0]} at {places[token][1]}" if token in places else ", not written"
        yield f"  token {token}  {path_of(step, token):<8} position {position:<3} {slot}{to}"
