"""Inputs of vLLM's ``_chunk_metadata_kernel``, and the rows and offsets that it has to write."""

from oracles.arrays import array

FILE = "vllm/models/kimi_k3/amd/kda_metadata.py"
KERNEL = "_chunk_metadata_kernel"
SINCE = "0.30.0"

COUNTS = (0, 1, 64, 129, 3, 63, 65, 127, 128)
UNTOUCHED = -9


def draw(numbers):
    count = numbers.edge(COUNTS, 1, 40)
    chunk = 64 if numbers.number < len(COUNTS) else numbers.choice(16, 64, 64, 128, 3)
    lengths = [
        numbers.choice(0, 1, chunk - 1, chunk, chunk + 1, numbers.choice(*range(4 * chunk))) for _ in range(count)
    ]
    if count and numbers.turn(False, True, False):
        lengths[numbers.choice(*range(count))] = 256 * chunk + numbers.choice(-1, 0, 1)
    dtype = numbers.turn("int32", "int64", "int32")
    starts = [numbers.choice(0, 0, 7, (1 << 33) - 3 if dtype == "int64" else 1)]
    for length in lengths:
        starts.append(starts[-1] + length)
    rows = sum(-(-length // chunk) for length in lengths) + numbers.choice(0, 0, 3)
    return {
        "inputs": {"starts": array(starts, dtype)},
        "outputs": {
            "rows": array([[UNTOUCHED] * 2] * rows or [[]], dtype),
            "offsets": array([UNTOUCHED] * (count + 1), "int64"),
        },
        "grid": (count,),
        "arguments": {
            "cu_seqlens": "starts",
            "chunk_indices": "rows",
            "chunk_offsets": "offsets",
            "N": count,
            "BT": chunk,
            "BLOCK_N": max(128, 1 << count.bit_length()),
            "BLOCK_T": 256,
            "num_warps": 4,
        },
    }


def answer(drawn):
    starts, chunk = drawn["inputs"]["starts"].data.tolist(), drawn["arguments"]["BT"]
    rows, offsets = (drawn["outputs"][name].data.copy() for name in ("rows", "offsets"))
    done = 0
    for number in range(len(starts) - 1):
        offsets[number] = done
        for part in range(-(-(starts[number + 1] - starts[number]) // chunk)):
            rows[done] = number, part
            done += 1
        offsets[number + 1] = done
    return {"rows": rows, "offsets": offsets}


DRAWS = {"chunk_metadata": draw}
