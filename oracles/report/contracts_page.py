"""The page of contracts in the documentation: inputs, outputs and promises, from the records.

``python -m oracles.report.contracts_page docs/contracts.md`` writes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from oracles.contract import Contract, Input
from oracles.contracts import all_contracts

HEAD = """\
# Contracts

What an implementation takes and gives, written by `python -m oracles.report.contracts_page` from the records in
`oracles/contracts/`. Numbers in brackets are the sections that docstrings cite. What each value has to be, what is
refused, and where no values are promised stands in the docstrings of the references, which are short.

An implementation takes its inputs by keyword and returns its outputs as a tuple in this order; a mapping with the same
names, or a single tensor for a single output, will do. *Device* tensors must not be read by the host. An *in/out*
buffer is judged where it was passed. Classes are called as [judge-your-own-kernel.md](judge-your-own-kernel.md) says.
"""


def page(contracts: Sequence[Contract]) -> str:
    """The whole page."""
    families = dict.fromkeys(contract.family for contract in contracts)
    return HEAD + "".join(_family(name, [c for c in contracts if c.family == name]) for name in families)


def _family(name: str, contracts: Sequence[Contract]) -> str:
    ordered = sorted(contracts, key=lambda contract: contract.section)
    return f"\n## {name}\n" + "".join("".join(_contract(contract)) for contract in ordered)


def _contract(contract: Contract) -> Iterator[str]:
    yield f"\n### {contract.name} ({contract.section})\n\n{contract.summary}."
    yield f" Kind: {contract.kind}; this project's is `{contract.optimized}`.\n\n"
    yield "| input | where | what |\n|---|---|---|\n"
    for item in contract.inputs:
        yield f"| `{item.name}` | {_where(item)} | {_cell(item.doc)} |\n"
    if contract.outputs:
        yield "\n| output | what |\n|---|---|\n"
    for output in contract.outputs:
        inside = f"; a view of `{output.inside}`" if output.inside else ""
        view = f"; may be a view of `{output.view_of}`" if output.view_of else ""
        yield f"| `{output.name}` | {_cell(output.doc)}{inside}{view} |\n"


def _where(item: Input) -> str:
    many = ", a list" if item.many else ""
    return f"{item.role}{many}{', in/out' if item.inout else ''}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


@click.command(help="Write the page of contracts to FILE.")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
def main(file: Path) -> None:
    """Write the page."""
    file.write_text(page(list(all_contracts())), encoding="utf-8")


if __name__ == "__main__":
    main()
