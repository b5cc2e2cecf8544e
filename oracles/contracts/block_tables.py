"""Contract 4.1, the class BlockTables: how an implementation is exercised, judged and drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from oracles.arrays import Array, Inputs
from oracles.contract import Contract, Expected, Input, Output, Refused, Values
from oracles.contracts import _block_tables_machine as machine
from oracles.contracts import block_tables_bindings as bindings
from oracles.contracts._block_tables_complaints import complaint
from oracles.contracts._block_tables_relations import RELATIONS
from oracles.contracts.block_tables_known import KNOWN
from oracles.verdict import AddressMoved, WronglyAccepted, WronglyRefused, WrongShape
from reference.block_table import BlockTables
from reference.errors import ContractError

if TYPE_CHECKING:
    import torch

Operation = tuple[Any, ...]


def exercise(implementation: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Construct the class and live through the operations, beside the reference; a copy of all that was gathered."""
    sizes = {name: arguments[name] for name in ("block_sizes", "max_num_reqs", "max_num_blocks_per_group")}
    tables = implementation(**sizes, device=arguments["idx_mappings"][0].device)
    try:
        model = BlockTables(**sizes)
    except ContractError:
        # Its refusal must not pass for one of the implementation, which has accepted these sizes.
        return {"tables": []}
    life = _Life(tables, model, arguments, getattr(implementation, "refuses", True) is not False)
    for step, operation in enumerate(arguments["operations"]):
        life.step(step, tuple(operation))
    return {"tables": life.gathered}


class _Life:
    """One implementation and the reference, side by side. The reference is only asked what must be refused."""

    def __init__(self, tables: Any, model: BlockTables, arguments: Mapping[str, Any], refuses: bool) -> None:
        self.tables, self.model, self.arguments, self.refuses = tables, model, arguments, refuses
        self.gathered: list[list[torch.Tensor]] = []
        self.addresses: list[int] = []

    def step(self, step: int, operation: Operation) -> None:
        """One operation on both. A refusal of one alone is a failure that tells the step."""
        _, wanted = _attempt(self.model, operation, self._host_rows(operation))
        if wanted is not None and not self.refuses:
            return
        views, refused = _attempt(self.tables, operation, self._rows(operation))
        name = str(operation[0])
        if wanted is not None and refused is None:
            raise WronglyAccepted(name, f"step {step}, {told(operation)}, was not refused: {wanted}")
        if refused is not None and wanted is None:
            raise WronglyRefused(name, f"step {step}, {told(operation)}, was refused: {refused}")
        if name == "gather" and refused is None:
            self._keep(step, views)

    def _rows(self, operation: Operation) -> Any:
        """The mapping of a gather. An engine refills one buffer in place; then it is a view of that."""
        if operation[0] != "gather":
            return None
        rows = self.arguments["idx_mappings"][operation[1]]
        if not self.arguments["refilled"]:
            return rows
        view = self.arguments["idx_buffer"][: rows.shape[0]]
        view.copy_(rows)
        return view

    def _host_rows(self, operation: Operation) -> Any:
        """As many rows for the reference: which ones is not needed to tell what is refused, and lies on the device."""
        if operation[0] != "gather":
            return None
        return np.zeros(tuple(self.arguments["idx_mappings"][operation[1]].shape), np.int32)

    def _keep(self, step: int, views: Any) -> None:
        import torch

        if not isinstance(views, tuple | list) or not all(isinstance(view, torch.Tensor) for view in views):
            raise WrongShape("tables", f"step {step}: gather returned {type(views).__name__}, not a tuple of tensors")
        addresses = [view.data_ptr() if view.numel() else 0 for view in views]
        for group, (now, before) in enumerate(zip(addresses, self.addresses, strict=False)):
            if now and before and now != before:
                raise AddressMoved("tables", f"step {step}: the view of group {group} lies elsewhere than before")
        self.addresses = [now or before for now, before in zip(addresses, self.addresses or addresses, strict=False)]
        self.gathered.append([view.clone() for view in views])


def _attempt(tables: Any, operation: Operation, rows: Any) -> tuple[Any, ValueError | None]:
    """What an operation returned (only a gather returns anything), and what it was refused with, if it was."""
    name, *values = operation
    try:
        if name == "append":
            request, ids, overwrite = values
            given = [list(some) for some in ids]
            tables.append(request, given, overwrite)
            for some in given:
                some.clear()  # an engine uses its lists again
        elif name == "gather":
            return tables.gather(rows, values[1]), None
        else:
            getattr(tables, name)(*values)
    except ValueError as error:
        return None, error
    return None, None


def told(operation: Operation) -> str:
    """An operation as one would write it: ``append(1, [[5, 6]], overwrite=False)``."""
    name, *values = operation
    if name == "append":
        request, ids, overwrite = values
        return f"append({request}, {[list(some) for some in ids]}, overwrite={overwrite})"
    if name == "gather":
        return f"gather(idx_mappings[{values[0]}], {values[1]})"
    return f"{name}({', '.join(map(str, values))})"


def lived(inputs: Inputs) -> list[tuple[Operation, tuple[np.ndarray, ...] | None, str]]:
    """What the specification says of each operation: the operation, what a gather shows, and why one is refused."""
    names = ("block_sizes", "max_num_reqs", "max_num_blocks_per_group")
    model = BlockTables(**cast(dict[str, Any], {name: inputs[name] for name in names}))
    mappings = cast(tuple[Array, ...], inputs["idx_mappings"])
    story = []
    for operation in cast(tuple[Operation, ...], inputs["operations"]):
        rows = mappings[operation[1]].data if operation[0] == "gather" else None
        shown, refused = _attempt(model, operation, rows)
        story.append((operation, shown, str(refused) if refused is not None else ""))
    return story


def expected(inputs: Inputs) -> Expected:
    """What every gather shows; or that the constructor refuses."""
    try:
        story = lived(inputs)
    except ContractError as error:
        return Refused(error.argument, str(error))
    outputs: dict[str, Any] = {"tables": tuple(shown for _, shown, _ in story if shown is not None)}
    held = cast(Array, inputs["idx_buffer"]).data.copy()
    for operation, shown, _ in story:
        if shown is not None and inputs["refilled"]:
            rows = cast(tuple[Array, ...], inputs["idx_mappings"])[operation[1]].data
            held[: len(rows)] = rows
    return Values({**outputs, "idx_buffer": held})


def resample(inputs: Inputs) -> tuple[Inputs, ...]:
    """Every gather's rows the other way round, where that is another answer."""
    first, mappings = expected(inputs), cast(tuple[Array, ...], inputs["idx_mappings"])
    if not isinstance(first, Values):
        return ()
    turned = {**inputs, "idx_mappings": tuple(item.with_values(item.data[::-1]) for item in mappings)}
    other = expected(turned)
    assert isinstance(other, Values)
    return () if _plain(other) == _plain(first) else (turned,)


def _plain(values: Values) -> list[list[list[list[int]]]]:
    return [[table.tolist() for table in shown] for shown in cast(Any, values.outputs["tables"])]


def traits(inputs: Inputs) -> frozenset[str]:
    """What a fault may need: these names end up in buckets."""
    operations = cast(tuple[Operation, ...], inputs["operations"])
    capacities = cast(Sequence[int], inputs["max_num_blocks_per_group"])
    try:
        refused = [operation for operation, _, reason in lived(inputs) if reason]
    except ContractError:
        return frozenset({"constructor"})
    mappings = cast(tuple[Array, ...], inputs["idx_mappings"])
    rows = [row for mapping in mappings for row in mapping.data.tolist()]
    found = {
        "several_groups": len(capacities) > 1,
        "no_groups": not capacities,
        "append": any(name == "append" and any(rest[1]) for name, *rest in operations),
        "overwrite": any(name == "append" and rest[2] for name, *rest in operations),
        "self_move": any(name == "move" and rest[0] == rest[1] for name, *rest in operations),
        "move": any(name == "move" and rest[0] != rest[1] for name, *rest in operations),
        "swap": any(name == "swap" and rest[0] != rest[1] for name, *rest in operations),
        "clear": any(name == "clear" for name, *_ in operations),
        "refused": bool(refused),
        "several_writes": _several_writes(operations),
        "several_applies": sum(name == "apply" for name, *_ in operations) > 1,
        "several_gathers": len(mappings) > 1,
        "padding_rows": any(name == "gather" and rest[1] > len(mappings[rest[0]].data) for name, *rest in operations),
        "minus_one": -1 in rows,
        "id_outside": any(row < -1 or row >= cast(int, inputs["max_num_reqs"]) for row in rows),
        "refilled": inputs["refilled"] is True,
    }
    return frozenset(name for name, there in found.items() if there)


def _several_writes(operations: Sequence[Operation]) -> bool:
    """Whether one request gets blocks more than once before what is staged is applied."""
    written: list[int] = []
    for name, *rest in operations:
        if name == "apply":
            written = []
        elif name == "append":
            if rest[0] in written:
                return True
            written.append(rest[0])
    return False


def sketch(inputs: Inputs) -> str:
    """One line an operation: what must be refused, and what each gather shows."""
    try:
        story = lived(inputs)
    except ContractError:
        return ""
    lines = []
    for step, (operation, shown, refused) in enumerate(story):
        text = f"{step:>4}  {told(operation)}"
        lines.append(f"{text}  -> refused: {refused}" if refused else text)
        for group, table in enumerate(shown or ()):
            lines.append(f"{'':>8}group {group}: {table.tolist() if table.size <= 60 else f'{table.shape} ids'}")
    return "\n".join(lines)


CONTRACTS = (
    Contract(
        family="block_table",
        name="BlockTables",
        section="4.1",
        summary="which blocks each request owns: append, clear, move, swap, apply, gather",
        kind="stateful",
        inputs=(
            Input(
                name="block_sizes",
                role="scalar",
                many=True,
                compiled=True,
                doc="G ints >= 1, tokens a block of each group",
            ),
            Input(name="max_num_reqs", role="scalar", doc="int >= 1, rows"),
            Input(name="max_num_blocks_per_group", role="scalar", many=True, doc="G ints >= 0, columns of each group"),
            Input(name="operations", role="scalar", many=True, doc="what is done, in order; gather names a mapping"),
            Input(name="idx_mappings", role="device", many=True, doc="int32 or int64 [R], the rows of each gather"),
            Input(
                name="refilled", role="scalar", doc="bool; True: gathers get a view of idx_buffer, refilled before each"
            ),
            Input(
                name="idx_buffer",
                role="device",
                inout=True,
                doc="[max_num_reqs], a buffer that engines refill in place before each step",
            ),
        ),
        outputs=(Output(name="tables", doc="for each gather and group, int32 [num_reqs_padded, M_g]"),),
        domain=machine.domain,
        resample=resample,
        expected=expected,
        traits=traits,
        sketch=sketch,
        call=exercise,
        complains=complaint,
        optimized="optimized.block_tables:BlockTables",
        runs="triton",
        relations=RELATIONS,
        bindings=bindings.CLASSES,
        known=KNOWN,
    ),
)
