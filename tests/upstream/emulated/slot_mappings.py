"""Inputs of vLLM's ``_compute_slot_mappings_kernel``, and the slots that it has to write."""

import functools

import numpy as np

from oracles.arrays import array

FILE = "vllm/v1/worker/gpu/block_table.py"
KERNEL = "_compute_slot_mappings_kernel"
SINCE = "0.32.0"

COUNTS = (0, 1, 9, 3, 33)
QUERIES = (0, 1, 1, 1, 63, 64, 65, 127, 128, 129)
STALE, PAD = 12345, -1


def draw(numbers, parallel):
    batch, groups = numbers.edge(COUNTS, 1, 8), numbers.turn(1, 3, 2)
    ranks, interleave = numbers.turn((2, 1), (2, 16), (4, 1)) if parallel else (1, 1)
    queries = [numbers.choice(*QUERIES, *((1024, 1025) if numbers.flip(0.05) else ())) for _ in range(batch)]
    starts = np.cumsum([0, *queries])
    total = int(starts[-1]) + numbers.choice(0, 1, 64)
    sizes = [numbers.choice(16, 32, 48) for _ in range(groups)]
    before = [numbers.choice(0, 5, 130) for _ in queries]
    positions = [first + at for first, query in zip(before, queries, strict=True) for at in range(query)]
    # Groups that are not shared out between ranks need a column for every block.
    widths = [max(positions, default=0) // size + 1 + numbers.choice(0, 2) for size in sizes]
    slots = batch + 2
    requests = numbers.numpy.permutation(slots)[:batch]
    requests[numbers.numpy.random(batch) < 0.1] = -1
    tables = {
        f"table {at}": array(numbers.integers(0, 1 << 20, (slots, width)), "int32") for at, width in enumerate(widths)
    }
    stride = total + numbers.choice(0, 16)
    return {
        "inputs": {
            **tables,
            "requests": array(requests, "int32"),
            "starts": array(starts, "int32"),
            "positions": array(positions, "int64"),
            "widths": array(widths, "int64"),
            "sizes": array(sizes, "int32"),
            "enabled": array([numbers.flip(0.8) for _ in sizes], "bool"),
            "sharded": array([numbers.flip(0.7) for _ in sizes], "bool"),
        },
        "outputs": {"mapping": array(np.full((groups, total), STALE), "int64", (stride, 1))},
        "pointers": {"tables": tuple(tables)},
        "grid": (groups, batch + 1),
        "arguments": {
            "max_num_tokens": total,
            "idx_mapping": "requests",
            "query_start_loc": "starts",
            "pos": "positions",
            "block_table_ptrs": "tables",
            "block_table_strides": "widths",
            "block_sizes": "sizes",
            "slot_mapping_enabled": "enabled",
            "dcp_sharded": "sharded",
            "slot_mappings_ptr": "mapping",
            "slot_mappings_stride": stride,
            "cp_rank": numbers.choice(*range(ranks)),
            "CP_SIZE": ranks,
            "CP_INTERLEAVE": interleave,
            "PAD_ID": PAD,
            "TRITON_BLOCK_SIZE": 1024,
        },
    }


def answer(drawn):
    values = {name: value.data.tolist() for name, value in drawn["inputs"].items()}
    mapping = np.full_like(drawn["outputs"]["mapping"].data, PAD)
    for group, row in enumerate(mapping):
        for number, request in enumerate(values["requests"]):
            if request < 0 or not values["enabled"][group]:
                continue
            for token in range(values["starts"][number], values["starts"][number + 1]):
                row[token] = _slot(drawn, values, group, values[f"table {group}"][request], values["positions"][token])
    return {"mapping": mapping}


def _slot(drawn, values, group, blocks, position):
    """Where a token lies in this rank's cache: stretches of ``interleave`` tokens go to the ranks in turn."""
    size = values["sizes"][group]
    rank, ranks, interleave = (drawn["arguments"][name] for name in ("cp_rank", "CP_SIZE", "CP_INTERLEAVE"))
    if ranks > 1 and values["sharded"][group]:
        block, within = divmod(position, size * ranks)
        stretch, rest = divmod(within, interleave)
        if stretch % ranks != rank:
            return PAD
        position = block * size + stretch // ranks * interleave + rest
    return blocks[position // size] * size + position % size


DRAWS = {
    "slot_mappings": functools.partial(draw, parallel=False),
    "slot_mappings_parallel": functools.partial(draw, parallel=True),
}
