"""Slot mappings: where in the KV cache the entry of each token of a batch is written."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from reference.errors import PAD_SLOT_ID, ContractError, OnlyMemorySafety
from reference.refusals import refuse_bad_array, refuse_bad_index, refuse_bad_int

_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1


def slot_mapping(
    block_table: npt.NDArray[np.int32],
    idx_mapping: npt.NDArray[np.signedinteger],
    query_start_loc: npt.NDArray[np.signedinteger],
    positions: npt.NDArray[np.signedinteger],
    block_size: int,
    cp_size: int,
    cp_rank: int,
    cp_interleave: int,
    slot_mapping: npt.NDArray[np.int64],
) -> tuple[npt.NDArray[np.int64]]:
    """Return ``(slot_mapping,)``: the new contents of the buffer for ``T`` tokens of ``R`` batch rows.

    Batch row ``b`` is request ``idx_mapping[b]`` and holds tokens ``query_start_loc[b]`` to ``query_start_loc[b + 1]``.
    Its token at position ``p`` gets slot ``block_table[idx_mapping[b], p // B] * B + p % B``, ``B`` the block size.
    Under context parallelism (``cp_size`` ranks) a token belongs to one rank, which uses its *local* position instead
    of ``p``: with ``v = B * cp_size`` and ``off = p % v`` the owner is rank ``off // cp_interleave % cp_size``, and the
    local position is ``p // v * B + off // (cp_interleave * cp_size) * cp_interleave + off % cp_interleave``.

    ``block_table``
        int32 ``[max_reqs, M]``, in blocks: a row for each request, not for each batch row. The formula holds for any
        id, the NULL block's and negative ones included (of the latter, the result may be that of padding).
    ``idx_mapping``
        int32 or int64 ``[R]``: the request of each batch row.
    ``query_start_loc``
        int32 or int64 ``[R + 1]``, in tokens. The first start need not be 0. Tokens at or past ``T`` do not exist,
        wherever a row starts or ends.
    ``positions``
        int32 or int64 ``[T]``, in tokens from the request's first one.
    ``block_size``, ``cp_size``, ``cp_interleave``
        ints of at least 1: tokens a block, ranks, and consecutive tokens that one rank owns. Groups that are not
        sharded are called with ``cp_size`` 1, with which the local position is ``p``.
    ``cp_rank``
        an ``int`` in ``0..cp_size - 1``.
    ``slot_mapping`` (in)
        int64 ``[capacity]``, ``capacity >= T``: not changed by this function.
    ``slot_mapping`` (out)
        int64 ``[capacity]``. Elements before ``min(query_start_loc[0], T)`` are those of the buffer, elements from
        ``min(query_start_loc[R], T)`` to the end are -1. Between them stand the slots; -1 where the request is outside
        the table (also -1), the position is negative, the column is not in the table, or another rank owns the token.

    Refused (:class:`ContractError`), in this order: a table that is not two-dimensional or not int32; another tensor
    that is not one-dimensional, or neither int32 nor int64 (the buffer: not int64); an ``int`` that is none or too
    small (a ``bool`` is no ``int``); a rank outside ``0..cp_size - 1``; with ``cp_size > 1`` a block size that is no
    multiple of the interleave; starts that are not ``R + 1``; a capacity below ``T``.

    No values are promised (:class:`OnlyMemorySafety`) for a first start below 0, starts that decrease anywhere, and a
    slot that int64 cannot hold.

    Source of the definition: contracts.md, section 4.3, and vLLM's `compute_slot_mappings`.

    >>> table, buffer = np.array([[5, 6], [9, 0]], dtype=np.int32), np.zeros(5, dtype=np.int64)
    >>> rows, starts, positions = np.array([1, 0]), np.array([0, 1, 3]), np.array([2, 3, 4])
    >>> slot_mapping(table, rows, starts, positions, 4, 1, 0, 1, buffer)[0].tolist()
    [38, 23, 24, -1, -1]
    """
    # With the table's own block size as the kernel's, section 4.5 is section 4.3 word for word.
    return slot_mapping_hybrid(
        block_table,
        idx_mapping,
        query_start_loc,
        positions,
        block_size,
        cp_size,
        cp_rank,
        cp_interleave,
        block_size,
        True,
        slot_mapping,
    )


def slot_mapping_hybrid(
    block_table: npt.NDArray[np.int32],
    idx_mapping: npt.NDArray[np.signedinteger],
    query_start_loc: npt.NDArray[np.signedinteger],
    positions: npt.NDArray[np.signedinteger],
    block_size: int,
    cp_size: int,
    cp_rank: int,
    cp_interleave: int,
    kernel_block_size: int,
    enabled: bool,
    slot_mapping: npt.NDArray[np.int64],
) -> tuple[npt.NDArray[np.int64]]:
    """Return ``(slot_mapping,)`` where the table holds blocks of another size than the KV-cache manager's.

    As :func:`slot_mapping`, with two differences. Which rank owns a token, and its local position ``l`` (``p`` with
    ``cp_size`` 1), follow from ``block_size``; the look-up uses the kernel block size ``K``:
    ``block_table[idx_mapping[b], l // K] * K + l % K``. And a group may be switched off.

    ``kernel_block_size``
        tokens a block of ``block_table``, an ``int`` of at least 1. That it divides ``block_size`` is not asked.
    ``enabled``
        a ``bool``. ``False``: the whole buffer is -1, elements before the first start included, whatever the tensors
        hold.

    Refused (:class:`ContractError`): what :func:`slot_mapping` refuses, and, before the sizes, a kernel block size that
    is not an ``int`` of at least 1 and an ``enabled`` that is no ``bool``; also where ``enabled`` is ``False``.

    No values are promised (:class:`OnlyMemorySafety`) where :func:`slot_mapping` promises none, unless ``enabled`` is
    ``False``.

    Source of the definition: contracts.md, section 4.5, and vLLM's `compute_slot_mappings`.
    """
    refuse_bad_array("block_table", block_table, 2, np.int32)
    refuse_bad_index("idx_mapping", idx_mapping)
    refuse_bad_index("query_start_loc", query_start_loc)
    refuse_bad_index("positions", positions)
    refuse_bad_array("slot_mapping", slot_mapping, 1, np.int64)
    _refuse_bad_parallelism(block_size, cp_size, cp_rank, cp_interleave)
    refuse_bad_int("kernel_block_size", kernel_block_size, 1)
    if not isinstance(enabled, bool):
        raise ContractError("enabled", enabled, "it must be a bool")
    _refuse_bad_sizes(idx_mapping, query_start_loc, positions, slot_mapping)

    if not enabled:
        return (np.full(slot_mapping.size, PAD_SLOT_ID, dtype=np.int64),)
    starts = _starts_not_decreasing(query_start_loc)
    num_tokens = positions.size

    slots = slot_mapping.tolist()
    for row, request in enumerate(idx_mapping.tolist()):
        for token in range(min(starts[row], num_tokens), min(starts[row + 1], num_tokens)):
            local = _local_position(int(positions[token]), block_size, cp_size, cp_rank, cp_interleave)
            slots[token] = _slot(block_table, request, local, kernel_block_size)
    for padding in range(min(starts[-1], num_tokens), slot_mapping.size):
        slots[padding] = PAD_SLOT_ID
    return (np.array(slots, dtype=np.int64),)


def _local_position(position: int, block_size: int, cp_size: int, cp_rank: int, cp_interleave: int) -> int | None:
    """The position among the tokens that the rank owns; None for a token without a position here."""
    if position < 0:
        return None
    virtual_block_size = block_size * cp_size
    offset = position % virtual_block_size
    if offset // cp_interleave % cp_size != cp_rank:
        return None
    rounds = offset // (cp_interleave * cp_size)
    return position // virtual_block_size * block_size + rounds * cp_interleave + offset % cp_interleave


def _slot(block_table: npt.NDArray[np.int32], request: int, local: int | None, kernel_block_size: int) -> int:
    num_requests, num_columns = block_table.shape
    if local is None or not 0 <= request < num_requests:
        return PAD_SLOT_ID
    column = local // kernel_block_size
    if column >= num_columns:
        return PAD_SLOT_ID
    # Python integers: a block number times a block size passes 2^31 in real caches.
    slot = int(block_table[request, column]) * kernel_block_size + local % kernel_block_size
    if not _INT64_MIN <= slot <= _INT64_MAX:
        raise OnlyMemorySafety(f"slot {slot} of request {request} does not fit int64")
    return slot


def _starts_not_decreasing(query_start_loc: npt.NDArray[np.signedinteger]) -> list[int]:
    starts: list[int] = query_start_loc.tolist()
    if starts[0] < 0:
        raise OnlyMemorySafety(f"the first start is {starts[0]}")
    for row in range(len(starts) - 1):
        if starts[row + 1] < starts[row]:
            raise OnlyMemorySafety(f"the length of row {row} is {starts[row + 1] - starts[row]}")
    return starts


def _refuse_bad_parallelism(block_size: int, cp_size: int, cp_rank: int, cp_interleave: int) -> None:
    refuse_bad_int("block_size", block_size, 1)
    refuse_bad_int("cp_size", cp_size, 1)
    refuse_bad_int("cp_rank", cp_rank, 0)
    refuse_bad_int("cp_interleave", cp_interleave, 1)
    if cp_rank >= cp_size:
        raise ContractError("cp_rank", cp_rank, f"it must be below cp_size, {cp_size}")
    if cp_size > 1 and block_size % cp_interleave != 0:
        rule = f"it must be a multiple of cp_interleave, {cp_interleave}, where cp_size is above 1"
        raise ContractError("block_size", block_size, rule)


def _refuse_bad_sizes(
    idx_mapping: npt.NDArray[np.signedinteger],
    query_start_loc: npt.NDArray[np.signedinteger],
    positions: npt.NDArray[np.signedinteger],
    slot_mapping: npt.NDArray[np.int64],
) -> None:
    if query_start_loc.size != idx_mapping.size + 1:
        rule = f"the size must be one more than that of idx_mapping, {idx_mapping.size}"
        raise ContractError("query_start_loc", query_start_loc.size, rule)
    if slot_mapping.size < positions.size:
        rule = f"the size must be at least that of positions, {positions.size}"
        raise ContractError("slot_mapping", slot_mapping.size, rule)
