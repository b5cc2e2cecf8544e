"""Contracts 4.2 to 4.6: block tables of a step, and the slots that its tokens are written to."""

from __future__ import annotations

from oracles.contract import Contract, Input, Output
from oracles.contracts import _block_table_gather as gather
from oracles.contracts import _block_table_kernel as kernel
from oracles.contracts import _block_table_relations as laws
from oracles.contracts import _block_table_slots as slots
from oracles.contracts import _kernel_table_relations as kernel_laws
from oracles.contracts import _slot_relations as slot_laws
from oracles.contracts import block_table_bindings as bindings
from oracles.contracts import block_table_known as known

INDEX = "int32 or int64"
TABLES = Input(name="block_tables", role="device", many=True, doc="G tensors int32 [max_reqs, M_g], block ids")
NUM_BLOCKS = Input(name="num_blocks", role="device", doc=f"{INDEX} [G, max_reqs], blocks of each request")
ROWS = Input(name="idx_mapping", role="device", doc=f"{INDEX} [R], the request of each row of the batch; -1: none")
OUT = Input(name="out", role="device", many=True, inout=True, doc="G tensors int32 [padded, M_g], written whole")

GATHER = (TABLES, NUM_BLOCKS, ROWS, OUT)
WINDOWS = (
    TABLES,
    NUM_BLOCKS,
    ROWS,
    Input(name="num_computed_tokens", role="device", doc=f"{INDEX} [max_reqs], tokens in the cache, by request"),
    Input(
        name="window_reach", role="scalar", many=True, doc="G ints, tokens that the first new one looks back; 0: all"
    ),
    Input(name="block_sizes", role="scalar", many=True, compiled=True, doc="G ints >= 1, tokens a block"),
    OUT,
)
TOKENS = (
    Input(name="block_table", role="device", doc="int32 [max_reqs, M], block ids by request"),
    ROWS,
    Input(name="query_start_loc", role="device", doc=f"{INDEX} [R+1], first token of each row"),
    Input(name="positions", role="device", doc=f"{INDEX} [T], each token's place in its request"),
    Input(name="block_size", role="scalar", compiled=True, doc="int >= 1, tokens a block"),
    Input(name="cp_size", role="scalar", compiled=True, doc="int >= 1, ranks of context parallelism"),
    Input(name="cp_rank", role="scalar", doc="int in 0..cp_size-1"),
    Input(name="cp_interleave", role="scalar", compiled=True, doc="int >= 1, neighbouring tokens on one rank"),
)
KERNEL_BLOCKS = (
    Input(name="kernel_block_size", role="scalar", compiled=True, doc="int >= 1, tokens a block of the table"),
    Input(name="enabled", role="scalar", doc="bool; False: every slot is -1"),
)
SLOTS = Input(name="slot_mapping", role="device", inout=True, doc="int64 [capacity >= T], slots; -1 behind the tokens")

CONTRACTS = (
    Contract(
        family="block_table",
        name="gather_block_tables",
        section="4.2",
        summary="the block tables of a batch, gathered from those of all requests",
        inputs=GATHER,
        outputs=(),
        domain=gather.domain,
        resample=gather.resample,
        expected=gather.expected,
        traits=gather.traits,
        sketch=gather.sketch,
        optimized="optimized.block_table:gather_block_tables",
        runs="triton",
        relations=laws.GATHER_RELATIONS,
        bindings=bindings.GATHER,
        known=known.GATHER,
    ),
    Contract(
        family="block_table",
        name="slot_mapping",
        section="4.3",
        summary="the slot of the KV cache that each token is written to",
        inputs=(*TOKENS, SLOTS),
        outputs=(),
        domain=slots.domain,
        resample=slots.resample,
        expected=slots.expected,
        traits=slots.traits,
        sketch=slots.sketch,
        optimized="optimized.slot_mapping:slot_mapping",
        runs="triton",
        relations=slot_laws.RELATIONS,
        bindings=bindings.SLOT_MAPPING,
        known=known.SLOT_MAPPING,
    ),
    Contract(
        family="block_table",
        name="kernel_block_table",
        section="4.4",
        summary="blocks of the KV-cache manager as the smaller ones that a kernel sees",
        inputs=(
            Input(name="block_table", role="device", doc="int32 [R, M], block ids"),
            Input(
                name="blocks_per_kernel_block",
                role="scalar",
                compiled=True,
                doc="int k >= 1, kernel blocks in one block",
            ),
            Input(
                name="stride", role="scalar", compiled=True, doc="int >= k, kernel blocks from one block to the next"
            ),
        ),
        outputs=(Output(name="kernel_table", doc="int32 [R, M*k], ids of kernel blocks"),),
        domain=kernel.domain,
        resample=kernel.resample,
        expected=kernel.expected,
        traits=kernel.traits,
        optimized="optimized.block_table:kernel_block_table",
        runs="triton",
        relations=kernel_laws.RELATIONS,
        bindings=bindings.KERNEL_BLOCK_TABLE,
        known=known.KERNEL_BLOCK_TABLE,
    ),
    Contract(
        family="block_table",
        name="slot_mapping_hybrid",
        section="4.5",
        summary="slots where the table's blocks are smaller than the KV-cache manager's",
        inputs=(*TOKENS, *KERNEL_BLOCKS, SLOTS),
        outputs=(),
        domain=slots.hybrid_domain,
        resample=slots.hybrid_resample,
        expected=slots.hybrid_expected,
        traits=slots.traits,
        sketch=slots.sketch,
        optimized="optimized.slot_mapping:slot_mapping_hybrid",
        runs="triton",
        relations=slot_laws.HYBRID_RELATIONS,
        bindings=bindings.SLOT_MAPPING_HYBRID,
        known=known.SLOT_MAPPING_HYBRID,
    ),
    Contract(
        family="block_table",
        name="gather_block_tables_windowed",
        section="4.6",
        summary="the same, without the blocks that sliding windows have left behind",
        inputs=WINDOWS,
        outputs=(),
        domain=gather.windowed_domain,
        resample=gather.resample,
        expected=gather.windowed_expected,
        traits=gather.traits,
        sketch=gather.sketch,
        optimized="optimized.block_table:gather_block_tables_windowed",
        runs="triton",
        relations=laws.WINDOWED_RELATIONS,
        bindings=bindings.GATHER_WINDOWED,
        known=known.GATHER_WINDOWED,
    ),
)
