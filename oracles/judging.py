"""Judge a stream of cases in the worker, and tell the parent what it has not heard yet."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from oracles import tally
from oracles.arrays import Inputs, flat
from oracles.backends.base import CountsInstructions, Executed
from oracles.case import Case, case_id
from oracles.environment import environment
from oracles.known import Known
from oracles.messages import SHOWN_ELEMENTS, Event, Found, Load, Progress, Shown
from oracles.notation import bits
from oracles.slot import Slot
from oracles.transcript import Transcript
from oracles.verdict import Failure, Unsupported, described, severity

if TYPE_CHECKING:
    from oracles.check import Subject

PROGRESS_SECONDS = 0.2
LOG_LIMIT = 1 << 20

Mode = Literal["stream", "example", "trial", "kept", "replay"]
"""``stream``: news only, written to disk. ``example``, one drawn input, ``trial``, an attempt of a reducer, and
``kept``, a case of the corpus: everything that is not known. ``replay``: everything. That a known finding does not show
is noted of inputs that were drawn."""


@dataclass(frozen=True)
class Job:
    """One input, and how to find it again: its choices, or its place in a sampled stream, or its file."""

    inputs: Inputs
    choices: list[int]
    seed: int = -1
    index: int = -1
    path: str | None = None


class Judging:
    """Judges for one implementation; ``send`` reaches the parent."""

    def __init__(
        self, load: Load, subject: Subject, known: Sequence[Known], slot: Slot, send: Callable[[Event], None]
    ) -> None:
        self.load, self.subject, self.known, self.slot, self.send = load, subject, known, slot, send
        self.seen: set[tuple[str, frozenset[str]]] = set()
        self.counts = Progress(0, {}, 0, -1, 0, False)
        self._executed = Executed()

    def run(
        self, jobs: Iterable[Job], *, mode: Mode = "stream", fresh: bool = True, avoid: Sequence[Sequence[str]] = ()
    ) -> None:
        """Judge every job but those with all traits of an entry of ``avoid``."""
        shown = monotonic()
        avoided = [frozenset(traits) for traits in avoid]
        for job in jobs:
            traits = self.subject.contract.traits(job.inputs)
            self.counts.index = job.index
            if any(bad <= traits for bad in avoided):
                self.counts.avoided += 1
                continue
            if self.counts.avoided:
                self._progress()  # a death would take the number with it: the slot has no room for it
            if job.path is None:
                self.slot.begin(job.choices, job.seed, job.index)
            else:
                self.slot.begin_file(job.path)
            with self._printing(mode):
                self._one(job, traits, mode, fresh=fresh)
            self.slot.end(self.counts.judged)
            if monotonic() - shown > PROGRESS_SECONDS:
                shown = monotonic()
                self._progress()
        self._progress(done=True)

    @contextlib.contextmanager
    def _printing(self, mode: Mode) -> Iterator[None]:
        """Keep what the callable prints, where somebody replays a case to see it."""
        if mode != "replay":
            yield
            return
        transcript = Transcript()
        self.subject.after_call = transcript.note_call
        yield
        self.subject.after_call = None
        self.counts.printed = transcript.text()

    def _one(self, job: Job, traits: frozenset[str], mode: Mode, *, fresh: bool) -> None:
        from oracles.check import judge

        matching = [known for known in self.known if known.matches(job.inputs)]
        if mode != "replay" and any(known.deadly for known in matching):
            for known in matching:
                self._count(known)
            return
        try:
            failures = sorted(judge(self.subject, job.inputs, fresh=fresh), key=lambda item: severity(item.kind))
        except Unsupported as reason:
            self.counts.unsupported[str(reason)] = self.counts.unsupported.get(str(reason), 0) + 1
            return
        self.counts.judged += 1
        explained = self._explained(failures, matching)
        if mode in ("stream", "example"):
            self._note_unexpected(job, failures, matching)
        if mode != "replay":
            failures = [failure for failure in failures if failure.key not in explained]
        self._tell(job, traits, failures, mode, explained)

    def _tell(
        self, job: Job, traits: frozenset[str], failures: Sequence[Failure], mode: Mode, explained: dict[str, str]
    ) -> None:
        unseen = [item for item in failures if (item.key, traits) not in self.seen]
        news = unseen if mode == "stream" else failures
        if not news:
            return
        self.seen.update((item.key, traits) for item in news)
        path = self._keep(job, unseen) if unseen and mode in ("stream", "example") else ""
        details = [(item.kind, item.where, _detail(item, mode)) for item in news]
        self.send(Found(details, sorted(traits), job.choices, path, explained))

    def _explained(self, failures: Sequence[Failure], matching: Sequence[Known]) -> dict[str, str]:
        """Which keys of the failures are known, and the known finding of each."""
        explained: dict[str, str] = {}
        for known in matching:
            shown = [item.key for item in failures if item.key in known.entry.shows]
            explained.update(dict.fromkeys(shown, known.entry.id))
            if shown:
                self._count(known)
        return explained

    def _note_unexpected(self, job: Job, failures: Sequence[Failure], matching: Sequence[Known]) -> None:
        """A case that matches a known finding and does not show it."""
        for known in matching:
            if known.entry.cumulative:
                continue
            identifier = known.entry.id
            shown = any(item.key in known.entry.shows for item in failures)
            if not shown and identifier not in self.counts.unexpected:
                path = self._case(job, None).save(self._folder / f"unexpected-pass-{self._id(job)}.json")
                self.counts.unexpected[identifier] = str(path)

    def _count(self, known: Known) -> None:
        self.counts.known[known.entry.id] = self.counts.known.get(known.entry.id, 0) + 1

    def _keep(self, job: Job, failures: Sequence[Failure]) -> str:
        """On disk before anybody is told: a finding that was made is not lost, whoever is killed next."""
        first = failures[0]
        return str(self._case(job, first).save(self._folder / f"unreduced-{first.kind}-{self._id(job)}.json"))

    @property
    def _folder(self) -> Path:
        return Path(self.load.findings)

    def _id(self, job: Job) -> str:
        return case_id(self.load.contract, job.inputs)

    def _case(self, job: Job, failure: Failure | None) -> Case:
        verdict = None
        if failure is not None:
            verdict = {"kind": failure.kind, "where": failure.where, "detail": failure.detail}
        origin = {
            "choices": job.choices,
            "implementation": self.load.spec,
            "callable": self.load.name,
            "backend": self.load.backend,
            **self.load.way_back,
        }
        contract = self.load.contract
        return Case(contract=contract, inputs=job.inputs, origin=origin, verdict=verdict, environment=environment())

    def show(self, inputs: Inputs) -> None:
        """Call once and send the outputs."""
        from oracles.backends.base import Variation

        try:
            run = self.subject.run(inputs, Variation())
        except Unsupported:
            return
        outputs: dict[str, tuple[str, list[int], list[Any] | None]] = {}
        unwritten: dict[str, Any] = {}
        left = SHOWN_ELEMENTS
        for name, values in flat(run.outputs).items():
            array = np.asarray(values)
            if array.dtype == object:
                continue
            dtype = run.dtypes.get(name, type(values).__name__)
            fits = array.size <= left
            left -= array.size if fits else 0
            outputs[name] = (dtype, list(array.shape), bits(array).ravel().tolist() if fits else None)
            if name in run.dtypes:
                unwritten[name] = _poison(dtype, array.dtype)
        self.send(Shown(outputs, unwritten, described(run.error) if run.error is not None else ""))

    def _progress(self, *, done: bool = False) -> None:
        counts = self.counts
        counts.done = done
        counts.compilations = len(self.subject.compilations)
        counts.noted = tally.taken()
        backend = self.subject.backend
        if isinstance(backend, CountsInstructions):
            launches, instructions = backend.executed.since(self._executed)
            counts.executed, self._executed = (launches, instructions), backend.executed
        self.send(counts)
        self.counts = Progress(0, {}, 0, -1, 0, False)
        self.slot.end()
        with contextlib.suppress(OSError):
            if os.fstat(1).st_size > LOG_LIMIT:
                os.ftruncate(1, 0)


def _detail(failure: Failure, mode: Mode) -> str:
    """Who replays a case wants to see where it fails; elsewhere one line is enough."""
    return f"{failure.detail}\n{failure.trace}" if mode == "replay" and failure.trace else failure.detail


def _poison(dtype: str, held: np.dtype) -> Any:
    from oracles.memory import poison, torch_dtype

    return bits(poison(torch_dtype(dtype), 0).view(held))[0].item()
