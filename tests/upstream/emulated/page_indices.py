"""Inputs of vLLM's ``_expand_page_indices_kernel``, and the token slots that it has to write."""

import functools

import numpy as np

from oracles.arrays import array

FILE = "vllm/v1/attention/backends/mla/rocm_aiter_mla.py"
KERNEL = "_expand_page_indices_kernel"
SINCE = "0.33.0"

COUNTS = (0, 1, 3, 65, 2)
LENGTHS = (0, 1, 63, 64, 65, 127, 128, 129, 1023, 1024, 1025)
UNTOUCHED = -1
BLOCK = 1024


def draw(numbers, clamp):
    requests = numbers.edge(COUNTS, 1, 12)
    page = numbers.turn(1, 16, 64, 16)
    columns = -(-numbers.choice(*LENGTHS[2:]) // page)
    real = [numbers.choice(*(n for n in LENGTHS if n <= columns * page)) for _ in range(requests)]
    width = numbers.choice(2, 3, 5) if clamp else 1
    starts = np.cumsum([0, *(length + numbers.choice(*range(width)) for length in real)])
    apart = numbers.turn(1, 1, 2)
    between = columns * apart + numbers.choice(0, 0, 3)
    table = array(numbers.integers(0, 1 << 20, (requests, columns)), "int32", (between, apart))
    return {
        "inputs": {"table": table, "starts": array(starts, "int32"), "real": array(real, "int32")},
        "outputs": {"pages": array([UNTOUCHED] * (starts[-1] + numbers.choice(0, 5)), "int32")},
        "grid": (requests, max(1, -(-(columns * page + width - 1) // BLOCK))),
        "arguments": {
            "page_indices": "pages",
            "block_table": "table",
            "block_table_stride_0": between,
            "block_table_stride_1": apart,
            "cu_num_tokens": "starts",
            "num_real_tokens": "real",
            "KERNEL_BLOCK_SIZE": page,
            "BLOCK_SIZE": BLOCK,
            "CLAMP_TAIL": clamp,
        },
    }


def answer(drawn):
    table, starts, real = (drawn["inputs"][name].data.tolist() for name in ("table", "starts", "real"))
    page, clamp = drawn["arguments"]["KERNEL_BLOCK_SIZE"], drawn["arguments"]["CLAMP_TAIL"]
    pages = drawn["outputs"]["pages"].data.copy()
    for request, row in enumerate(table):
        for token in range(starts[request + 1] - starts[request]):
            source = 0 if clamp and token >= real[request] else token
            pages[starts[request] + token] = row[source // page] * page + source % page
    return {"pages": pages}


DRAWS = {
    "page_indices": functools.partial(draw, clamp=False),
    "page_indices_clamped": functools.partial(draw, clamp=True),
}
