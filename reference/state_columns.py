"""State columns: which blocks of recurrent state a step reads and writes, and which of its tokens are speculative."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import numpy.typing as npt

from reference.errors import NULL_BLOCK_ID, ContractError, OnlyMemorySafety
from reference.query_starts import no_values_where_twins_differ, query_lengths, refuse_other_size, starts_from_zero
from reference.refusals import refuse_bad_array, refuse_bad_index, refuse_bad_int

_MODES = ("none", "align", "all")
_INT32_MIN, _INT32_MAX = -(2**31), 2**31 - 1


def state_columns(
    block_table: npt.NDArray[np.int32],
    seq_lens: npt.NDArray[np.signedinteger],
    mamba_cache_mode: str,
    block_size: int,
    num_speculative_blocks: int,
) -> tuple[npt.NDArray[np.int32]]:
    """Return ``(state_indices,)``: the ``1 + S`` state blocks of ``R`` requests, consecutive columns of their rows.

    In mode "none" these are columns ``0..S``. In modes "align" and "all" they are columns ``c..c + S``, where ``c`` is
    the block of the last token, ``max((seq_lens[r] - 1) // block_size, 0)``: 0 for a length of 0 or less too.

    ``block_table``
        int32 ``[R, M]``, in blocks. Any ids: they are copied as they are.
    ``seq_lens``
        int32 or int64 ``[R]``, in tokens. Any values; in mode "none" they are not looked at.
    ``mamba_cache_mode``
        "none", "align" or "all".
    ``block_size``
        tokens a block of *state*, which need not be those of an attention's block; an ``int`` of at least 1.
    ``num_speculative_blocks``
        ``S``, an ``int`` of at least 0.
    ``state_indices``
        int32 ``[R, 1 + S]``, in blocks; NULL where the column is past the row. A new array; in mode "none" an
        implementation may return a view of the table.

    Refused (:class:`ContractError`), in this order: a table that is not two-dimensional or not int32; lengths that are
    not one-dimensional, or neither int32 nor int64; an unknown mode; an ``int`` that is none or too small (a ``bool``
    is no ``int``); lengths that are not ``R``; fewer than ``1 + S`` columns in mode "none".

    Source of the definition: contracts.md, section 3.1.

    >>> table = np.array([[7, 8, 9], [4, 5, 0]], dtype=np.int32)
    >>> state_columns(table, np.array([33, 9]), "align", 16, 1)[0].tolist()
    [[9, 0], [4, 5]]
    """
    refuse_bad_array("block_table", block_table, 2, np.int32)
    refuse_bad_index("seq_lens", seq_lens)
    if mamba_cache_mode not in _MODES:
        raise ContractError("mamba_cache_mode", mamba_cache_mode, f"it must be one of {', '.join(_MODES)}")
    refuse_bad_int("block_size", block_size, 1)
    refuse_bad_int("num_speculative_blocks", num_speculative_blocks, 0)
    num_requests, num_columns = block_table.shape
    refuse_other_size("seq_lens", seq_lens, num_requests, "the number of rows of block_table")
    if mamba_cache_mode == "none" and num_columns < 1 + num_speculative_blocks:
        rule = f"there must be at least 1 + num_speculative_blocks columns, {1 + num_speculative_blocks}"
        raise ContractError("block_table", block_table.shape, rule)

    state_indices = np.full((num_requests, 1 + num_speculative_blocks), NULL_BLOCK_ID, dtype=np.int32)
    for request, length in enumerate(seq_lens.tolist()):
        first = 0 if mamba_cache_mode == "none" else max((length - 1) // block_size, 0)
        for place in range(min(1 + num_speculative_blocks, max(num_columns - first, 0))):
            state_indices[request, place] = block_table[request, first + place]
    return (state_indices,)


def stage_decode_state(
    state_indices: npt.NDArray[np.int32],
    query_start_loc: npt.NDArray[np.signedinteger],
    num_accepted_tokens: npt.NDArray[np.signedinteger],
    batch_size: int,
    state_buffer: npt.NDArray[np.int32],
    query_start_loc_buffer: npt.NDArray[np.int32],
    num_accepted_buffer: npt.NDArray[np.int32],
) -> tuple[npt.NDArray[np.int32], ...]:
    """Return three views for ``batch_size`` rows, then the new contents of the three buffers of a full CUDA graph.

    The first ``D`` rows are those of the step. Rows ``D..batch_size - 1`` are a graph's padding: they have the NULL
    block, the last query start (no query), and 1 accepted token. What the buffers hold past ``batch_size`` stays.

    ``state_indices``
        int32 ``[D, 1 + S]``, in blocks. Any ids.
    ``query_start_loc``
        int32 or int64 ``[D + 1]``, in tokens. Any values; without rows the padding has ``query_start_loc[0]``.
    ``num_accepted_tokens``
        int32 or int64 ``[D]``, in tokens. Any values.
    ``batch_size``
        an ``int``, ``D <= batch_size <= cap``.
    ``state_buffer``, ``query_start_loc_buffer``, ``num_accepted_buffer`` (in)
        int32 ``[cap, 1 + S]``, ``[cap + 1]`` and ``[cap]``: not changed by this function.
    the three views
        int32 ``[batch_size, 1 + S]``, ``[batch_size + 1]`` and ``[batch_size]``: the beginnings of what follows.
    ``state_buffer``, ``query_start_loc_buffer``, ``num_accepted_buffer`` (out)
        int32, of the buffers' shapes.

    Refused (:class:`ContractError`), in this order: a tensor of another number of dimensions or another dtype; a batch
    size that is no ``int`` of at least 0 (a ``bool`` is no ``int``); starts and accepted tokens that are not those of
    ``D`` rows; a state buffer of other columns; capacities that disagree; a batch size below ``D``, or above ``cap``.

    No values are promised (:class:`OnlyMemorySafety`) for a start or an accepted count that int32 cannot hold.

    Source of the definition: contracts.md, section 3.2.
    """
    refuse_bad_array("state_indices", state_indices, 2, np.int32)
    refuse_bad_index("query_start_loc", query_start_loc)
    refuse_bad_index("num_accepted_tokens", num_accepted_tokens)
    refuse_bad_int("batch_size", batch_size, 0)
    refuse_bad_array("state_buffer", state_buffer, 2, np.int32)
    refuse_bad_array("query_start_loc_buffer", query_start_loc_buffer, 1, np.int32)
    refuse_bad_array("num_accepted_buffer", num_accepted_buffer, 1, np.int32)
    num_rows, capacity = state_indices.shape[0], state_buffer.shape[0]
    refuse_other_size("query_start_loc", query_start_loc, num_rows + 1, "one more than the rows of state_indices")
    refuse_other_size("num_accepted_tokens", num_accepted_tokens, num_rows, "the number of rows of state_indices")
    if state_buffer.shape[1] != state_indices.shape[1]:
        rule = f"the columns must be those of state_indices, {state_indices.shape[1]}"
        raise ContractError("state_buffer", state_buffer.shape, rule)
    refuse_other_size(
        "query_start_loc_buffer", query_start_loc_buffer, capacity + 1, "one more than the rows of state_buffer"
    )
    refuse_other_size("num_accepted_buffer", num_accepted_buffer, capacity, "the number of rows of state_buffer")
    if not num_rows <= batch_size <= capacity:
        rule = f"it must lie in {num_rows}..{capacity}, the rows of state_indices and of state_buffer"
        raise ContractError("batch_size", batch_size, rule)

    states, starts, accepted = state_buffer.copy(), query_start_loc_buffer.copy(), num_accepted_buffer.copy()
    starts[0] = _int32("query_start_loc", query_start_loc, 0)
    for row in range(batch_size):
        if row < num_rows:
            states[row] = state_indices[row]
            starts[row + 1] = _int32("query_start_loc", query_start_loc, row + 1)
            accepted[row] = _int32("num_accepted_tokens", num_accepted_tokens, row)
        else:
            states[row] = NULL_BLOCK_ID
            starts[row + 1] = starts[num_rows]
            accepted[row] = 1
    return states[:batch_size], starts[: batch_size + 1], accepted[:batch_size], states, starts, accepted


def spec_token_partition(
    query_start_loc: npt.NDArray[np.signedinteger],
    query_start_loc_cpu: npt.NDArray[np.signedinteger],
    spec_mask_cpu: npt.NDArray[np.bool_],
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Return ``(spec_token_indices, non_spec_token_indices, spec_query_start_loc, non_spec_query_start_loc)``.

    The tokens of a step, parted into those of the ``A`` requests that speculate and those of all others. The starts
    are those of each part alone, its tokens packed; requests without tokens are counted.

    ``query_start_loc``, ``query_start_loc_cpu``
        int32 or int64 ``[R + 1]``, in tokens; the host's twin holds the same. The first start is 0.
    ``spec_mask_cpu``
        bool ``[R]``, on the host: whether a request speculates.
    ``spec_token_indices``, ``non_spec_token_indices``
        int32, increasing: numbers of the step's tokens. Together they have each token once.
    ``spec_query_start_loc``, ``non_spec_query_start_loc``
        int32 ``[A + 1]`` and ``[R - A + 1]``, in tokens of the part.

    Refused (:class:`ContractError`), in this order: a tensor that is not one-dimensional, or of another dtype; sizes
    that disagree; a first host start other than 0; host starts that decrease; more tokens than int32 counts.

    No values are promised (:class:`OnlyMemorySafety`) where the device's starts are not the host's.

    Source of the definition: contracts.md, section 3.4.
    """
    refuse_bad_index("query_start_loc", query_start_loc)
    refuse_bad_index("query_start_loc_cpu", query_start_loc_cpu)
    refuse_bad_array("spec_mask_cpu", spec_mask_cpu, 1, np.bool_)
    refuse_other_size("query_start_loc", query_start_loc, spec_mask_cpu.size + 1, "one more than that of spec_mask_cpu")
    refuse_other_size("query_start_loc_cpu", query_start_loc_cpu, query_start_loc.size, "that of query_start_loc")
    starts = starts_from_zero("query_start_loc_cpu", query_start_loc_cpu)
    if starts[-1] > _INT32_MAX:
        raise ContractError("query_start_loc_cpu", starts[-1], "the number of tokens must fit int32")
    no_values_where_twins_differ("query_start_loc", query_start_loc, starts)

    tokens: dict[bool, list[int]] = {True: [], False: []}
    lengths: dict[bool, list[int]] = {True: [], False: []}
    for request, length in enumerate(query_lengths(starts)):
        part = bool(spec_mask_cpu[request])
        tokens[part].extend(range(starts[request], starts[request] + length))
        lengths[part].append(length)
    return (
        np.array(tokens[True], dtype=np.int32),
        np.array(tokens[False], dtype=np.int32),
        np.array(list(accumulate(lengths[True], initial=0)), dtype=np.int32),
        np.array(list(accumulate(lengths[False], initial=0)), dtype=np.int32),
    )


def _int32(name: str, array: npt.NDArray[np.signedinteger], place: int) -> int:
    value = int(array[place])
    if not _INT32_MIN <= value <= _INT32_MAX:
        raise OnlyMemorySafety(f"{name}[{place}] is {value}, which int32 cannot hold")
    return value
