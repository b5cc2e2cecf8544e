"""The page of known findings in the documentation: what upstream was seen to do wrong, release by release.

``python -m oracles.report.known_page docs/known-findings.md`` writes it from ``known_findings.toml``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import click

from oracles.known import Entry, entries

HEAD = """\
# What upstream shows

Every fault that was found in released code, by contract: written by `python -m oracles.report.known_page` from
`oracles/known_findings.toml`. Each was seen as machine code of gfx942 executed on a CPU or, for host functions, in
plain torch, unless the backends are named; none on AMD hardware. A release that is not listed was not run, or does not
show it. Where no public issue is linked, the finding is this project's own, of the date given.
[implementations.md](implementations.md) says which releases were judged, and
`oracles replay CASE --impl vllm:WHEEL` shows one fault on its smallest case.
"""
COLUMNS = ("what is wrong", "releases", "shows as", "case")


def page(found: tuple[Entry, ...]) -> str:
    """The whole page."""
    return HEAD + "".join(_sections(found))


def _sections(found: tuple[Entry, ...]) -> Iterator[str]:
    place = {entry.contract: number for number, entry in reversed(list(enumerate(found)))}
    ordered = sorted(found, key=lambda entry: (place[entry.contract], entry.implementation))
    for contract, of_contract in groupby(ordered, key=lambda entry: entry.contract):
        yield f"\n## {contract}\n"
        for (provider, name), some in groupby(of_contract, key=lambda entry: (entry.provider, entry.implementation)):
            yield f"\n{provider}: `{name}`\n\n"
            yield _line(COLUMNS) + _line(("---",) * len(COLUMNS))
            yield from map(_row, some)


def _row(entry: Entry) -> str:
    where = f" ({', '.join(entry.backends)})" if entry.backends else ""
    case = f"[{Path(entry.case).stem}](../{entry.case})"
    what = f"{entry.summary} ({_reference(entry)})"
    return _line((what, ", ".join(entry.versions), f"`{entry.bucket}`{where}", case))


def _reference(entry: Entry) -> str:
    issue = re.fullmatch(r"([\w.-]+/[\w.-]+)#(\d+)", entry.reference)
    if issue:
        return f"[{entry.reference}](https://github.com/{issue[1]}/issues/{issue[2]})"
    return f"{entry.date}" if entry.reference == "new" else entry.reference


def _line(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


@click.command(help="Write the page of known findings to FILE.")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
def main(file: Path) -> None:
    """Write the page."""
    file.write_text(page(entries()), encoding="utf-8")


if __name__ == "__main__":
    main()
