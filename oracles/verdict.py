"""Verdicts: how an implementation treated one case.

Every way to fail is one exception class with one ``kind``. A failure also says *where* (the tensor, the operation or
the exception it concerns); ``key``, kind and place together, is what the reducer keeps fixed, so that a shrunk case
still shows the same fault. The traits of the smallest case complete the key to the ``bucket``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

LONGEST_TEXT = 2000
"""Characters of other people's text that a verdict keeps."""

PASS = "pass"
UNSUPPORTED = "unsupported"
INTERRUPTED = "interrupted"


class Failure(Exception):
    """An implementation broke its contract. Subclasses exist one a kind; this class itself is never raised.

    ``where`` is a short stable name (a tensor, an operation, an exception type) and is part of the bucket;
    ``detail`` is for people and may hold indices, values and addresses; ``trace`` is a traceback for a replay to show.
    """

    kind: ClassVar[str]
    trace: str = ""

    def __init__(self, where: str, detail: str = "") -> None:
        self.where = readable(where)
        self.detail = readable(detail)
        super().__init__(f"{self.kind}: {self.where}: {self.detail}" if detail else f"{self.kind}: {self.where}")

    @property
    def key(self) -> str:
        """Kind and place: equal for two failures that a reducer may take for the same fault."""
        return f"{self.kind}:{self.where}"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.where, self.detail)


class WrongValue(Failure):
    """An element differs from the value that the contract gives it."""

    kind = "wrong_value"


class WrongShape(Failure):
    """An output has another shape, dtype, device or number than the contract says."""

    kind = "wrong_shape"


class Unwritten(Failure):
    """An element kept the poison of its allocation, whichever poison was used."""

    kind = "unwritten"


class UninitialisedRead(Failure):
    """A result depends on bytes that nobody had written."""

    kind = "uninitialised_read"


class OutOfBoundsWrite(Failure):
    """Bytes outside the outputs were written."""

    kind = "out_of_bounds_write"


class OutOfBoundsRead(Failure):
    """Bytes outside the inputs were read."""

    kind = "out_of_bounds_read"


class InputMutated(Failure):
    """An input does not hold the bytes it held before the call."""

    kind = "input_mutated"


class Race(Failure):
    """Programs of one launch depend on each other's order."""

    kind = "race"


class BarrierDivergence(Failure):
    """Threads of one workgroup did not reach the same barrier."""

    kind = "barrier_divergence"


class Nondeterministic(Failure):
    """The same call, repeated, gave another result."""

    kind = "nondeterministic"


class Stale(Failure):
    """The result belongs to an earlier call, or a later call changed it."""

    kind = "stale"


class GraphDiverges(Failure):
    """The replay of a captured graph differs from the eager call."""

    kind = "graph_diverges"


class AddressMoved(Failure):
    """A buffer that a graph holds on to was moved."""

    kind = "address_moved"


class HostSync(Failure):
    """The host read a value that lives on the device, and so waited for it."""

    kind = "host_sync"


class Recompiled(Failure):
    """A kernel was compiled again for a change that must not cost a compilation."""

    kind = "recompiled"


class Crash(Failure):
    """An exception that is no refusal, an abort, a signal, or an exit."""

    kind = "crash"


class Hang(Failure):
    """No answer within the time limit of a case."""

    kind = "hang"


class CompileError(Failure):
    """The compiler refused the kernel."""

    kind = "compile_error"


class WronglyRefused(Failure):
    """An input that the contract allows was refused."""

    kind = "wrongly_refused"


class WronglyAccepted(Failure):
    """An input that the contract refuses was not refused."""

    kind = "wrongly_accepted"


FAILURES: dict[str, type[Failure]] = {cls.kind: cls for cls in Failure.__subclasses__()}
"""Every kind of failure, by name."""

KINDS: tuple[str, ...] = (PASS, *FAILURES, UNSUPPORTED)
"""Every verdict a result can carry."""

SEVERITY: tuple[str, ...] = (
    "out_of_bounds_write", "input_mutated", "out_of_bounds_read",
    "crash", "hang", "barrier_divergence", "compile_error",
    "race", "uninitialised_read", "nondeterministic", "stale", "address_moved", "graph_diverges",
    "wrong_shape", "unwritten", "wrong_value",
    "wrongly_refused", "wrongly_accepted",
    "recompiled", "host_sync",
)  # fmt: skip
"""Every kind of failure, the most severe first: the order in which findings are listed.

First what harms others than its own result: memory of another tensor, whose owner is wrong for no reason of its own.
Then what ends a server, or cannot run. Then wrong results: first those that come and go, because where results vary no
single wrong value is to be believed; then, of those that any test shows, the ones that are not even of the right form.
Then inputs that should have been treated the other way, which a careful caller can avoid. At the end what is right and
costs time.
"""


def severity(kind: str) -> int:
    """The rank of a kind of failure: smaller is worse."""
    return SEVERITY.index(kind)


def place_of(name: str) -> str:
    """The place that a tensor stands for, without the number of one of a list: a fault is not another in each."""
    return name.split("[")[0]


def described(error: BaseException) -> str:
    """``Type: text`` of anybody's exception, also of one whose text cannot be had."""
    try:
        text = str(error)
    except Exception as inner:
        return f"{type(error).__name__} (its text cannot be read: {type(inner).__name__})"
    return f"{type(error).__name__}: {readable(text)}"


def readable(text: str) -> str:
    """Anybody's text, as it can be stored and shown: not without end, and nothing that a terminal would obey."""
    if len(text) > LONGEST_TEXT:
        text = f"{text[:LONGEST_TEXT]} ... ({len(text)} characters)"
    return "".join(letter if letter.isprintable() or letter in "\n\t" else _escaped(letter) for letter in text)


def _escaped(letter: str) -> str:
    return letter.encode("unicode_escape").decode()


class Unsupported(Exception):
    """This arm cannot judge this case; ``str(error)`` is the reason. Never counted as a pass."""


def failure(kind: str, where: str, detail: str = "") -> Failure:
    """The failure of a kind named by its string, as it is read back from a file or a pipe."""
    return FAILURES[kind](where, detail)


def bucket(key: str, traits: Iterable[str]) -> str:
    """The stable name of a finding: kind, place, and the traits that its smallest case cannot do without."""
    tags = "+".join(sorted(traits))
    return f"{key}:{tags}" if tags else key
