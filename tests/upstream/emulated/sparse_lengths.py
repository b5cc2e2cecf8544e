"""Inputs of vLLM's ``generate_sparse_seqlen_kernel``, and the lengths that it has to write."""

import numpy as np

from oracles.arrays import array

FILE = "vllm/v1/attention/backends/mla/rocm_aiter_mla_sparse.py"
KERNEL = "generate_sparse_seqlen_kernel"
SINCE = "0.30.0"

COUNTS = (0, 1, 65, 3, 2)
QUERIES = (0, 1, 1, 63, 64, 65, 127, 128, 129)
BLOCK = 64


def draw(numbers):
    count, topk = numbers.edge(COUNTS, 1, 20), numbers.turn(128, 2048, 4)
    queries = [numbers.choice(*QUERIES) for _ in range(count)]
    lengths = [numbers.choice(0, query, query + topk - 1, query + topk, query + 3, 5000) for query in queries]
    starts = np.cumsum([0, *queries])
    # The grid may be made for longer queries than there are, and for shorter ones.
    longest = max(queries, default=0) + numbers.choice(0, 0, 64)
    if numbers.flip(0.2):
        longest = numbers.choice(0, 64)
    return {
        "inputs": {"lengths": array(lengths, "int32"), "starts": array(starts, "int32", None, numbers.choice(0, 1))},
        "outputs": {"sparse": array([0] * (starts[-1] + numbers.choice(0, 7)), "int32")},
        "grid": (count, -(-longest // BLOCK)),
        "arguments": {
            "seq_len_ptr": "lengths",
            "cu_query_lens_ptr": "starts",
            "out_ptr": "sparse",
            "topk_token": topk,
            "BLOCK_SIZE": BLOCK,
        },
    }


def answer(drawn):
    lengths, starts = (drawn["inputs"][name].data.tolist() for name in ("lengths", "starts"))
    topk, sparse = drawn["arguments"]["topk_token"], drawn["outputs"]["sparse"].data.copy()
    for number, length in enumerate(lengths):
        query = starts[number + 1] - starts[number]
        for token in range(min(query, drawn["grid"][1] * BLOCK) if length else 0):
            sparse[starts[number] + token] = min(length - query + token + 1, topk)
    return {"sparse": sparse}


DRAWS = {"sparse_lengths": draw}
