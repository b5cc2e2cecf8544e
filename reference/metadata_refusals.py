"""What the builders of both families refuse of a batch, a block table and slots."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from reference.errors import ContractError
from reference.metadata_records import Batch
from reference.query_starts import no_values_where_twins_differ, refuse_other_size, starts_from_zero
from reference.refusals import refuse_bad_array, refuse_bad_index, refuse_bad_int


def refuse_bad_step(
    batch: Batch,
    max_num_reqs: int,
    block_table: npt.NDArray[np.generic],
    slot_mapping: npt.NDArray[np.generic],
) -> None:
    """Refuse (:class:`ContractError`) what is wrong for every family.

    In this order: a step or ubatch that is no ``int`` of at least 0, a token count likewise, a flag that is no
    ``bool``; a tensor of the batch of another number of dimensions or dtype; a first host start other than 0, host
    starts that decrease; sizes that disagree; more requests than ``max_num_reqs``; a negative host length; fewer tokens
    than the last host start; a table that is not int32 ``[R, M]``; slots that are not one-dimensional, or neither int32
    nor int64.
    """
    for name in ("step", "ubatch", "num_actual_tokens"):
        refuse_bad_int(name, getattr(batch, name), 0)
    for name in ("causal", "full_graph"):
        if not isinstance(getattr(batch, name), bool):
            raise ContractError(name, getattr(batch, name), "it must be a bool")
    num_requests = _num_requests(batch)
    if num_requests > max_num_reqs:
        rule = f"the requests must be at most config.max_num_reqs, {max_num_reqs}"
        raise ContractError("query_start_loc_cpu", num_requests, rule)
    for request, length in enumerate(batch.seq_lens_cpu.tolist()):
        if length < 0:
            raise ContractError("seq_lens_cpu", length, f"the length of request {request} must not be negative")
    if batch.num_actual_tokens < batch.query_start_loc_cpu[-1]:
        rule = f"it must be at least the last start of query_start_loc_cpu, {batch.query_start_loc_cpu[-1]}"
        raise ContractError("num_actual_tokens", batch.num_actual_tokens, rule)

    refuse_bad_array("block_table", block_table, 2, np.int32)
    if block_table.shape[0] != num_requests:
        raise ContractError("block_table", block_table.shape, f"the rows must be those of the batch, {num_requests}")
    refuse_bad_index("slot_mapping", slot_mapping)


def no_values_where_batch_twins_differ(batch: Batch) -> None:
    """Promise nothing (:class:`OnlyMemorySafety`) where the device holds other starts or lengths than the host."""
    no_values_where_twins_differ("query_start_loc", batch.query_start_loc, batch.query_start_loc_cpu.tolist())
    no_values_where_twins_differ("seq_lens", batch.seq_lens, batch.seq_lens_cpu.tolist())


def _num_requests(batch: Batch) -> int:
    """``R``, once the batch's tensors have its sizes and dtypes."""
    for name in ("query_start_loc", "query_start_loc_cpu", "seq_lens", "seq_lens_cpu"):
        refuse_bad_array(name, getattr(batch, name), 1, np.int32)
    optional = {"is_prefilling": np.bool_, "num_accepted_tokens": np.int32, "num_decode_draft_tokens_cpu": np.int32}
    given = [name for name in optional if getattr(batch, name) is not None]
    for name in given:
        refuse_bad_array(name, getattr(batch, name), 1, optional[name])
    num_requests = len(starts_from_zero("query_start_loc_cpu", batch.query_start_loc_cpu)) - 1
    refuse_other_size("query_start_loc", batch.query_start_loc, num_requests + 1, "that of query_start_loc_cpu")
    for name in ("seq_lens", "seq_lens_cpu", *given):
        refuse_other_size(name, getattr(batch, name), num_requests, "one less than that of query_start_loc_cpu")
    return num_requests
