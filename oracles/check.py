"""Judge one implementation on one input: call it several ways and name everything it did wrong.

The order of the calls is fixed, so that a finding replays:

1. a call with the first poison, programs in order;
2. a call on new objects with equal values, the second poison, programs in reverse or in random order;
3. if the two differ, up to three more that tell uninitialised reads, races and chance apart;
4. where the values were right, the freshness protocol of :mod:`oracles.freshness`, and behind it, where launches can
   be captured, the replays of :mod:`oracles.graphed`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from oracles.arrays import Inputs, arrays_of, flat, plain_value
from oracles.backends.base import Backend, Variation
from oracles.call import Run, call
from oracles.contract import Contract, OnlyMemorySafety, Refused, Values
from oracles.freshness import freshness
from oracles.graphed import graphs
from oracles.lines import line_of, traceback_of, with_line
from oracles.memory import Memory, poison, torch_dtype
from oracles.notation import with_bits
from oracles.providers.base import Implementation
from oracles.recompilations import Recompilations
from oracles.verdict import (
    CompileError,
    Crash,
    Failure,
    InputMutated,
    Nondeterministic,
    OutOfBoundsRead,
    OutOfBoundsWrite,
    Race,
    Recompiled,
    UninitialisedRead,
    Unsupported,
    Unwritten,
    WronglyAccepted,
    WronglyRefused,
    WrongShape,
    WrongValue,
    described,
    place_of,
)

SAFETY = (OutOfBoundsRead, OutOfBoundsWrite, InputMutated, Crash)
"""What is judged where the contract promises memory safety only."""

MOST_SUSPECTS = 8
"""Lines of a kernel that are tried, one call each, to tell which one read what nobody had written."""


@runtime_checkable
class TracesLoads(Protocol):
    """What a backend offers that can tell which load read memory that nobody had written."""

    def poisoned_loads(self, memory: Memory) -> Mapping[str, str]:
        """Lines that loaded poison during the call on this memory, and what each read first."""

    def unwritten_load(self, memory: Memory) -> str | None:
        """What was read first of buffers that nobody had written."""

    def other_poison(self, line: str) -> AbstractContextManager[None]:
        """Calls inside get another poison on that line."""


@dataclass
class Subject:
    """A loaded implementation with its contract and backend, and what was learnt over its cases."""

    contract: Contract
    implementation: Implementation
    function: Callable[..., Any]
    backend: Backend
    compilations: Recompilations = field(default_factory=Recompilations)
    after_call: Callable[[], None] | None = None

    def run(self, inputs: Inputs, variation: Variation) -> Run:
        """One call on new objects."""
        run = call(self.contract, self.function, self.backend, inputs, variation)
        if self.after_call is not None:
            self.after_call()
        return run


def judge(subject: Subject, inputs: Inputs, *, fresh: bool = True) -> list[Failure]:
    """All failures of one case; an empty list is a pass. Raises :class:`Unsupported` where nothing can be judged."""
    for narrowing in subject.implementation.narrowings:
        if narrowing.excludes(inputs):
            raise Unsupported(narrowing.reason)
    expected = subject.contract.expected(inputs)
    if isinstance(expected, Refused):
        return _judge_refusal(subject, inputs, expected)
    first = subject.run(inputs, Variation(0, "forward"))
    other = _other_way(inputs)
    if isinstance(expected, OnlyMemorySafety):
        second = subject.run(inputs, other)
        return distinct([f for run in (first, second) for f in run.failures if isinstance(f, SAFETY)])
    if first.error is not None:
        return distinct([*first.failures, _unexpected(subject, first.error)])
    second = subject.run(inputs, other)
    if second.error is not None:
        return distinct([*first.failures, *second.failures, _unexpected(subject, second.error)])
    found = [*first.failures, *second.failures, *_recompilations(subject, inputs, first)]
    wrong = _judge_values(subject, inputs, expected, first, second, other)
    if fresh and not wrong and _elements(inputs) <= subject.backend.freshness_elements:
        found += freshness(subject.contract, subject.function, subject.backend, inputs)
        if not found and subject.implementation.graphs:
            found += graphs(subject.contract, subject.function, subject.backend, inputs)
    return distinct([*found, *wrong])


def _other_way(inputs: Inputs) -> Variation:
    """The second call: the other poison, and another order that is always the same for the same input."""
    seed = 0
    for _, value in arrays_of(inputs):
        seed = zlib.crc32(value.data.tobytes(), seed)
    return Variation(1, "random" if seed & 1 else "reverse", seed)


def _elements(inputs: Inputs) -> int:
    return max((value.data.size for _, value in arrays_of(inputs)), default=0)


def distinct(failures: Sequence[Failure]) -> list[Failure]:
    """The first failure of each key."""
    found: dict[str, Failure] = {}
    for item in failures:
        found.setdefault(item.key, item)
    return list(found.values())


def _unexpected(subject: Subject, error: BaseException) -> Failure:
    """What an exception on a legal input means, with the line that raised it."""
    cause = _cause(error)
    if isinstance(error, Failure):
        return error
    found = _meaning(subject, error, type(cause).__name__, with_line(described(error), line_of(cause)))
    found.trace = traceback_of(cause)
    return found


def _cause(error: BaseException) -> BaseException:
    """What was raised, without the wrapping of Triton's interpreter."""
    return error.__cause__ if type(error).__name__ == "InterpreterError" and error.__cause__ else error


def _meaning(subject: Subject, error: BaseException, name: str, text: str) -> Failure:
    if any("CompilationError" in base.__name__ for base in type(error).__mro__):
        return CompileError(name, text)
    if isinstance(error, subject.implementation.refusal_types):
        return WronglyRefused(name, text)
    return Crash(name, text)


def _judge_refusal(subject: Subject, inputs: Inputs, expected: Refused) -> list[Failure]:
    if not subject.implementation.refuses:
        raise Unsupported(f"refusals are not judged: {_why_not_refused(subject)}")
    run = subject.run(inputs, Variation(0, "forward"))
    found: list[Failure] = [item for item in run.failures if isinstance(item, SAFETY)]
    if run.error is None:
        found.append(WronglyAccepted(expected.argument, f"no exception; the contract refuses it: {expected.reason}"))
    elif not isinstance(run.error, subject.implementation.refusal_types):
        found.append(_no_refusal(run.error, expected))
    elif run.launches:
        found.append(WronglyAccepted(expected.argument, f"refused, but only after {run.launches} launches"))
    elif run.touched:
        found.append(WronglyAccepted(expected.argument, f"refused, but only after writing {run.touched[0]}"))
    return distinct(found)


def _no_refusal(error: BaseException, expected: Refused) -> Crash:
    name = type(error).__name__
    found = Crash(name, with_line(f"{name} where {expected.reason}", line_of(_cause(error))))
    found.trace = traceback_of(_cause(error))
    return found


def _why_not_refused(subject: Subject) -> str:
    if getattr(subject.function, "refuses", None) is False:
        return "the callable has refuses = False"
    return "the binding cites no check of the project that refuses"


def _judge_values(
    subject: Subject, inputs: Inputs, expected: Values, first: Run, second: Run, other: Variation
) -> list[Failure]:
    contract = subject.contract
    for run in (first, second):
        if run.misshapen:
            return list(run.misshapen)
    if contract.accepts is not None:
        complaints = [contract.accepts(inputs, run.outputs) for run in (first, second)]
        return [WrongValue(contract.outputs[0].name, complaint) for complaint in complaints if complaint]
    found: list[Failure] = []
    one, two = flat(first.outputs), flat(second.outputs)
    for name, wanted in flat(expected.outputs).items():
        shape = wrong_shape(name, wanted, one.get(name), first.dtypes.get(name))
        if shape is not None:
            found.append(shape)
        elif not same(one[name], plain_value(wanted)) or not same(two.get(name), plain_value(wanted)):
            pair = Pair(name, one[name], two.get(name), first.dtypes.get(name))
            found.append(_classify(subject, inputs, np.asarray(plain_value(wanted)), pair, other))
    return found


@dataclass(frozen=True)
class Pair:
    """One output of two calls that should agree; ``dtype`` is ``None`` for a Python value."""

    name: str
    one: Any
    two: Any
    dtype: str | None


def same(got: Any, wanted: Any) -> bool:
    """Bit for bit."""
    return np.asarray(got).tobytes() == np.asarray(wanted).tobytes()


def wrong_shape(name: str, wanted: Any, got: Any, dtype: str | None) -> WrongShape | None:
    """Shape and dtype, exactly; a Python int where the contract says one."""
    place = place_of(name)
    if isinstance(wanted, int):
        return None if type(got) is int else WrongShape(place, f"{type(got).__name__} where the contract says int")
    if not isinstance(got, np.ndarray) or dtype is None:
        return WrongShape(place, f"{type(got).__name__} where the contract says a tensor")
    if got.shape == wanted.shape and dtype == str(wanted.dtype):
        return None
    return WrongShape(place, f"{dtype} {list(got.shape)} where the contract says {wanted.dtype} {list(wanted.shape)}")


def _classify(subject: Subject, inputs: Inputs, wanted: np.ndarray, pair: Pair, other: Variation) -> Failure:
    """Why an output differs: wrong, never written, or dependent on poison, order or chance."""
    name, one, two = pair.name, np.asarray(pair.one), np.asarray(pair.two)
    if one.shape != two.shape or one.dtype != two.dtype:
        return Nondeterministic(place_of(name), f"shape {list(one.shape)}, then {list(two.shape)} for the same input")
    bad = _differs(one, wanted) | _differs(two, wanted)
    where = tuple(int(n) for n in np.argwhere(bad)[0]) if bad.ndim else ()
    seen, dtype = one[where], str(pair.dtype)
    wish = with_bits(dtype, wanted[where])
    place = f"{name}{list(where)}" if where else name
    explains = subject.contract.explains
    count = f"; {int(bad.sum())} of {bad.size} elements differ" if bad.sum() > 1 else ""
    if one.tobytes() == two.tobytes():
        more = f"; {explains(inputs, name, where, seen)}" if explains is not None else ""
        return WrongValue(place_of(name), f"{place} is {with_bits(dtype, seen)}, expected {wish}{count}{more}")
    poisoned = pair.dtype is not None and _is_poison(seen, pair.dtype, 0) and _is_poison(two[where], pair.dtype, 1)
    if poisoned:
        return Unwritten(place_of(name), f"{place} was never written, expected {wish}{count}")
    return _unstable(subject, inputs, pair, place, other)


def _differs(one: np.ndarray, other: np.ndarray) -> npt.NDArray[np.bool_]:
    """Which elements differ in any bit: NaN equals itself, and the two zeros are different."""
    if one.dtype != other.dtype:
        return np.asarray(one != other)
    ours, theirs = (np.frombuffer(item.tobytes(), np.uint8).reshape(-1, item.itemsize) for item in (one, other))
    differs: npt.NDArray[np.bool_] = (ours != theirs).any(axis=1).reshape(one.shape)
    return differs


def _is_poison(element: Any, dtype: str, sentinel: int) -> bool:
    return np.asarray(element).tobytes() == poison(torch_dtype(dtype), sentinel).tobytes()


def _unstable(subject: Subject, inputs: Inputs, pair: Pair, place: str, other: Variation) -> Failure:
    """Two calls differ: repeat the first exactly, then change only the poison, then only the order."""
    name, once = pair.name, np.asarray(pair.one)
    attempts: list[tuple[Variation, type[Failure], str]] = [
        (Variation(0, "forward"), Nondeterministic, "between equal calls"),
        (Variation(1, "forward"), UninitialisedRead, "with what unwritten memory holds"),
    ]
    if subject.backend.varies_order:
        attempts.append((Variation(0, other.order, other.seed), Race, "with the order of programs"))
    for variation, failure, cause in attempts:
        run = subject.run(inputs, variation)
        if run.error is not None:
            return _unexpected(subject, run.error)
        if not same(flat(run.outputs).get(name), once):
            source = _read_of_poison(subject, inputs, run, pair) if failure is UninitialisedRead else ""
            return failure(place_of(name), f"{place} changes {cause}{source}")
    return Nondeterministic(place_of(name), f"{place} differed once between calls that should agree")


def _read_of_poison(subject: Subject, inputs: Inputs, run: Run, pair: Pair) -> str:
    """Which load brought what nobody had written into a result, on a backend that can tell.

    Of the lines that loaded poison, it is the one whose poison alone, changed, changes the result.
    """
    backend = subject.backend
    if not isinstance(backend, TracesLoads):
        return ""
    lines = list(backend.poisoned_loads(run.memory).items())[:MOST_SUSPECTS]
    for line, what in lines:
        with backend.other_poison(line):
            again = subject.run(inputs, Variation(0, "forward"))
        if again.error is not None or not same(flat(again.outputs).get(pair.name), np.asarray(pair.one)):
            return f": it read {what}"
    unwritten = backend.unwritten_load(run.memory)
    return f": it read {unwritten}" if unwritten else ""


def _recompilations(subject: Subject, inputs: Inputs, run: Run) -> list[Recompiled]:
    """G6: at most two compilations of a kernel a dtype and mode, counted over all cases of this worker."""
    mode = ", ".join(f"{item.name}={item.mode(inputs[item.name])}" for item in subject.contract.inputs)
    subject.compilations.note(mode, run.compilations)
    return subject.compilations.failures(mode) if subject.backend.judges_compilations else []
