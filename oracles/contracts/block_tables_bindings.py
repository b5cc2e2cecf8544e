"""Upstream code for contract 4.1: the classes that hold vLLM's block tables, of the newer and of the older runner."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, cast

from oracles.arrays import Inputs
from oracles.contract import Binding, Narrowing
from oracles.contracts.block_table_bindings import (
    KERNEL_SIZES,
    NEWER,
    NEWER_FOLLOW,
    NEWER_SIGNATURES,
    NEWER_STUBS,
    OLDER,
    OLDER_FOLLOW,
    OLDER_STUBS,
    PLATFORM,
    WITHOUT_UVA,
)
from oracles.verdict import Unsupported
from reference.errors import ContractError

FULL_ROW = "exceeds row capacity"
"""What the newer class says where an append does not fit."""


def _newer(names: Mapping[str, Any]) -> type:
    class BlockTables:
        """The newer runner's class. Requests keep their row: it has neither ``move`` nor ``swap``."""

        def __init__(
            self,
            block_sizes: Sequence[int],
            max_num_reqs: int,
            max_num_blocks_per_group: Sequence[int],
            device: Any,
        ) -> None:
            upstream = names["BlockTables"]
            sizes = list(block_sizes)
            options = {KERNEL_SIZES: sizes} if KERNEL_SIZES in inspect.signature(upstream).parameters else {}
            if device.type != "cpu":
                raise Unsupported("BlockTables has its host buffers in unified memory, through vLLM's compiled parts")
            PLATFORM.device_type = device
            # No tokens: slot mappings are another contract's.
            self._tables = upstream(sizes, max_num_reqs, 0, list(max_num_blocks_per_group), device, **options)

        def append(self, req: int, ids_per_group: Sequence[Sequence[int]], overwrite: bool) -> None:
            """Stage ids. Refused with ``ValueError``, as upstream does with another exception: a row that is full."""
            try:
                self._tables.append_block_ids(req, tuple(list(ids) for ids in ids_per_group), overwrite)
            except RuntimeError as error:
                if FULL_ROW not in str(error):
                    raise
                raise ValueError(str(error)) from error

        def clear(self, req: int) -> None:
            """No blocks in place of those that the request has."""
            self.append(req, [[]] * self._tables.num_kv_cache_groups, overwrite=True)

        def apply(self) -> None:
            """Write what was staged."""
            self._tables.apply_staged_writes()

        def gather(self, idx_mapping: Any, num_reqs_padded: int) -> tuple[Any, ...]:
            """Upstream's own persistent tables."""
            return cast(tuple[Any, ...], self._tables.gather_block_tables(idx_mapping, num_reqs_padded))

    return BlockTables


def _older(names: Mapping[str, Any]) -> type:
    class BlockTables:
        """The older runner's class.

        Its tables are indexed by batch row and have no gather: the committed rows that ``idx_mapping`` names are copied
        into buffers of the adapter, and rows of other ids and of the padding are NULL there. It checks nothing, so that
        operations that must be refused are left out.
        """

        refuses = False

        def __init__(
            self,
            block_sizes: Sequence[int],
            max_num_reqs: int,
            max_num_blocks_per_group: Sequence[int],
            device: Any,
        ) -> None:
            import torch

            upstream = names["MultiGroupBlockTable"]
            sizes = list(block_sizes)
            given = {
                "max_num_reqs": max_num_reqs,
                "max_num_batched_tokens": 0,
                "pin_memory": False,
                "device": device,
                "block_sizes": sizes,
                "max_num_blocks": list(max_num_blocks_per_group),
                # Without slot mappings, upstream rounds no widths up.
                "slot_mapping_modes": [names["SlotMappingMode"].NONE] * len(sizes),
            }
            if KERNEL_SIZES in inspect.signature(upstream).parameters:
                given[KERNEL_SIZES] = sizes
            self._tables = upstream(**given)
            self._max_num_reqs = max_num_reqs
            self._gathered = [torch.zeros_like(table.block_table.gpu) for table in self._tables.block_tables]

        def append(self, req: int, ids_per_group: Sequence[Sequence[int]], overwrite: bool) -> None:
            """Behind the row's ids, or in their place."""
            write = self._tables.add_row if overwrite else self._tables.append_row
            write(tuple(list(ids) for ids in ids_per_group), req)

        def clear(self, req: int) -> None:
            """Empty a row."""
            self._tables.clear_row(req)

        def move(self, src: int, dst: int) -> None:
            """Move a row."""
            self._tables.move_row(src, dst)

        def swap(self, a: int, b: int) -> None:
            """Exchange two rows."""
            self._tables.swap_row(a, b)

        def apply(self) -> None:
            """Copy all rows to the device."""
            self._tables.commit_block_table(self._max_num_reqs)

        def gather(self, idx_mapping: Any, num_reqs_padded: int) -> tuple[Any, ...]:
            """The rows of the device's tables that ``idx_mapping`` names."""
            inside = (idx_mapping >= 0) & (idx_mapping < self._max_num_reqs)
            row = idx_mapping.clamp(0, self._max_num_reqs - 1)
            count = idx_mapping.shape[0]
            for table, gathered in zip(self._tables.block_tables, self._gathered, strict=True):
                rows = table.get_device_tensor(self._max_num_reqs).index_select(0, row)
                gathered[:count] = rows.masked_fill(~inside[:, None], 0)
                gathered[count:num_reqs_padded] = 0
            return tuple(gathered[:num_reqs_padded] for gathered in self._gathered)

    return BlockTables


def _refusals(inputs: Inputs) -> list[str]:
    """Why the contract refuses operations of a case, or its constructor."""
    # Imported late: the record of the contract, in that module, names these bindings.
    from oracles.contracts.block_tables import lived

    try:
        return [refused for _, _, refused in lived(inputs) if refused]
    except ContractError as error:
        return [str(error)]


def refuses_more_than_full_rows(inputs: Inputs) -> bool:
    """An operation that must be refused for another reason than a row that is full."""
    return any("must own at most" not in reason for reason in _refusals(inputs))


def moves_or_swaps(inputs: Inputs) -> bool:
    """A row that is moved or swapped."""
    operations = cast("tuple[tuple[Any, ...], ...]", inputs["operations"])
    return any(operation[0] in ("move", "swap") for operation in operations)


NO_MOVES = Narrowing(
    clause="requests keep their row",
    source="BlockTables has append_block_ids alone: idx_mapping orders the batch",
    excludes=moves_or_swaps,
)
FULL_ROWS_ALONE = Narrowing(
    clause="no operation must be refused but an append to a row that is full",
    source=f'BlockTables.append_block_ids: RuntimeError, "{FULL_ROW}"; it checks nothing else',
    excludes=refuses_more_than_full_rows,
)
OLDER_CLASS = ("max_num_reqs", "max_num_batched_tokens", "pin_memory", "device", "block_sizes")
OLDER_SIGNATURES = ((*OLDER_CLASS, KERNEL_SIZES, "max_num_blocks"), (*OLDER_CLASS, "max_num_blocks"))

CLASSES = (
    Binding(
        project="vllm",
        name="BlockTables",
        symbols={NEWER: ("BlockTables",), **WITHOUT_UVA},
        signatures={"BlockTables": NEWER_SIGNATURES},
        adapt=_newer,
        runs="triton",
        narrowings=(NO_MOVES, FULL_ROWS_ALONE),
        refuses=f'BlockTables.append_block_ids raises RuntimeError, "{FULL_ROW}"',
        stubs=NEWER_STUBS,
        follow=NEWER_FOLLOW,
    ),
    Binding(
        project="vllm",
        name="MultiGroupBlockTable",
        symbols={OLDER: ("MultiGroupBlockTable", "SlotMappingMode")},
        signatures={"MultiGroupBlockTable": OLDER_SIGNATURES},
        adapt=_older,
        runs="host",
        stubs=OLDER_STUBS,
        follow=OLDER_FOLLOW,
    ),
)
