"""What parent and worker say to each other: one msgpack message a packet of a socket that keeps their boundaries."""

from __future__ import annotations

from typing import Any

import msgspec

from oracles.providers.base import Bound

MESSAGE_LIMIT = 8 << 20
"""Bytes read at most at a time; what a socket takes is less."""

SHOWN_ELEMENTS = 12_000
"""Elements of all outputs that are sent; larger ones are judged only. A message must fit a socket's buffer."""


class Load(msgspec.Struct, tag=True):
    """First message: what to judge, and where to note it. ``way_back`` belongs into the origin of every case."""

    contract: str
    spec: str
    name: str
    backend: str
    slot: str
    findings: str
    known: bool = True
    way_back: dict[str, str] = {}


class Walk(msgspec.Struct, tag=True):
    """Judge the small scope, from behind ``after``; of several ``parts``, only part ``part``."""

    count: int
    value: int
    after: list[int] | None
    avoid: list[list[str]] = []
    part: int = 0
    parts: int = 1


class Sample(msgspec.Struct, tag=True):
    """Judge sampled inputs ``start .. start + count - 1`` of a seed."""

    seed: int
    start: int
    count: int
    avoid: list[list[str]] = []


class Try(msgspec.Struct, tag=True):
    """Judge one choice sequence. ``example``: it was drawn, not made by a reducer, so unexpected passes count."""

    choices: list[int]
    fresh: bool
    example: bool = False


class Replayed(msgspec.Struct, tag=True):
    """Judge one case file. ``kept``: as one of the corpus, so what is known is not told, and what kills not run."""

    path: str
    kept: bool = False


class Show(msgspec.Struct, tag=True):
    """Judge one case file, and send the outputs too."""

    path: str


class Fork(msgspec.Struct, tag=True):
    """To the nursery: start a child."""


class Ready(msgspec.Struct, tag=True):
    """The implementation is loaded. ``pid`` is the child's, and its process group's; ``bound`` is that of a binding."""

    pid: int
    bound: Bound | None = None


class LoadFailed(msgspec.Struct, tag=True):
    """The implementation could not be loaded, for a reason of one line."""

    reason: str


class Found(msgspec.Struct, tag=True):
    """A case failed. ``failures`` are (kind, where, detail); ``known`` maps keys among them to known findings."""

    failures: list[tuple[str, str, str]]
    traits: list[str]
    choices: list[int]
    path: str
    known: dict[str, str] = {}


class Shown(msgspec.Struct, tag=True):
    """Outputs as (dtype, shape, flat values), what an unwritten element of each looks like, or the exception.

    Floats are sent by their bits, so that a NaN stays the one that it is. Values that would not fit a message are
    ``None``.
    """

    outputs: dict[str, tuple[str, list[int], list[Any] | None]]
    poison: dict[str, Any]
    error: str


class Progress(msgspec.Struct, tag=True):
    """Counts since the last message.

    ``unsupported`` counts reasons, ``known`` cases of known findings; ``unexpected`` maps known findings to a case
    that matches and passed. ``printed`` is what the callable printed, of a case that was replayed. ``executed`` are
    launches and instructions, on a backend that counts them. ``noted`` is what calls have noted (``oracles.tally``).
    """

    judged: int
    unsupported: dict[str, int]
    avoided: int
    index: int
    compilations: int
    done: bool
    known: dict[str, int] = {}
    unexpected: dict[str, str] = {}
    printed: str = ""
    executed: tuple[int, int] = (0, 0)
    noted: dict[str, int] = {}


class Broken(msgspec.Struct, tag=True):
    """The harness itself failed: a defect of this project, and no verdict."""

    detail: str


class Died(msgspec.Struct, tag=True):
    """From the nursery: how the child ended."""

    status: int


Command = Load | Walk | Sample | Try | Replayed | Show | Fork
Event = Ready | LoadFailed | Found | Shown | Progress | Broken | Died
encode = msgspec.msgpack.Encoder().encode
decode_command = msgspec.msgpack.Decoder(Command).decode
decode_event = msgspec.msgpack.Decoder(Event).decode
