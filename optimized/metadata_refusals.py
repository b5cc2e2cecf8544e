"""What builders of metadata refuse of a batch, and of the tables and slots of a group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from optimized.errors import ContractError
from optimized.metadata_records import Batch
from optimized.query_starts import refuse_not_on_cpu, refuse_other_size, starts_from_zero
from optimized.refusals import refuse_bad_index, refuse_bad_int, refuse_bad_tensor, refuse_other_devices

_INT32, _INT64 = torch.int32, torch.int64


class HostRows(NamedTuple):
    """What the host knows of the requests of a step."""

    starts: npt.NDArray[np.int64]
    queries: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int32]
    drafts: npt.NDArray[np.int32] | None
    prefilling: npt.NDArray[np.bool_] | None
    arrays: tuple[npt.NDArray[np.generic] | None, ...]
    """the memory of the batch's own tensors on the host"""


def checked_batch(batch: Batch, max_num_reqs: int, device: torch.device) -> HostRows:
    """The host's side of a batch. Refused (:class:`ContractError`), in this order:

    ints that are none or below 0, flags that are no bools; tensors of another number of dimensions or dtype; starts of
    the host's that are not there, a first one other than 0, starts that decrease; sizes that disagree; more than
    ``max_num_reqs`` requests; other tensors of the host's that are not there; a negative length; fewer tokens than the
    last start; tensors of the device's on another one.
    """
    # First whether all is right, because to say what is wrong takes several times as long.
    if not _seems_right(batch, max_num_reqs, device):
        _refuse_batch(batch, max_num_reqs, device)
    drafts, prefilling = batch.num_decode_draft_tokens_cpu, batch.is_prefilling
    arrays = batch.query_start_loc_cpu.numpy(), batch.seq_lens_cpu.numpy()
    optional = None if drafts is None else drafts.numpy(), None if prefilling is None else prefilling.numpy()
    starts = arrays[0].astype(np.int64)
    queries = starts[1:] - starts[:-1]
    falls = np.count_nonzero(queries < 0) or np.count_nonzero(arrays[1] < 0)
    if falls or starts[0] != 0 or batch.num_actual_tokens < starts[-1]:
        _refuse_batch(batch, max_num_reqs, device)
    return HostRows(starts, queries, arrays[1], *optional, (*arrays, *optional))


def _seems_right(batch: Batch, max_num_reqs: int, device: torch.device) -> bool:
    """Whether nothing is wrong but perhaps the values of the host's tensors; of ints, subclasses seem wrong."""
    starts, lengths, drafts = batch.query_start_loc_cpu, batch.seq_lens_cpu, batch.num_decode_draft_tokens_cpu
    accepted, prefilling = batch.num_accepted_tokens, batch.is_prefilling
    num_requests = lengths.numel()
    return (
        type(batch.step) is type(batch.ubatch) is type(batch.num_actual_tokens) is int
        and batch.step >= 0 <= batch.ubatch
        and type(batch.causal) is type(batch.full_graph) is bool
        and num_requests <= max_num_reqs
        and _is_vector(batch.query_start_loc, num_requests + 1, device)
        and _is_vector(batch.seq_lens, num_requests, device)
        and _is_vector(starts, num_requests + 1)
        and _is_vector(lengths, num_requests)
        and (accepted is None or _is_vector(accepted, num_requests, device))
        and (drafts is None or _is_vector(drafts, num_requests))
        and (prefilling is None or _is_vector(prefilling, num_requests, None, torch.bool))
    )


def _is_vector(
    tensor: torch.Tensor, size: int, device: torch.device | None = None, dtype: torch.dtype = torch.int32
) -> bool:
    """Whether it is one of that size and dtype, there, or on the host."""
    there = tensor.is_cpu if device is None else tensor.device == device
    return there and tensor.dtype is dtype and tensor.shape == (size,)


def _refuse_batch(batch: Batch, max_num_reqs: int, device: torch.device) -> None:
    for name in ("step", "ubatch", "num_actual_tokens"):
        refuse_bad_int(name, getattr(batch, name), 0)
    for name in ("causal", "full_graph"):
        if not isinstance(getattr(batch, name), bool):
            raise ContractError(name, getattr(batch, name), "it must be a bool")
    on_device, on_host = _tensors_of(batch)
    starts = starts_from_zero("query_start_loc_cpu", batch.query_start_loc_cpu)
    num_requests = starts.size - 1
    refuse_other_size("query_start_loc", batch.query_start_loc, num_requests + 1, "that of query_start_loc_cpu")
    for name, tensor in (*on_device, *on_host):
        refuse_other_size(name, tensor, num_requests, "one less than that of query_start_loc_cpu")
    if num_requests > max_num_reqs:
        rule = f"the requests must be at most config.max_num_reqs, {max_num_reqs}"
        raise ContractError("query_start_loc_cpu", num_requests, rule)
    for name, tensor in on_host:
        refuse_not_on_cpu(name, tensor)
    lengths = batch.seq_lens_cpu.numpy()
    if lengths.min(initial=0) < 0:
        request = int((lengths < 0).argmax())
        rule = f"the length of request {request} must not be negative"
        raise ContractError("seq_lens_cpu", int(lengths[request]), rule)
    if batch.num_actual_tokens < starts[-1]:
        rule = f"it must be at least the last start of query_start_loc_cpu, {int(starts[-1])}"
        raise ContractError("num_actual_tokens", batch.num_actual_tokens, rule)
    refuse_other_devices(device, (("query_start_loc", batch.query_start_loc), *on_device))


def refuse_bad_groups(
    block_tables: Sequence[torch.Tensor],
    slot_mappings: Sequence[torch.Tensor],
    num_requests: int,
    device: torch.device,
) -> None:
    """Refuse tables that are not int32 ``[R, M]``, slots that are not int32 or int64 ``[...]``, other devices."""
    for block_table, slot_mapping in zip(block_tables, slot_mappings, strict=True):
        # The same twice, because to say what is wrong takes several times as long as to see that nothing is.
        if (
            block_table.dtype is _INT32
            and (slot_mapping.dtype is _INT64 or slot_mapping.dtype is _INT32)
            and block_table.dim() == 2
            and slot_mapping.dim() == 1
            and block_table.shape[0] == num_requests
            and block_table.device == slot_mapping.device == device
        ):
            continue
        refuse_bad_tensor("block_table", block_table, 2, torch.int32)
        if block_table.shape[0] != num_requests:
            rule = f"the rows must be those of the batch, {num_requests}"
            raise ContractError("block_table", tuple(block_table.shape), rule)
        refuse_bad_index("slot_mapping", slot_mapping)
        refuse_other_devices(device, (("block_table", block_table), ("slot_mapping", slot_mapping)))


def _tensors_of(batch: Batch) -> tuple[list[tuple[str, torch.Tensor]], list[tuple[str, torch.Tensor]]]:
    """Tensors with an element for each request, those of the device and those of the host, or a refusal of any."""
    for name in ("query_start_loc", "query_start_loc_cpu"):
        refuse_bad_tensor(name, getattr(batch, name), 1, torch.int32)
    on_device = [("seq_lens", batch.seq_lens)]
    on_host = [("seq_lens_cpu", batch.seq_lens_cpu)]
    if batch.num_accepted_tokens is not None:
        on_device.append(("num_accepted_tokens", batch.num_accepted_tokens))
    if batch.num_decode_draft_tokens_cpu is not None:
        on_host.append(("num_decode_draft_tokens_cpu", batch.num_decode_draft_tokens_cpu))
    for name, tensor in (*on_device, *on_host):
        refuse_bad_tensor(name, tensor, 1, torch.int32)
    if batch.is_prefilling is not None:
        refuse_bad_tensor("is_prefilling", batch.is_prefilling, 1, torch.bool)
        on_host.append(("is_prefilling", batch.is_prefilling))
    return on_device, on_host
