"""The report that people read: a table and findings on a terminal, plain lines in a pipe."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

from oracles import known
from oracles.report.document import bound_line, cases, known_case, reason_of, unexpected_pass, verdict_of
from oracles.report.groups import MOST_IN_FULL, Group, groups, short
from oracles.results import Finding, Result
from oracles.verdict import PASS

WIDTH = 110
"""Characters a line of a listing in a pipe."""


def show(console: Console, results: Sequence[Result], *, most: int | None = MOST_IN_FULL) -> None:
    """All results; of each at ``most`` so many groups of findings in full, ``None`` for all."""
    if console.is_terminal:
        _show_rich(console, results, most)
    else:
        _show_plain(console, results, most)


def listing(console: Console, title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on a terminal; in a pipe one line a row, what does not fit and further lines of cells below it."""
    if not console.is_terminal:
        _plain(console, f"{title} ({', '.join(headings)}):")
        for row in rows:
            for line in _wrapped(row):
                _plain(console, line)
        return
    table = Table(title=title, title_justify="left")
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*map(escape, row))
    console.print(table)


def _wrapped(row: Sequence[str]) -> list[str]:
    """A row in lines of ``WIDTH`` characters, unless a single word is longer; its cells are two spaces apart."""
    short, long = [cell for cell in row if "\n" not in cell], [cell for cell in row if "\n" in cell]
    # Names stay whole, so that they can be searched for.
    wrapper = textwrap.TextWrapper(WIDTH, break_long_words=False, break_on_hyphens=False)
    wrapper.initial_indent, wrapper.subsequent_indent = " " * 2, " " * 6
    lines = wrapper.wrap("  ".join(short))
    wrapper.initial_indent, wrapper.subsequent_indent = " " * 6, " " * 8
    return lines + [line for cell in long for part in cell.splitlines() for line in wrapper.wrap(part)]


def totals(results: Sequence[Result]) -> str:
    """One closing sentence."""
    judged, findings = sum(r.judged for r in results), sum(len(r.findings) + len(r.unexpected) for r in results)
    accepted = sum(len(r.known) for r in results)
    silent = sum(1 for r in results if not r.judged)
    text = f"{cases(judged)} judged, {findings} finding{'s' if findings != 1 else ''}"
    text += f", {accepted} known" if accepted else ""
    return text + (f", {silent} of {len(results)} implementations not judged" if silent else "")


def _lines(result: Result) -> list[str]:
    """What a binding was bound to, known findings that showed or unexpectedly did not, how much code ran."""
    lines = [] if result.bound is None else [bound_line(result.bound)]
    for identifier, count in sorted(result.known.items()):
        entry = known.by_id(identifier)
        lines.append(f"known: {entry.bucket}  {entry.summary} ({identifier}, {entry.reference}; {cases(count)})")
        if not entry.cumulative:  # else no case shows it alone
            lines.append(f"       {result.replay(known_case(entry))}")
    lines += [f"{unexpected_pass(identifier)}: {path}" for identifier, path in sorted(result.unexpected.items())]
    return [*lines, *filter(None, [_executed(result)])]


def _executed(result: Result) -> str:
    """How much code ran, where the backend counts it."""
    launches, instructions = result.executed
    if not instructions:
        return ""
    return f"{launches:,} launches, {_rounded(instructions)} instructions of {result.task.backend.name}"


def _rounded(number: int) -> str:
    """Two digits are enough of a large number: ``3.1 M``."""
    for power, unit in ((9, "G"), (6, "M")):
        if number >= 10**power:
            return f"{number / 10**power:.1f} {unit}"
    return f"{number:,}"


def _printed_lines(result: Result) -> list[str]:
    """What the callable printed, marked as not ours."""
    lines = [f"| {line}".rstrip() for line in result.printed.splitlines()]
    return ["printed by the callable (standard output and error):", *lines] if lines else []


def _verdict(result: Result) -> str:
    news = len(result.findings) + len(result.unexpected)
    if news:
        return f"{news} finding{'s' if news != 1 else ''}"
    if result.known and result.complete:
        return f"{len(result.known)} known"
    return verdict_of(result)


def _show_rich(console: Console, results: Sequence[Result], most: int | None) -> None:
    table = Table(title=None, expand=False, pad_edge=False)
    for heading in ("contract", "provider", "implementation", "backend"):
        table.add_column(heading, overflow="fold")
    table.add_column("cases", justify="right")
    table.add_column("verdict")
    for result in results:
        task, verdict = result.task, _verdict(result)
        bad = result.findings or result.unexpected
        style = "red" if bad else "green" if verdict_of(result) == PASS else "yellow"
        names = (task.contract.full_name, task.implementation.provider, task.implementation.name, task.backend.name)
        table.add_row(*map(escape, names), f"{result.judged:,}", f"[{style}]{verdict}[/]")
    console.print(table)
    for result in results:
        reason = reason_of(result)
        if reason:
            console.print(f"[yellow]{escape(result.task.implementation.name)}[/]: {escape(reason)}", highlight=False)
        for line in _lines(result):
            console.print(line, style="dim", markup=False, highlight=False)
        found, left = groups(result.findings, most)
        for group in found:
            console.print(_panel(result, group))
        for line in _left(left):
            console.print(line, markup=False, highlight=False)
        for line in _printed_lines(result):
            console.print(line, markup=False, highlight=False)
    console.print(totals(results), style="bold")


def _panel(result: Result, group: Group) -> Panel:
    finding = group.first
    lines = [f"[bold]{escape(finding.detail)}[/]"]
    if group.shown_by is None:
        lines += [f"input   {escape(finding.summary)}", f"replay  {escape(finding.replay)}"]
    else:
        lines.append(f"case    that of {escape(group.shown_by)}")
    lines += map(escape, group.also)
    title = f"[red]{escape(finding.bucket)}[/]  {escape(result.task.implementation.name)}"
    return Panel("\n".join(lines), title=title, title_align="left", border_style="dim")


def _show_plain(console: Console, results: Sequence[Result], most: int | None) -> None:
    for result in results:
        task = result.task
        line = f"{_verdict(result):<12} {task.label} | {cases(result.judged)}"
        reason = reason_of(result)
        _plain(console, line + (f" | {reason}" if reason else ""))
        for said in _lines(result):
            _plain(console, f"  {said}")
        found, left = groups(result.findings, most)
        for group in found:
            _plain_group(console, group)
        for said in _left(left):
            _plain(console, f"  {said}")
        for line in _printed_lines(result):
            _plain(console, f"  {line}")
    _plain(console, totals(results))


def _plain_group(console: Console, group: Group) -> None:
    finding = group.first
    _plain(console, f"  {finding.bucket}")
    lines = finding.detail.splitlines()
    if group.shown_by is None:
        lines += [f"input: {finding.summary}", f"replay: {finding.replay}"]
    else:
        lines.append(f"case: that of {group.shown_by}")
    for line in [*lines, *group.also]:
        _plain(console, f"    {line}")


def _left(findings: Sequence[Finding]) -> list[str]:
    """What is left of findings behind those in full."""
    lines = [f"  {short(finding)}" for finding in findings]
    return ["and, each with the file to replay:", *lines] if lines else []


def _plain(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
