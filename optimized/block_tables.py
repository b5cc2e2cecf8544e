"""The block tables of all requests and KV-cache groups: kept on the host, copied to the device once a step.

The host knows what every row holds, so changes are merged there, whatever their order: a step is one copy of the rows'
changed stretches and one launch that puts each in its place. The tables of all groups lie in one buffer.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import numpy.typing as npt
import torch
import triton
import triton.language as tl

from optimized.block_table import gather_block_tables
from optimized.errors import ContractError
from optimized.launching import device_of, programs_each
from optimized.refusals import is_int, refuse_bad_index, refuse_bad_int, refuse_bad_ints, refuse_bad_sequence

_INT32_MAX = 2**31 - 1
_FIELDS = 5  # of a record

# Of the kernel.
_TILE = tl.constexpr(256)
_RECORD = tl.constexpr(_FIELDS)

# Every runtime argument: a count, an address or its alignment never makes Triton compile again.
_ARGUMENTS = ["records", "ids", "tables", "num_blocks"]


class BlockTables:
    """The block tables of ``G`` KV-cache groups: for each of them and each request, a list of block ids.

    Every operation changes what is *staged*, in the order of the calls; :meth:`apply` brings the changes to the device,
    and :meth:`gather` shows what was staged at the last :meth:`apply`. Refusals (:class:`ContractError`) follow from
    what is staged, and leave everything as it was. The host never waits for the device.

    ``block_sizes``
        list or tuple of ``G`` ints of at least 1: tokens a block of each group. No result depends on them.
    ``max_num_reqs``
        how many requests there are, an ``int`` of at least 1. All begin without blocks.
    ``max_num_blocks_per_group``
        list or tuple of ``G`` ints of at least 0: ``M_g``, how many blocks a request can own in each group.
    ``device``
        where the tables are, a ``torch.device`` or its name.

    Refused, in this order: an argument of another type, an ``int`` that is none or too small (a ``bool`` is no
    ``int``), lists of different lengths. ``G = 0`` is legal.

    Source of the definition: contracts.md, section 4.1.
    """

    def __init__(
        self,
        block_sizes: Sequence[int],
        max_num_reqs: int,
        max_num_blocks_per_group: Sequence[int],
        device: torch.device | str,
    ) -> None:
        refuse_bad_ints("block_sizes", block_sizes, 1)
        refuse_bad_int("max_num_reqs", max_num_reqs, 1)
        refuse_bad_ints("max_num_blocks_per_group", max_num_blocks_per_group, 0)
        if len(max_num_blocks_per_group) != len(block_sizes):
            rule = f"the length must be that of block_sizes, {len(block_sizes)}"
            raise ContractError("max_num_blocks_per_group", len(max_num_blocks_per_group), rule)
        shapes = [(max_num_reqs, columns) for columns in max_num_blocks_per_group]
        self._max_num_reqs = max_num_reqs
        self._capacities = np.array(max_num_blocks_per_group, np.int64)
        self._rows = [np.zeros(shape, np.int32) for shape in shapes]
        self._counts = np.zeros((len(shapes), max_num_reqs), np.int64)
        self._changed: dict[tuple[int, int], tuple[int, int]] = {}
        # Where the table of each group begins in the buffer of all.
        self._starts = [0, *accumulate(rows * columns for rows, columns in shapes)]
        self._buffer = torch.empty(self._starts[-1], dtype=torch.int32, device=device)
        self._tables = [
            self._buffer[start : start + rows * columns].view(rows, columns)
            for start, (rows, columns) in zip(self._starts, shapes, strict=False)
        ]
        self._num_blocks = torch.zeros((len(shapes), max_num_reqs), dtype=torch.int32, device=device)
        self._gathered = [torch.empty(shape, dtype=torch.int32, device=device) for shape in shapes]

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
        ids = self._checked_ids(ids_per_group)
        if not isinstance(overwrite, bool):
            raise ContractError("overwrite", overwrite, "it must be a bool")
        starts = [0 if overwrite else int(count) for count in self._counts[:, req]]
        stops = [start + len(new) for start, new in zip(starts, ids, strict=True)]
        for group, (stop, capacity) in enumerate(zip(stops, self._capacities, strict=True)):
            if stop > capacity:
                rule = f"request {req} must own at most {capacity} blocks of group {group}"
                raise ContractError("ids_per_group", stop, rule)
        for group, (start, stop) in enumerate(zip(starts, stops, strict=True)):
            self._rows[group][req, start:stop] = ids[group]
            self._note(group, req, start, stop)

    def clear(self, req: int) -> None:
        """Take all its blocks from request ``req``. Refused: a request that is no ``int`` in ``[0, max_num_reqs)``."""
        self._refuse_bad_request("req", req)
        for group in range(len(self._rows)):
            self._note(group, req, 0, 0)

    def move(self, src: int, dst: int) -> None:
        """Give ``dst`` the blocks of ``src`` in place of its own, and leave ``src`` without; nothing if they are one.

        Refused: a request that is no ``int`` in ``[0, max_num_reqs)``.
        """
        self._refuse_bad_request("src", src)
        self._refuse_bad_request("dst", dst)
        if src == dst:
            return
        for group, rows in enumerate(self._rows):
            count = int(self._counts[group, src])
            rows[dst, :count] = rows[src, :count]
            self._note(group, dst, 0, count)
            self._note(group, src, 0, 0)

    def swap(self, a: int, b: int) -> None:
        """Exchange the blocks of ``a`` and ``b``. Refused: a request that is no ``int`` in ``[0, max_num_reqs)``."""
        self._refuse_bad_request("a", a)
        self._refuse_bad_request("b", b)
        if a == b:
            return
        for group, rows in enumerate(self._rows):
            of_a, of_b = (int(self._counts[group, request]) for request in (a, b))
            longer = max(of_a, of_b)
            rows[[a, b], :longer] = rows[[b, a], :longer]
            self._note(group, a, 0, of_b)
            self._note(group, b, 0, of_a)

    def apply(self) -> None:
        """Let :meth:`gather` show what is staged now: one copy and one launch, or neither if nothing has changed.

        It cannot be part of a captured graph; a graph that holds :meth:`gather` sees every later :meth:`apply`.
        """
        if not self._changed:
            return
        records, ids = self._packed_changes()
        size, longest = records.size + -(-ids.size // 2), int(records[:, -1].max())
        # A new buffer each time: the copy out of the last one may not have begun. Torch reuses those that are done.
        staged = torch.empty(size, dtype=torch.int64, pin_memory=self._buffer.is_cuda)
        values = staged.numpy()
        values[: records.size] = records.ravel()
        values[records.size :].view(np.int32)[: ids.size] = ids
        upload = torch.empty_like(staged, device=self._buffer.device, pin_memory=False)
        upload.copy_(staged, non_blocking=True)
        with device_of(self._buffer):
            _apply_kernel[(len(records), programs_each(len(records), longest, _TILE.value))](
                upload, upload[records.size :].view(torch.int32), self._buffer, self._num_blocks, num_warps=1
            )
        self._changed.clear()

    def gather(self, idx_mapping: torch.Tensor, num_reqs_padded: int) -> tuple[torch.Tensor, ...]:
        """Return ``G`` tables int32 ``[num_reqs_padded, M_g]``: row ``b`` has the blocks of ``idx_mapping[b]``.

        They are views of the first rows of one tensor a group, which every call overwrites; their addresses never
        change.

        ``idx_mapping``
            int32 or int64 ``[R]``, any stride: the request of each row. One outside ``0..max_num_reqs - 1`` (also -1)
            gives a row of NULL blocks.
        ``num_reqs_padded``
            rows of the result, an ``int`` in ``R..max_num_reqs``.

        Columns at or past the number of a request's blocks, and rows ``R..num_reqs_padded - 1``, are NULL.

        Refused: an ``idx_mapping`` that is not one-dimensional, neither int32 nor int64, or on another device; rows
        that are no ``int``, fewer than ``R`` or more than ``max_num_reqs``.
        """
        refuse_bad_index("idx_mapping", idx_mapping)
        refuse_bad_int("num_reqs_padded", num_reqs_padded, 0)
        if num_reqs_padded < idx_mapping.numel():
            rule = f"it must be at least the size of idx_mapping, {idx_mapping.numel()}"
            raise ContractError("num_reqs_padded", num_reqs_padded, rule)
        if num_reqs_padded > self._max_num_reqs:
            raise ContractError("num_reqs_padded", num_reqs_padded, f"it must be at most {self._max_num_reqs}")
        views = tuple(rows[:num_reqs_padded] for rows in self._gathered)
        gather_block_tables(block_tables=self._tables, num_blocks=self._num_blocks, idx_mapping=idx_mapping, out=views)
        return views

    def _note(self, group: int, req: int, start: int, stop: int) -> None:
        """Columns ``start`` to ``stop`` of a row, which now ends there, hold something else than on the device."""
        count = self._counts[group, req]
        if start == stop == count:
            return
        first, last = self._changed.get((group, req), (start, stop))
        self._changed[group, req] = min(first, start), max(last, stop)
        self._counts[group, req] = stop

    def _packed_changes(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
        """A record for each changed row, and the ids of all: place in the buffer, place and value of the count, ids."""
        records = np.empty((len(self._changed), _FIELDS), np.int64)
        stretches, packed = [], 0
        for number, ((group, req), (start, stop)) in enumerate(self._changed.items()):
            count = int(self._counts[group, req])
            start, stop = min(start, count), min(stop, count)
            place = self._starts[group] + req * int(self._capacities[group]) + start
            records[number] = place, group * self._max_num_reqs + req, count, packed, stop - start
            stretches.append(self._rows[group][req, start:stop])
            packed += stop - start
        return records, np.concatenate(stretches)

    def _refuse_bad_request(self, name: str, request: object) -> None:
        if not is_int(request) or not 0 <= request < self._max_num_reqs:
            raise ContractError(name, request, f"it must be an int in 0..{self._max_num_reqs - 1}")

    def _checked_ids(self, ids_per_group: object) -> Sequence[Sequence[int]]:
        refuse_bad_sequence("ids_per_group", ids_per_group)
        groups: Sequence[Sequence[int]] = ids_per_group  # type: ignore[assignment]  # a list or a tuple
        if len(groups) != len(self._rows):
            rule = f"the length must be the number of groups, {len(self._rows)}"
            raise ContractError("ids_per_group", len(groups), rule)
        for ids in groups:
            refuse_bad_sequence("ids_per_group", ids)
            # The types of a long prompt's ids all at once: looking at each id takes several times as long.
            if set(map(type, ids)) <= {int} and (not ids or (min(ids) >= 0 and max(ids) <= _INT32_MAX)):
                continue
            for block in ids:
                if not is_int(block) or not 0 <= block <= _INT32_MAX:
                    raise ContractError("ids_per_group", block, "a block id must be an int in 0..2**31 - 1")
        return groups


@triton.jit(do_not_specialize=_ARGUMENTS, do_not_specialize_on_alignment=_ARGUMENTS)
def _apply_kernel(records, ids, tables, num_blocks):
    """One changed row a program; programs of axis 1 share its ids."""
    record = records + tl.program_id(0).to(tl.int64) * _RECORD
    place, first, num_ids = tl.load(record), tl.load(record + 3), tl.load(record + 4)
    if tl.program_id(1) == 0:
        tl.store(num_blocks + tl.load(record + 1), tl.load(record + 2).to(tl.int32))
    places = tl.arange(0, _TILE)
    done = tl.program_id(1).to(tl.int64) * _TILE
    while done < num_ids:
        inside = done + places < num_ids
        blocks = tl.load(ids + first + done + places, mask=inside, other=0)
        tl.store(tables + place + done + places, blocks, mask=inside)
        done += tl.num_programs(1).to(tl.int64) * _TILE
