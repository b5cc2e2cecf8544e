"""Inputs of vLLM's ``_mamba_align_block_table_kernel``, and the table entries that it has to copy."""

from oracles.arrays import array

FILE = "vllm/v1/attention/backends/utils.py"
KERNEL = "_mamba_align_block_table_kernel"
SINCE = "0.33.0"

COUNTS = (0, 1, 129, 3, 65, 3, 63, 64, 127, 128)
UNTOUCHED = -9
FAR = (1 << 30) + 16
"""Elements between rows: the third row starts behind the reach of a 32-bit product."""


def draw(numbers):
    count, out = numbers.edge(COUNTS, 1, 30), numbers.turn(1, 2, 3, 5)
    size = numbers.turn(16, 1, 7, 64)
    blocks = numbers.choice(1, 2, 9, 64, 65)
    lengths = [
        numbers.choice(-5, 0, 1, size, size + 1, numbers.choice(*range(blocks * size + 1))) for _ in range(count)
    ]
    lengths = [min(length, blocks * size) for length in lengths]
    columns = blocks + out - 1
    apart, step = numbers.turn(1, 1, 2), numbers.turn(1, 2, 1)
    between = FAR if numbers.number == 3 else columns * apart + numbers.choice(0, 0, 5)
    return {
        "inputs": {
            "table": array(
                numbers.integers(1, 1 << 20, (count, columns)), "int32", (between, apart), numbers.choice(0, 1, 3)
            ),
            "lengths": array(lengths, "int32", (step,), numbers.choice(0, 1)),
        },
        "outputs": {"states": array([[UNTOUCHED] * out] * count or [[]], "int32")},
        "grid": (count,),
        "arguments": {
            "out_ptr": "states",
            "block_table_ptr": "table",
            "block_table_stride_0": between,
            "block_table_stride_1": apart,
            "seq_lens_ptr": "lengths",
            "seq_lens_stride": step,
            "block_size": size,
            "n_out": out,
            "BLOCK": 1 << (out - 1).bit_length(),
        },
    }


def answer(drawn):
    table, lengths = (drawn["inputs"][name].data for name in ("table", "lengths"))
    size, out = drawn["arguments"]["block_size"], drawn["arguments"]["n_out"]
    states = drawn["outputs"]["states"].data.copy()
    for row, length in enumerate(lengths.tolist()):
        first = max(length - 1, 0) // size
        for column in range(out):
            states[row, column] = table[row, first + column]
    return {"states": states}


DRAWS = {"state_columns": draw}
