"""Inputs of vLLM's ``_convert_req_index_to_global_index_kernel``, and the slots that it has to write."""

import numpy as np

from oracles.arrays import array

FILE = "vllm/v1/attention/backends/mla/rocm_aiter_mla_sparse.py"
KERNEL = "_convert_req_index_to_global_index_kernel"
SINCE = "0.32.0"

TOKENS = (0, 1, 65, 3, 64)
LENGTHS = (0, 1, 63, 64, 65, 127, 128)
UNTOUCHED = -7
TILE = 128


def draw(numbers):
    tokens, requests = numbers.edge(TOKENS, 1, 30), numbers.choice(1, 2, 9)
    size, columns = numbers.turn((64, 4), (1, 33), (16, 7), (64, 4))
    topk = numbers.turn(TILE, 2 * TILE)
    lengths = [numbers.choice(*LENGTHS, *((129, 255, 256) if topk > TILE else ())) for _ in range(tokens)]
    starts = np.cumsum([0, *lengths])
    # Some ids mean nothing: negative ones, and those of blocks that a request's row has no column for.
    ids = numbers.integers(0, columns * size - 1, (tokens, topk))
    odd = numbers.numpy.random((tokens, topk)) < 0.2
    ids[odd] = numbers.numpy.choice([-1, -size - 1, columns * size, columns * size + 5, 2**31 - 1], odd.sum())
    apart = numbers.turn(1, 1, 3)
    row, line = topk * apart + numbers.choice(0, 16), columns + numbers.choice(0, 3)
    return {
        "inputs": {
            "requests": array(numbers.integers(0, requests - 1, tokens), "int32"),
            "table": array(numbers.integers(0, 1 << 20, (requests, columns)), "int32", (line, 1)),
            "ids": array(ids, "int32", (row, apart)),
            "starts": array(starts, "int32"),
        },
        "outputs": {"slots": array([UNTOUCHED] * (starts[-1] + numbers.choice(0, 5)), "int32")},
        "grid": (tokens, topk // TILE),
        "arguments": {
            "req_id_ptr": "requests",
            "block_table_ptr": "table",
            "token_indices_ptr": "ids",
            "cu_seqlens_ptr": "starts",
            "out_ptr": "slots",
            "max_num_blocks_per_req": columns,
            "BLOCK_SIZE": size,
            "BLOCK_STRIDE_ROWS": size * 3,
            "BLOCK_N": TILE,
            "bt_stride0": line,
            "bt_stride1": 1,
            "ti_stride0": row,
            "ti_stride1": apart,
        },
    }


def answer(drawn):
    table, starts, requests, ids = (
        drawn["inputs"][name].data.tolist() for name in ("table", "starts", "requests", "ids")
    )
    size, stride = drawn["arguments"]["BLOCK_SIZE"], drawn["arguments"]["BLOCK_STRIDE_ROWS"]
    slots = drawn["outputs"]["slots"].data.copy()
    for token, request in enumerate(requests):
        for column in range(starts[token + 1] - starts[token]):
            block, offset = divmod(ids[token][column], size)
            known = 0 <= block < len(table[request])
            slots[starts[token] + column] = table[request][block] * stride + offset if known else 0
    return {"slots": slots}


DRAWS = {"global_index": draw}
