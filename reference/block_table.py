"""Block tables: which blocks of the KV cache each request owns, per KV-cache group."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import numpy.typing as npt

from reference.errors import NULL_BLOCK_ID, ContractError, OnlyMemorySafety
from reference.refusals import is_int, refuse_bad_array, refuse_bad_index, refuse_bad_int

_INT32_MIN, _INT32_MAX = -(2**31), 2**31 - 1


class BlockTables:
    """The block tables of ``G`` KV-cache groups: for each of them and each request, a list of block ids.

    Every operation changes what is *staged*, in the order of the calls; :meth:`gather` shows what was staged at the
    last :meth:`apply`. Refusals (:class:`ContractError`) follow from what is staged, and leave everything as it was.

    ``block_sizes``
        list or tuple of ``G`` ints of at least 1: tokens a block of each group. No result depends on them.
    ``max_num_reqs``
        how many requests there are, an ``int`` of at least 1. All begin without blocks.
    ``max_num_blocks_per_group``
        list or tuple of ``G`` ints of at least 0: ``M_g``, how many blocks a request can own in each group.
    ``device``
        where an implementation puts its tensors; not looked at here.

    Refused, in this order: an argument of another type, an ``int`` that is none or too small (a ``bool`` is no
    ``int``), lists of different lengths. ``G = 0`` is legal.

    Source of the definition: contracts.md, section 4.1.

    >>> tables = BlockTables([16], 2, [3])
    >>> tables.append(1, [[7, 8]], overwrite=False)
    >>> tables.apply()
    >>> tables.gather(np.array([1]), 2)[0].tolist()
    [[7, 8, 0], [0, 0, 0]]
    """

    def __init__(
        self,
        block_sizes: Sequence[int],
        max_num_reqs: int,
        max_num_blocks_per_group: Sequence[int],
        device: object = None,
    ) -> None:
        _refuse_bad_ints("block_sizes", block_sizes, 1)
        refuse_bad_int("max_num_reqs", max_num_reqs, 1)
        _refuse_bad_ints("max_num_blocks_per_group", max_num_blocks_per_group, 0)
        if len(max_num_blocks_per_group) != len(block_sizes):
            rule = f"the length must be that of block_sizes, {len(block_sizes)}"
            raise ContractError("max_num_blocks_per_group", len(max_num_blocks_per_group), rule)
        self._capacities = tuple(max_num_blocks_per_group)
        self._staged = {request: self._no_blocks() for request in range(max_num_reqs)}
        self._applied = deepcopy(self._staged)

    def append(self, req: int, ids_per_group: Sequence[Sequence[int]], overwrite: bool) -> None:
        """Give request ``req`` more blocks, in every group; with ``overwrite`` in place of those it has.

        ``ids_per_group``
            list or tuple of ``G`` lists or tuples of block ids, ints in ``[0, 2**31)``. Each may be empty, and they
            need not be of one length.

        Refused: a request that is no ``int`` in ``[0, max_num_reqs)``; a number of lists other than ``G``; an id out
        of range; an ``overwrite`` that is no ``bool``; blocks past the capacity of any group, and then no group
        changes.
        """
        self._refuse_bad_request("req", req)
        self._refuse_bad_ids(ids_per_group)
        if not isinstance(overwrite, bool):
            raise ContractError("overwrite", overwrite, "it must be a bool")
        kept = self._no_blocks() if overwrite else self._staged[req]
        rows = [[*old, *new] for old, new in zip(kept, ids_per_group, strict=True)]
        for group, capacity in enumerate(self._capacities):
            if len(rows[group]) > capacity:
                rule = f"request {req} must own at most {capacity} blocks of group {group}"
                raise ContractError("ids_per_group", len(rows[group]), rule)
        self._staged[req] = rows

    def clear(self, req: int) -> None:
        """Take all its blocks from request ``req``. Refused: a request that is no ``int`` in ``[0, max_num_reqs)``."""
        self._refuse_bad_request("req", req)
        self._staged[req] = self._no_blocks()

    def move(self, src: int, dst: int) -> None:
        """Give ``dst`` the blocks of ``src`` in place of its own, and leave ``src`` without; nothing if they are one.

        Refused: a request that is no ``int`` in ``[0, max_num_reqs)``.
        """
        self._refuse_bad_request("src", src)
        self._refuse_bad_request("dst", dst)
        if src != dst:
            self._staged[dst] = self._staged[src]
            self._staged[src] = self._no_blocks()

    def swap(self, a: int, b: int) -> None:
        """Exchange the blocks of ``a`` and ``b``. Refused: a request that is no ``int`` in ``[0, max_num_reqs)``."""
        self._refuse_bad_request("a", a)
        self._refuse_bad_request("b", b)
        self._staged[a], self._staged[b] = self._staged[b], self._staged[a]

    def apply(self) -> None:
        """Let :meth:`gather` show what is staged now."""
        self._applied = deepcopy(self._staged)

    def gather(
        self, idx_mapping: npt.NDArray[np.signedinteger], num_reqs_padded: int
    ) -> tuple[npt.NDArray[np.int32], ...]:
        """Return ``G`` tables int32 ``[num_reqs_padded, M_g]``: row ``b`` has the blocks of ``idx_mapping[b]``.

        An implementation returns views that keep their addresses; these are new arrays.

        ``idx_mapping``
            int32 or int64 ``[R]``: the request of each row. One outside ``0..max_num_reqs - 1`` (also -1) gives a row
            of NULL blocks.
        ``num_reqs_padded``
            rows of the result, an ``int`` in ``R..max_num_reqs``.

        Columns at or past the number of a request's blocks, and rows ``R..num_reqs_padded - 1``, are NULL.

        Refused, in this order: an ``idx_mapping`` that is not one-dimensional, or neither int32 nor int64; a
        ``num_reqs_padded`` that is not an ``int`` of at least 0, is below ``R``, or above ``max_num_reqs``.
        """
        refuse_bad_index("idx_mapping", idx_mapping)
        refuse_bad_int("num_reqs_padded", num_reqs_padded, 0)
        if num_reqs_padded < idx_mapping.size:
            rule = f"it must be at least the size of idx_mapping, {idx_mapping.size}"
            raise ContractError("num_reqs_padded", num_reqs_padded, rule)
        if num_reqs_padded > len(self._applied):
            raise ContractError("num_reqs_padded", num_reqs_padded, f"it must be at most {len(self._applied)}")
        tables = []
        for group, capacity in enumerate(self._capacities):
            table = np.full((num_reqs_padded, capacity), NULL_BLOCK_ID, dtype=np.int32)
            for row, request in enumerate(idx_mapping.tolist()):
                if request in self._applied:
                    for column, block in enumerate(self._applied[request][group]):
                        table[row, column] = block
            tables.append(table)
        return tuple(tables)

    def _no_blocks(self) -> list[list[int]]:
        return [[] for _ in self._capacities]

    def _refuse_bad_request(self, name: str, request: object) -> None:
        if not is_int(request) or request not in self._staged:
            raise ContractError(name, request, f"it must be an int in 0..{len(self._staged) - 1}")

    def _refuse_bad_ids(self, ids_per_group: object) -> None:
        groups = _list_or_tuple("ids_per_group", ids_per_group)
        if len(groups) != len(self._capacities):
            rule = f"the length must be the number of groups, {len(self._capacities)}"
            raise ContractError("ids_per_group", len(groups), rule)
        for ids in groups:
            for block in _list_or_tuple("ids_per_group", ids):
                if not is_int(block) or not 0 <= block <= _INT32_MAX:
                    raise ContractError("ids_per_group", block, "a block id must be an int in 0..2**31 - 1")


def gather_block_tables(
    block_tables: Sequence[npt.NDArray[np.int32]],
    num_blocks: npt.NDArray[np.signedinteger],
    idx_mapping: npt.NDArray[np.signedinteger],
    out: Sequence[npt.NDArray[np.int32]],
) -> tuple[list[npt.NDArray[np.int32]]]:
    """Return ``(out,)``: the new contents of the batch's block tables, for ``G`` groups and ``R`` batch rows.

    Row ``b`` of ``out[g]`` begins with the first ``n`` blocks of request ``idx_mapping[b]`` in group ``g``, where
    ``n = num_blocks[g, idx_mapping[b]]`` clipped to ``[0, M_g]``. All other elements of ``out`` are NULL: behind those
    blocks, in the rows past ``R``, and in the rows of requests outside the table (also -1).

    ``block_tables``
        list or tuple of ``G`` int32 tensors ``[max_reqs, M_g]``, in blocks, a row for each request. Any ids: they are
        copied as they are.
    ``num_blocks``
        int32 or int64 ``[G, max_reqs]``: how many blocks each request has in each group.
    ``idx_mapping``
        int32 or int64 ``[R]``: the request of each batch row. One request may stand in several.
    ``out`` (in)
        list or tuple of ``G`` int32 tensors ``[padded, M_g]``, ``padded >= R``: not changed by this function, and
        nothing of their values remains.
    ``out`` (out)
        list of ``G`` new int32 arrays of those shapes.

    Refused (:class:`ContractError`), in this order: ``block_tables`` or ``out`` that is no list or tuple, or has a
    tensor that is not two-dimensional or not int32; ``num_blocks`` that is not two-dimensional, or neither int32 nor
    int64; ``idx_mapping`` that is not one-dimensional, or neither; numbers of groups, requests, columns or padded rows
    that disagree; fewer padded rows than ``R``. ``G = 0`` is legal, and every other count may be 0 too.

    Source of the definition: contracts.md, section 4.2.
    """
    _refuse_bad_gather(block_tables, num_blocks, idx_mapping, out)
    gathered = []
    for group, table in enumerate(block_tables):
        num_requests, num_columns = table.shape
        rows = np.full(out[group].shape, NULL_BLOCK_ID, dtype=np.int32)
        for row, request in enumerate(idx_mapping.tolist()):
            if 0 <= request < num_requests:
                for column in range(min(int(num_blocks[group, request]), num_columns)):
                    rows[row, column] = table[request, column]
        gathered.append(rows)
    return (gathered,)


def gather_block_tables_windowed(
    block_tables: Sequence[npt.NDArray[np.int32]],
    num_blocks: npt.NDArray[np.signedinteger],
    idx_mapping: npt.NDArray[np.signedinteger],
    num_computed_tokens: npt.NDArray[np.signedinteger],
    window_reach: Sequence[int] | npt.NDArray[np.signedinteger],
    block_sizes: Sequence[int] | npt.NDArray[np.signedinteger],
    out: Sequence[npt.NDArray[np.int32]],
) -> tuple[list[npt.NDArray[np.int32]]]:
    """Return ``(out,)`` as :func:`gather_block_tables` does, without the blocks that a sliding window has left behind.

    In group ``g`` with ``window_reach[g] > 0``, columns below
    ``max(num_computed_tokens[idx_mapping[b]] - window_reach[g], 0) // block_sizes[g]`` are NULL too.

    ``num_computed_tokens``
        int32 or int64 ``[max_reqs]``, in tokens, by request. Any values: below the reach, nothing is left behind.
    ``window_reach``
        ``G`` ints of at least 0, on the host, in tokens: how far back the first new token of a request looks. 0: no
        window. A list, a tuple, or an int32 or int64 array ``[G]``.
    ``block_sizes``
        ``G`` ints of at least 1, on the host: tokens a block. As ``window_reach``.

    Refused (:class:`ContractError`), in this order: what :func:`gather_block_tables` refuses; ``num_computed_tokens``
    that is not one-dimensional, or neither int32 nor int64, or not one a request; then for ``window_reach`` and
    ``block_sizes`` another type, an ``int`` that is none or too small, and another number than ``G``.

    Source of the definition: contracts.md, section 4.6.
    """
    _refuse_bad_gather(block_tables, num_blocks, idx_mapping, out)
    refuse_bad_index("num_computed_tokens", num_computed_tokens)
    if num_computed_tokens.size != num_blocks.shape[1]:
        rule = f"the size must be the number of requests in num_blocks, {num_blocks.shape[1]}"
        raise ContractError("num_computed_tokens", num_computed_tokens.size, rule)
    reaches = _one_int_a_group("window_reach", window_reach, 0, len(block_tables))
    sizes = _one_int_a_group("block_sizes", block_sizes, 1, len(block_tables))

    (gathered,) = gather_block_tables(block_tables, num_blocks, idx_mapping, out)
    for rows, reach, block_size in zip(gathered, reaches, sizes, strict=True):
        for row, request in enumerate(idx_mapping.tolist()):
            if reach > 0 and 0 <= request < num_computed_tokens.size:
                first = max(int(num_computed_tokens[request]) - reach, 0) // block_size
                for column in range(min(first, rows.shape[1])):
                    rows[row, column] = NULL_BLOCK_ID
    return (gathered,)


def kernel_block_table(
    block_table: npt.NDArray[np.int32], blocks_per_kernel_block: int, stride: int
) -> tuple[npt.NDArray[np.int32]]:
    """Return ``(kernel_table,)``: each block of a table as the ``k`` smaller blocks that a kernel works on.

    Column ``c * k + j`` is ``block_table[r, c] * stride + j`` for ``0 <= j < k``. Every column is expanded: the NULL
    block becomes ``0..k - 1``, and negative ids follow the formula too.

    ``block_table``
        int32 ``[R, M]``, in blocks of the KV-cache manager.
    ``blocks_per_kernel_block``
        ``k``, an ``int`` of at least 1: how many kernel blocks one block of the table holds.
    ``stride``
        an ``int`` of at least ``k``, in kernel blocks: from one block of the table to the next. Above ``k`` where
        something else lies between them.
    ``kernel_table``
        int32 ``[R, M * k]``, in kernel blocks; a new array.

    Refused (:class:`ContractError`), in this order: a table that is not two-dimensional or not int32; ``k`` that is no
    ``int`` of at least 1, or so large that int32 cannot hold the NULL block's ``k - 1``; a stride that is no ``int`` of
    at least ``k``.

    No values are promised (:class:`OnlyMemorySafety`) where int32 cannot hold a kernel block's number.

    Source of the definition: contracts.md, section 4.4.
    """
    refuse_bad_array("block_table", block_table, 2, np.int32)
    refuse_bad_int("blocks_per_kernel_block", blocks_per_kernel_block, 1)
    if blocks_per_kernel_block - 1 > _INT32_MAX:
        raise ContractError("blocks_per_kernel_block", blocks_per_kernel_block, "it must be at most 2**31")
    if not is_int(stride) or stride < blocks_per_kernel_block:
        rule = f"it must be an int of at least blocks_per_kernel_block, {blocks_per_kernel_block}"
        raise ContractError("stride", stride, rule)

    num_rows, num_columns = block_table.shape
    kernel_table = np.zeros((num_rows, num_columns * blocks_per_kernel_block), dtype=np.int32)
    for row in range(num_rows):
        for column in range(num_columns):
            for part in range(blocks_per_kernel_block):
                block = int(block_table[row, column]) * stride + part
                if not _INT32_MIN <= block <= _INT32_MAX:
                    raise OnlyMemorySafety(f"kernel block {block} of row {row} does not fit int32")
                kernel_table[row, column * blocks_per_kernel_block + part] = block
    return (kernel_table,)


def _refuse_bad_gather(
    block_tables: Sequence[npt.NDArray[np.int32]],
    num_blocks: npt.NDArray[np.signedinteger],
    idx_mapping: npt.NDArray[np.signedinteger],
    out: Sequence[npt.NDArray[np.int32]],
) -> None:
    for name, tables in (("block_tables", block_tables), ("out", out)):
        for table in _list_or_tuple(name, tables):
            refuse_bad_array(name, table, 2, np.int32)
    refuse_bad_index("num_blocks", num_blocks, dimensions=2)
    refuse_bad_index("idx_mapping", idx_mapping)
    _refuse_disagreeing_groups(block_tables, num_blocks.shape, idx_mapping.size, out)


def _refuse_disagreeing_groups(
    block_tables: Sequence[npt.NDArray[np.int32]],
    groups_and_requests: tuple[int, ...],
    num_rows: int,
    out: Sequence[npt.NDArray[np.int32]],
) -> None:
    num_groups, num_requests = groups_and_requests
    for name, tables in (("block_tables", block_tables), ("out", out)):
        if len(tables) != num_groups:
            raise ContractError(name, len(tables), f"the groups must be those of num_blocks, {num_groups}")
    for table in block_tables:
        if table.shape[0] != num_requests:
            raise ContractError("block_tables", table.shape, f"the rows must be those of num_blocks, {num_requests}")
    for table, rows in zip(block_tables, out, strict=True):
        if rows.shape[1] != table.shape[1]:
            raise ContractError("out", rows.shape, f"the columns must be those of the group's table, {table.shape[1]}")
    for rows in out:
        if rows.shape[0] != out[0].shape[0]:
            raise ContractError("out", rows.shape, f"the rows must be those of the first group, {out[0].shape[0]}")
    for rows in out:
        if rows.shape[0] < num_rows:
            raise ContractError("out", rows.shape, f"the rows must be at least those of idx_mapping, {num_rows}")


def _one_int_a_group(name: str, values: object, least: int, num_groups: int) -> list[int]:
    if isinstance(values, np.ndarray):
        refuse_bad_index(name, values)
        values = values.tolist()
    ints = _list_or_tuple(name, values)
    _refuse_bad_ints(name, ints, least)
    if len(ints) != num_groups:
        raise ContractError(name, len(ints), f"there must be one a group, {num_groups}")
    return list(ints)


def _refuse_bad_ints(name: str, values: object, least: int) -> None:
    for value in _list_or_tuple(name, values):
        if not is_int(value) or value < least:
            raise ContractError(name, value, f"each must be an int of at least {least}")


def _list_or_tuple(name: str, values: object) -> Sequence[Any]:
    if not isinstance(values, list | tuple):
        raise ContractError(name, type(values).__name__, "it must be a list or a tuple")
    return values
