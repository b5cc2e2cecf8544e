"""Inputs of vLLM's ``_gather_block_tables_kernel``, and the tables that it has to leave."""

import functools

import numpy as np

from oracles.arrays import array

FILE = "vllm/v1/worker/gpu/block_table.py"
KERNEL = "_gather_block_tables_kernel"
SINCE = "0.33.0"

COUNTS = (0, 1, 9, 33, 2)
COLUMNS = (1, 5, 63, 64, 65, 127, 128, 129, 1023, 1024, 1025)
STALE = -9


def draw(numbers, window):
    batch, groups = numbers.edge(COUNTS, 1, 12), numbers.turn(1, 3, 2)
    slots = batch + numbers.choice(1, 4)
    padded = batch + numbers.choice(0, 0, 1, 3)
    widths = [numbers.choice(*COLUMNS) for _ in range(groups)]
    sizes = [numbers.choice(16, 32, 7) for _ in range(groups)]
    used = [[numbers.choice(0, 1, width // 2, width, width) for _ in range(slots)] for width in widths]
    inputs = {
        f"table {at}": array(numbers.integers(1, 1 << 20, (slots, width)), "int32") for at, width in enumerate(widths)
    }
    outputs = {f"gathered {at}": array(np.full((padded, width), STALE), "int32") for at, width in enumerate(widths)}
    # Views of the persistent arrays of counts keep their row stride.
    count_stride = slots + numbers.choice(0, 4)
    return {
        "inputs": {
            **inputs,
            "requests": array(numbers.numpy.permutation(slots)[:batch], "int32"),
            "widths": array(widths, "int64"),
            "used": array(used, "int32", (count_stride, 1)),
            "computed": array(numbers.integers(0, 2000, slots), "int32"),
            "reach": array([numbers.choice(0, 1, 64, 900) for _ in widths], "int32"),
            "sizes": array(sizes, "int32"),
        },
        "outputs": outputs,
        "pointers": {"sources": tuple(inputs), "targets": tuple(outputs)},
        "grid": (groups, padded),
        "arguments": {
            "batch_idx_to_req_idx": "requests",
            "src_block_table_ptrs": "sources",
            "dst_block_table_ptrs": "targets",
            "block_table_strides": "widths",
            "num_blocks_ptr": "used",
            "num_blocks_stride": count_stride,
            "num_reqs": batch,
            "num_computed_tokens_ptr": "computed",
            "sliding_window_reach_ptr": "reach",
            "block_sizes_ptr": "sizes",
            "MASK_SLIDING_WINDOW": window,
            "BLOCK_SIZE": 1024,
        },
    }


def answer(drawn):
    values = {name: value.data.tolist() for name, value in drawn["inputs"].items()}
    gathered = {name: value.data.copy() for name, value in drawn["outputs"].items()}
    for group, table in enumerate(gathered.values()):
        for row in range(len(table)):
            if row >= len(values["requests"]):
                table[row] = 0
                continue
            request = values["requests"][row]
            reach, hidden = values["reach"][group], 0
            if drawn["arguments"]["MASK_SLIDING_WINDOW"] and reach > 0:
                hidden = max(values["computed"][request] - reach, 0) // values["sizes"][group]
            for column in range(values["used"][group][request]):
                table[row, column] = values[f"table {group}"][request][column] if column >= hidden else 0
    return gathered


DRAWS = {
    "block_tables": functools.partial(draw, window=False),
    "block_tables_window": functools.partial(draw, window=True),
}
