"""Upstream code for contracts 4.2 to 4.6: vLLM's block tables, called through their own classes.

vLLM has two model runners. The newer one (``vllm/v1/worker/gpu``) keeps tables by request slot and gathers the batch's
rows; the older one (``vllm/v1/worker``) keeps them by batch row. Both are constructed as a server does; then the
tensors of the case take the place of those that the class allocated, so that its kernels read and write those.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from oracles.arrays import Array, Inputs
from oracles.contract import Binding, Narrowing
from oracles.verdict import Unsupported

NEWER = "vllm/v1/worker/gpu/block_table.py"
OLDER = "vllm/v1/worker/block_table.py"
UTILS = "vllm/v1/worker/utils.py"
BUFFERS = "vllm/v1/worker/gpu/buffer_utils.py"

GATHER_METHOD = "BlockTables.gather_block_tables"
SLOTS_METHOD = "BlockTables.compute_slot_mappings"
OLDER_SLOTS_METHOD = "BlockTable.compute_slot_mapping"
KERNEL_TABLE_METHOD = "AttentionGroup.map_to_kernel_block_table"
KERNEL_SIZES = "kernel_block_sizes"
"""A parameter that the newer class had as long as its tables held kernel blocks."""


class _Platform:
    """Stands for vLLM's platform object, of which upstream reads the name of the device alone."""

    device_type: Any = "cpu"


class _Logger:
    """Takes the one message that upstream's buffers log."""

    def warning_once(self, message: str) -> None:
        """Nothing: that memory is not pinned is known here."""


def _no_group() -> Any:
    # Upstream's classes take this assertion for "no context parallelism".
    raise AssertionError("there are no process groups here")


PLATFORM = _Platform()

# Without unified addressing, upstream copies its host buffers explicitly: its own way for such platforms, which
# releases before 0.30 do not have.
WITHOUT_UVA: Mapping[str, tuple[str, ...]] = {BUFFERS: ("NonUvaBuffer",)}
NEWER_STUBS: Mapping[str, Any] = {
    "vllm.logger:init_logger": lambda name: _Logger(),
    "vllm.platforms:current_platform": PLATFORM,
    "vllm.utils.platform_utils:is_uva_available": lambda: False,
}
NEWER_FOLLOW = ("vllm.v1.worker.gpu.buffer_utils", "vllm.v1.attention.backends.utils")

OLDER_STUBS: Mapping[str, Any] = {
    "vllm.distributed:get_dcp_group": _no_group,
    "vllm.distributed:get_pcp_group": _no_group,
}
OLDER_FOLLOW = (
    "vllm.v1.utils",
    "vllm.v1.attention.backends.utils",
    "vllm.model_executor.warmup.jit_warmup",
    "vllm.model_executor.warmup.jit_warmup_triton_helper",
)

NEWER_CLASS = ("block_sizes", "max_num_reqs", "max_num_batched_tokens", "max_num_blocks_per_group", "device")
NEWER_SIGNATURES = ((*NEWER_CLASS, KERNEL_SIZES), NEWER_CLASS)
OLDER_CLASS = (
    "block_size",
    "max_num_reqs",
    "max_num_blocks_per_req",
    "max_num_batched_tokens",
    "pin_memory",
    "device",
)
OLDER_SIGNATURES = (
    (*OLDER_CLASS, "kernel_block_size", "cp_kv_cache_interleave_size"),
    (*OLDER_CLASS, "cp_kv_cache_interleave_size"),
)


@contextmanager
def setting_up(device: Any) -> Iterator[None]:
    """What a server does once, before it serves: that the host waits for a device inside is not held against it."""
    if device.type == "cpu":
        yield
        return
    import torch

    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("default")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def newer_tables(
    block_tables_class: Any,
    tables: Sequence[Any],
    block_sizes: Sequence[int],
    device: Any,
    *,
    kernel_block_sizes: Sequence[int] | None = None,
    **options: Any,
) -> Any:
    """The newer class over these tables: one that was made without rows, and then pointed at them.

    Refused with ``Unsupported``: kernel block sizes other than the block sizes, in a release without them.
    """
    sizes = list(block_sizes)
    kernel_sizes = sizes if kernel_block_sizes is None else list(kernel_block_sizes)
    if KERNEL_SIZES in inspect.signature(block_tables_class).parameters:
        options[KERNEL_SIZES] = kernel_sizes
    elif kernel_sizes != sizes:
        raise Unsupported(f"no kernel blocks in block tables: this release's BlockTables has no {KERNEL_SIZES}")
    PLATFORM.device_type = device
    with setting_up(device):
        made = block_tables_class(sizes, 0, 0, [0] * len(sizes), device, **options)
        for own, table in zip(made.block_tables, tables, strict=True):
            own.gpu = table
        # It makes the tables of pointers and strides, and upstream calls it again when tables have moved.
        made.init_block_table_layout_tensors()
    return made


def _gather(names: Mapping[str, Any]) -> Callable[..., Any]:
    def gather_block_tables(block_tables: Any, num_blocks: Any, idx_mapping: Any, out: Any) -> tuple[Any, ...]:
        """All groups, as the newer runner gathers into tables that it is given."""
        made = newer_tables(names["BlockTables"], block_tables, [1] * len(block_tables), idx_mapping.device)
        return _gathered(made, num_blocks, idx_mapping, out)

    return gather_block_tables


def _gather_windowed(names: Mapping[str, Any]) -> Callable[..., Any]:
    def gather_block_tables_windowed(
        block_tables: Any,
        num_blocks: Any,
        idx_mapping: Any,
        num_computed_tokens: Any,
        window_reach: Any,
        block_sizes: Any,
        out: Any,
    ) -> tuple[Any, ...]:
        """The same, without what lies before the window of a request's first new token."""
        made = newer_tables(
            names["BlockTables"],
            block_tables,
            _ints(block_sizes),
            idx_mapping.device,
            sliding_window_reach=_ints(window_reach),
        )
        return _gathered(made, num_blocks, idx_mapping, out, num_computed_tokens=num_computed_tokens)

    return gather_block_tables_windowed


def _ints(values: Any) -> list[int]:
    return [int(value) for value in (values.tolist() if hasattr(values, "tolist") else values)]


def _gathered(made: Any, num_blocks: Any, idx_mapping: Any, out: Any, **options: Any) -> tuple[Any, ...]:
    made.num_blocks.gpu = num_blocks
    padded = max((table.shape[0] for table in out), default=0)
    with setting_up(idx_mapping.device):
        pointers = made._make_ptr_tensor(out)
    made.gather_block_tables(idx_mapping, padded, out=tuple(out), out_ptrs=pointers, **options)
    return (list(out),)


def _slots(names: Mapping[str, Any]) -> Callable[..., Any]:
    hybrid = _slots_hybrid(names)

    def slot_mapping(*, block_size: int, **rest: Any) -> Any:
        """One group, whose kernel blocks are its blocks."""
        return hybrid(block_size=block_size, kernel_block_size=block_size, enabled=True, **rest)

    return slot_mapping


def _slots_hybrid(names: Mapping[str, Any]) -> Callable[..., Any]:
    def slot_mapping_hybrid(
        block_table: Any,
        idx_mapping: Any,
        query_start_loc: Any,
        positions: Any,
        block_size: int,
        cp_size: int,
        cp_rank: int,
        cp_interleave: int,
        kernel_block_size: int,
        enabled: bool,
        slot_mapping: Any,
    ) -> tuple[Any, ...]:
        """One group of the newer runner, which pads to the end of the buffer that it is given."""
        made = newer_tables(
            names["BlockTables"],
            [block_table],
            [block_size],
            idx_mapping.device,
            kernel_block_sizes=[kernel_block_size],
            cp_size=cp_size,
            cp_rank=cp_rank,
            cp_interleave=cp_interleave,
            slot_mapping_enabled=[enabled],
        )
        made.compute_slot_mappings(
            idx_mapping, query_start_loc, positions, positions.shape[0], out=slot_mapping.unsqueeze(0)
        )
        return (slot_mapping,)

    return slot_mapping_hybrid


def _older_slots(names: Mapping[str, Any]) -> Callable[..., Any]:
    hybrid = _older_slots_hybrid(names)

    def slot_mapping(*, block_size: int, **rest: Any) -> Any:
        """One group, whose kernel blocks are its blocks."""
        return hybrid(block_size=block_size, kernel_block_size=block_size, enabled=True, **rest)

    return slot_mapping


def _older_slots_hybrid(names: Mapping[str, Any]) -> Callable[..., Any]:
    def slot_mapping_hybrid(
        block_table: Any,
        idx_mapping: Any,
        query_start_loc: Any,
        positions: Any,
        block_size: int,
        cp_size: int,
        cp_rank: int,
        cp_interleave: int,
        kernel_block_size: int,
        enabled: bool,
        slot_mapping: Any,
    ) -> tuple[Any, ...]:
        """One group of the older runner.

        Its tables are indexed by batch row: the rows that ``idx_mapping`` names are copied into one.
        """
        import torch

        modes = names["SlotMappingMode"]
        made = _older_table(
            names["BlockTable"],
            {
                "block_size": block_size,
                "kernel_block_size": kernel_block_size,
                "max_num_reqs": idx_mapping.shape[0],
                "max_num_blocks_per_req": 0,
                "max_num_batched_tokens": slot_mapping.shape[0],
                "pin_memory": False,
                "device": idx_mapping.device,
                "cp_kv_cache_interleave_size": cp_interleave,
                "slot_mapping_mode": modes.TOKEN_TO_KV_SLOT if enabled else modes.NONE,
            },
        )
        made.dcp_world_size, made.dcp_rank = cp_size, cp_rank
        shape = (idx_mapping.shape[0], block_table.shape[1])
        rows = torch.empty(shape, dtype=block_table.dtype, device=idx_mapping.device)
        made.block_table.gpu = torch.index_select(block_table, 0, idx_mapping, out=rows)
        made.slot_mapping.gpu = slot_mapping
        made.compute_slot_mapping(idx_mapping.shape[0], query_start_loc, positions)
        return (slot_mapping,)

    return slot_mapping_hybrid


def _older_table(block_table_class: Any, given: dict[str, Any]) -> Any:
    """One group's table. Refused with ``Unsupported``: kernel blocks in a release whose tables have none."""
    if "kernel_block_size" not in inspect.signature(block_table_class).parameters:
        if given["kernel_block_size"] != given["block_size"]:
            raise Unsupported("no kernel blocks in block tables: this release's BlockTable has no kernel_block_size")
        del given["kernel_block_size"]
    return block_table_class(**given)


def _kernel_table(names: Mapping[str, Any]) -> Callable[..., Any]:
    upstream = names[KERNEL_TABLE_METHOD]

    def kernel_block_table(block_table: Any, blocks_per_kernel_block: int, stride: int) -> tuple[Any, ...]:
        """What a group does with the gathered table, into the buffer that it keeps for one micro-batch."""
        import torch

        rows, columns = block_table.shape
        width = columns * blocks_per_kernel_block
        # As create_metadata_builders makes a group, but for k = 1, where it leaves the table alone; the stride is set
        # when a packed cache is bound.
        group = SimpleNamespace(
            kernel_block_size=1,
            kernel_block_stride=stride,
            kv_cache_spec=SimpleNamespace(block_size=blocks_per_kernel_block),
            kernel_block_table=torch.zeros(1, rows, width, dtype=torch.int32, device=block_table.device),
            kernel_block_offsets=torch.arange(blocks_per_kernel_block, dtype=torch.int32, device=block_table.device),
        )
        return (upstream(group, block_table),)

    return kernel_block_table


def id_outside_the_table(inputs: Inputs) -> bool:
    """A request id that is no row of the table."""
    table, ids = inputs["block_table"], inputs["idx_mapping"]
    if not (isinstance(table, Array) and isinstance(ids, Array)) or table.data.ndim != 2:
        return False
    return any(not 0 <= number < table.shape[0] for number in ids.data.ravel().tolist())


def kernel_blocks_that_do_not_divide(inputs: Inputs) -> bool:
    """A block that is not a whole number of kernel blocks."""
    size, kernel = inputs["block_size"], inputs["kernel_block_size"]
    return isinstance(size, int) and isinstance(kernel, int) and kernel > 0 and size % kernel != 0


OWN_ROWS = Narrowing(
    clause="a row is a batch row: there are no request ids outside the table",
    source='ComputeSlotMappingKernel.kernel: block_table_ptr is "[max_num_reqs, max_num_blocks_per_req]"',
    excludes=id_outside_the_table,
)
WHOLE_KERNEL_BLOCKS = Narrowing(
    clause="a block is a whole number of kernel blocks",
    source='BlockTable.__init__: ValueError, "kernel_block_size must divide kv_manager_block_size evenly"',
    excludes=kernel_blocks_that_do_not_divide,
)

Adapt = Callable[[Mapping[str, Any]], Callable[..., Any]]
GATHER_ARGUMENTS = ("self", "idx_mapping", "num_reqs_padded", "out", "out_ptrs")
SLOTS_ARGUMENTS = ("self", "idx_mapping", "query_start_loc", "positions", "num_tokens_padded", "out")


def _newer(method: str, adapt: Adapt, parameters: tuple[str, ...]) -> Binding:
    return Binding(
        project="vllm",
        name=method,
        symbols={NEWER: ("BlockTables", method), **WITHOUT_UVA},
        signatures={"BlockTables": NEWER_SIGNATURES, method: (parameters,)},
        adapt=adapt,
        runs="triton",
        stubs=NEWER_STUBS,
        follow=NEWER_FOLLOW,
    )


def _older(adapt: Adapt, narrowings: tuple[Narrowing, ...]) -> Binding:
    return Binding(
        project="vllm",
        name=OLDER_SLOTS_METHOD,
        symbols={OLDER: ("BlockTable", "SlotMappingMode", OLDER_SLOTS_METHOD)},
        signatures={
            "BlockTable": OLDER_SIGNATURES,
            OLDER_SLOTS_METHOD: (("self", "num_reqs", "query_start_loc", "positions"),),
        },
        adapt=adapt,
        runs="triton",
        narrowings=narrowings,
        stubs=OLDER_STUBS,
        follow=OLDER_FOLLOW,
    )


GATHER = (_newer(GATHER_METHOD, _gather, GATHER_ARGUMENTS),)
GATHER_WINDOWED = (_newer(GATHER_METHOD, _gather_windowed, (*GATHER_ARGUMENTS, "num_computed_tokens")),)
SLOT_MAPPING = (_newer(SLOTS_METHOD, _slots, SLOTS_ARGUMENTS), _older(_older_slots, (OWN_ROWS,)))
SLOT_MAPPING_HYBRID = (
    _newer(SLOTS_METHOD, _slots_hybrid, SLOTS_ARGUMENTS),
    _older(_older_slots_hybrid, (OWN_ROWS, WHOLE_KERNEL_BLOCKS)),
)
KERNEL_BLOCK_TABLE = (
    Binding(
        project="vllm",
        name=KERNEL_TABLE_METHOD,
        symbols={UTILS: (KERNEL_TABLE_METHOD,)},
        signatures={KERNEL_TABLE_METHOD: (("self", "block_table", "ubatch_idx"),)},
        adapt=_kernel_table,
        runs="host",
    ),
)
