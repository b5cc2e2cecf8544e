"""The child's loop, run in this process on harmless callables: what it answers to each command, and what it notes."""

import importlib.util
import os
import socket
import sys
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from oracles import messages
from oracles.arrays import array
from oracles.backends import by_name as backend_by_name
from oracles.case import Case, CaseError
from oracles.contracts import by_name as contract_by_name
from oracles.domain import Replay, Sampler, Scope, walk
from oracles.judging import Judging
from oracles.messages import Fork, Found, Load, Progress, Replayed, Sample, Show, Shown, Try, Walk
from oracles.slot import Meta, Slot
from oracles.verdict import Unsupported
from oracles.worker import _Child

NAME = "chunk_metadata.chunk_metadata"
CONTRACT = contract_by_name(NAME)
ENCODE = msgspec.msgpack.Encoder().encode
DECODE = msgspec.msgpack.Decoder(messages.Event).decode
ONLY_ONE = Try([], False)

NONSENSE = {
    "wrong_value": "wrong_value:chunk_offsets",
    "raises_key_error": "crash:KeyError",
    "raises_memory_error": "crash:MemoryError",
    "raises_recursion_error": "crash:RecursionError",
    "raises_system_exit": "crash:SystemExit",
    "raises_generator_exit": "crash:GeneratorExit",
    "raises_keyboard_interrupt": "crash:KeyboardInterrupt",
    "raises_unprintable": "crash:Unprintable",
    "raises_surrogates": "crash:RuntimeError",
    "calls_sys_exit": "crash:SystemExit",
    "resizes_input": "crash:RuntimeError",
    "resizes_to_huge": "crash:RuntimeError",
    "none": "wrong_shape:outputs",
    "string": "wrong_shape:outputs",
    "nested_lists": "wrong_shape:chunk_indices",
    "deep_list": "wrong_shape:chunk_indices",
    "cyclic_list": "wrong_shape:chunk_indices",
    "generator": "wrong_shape:outputs",
    "requires_grad": "wrong_shape:chunk_indices",
    "complex_tensors": "wrong_shape:chunk_indices",
    "sparse_tensors": "wrong_shape:chunk_indices",
    "meta_tensors": "wrong_shape:chunk_indices",
    "float_tensors": "wrong_shape:chunk_indices",
    "bfloat16_tensors": "wrong_shape:chunk_indices",
    "quantized_tensors": "wrong_shape:chunk_indices",
    "numpy_arrays": "wrong_shape:chunk_indices",
    "inputs_back": "wrong_",
    "mutates": "input_mutated:cu_seqlens",
    "subclass_tensors": "",
    "wrong_arguments": "crash:TypeError",
    "raises_markup": "crash:RuntimeError",
    "raises_where_it_may_not": "wrongly_refused:ValueError",
    "forgets_a_row": "",
}
"""Callables of a stranger's file, and how the bucket begins that each must be given (none: it passes this scope)."""


def none(**inputs):
    return None


def unsupported(**inputs):
    raise Unsupported("not on a Sunday")


@pytest.fixture
def child(tmp_path):
    """A child for a callable, which answers commands and then ends because nobody asks any more."""
    from oracles.check import Subject

    slot_path = tmp_path / "x.slot"
    opened = []
    ours = Slot(slot_path, create=Meta(NAME, "mine.py:f", "f", "host"))

    def make(function, *, seen=()):
        parent, channel = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        load = Load(NAME, "mine.py:f", "f", "host", str(slot_path), str(tmp_path / "findings"), known=False)
        made, slot = _Child(channel, load), Slot(slot_path)
        implementation = SimpleNamespace(narrowings=(), refuses=True, refusal_types=(ValueError,), graphs=False)
        subject = Subject(CONTRACT, implementation, function, backend_by_name("host"))
        judging = Judging(load, subject, (), slot, made.send)
        judging.seen.update((key, frozenset(traits)) for key, traits in seen)

        def answers(*commands):
            for command in commands:
                parent.send(ENCODE(command))
            parent.shutdown(socket.SHUT_WR)
            try:
                made._loop(judging)
            finally:
                channel.close()
                slot.close()
                parent.settimeout(10)
            events = []
            while data := parent.recv(messages.MESSAGE_LIMIT):
                events.append(DECODE(data))
            return events

        opened.append(parent)
        return SimpleNamespace(answers=answers, slot=ours)

    yield make
    for each in opened:
        each.close()
    ours.close(remove=True)


def saved(tmp_path, **changes):
    inputs = dict(CONTRACT.domain(Replay([]))) | changes
    return str(Case(contract=NAME, inputs=inputs).save(tmp_path / "case.json"))


def test_one_choice_sequence(child):
    found, progress = child(none).answers(Try([0, 1], True))
    assert [failure[:2] for failure in found.failures] == [("wrong_shape", "outputs")]
    assert found.choices[:2] == [0, 1]
    assert (found.path, progress.judged, progress.done) == ("", 1, True)


def test_impossible_choices_are_the_nearest_possible(child):
    found, _ = child(none).answers(Try([1 << 40] * 4, False))
    inputs = CONTRACT.domain(Replay(found.choices))
    assert inputs["chunk_size"] == 1 << 30


def test_a_try_always_tells_what_it_sees(child):
    events = child(none).answers(ONLY_ONE, ONLY_ONE)
    assert [type(event) for event in events] == [Found, Progress, Found, Progress]


def test_a_walk_tells_each_key_and_traits_once(child):
    events = child(none).answers(Walk(1, 1, None))
    told = [(failure[:2], tuple(event.traits)) for event in events if isinstance(event, Found)
            for failure in event.failures]  # fmt: skip
    assert len(told) == len(set(told)) > 1
    assert sum(event.judged for event in events if isinstance(event, Progress)) == 136
    assert [event.done for event in events if isinstance(event, Progress)][-1]


def test_what_was_seen_before_is_not_told_again(child):
    seen = [("wrong_shape:outputs", ["no_sequences"])]
    events = child(none, seen=seen).answers(Walk(1, 1, None))
    assert ["no_sequences"] not in [event.traits for event in events if isinstance(event, Found)
                                    and event.failures[0][0] == "wrong_shape"]  # fmt: skip


def test_a_finding_is_on_disk_before_it_is_told(child):
    events = child(none).answers(Sample(0, 0, 3))
    for event in events:
        if isinstance(event, Found):
            case = Case.load(Path(event.path))
            assert Path(event.path).name.startswith(f"unreduced-{event.failures[0][0]}-")
            assert case.origin["choices"] == event.choices
            assert case.verdict["kind"] == event.failures[0][0]


def test_a_walk_goes_on_behind_a_case(child):
    every = [source.choices for _, source in walk(CONTRACT.domain, Scope(1, 1))]
    events = child(unsupported).answers(Walk(1, 1, every[99]))
    assert sum(sum(event.unsupported.values()) for event in events) == len(every) - 100


def test_samples_are_those_of_the_seed(child):
    events = child(none).answers(Sample(3, 5, 4))
    drawn = []
    for index in range(5, 9):
        source = Sampler(3, index)
        CONTRACT.domain(source)
        drawn.append(source.choices)
    told = [event.choices for event in events if isinstance(event, Found)]
    assert told
    assert all(choices in drawn for choices in told)
    assert max(event.index for event in events if isinstance(event, Progress)) == 8


def test_what_cannot_be_judged_is_counted_by_reason(child):
    (progress,) = child(unsupported).answers(ONLY_ONE)
    assert (progress.judged, progress.unsupported) == (0, {"not on a Sunday": 1})


def test_traits_to_avoid(child):
    inputs = [inputs for inputs, _ in walk(CONTRACT.domain, Scope(1, 1))]
    there = sum("no_sequences" in CONTRACT.traits(each) for each in inputs)
    events = child(unsupported).answers(Walk(1, 1, None, [["no_sequences"], ["strided", "int64"]]))
    both = sum({"strided", "int64"} <= CONTRACT.traits(each) for each in inputs)
    assert sum(event.avoided for event in events) == there + both
    assert both > 0


def test_a_case_file(child, tmp_path):
    found, progress = child(none).answers(Replayed(saved(tmp_path)))
    assert (found.choices, found.path, progress.judged) == ([], "", 1)


def test_a_case_file_that_is_not_there(child, tmp_path):
    with pytest.raises(CaseError, match=r"none\.json"):
        child(none).answers(Replayed(str(tmp_path / "none.json")))


def test_outputs_are_shown_with_what_an_unwritten_element_looks_like(child, tmp_path):
    import torch

    def zeros(**inputs):
        return torch.zeros(2, 2, dtype=torch.int32), torch.zeros(25_000, dtype=torch.int64)

    shown, found, _ = child(zeros).answers(Show(saved(tmp_path)))
    assert isinstance(shown, Shown)
    assert shown.outputs == {
        "chunk_indices": ("int32", [2, 2], [0, 0, 0, 0]),
        "chunk_offsets": ("int64", [25_000], None),
    }
    assert shown.poison["chunk_indices"] < 0
    assert found.failures[0][0] == "wrong_shape"


def test_outputs_that_do_not_fit_one_message_together_are_not_sent(child, tmp_path):
    import torch

    def large(**inputs):
        return (torch.full((messages.SHOWN_ELEMENTS,), 1 << 60),) * 2

    shown, *_ = child(large).answers(Show(saved(tmp_path)))
    assert "chunk_indices" in shown.outputs


def test_a_callable_that_cannot_be_judged_shows_nothing(child, tmp_path):
    (progress,) = child(unsupported).answers(Show(saved(tmp_path)))
    assert progress.unsupported == {"not on a Sunday": 1}


def test_an_exception_is_shown(child, tmp_path):
    def fails(**inputs):
        raise KeyError("x")

    shown, *_ = child(fails).answers(Show(saved(tmp_path, cu_seqlens=array([0, 3], "int32"),
                                                cu_seqlens_cpu=array([0, 3], "int64"))))  # fmt: skip
    assert (shown.outputs, shown.error) == ({}, "KeyError: 'x'")


def test_the_slot_says_which_case_runs(child):
    seen = []

    def look(**inputs):
        seen.append((made.slot.running().choices, inputs["chunk_size"]))

    made = child(look)
    made.answers(Try([1], False))
    assert {size for _, size in seen} == {2}
    assert all(choices[0] == 1 for choices, _ in seen)
    assert made.slot.running() is None


def test_commands_of_the_nursery_are_not_the_childs(child):
    assert child(none).answers(Fork()) == []


def test_a_childs_own_failure_is_told_as_such(monkeypatch, tmp_path):
    parent, channel = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    broken = _Child(channel, Load(NAME, "s", "f", "host", str(tmp_path / "none"), str(tmp_path)))

    def exit_with(code):
        raise SystemExit(code)

    monkeypatch.setattr(os, "_exit", exit_with)
    monkeypatch.setattr(_Child, "_prepare", lambda self: 1 / 0)
    with pytest.raises(SystemExit):
        broken.serve()
    event = DECODE(parent.recv(messages.MESSAGE_LIMIT))
    assert "ZeroDivisionError" in event.detail
    channel.close()
    with pytest.raises(SystemExit):  # and nothing else happens where nobody listens
        broken.serve()
    parent.close()


@pytest.fixture(scope="module")
def nonsense():
    """A stranger's file, which imports another beside it."""
    folder = Path(__file__).resolve().parents[1] / "cli" / "data"
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        spec = importlib.util.spec_from_file_location("nonsense", folder / "nonsense.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module
        sys.modules.pop("good", None)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.nightly] * (name == "deep_list")) for name in NONSENSE]
)
def test_nonsense_is_judged_to_the_end(child, nonsense, name):
    events = child(getattr(nonsense, name)).answers(Walk(0, 1, None))
    assert sum(event.judged for event in events if isinstance(event, Progress)) == 64
    keys = {f"{kind}:{where}" for event in events if isinstance(event, Found) for kind, where, _ in event.failures}
    assert any(key.startswith(NONSENSE[name]) for key in keys) or (not NONSENSE[name] and not keys), keys
    for event in events:
        if isinstance(event, Found):
            assert all(len(detail) < 5000 for _, _, detail in event.failures)


def test_every_message_survives_the_socket():
    sent = [
        Load("c", "s", "n", "b", "p", "f", known=False),
        Walk(1, 2, [3], [["t"]]),
        Sample(1, 2, 3),
        Try([1 << 62], True),
        Replayed("p"),
        Show("p"),
        Fork(),
    ]
    decode = msgspec.msgpack.Decoder(messages.Command).decode
    assert [decode(ENCODE(message)) for message in sent] == sent
