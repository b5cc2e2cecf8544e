"""Signals before and around a run: the command ends with 130, and prints no traceback."""

import os
import signal
import sys
import types

import pytest

import oracles.__main__ as entry
from oracles import cli


@pytest.fixture(autouse=True)
def handlers():
    """Those of pytest, put back."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


class Importing(types.ModuleType):
    """Stands for the command line's module; what is asked for is imported slowly enough to be interrupted."""

    @property
    def main(self):
        signal.raise_signal(signal.SIGINT)
        return lambda prog_name: None


def left(code):
    raise SystemExit(code)


def test_an_interrupt_while_modules_are_imported_ends_the_command_quietly(monkeypatch, capfd):
    monkeypatch.setitem(sys.modules, "oracles.cli", Importing("oracles.cli"))
    monkeypatch.setattr(entry.os, "_exit", left)
    with pytest.raises(SystemExit) as ended:
        entry.main()
    assert ended.value.code == 130
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("handler", [signal.default_int_handler, signal.SIG_IGN])
def test_once_modules_are_imported_a_signal_does_what_it_did_before(monkeypatch, handler):
    signal.signal(signal.SIGINT, handler)
    seen = []
    command = types.SimpleNamespace(main=lambda prog_name: seen.append(signal.getsignal(signal.SIGINT)))
    monkeypatch.setitem(sys.modules, "oracles.cli", command)
    entry.main()
    assert seen == [handler]


@pytest.mark.parametrize("command", ["list", "check", "explain", "replay", "isa"])
def test_an_interrupt_outside_of_a_run_is_quiet(monkeypatch, in_process, command):
    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    for name in ("all_contracts", "plan", "load_case"):
        monkeypatch.setattr(cli, name, interrupt)
    monkeypatch.setattr("oracles.isa_command.plan", interrupt)
    arguments = {"isa": ("chunk_metadata",), "explain": ("none.json",), "replay": ("none.json",)}.get(command, ())
    assert in_process(command, *arguments) == (130, "", "")


def test_a_signal_that_is_to_be_ignored_stays_ignored():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    cli._hear_signals()
    signal.raise_signal(signal.SIGHUP)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGTERM)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    cli._hear_signals()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGHUP)


def test_what_is_written_to_a_terminal_that_is_gone_goes_nowhere():
    master, terminal = os.openpty()
    os.close(master)
    before = os.dup(2)
    os.dup2(terminal, 2)
    try:
        with pytest.raises(OSError, match="Input/output error"):
            os.write(2, b"report")
        with pytest.raises(KeyboardInterrupt):
            cli._hung_up(signal.SIGHUP, None)
        assert os.write(2, b"report") == 6
    finally:
        os.dup2(before, 2)
        os.close(before)
        os.close(terminal)


def test_a_terminal_that_is_there_keeps_its_report(capfd):
    with pytest.raises(KeyboardInterrupt):
        cli._hung_up(signal.SIGHUP, None)
    os.write(1, b"report")
    os.write(2, b"interrupted")
    assert capfd.readouterr() == ("report", "interrupted")
