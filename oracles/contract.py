"""Contracts: what a function takes and promises, as frozen records without inheritance.

A contract is data. The harness, the command line, pytest and the reports know these records and never a family;
``oracles/contracts/`` fills them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from oracles.arrays import Array, Inputs, Outputs

if TYPE_CHECKING:
    from oracles.domain import Source

Kind = Literal["function", "predicate", "stateful", "protocol"]
Role = Literal["device", "host", "scalar"]


@dataclass(frozen=True, kw_only=True)
class Input:
    """One argument. ``device`` tensors may not be read by the host; ``host`` tensors and scalars may.

    ``inout``: a buffer that the call writes. ``many``: a list of tensors, or of scalars and lists of them, instead
    of one. ``optional``: it may be ``None``; of ``many``, each may. ``text``: a scalar that is a word and no number.
    A kernel may be compiled for the value of a scalar that is a ``compiled`` size, and for the lengths of a tensor's
    ``compiled_axes``; for no other number (G6).
    """

    name: str
    role: Role
    doc: str
    inout: bool = False
    many: bool = False
    optional: bool = False
    text: bool = False
    compiled: bool = False
    compiled_axes: tuple[int, ...] = ()

    def mode(self, value: Any) -> str:
        """What of this argument a kernel may be compiled for."""
        if isinstance(value, tuple) and self.role == "device":
            return "|".join(sorted({self.mode(item) for item in value}))
        if isinstance(value, Array):
            lengths = "".join(f"[{value.data.shape[axis]}]" for axis in self.compiled_axes)
            return f"{value.dtype}{lengths}"
        if value is None or self.compiled or isinstance(value, bool | str):
            return str(value)
        return type(value).__name__

    def complaint(self, value: Any, *, scalars: bool = True) -> str | None:
        """Why this is no value of the argument, in one sentence: where, what and the rule. Else ``None``.

        A tensor has to be one, and a scalar none; with ``scalars``, those must be words or numbers as declared, too.
        """
        if not self.many:
            return self._fault(self.name, value, scalars=scalars)
        if not isinstance(value, tuple):
            return _broken(self.name, value, "a list")
        faults = (self._fault(f"{self.name}[{at}]", item, scalars=scalars) for at, item in enumerate(value))
        return next(filter(None, faults), None)

    def _fault(self, place: str, value: Any, *, scalars: bool) -> str | None:
        if value is None and self.optional:
            return None
        if self.role != "scalar":
            fits, rule = isinstance(value, Array), "a tensor"
        elif scalars:
            fits, rule = isinstance(value, str if self.text else int | float), "a str" if self.text else "a number"
        else:
            fits, rule = not _has_array(value), "no tensor"
        return None if fits else _broken(place, value, f"{rule} or None" if self.optional else rule)


def _has_array(value: Any) -> bool:
    return any(map(_has_array, value)) if isinstance(value, tuple) else isinstance(value, Array)


def _broken(place: str, value: Any, rule: str) -> str:
    shown = f"a tensor {value.dtype}{list(value.shape)}" if isinstance(value, Array) else repr(value)
    shown = "a list with tensors" if isinstance(value, tuple) and _has_array(value) else shown
    return f"{place}: {shown} breaks the rule: it must be {rule}"


@dataclass(frozen=True, kw_only=True)
class Output:
    """One result, in the order in which an implementation returns it.

    ``view_of``: an input that it may share memory with, where the contract says that it may be a view. ``inside``: an
    in/out buffer that it has to be a view of, from its first element on.
    """

    name: str
    doc: str
    view_of: str | None = None
    inside: str | None = None


@dataclass(frozen=True)
class Values:
    """The contract gives every element of every output (in/out buffers included, by name)."""

    outputs: Outputs


@dataclass(frozen=True)
class Refused:
    """The contract refuses the input because of ``argument``: the call must raise, with nothing launched or written."""

    argument: str
    reason: str


@dataclass(frozen=True)
class OnlyMemorySafety:
    """The contract promises no values for this input, only that nothing outside the buffers is touched (G5)."""

    reason: str


Expected = Values | Refused | OnlyMemorySafety


@dataclass(frozen=True, kw_only=True)
class Relation:
    """A law between results that needs no second implementation.

    ``holds(function, inputs)`` returns ``None``, or what is wrong in one sentence; ``function(inputs)`` gives the
    outputs for inputs that the contract allows. A relation is only asked where ``expected`` gives values.
    """

    name: str
    law: str
    holds: Callable[[Callable[[Inputs], Outputs], Inputs], str | None]


@dataclass(frozen=True, kw_only=True)
class Narrowing:
    """A part of the domain that an upstream implementation excludes, with the assert or docstring that says so."""

    clause: str
    source: str
    excludes: Callable[[Inputs], bool]

    @property
    def reason(self) -> str:
        """What a report says of a case that is excluded."""
        return f"{self.clause} ({self.source})"


@dataclass(frozen=True, kw_only=True)
class Binding:
    """How an upstream project's code answers to a contract's interface.

    ``symbols`` maps a file of the project (relative to the tree's root) to the names taken from it; ``adapt`` gets
    them as one mapping and returns the canonical callable. ``other_symbols`` are the sets of other releases, which
    moved or renamed what is taken: the first set that a tree has completely is the one.
    ``signatures`` maps a name to the parameter lists that ``adapt`` knows, of one release or another. A function with
    none of them is not loaded; further parameters may follow if they have defaults.
    Refusals are judged only where ``refuses`` cites the upstream check, and captured graphs only with ``graphs``: an
    adapter that builds objects around a function is no part of what upstream captures.
    """

    project: str
    name: str
    symbols: Mapping[str, tuple[str, ...]]
    adapt: Callable[[Mapping[str, Any]], Callable[..., Any]]
    runs: Literal["host", "triton"]
    other_symbols: tuple[Mapping[str, tuple[str, ...]], ...] = ()
    signatures: Mapping[str, tuple[tuple[str, ...], ...]] = field(default_factory=dict)
    narrowings: tuple[Narrowing, ...] = ()
    refuses: str | None = None
    refusal_types: tuple[type[BaseException], ...] = (ValueError,)
    graphs: bool = False
    stubs: Mapping[str, Any] = field(default_factory=dict)
    follow: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Contract:
    """A contract and all that is needed to judge an implementation of it.

    ``domain`` draws one input from a source of choices; ``resample`` derives other inputs of the same shapes, dtypes
    and layout with other answers (they are copied over the first one in place, G9). ``expected`` is the
    specification's answer. ``traits`` names what is special about an input: the bucket of a finding holds the traits
    of its smallest case. ``call`` says how an implementation is exercised: a function is called, a stateful or
    protocol contract drives a class through the operations that the inputs list. ``accepts`` judges outputs where many
    answers are right (predicate contracts) and returns what is wrong, or ``None``. ``known`` holds the predicates
    that known findings may name. Without ``outputs`` only the in/out buffers are judged, and what is returned is not.

    Where single elements have several right results, ``settle`` puts the specification's in the place of each right
    one, bit for bit, and leaves wrong ones; ``explains(inputs, output, index, got)`` adds to what is said of a wrong
    element. Where a callable says which of several specifications it follows, ``declared(callable)`` gives the fields
    of this record that differ for it.

    ``complains(inputs)`` says why inputs of the right types are no case, such as a life with a word that there is not,
    or ``None``: an edited file is refused then, whatever it is judged with. ``remarks`` puts into words what calls have
    noted (:mod:`oracles.tally`), where a pass would hide it; empty where there is nothing to be said.
    """

    family: str
    name: str
    section: str
    summary: str
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    domain: Callable[[Source], Inputs]
    resample: Callable[[Inputs], tuple[Inputs, ...]]
    expected: Callable[[Inputs], Expected]
    traits: Callable[[Inputs], frozenset[str]]
    optimized: str
    runs: Literal["host", "triton"]
    kind: Kind = "function"
    relations: tuple[Relation, ...] = ()
    bindings: tuple[Binding, ...] = ()
    known: Mapping[str, Callable[[Inputs], bool]] = field(default_factory=dict)
    sketch: Callable[[Inputs], str] | None = None
    accepts: Callable[[Inputs, Outputs], str | None] | None = None
    settle: Callable[[Inputs, Outputs], Outputs] | None = None
    explains: Callable[[Inputs, str, tuple[int, ...], Any], str] | None = None
    declared: Callable[[Callable[..., Any]], Mapping[str, Any]] | None = None
    call: Callable[[Callable[..., Any], Mapping[str, Any]], Any] | None = None
    complains: Callable[[Inputs], str | None] | None = None
    remarks: Callable[[Mapping[str, int]], str] | None = None

    @property
    def full_name(self) -> str:
        """``family.name``, as the command line takes it."""
        return f"{self.family}.{self.name}"

    def complaint(self, inputs: Inputs) -> str | None:
        """Why these are no inputs of this contract: other names, another kind of value, no case. Else ``None``.

        The values of scalars are for ``complains`` to judge, where there is one.
        """
        names = [item.name for item in self.inputs]
        for name in inputs:
            if name not in names:
                return f"{name} is no input of {self.full_name}; it has {', '.join(names)}"
        for item in self.inputs:
            if item.name not in inputs:
                return f"{item.name} is missing; {self.full_name} has {', '.join(names)}"
            fault = item.complaint(inputs[item.name], scalars=self.complains is None)
            if fault is not None:
                return fault
        return None if self.complains is None else self.complains(inputs)

    def of(self, function: Callable[..., Any]) -> Contract:
        """This contract as a callable declares to follow it."""
        return self if self.declared is None else replace(self, **self.declared(function))

    def is_view(self, output: str, of: str) -> bool:
        """Whether an output (of several in a list, any) may be a view of that input."""
        return any(item.name == output.split("[")[0] and item.view_of == of for item in self.outputs)

    def input(self, name: str) -> Input:
        """The declared input of that name."""
        return next(item for item in self.inputs if item.name == name)
