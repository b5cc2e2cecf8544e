"""`oracles explain`: the whole text for a case of every kind."""

from pathlib import Path

import pytest

from oracles.arrays import array
from oracles.case import Case

NAME = "chunk_metadata.chunk_metadata"

TYPICAL = """\
chunk_metadata.chunk_metadata  case 468ffa4bde632fb8

inputs
  cu_seqlens       int32[4] = [0, 3, 3, 8]
                   (device) int32 or int64 [N+1], cumulative lengths in tokens
  cu_seqlens_cpu   int64[4] = [0, 3, 3, 8]
                   (host) int32 or int64 [N+1], the same values on the host
  chunk_size       2
                   (scalar) int >= 1, tokens

sequence   0  tokens 0..2             rows 0..1     |########|####....|
sequence   1  no tokens               no row        (empty)
sequence   2  tokens 3..7             rows 2..4     |########|########|####....|

expected
  chunk_indices    int32[5, 2] = [[0, 0], [0, 1], [2, 0], [2, 1], [2, 2]]
  chunk_offsets    int64[4] = [0, 2, 2, 5]

chunk_metadata.chunk_metadata | nonsense.py: wrong_value | host
  chunk_indices: as expected
  chunk_offsets: 4 of 4 elements differ, first at chunk_offsets[0]
         row  got                         expected
           0  1                           0 <-- first difference
           1  3                           2
           2  3                           2
           3  6                           5
  wrong_value: chunk_offsets: chunk_offsets[0] is 1, expected 0; 4 of 4 elements differ
"""

UNWRITTEN = """\
  chunk_indices: 56 of 60 elements differ, first at chunk_indices[2, 0]
         row  got                         expected
           0  [0, 0]                      [0, 0]
           1  [0, 1]                      [0, 1]
           2  [(unwritten), (unwritten)]  [0, 2] <-- first difference
           3  [(unwritten), (unwritten)]  [0, 3]
           4  [(unwritten), (unwritten)]  [0, 4]
           5  [(unwritten), (unwritten)]  [0, 5]
           6  [(unwritten), (unwritten)]  [0, 6]
  chunk_offsets: as expected
  unwritten: chunk_indices: chunk_indices[2, 0] was never written, expected 0; 56 of 60 elements differ
"""


@pytest.fixture
def explain(oracles):
    def run(name, *, file="nonsense.py", cu=(0, 3, 3, 8), host=None, chunk_size=2, options=()):
        inputs = {
            "cu_seqlens": array(list(cu), "int32"),
            "cu_seqlens_cpu": array(list(host or cu), "int64"),
            "chunk_size": chunk_size,
        }
        path = oracles.folder / "case.json"
        origin = {"implementation": f"{oracles.data / file}:{name}", "backend": "host"}
        Case(contract=NAME, inputs=inputs, origin=origin).save(path)
        ended = oracles.run("explain", str(path), *options)
        assert ended.err == ""
        assert oracles.left() == []
        return ended.out

    return run


def test_a_wrong_value(explain):
    assert explain("wrong_value") == TYPICAL


def test_what_was_never_written(explain):
    assert UNWRITTEN in explain("forgets_a_row", cu=(0, 30), chunk_size=1)


def test_a_pass(explain):
    text = explain("chunk_metadata", file="good.py")
    assert text.endswith("  chunk_indices: as expected\n  chunk_offsets: as expected\n  pass\n")


def test_a_refused_case(explain):
    text = explain("chunk_metadata", file="good.py", chunk_size=0)
    assert "expected: a refusal. chunk_size: 0 breaks the rule: it must be an int of at least 1" in text
    assert text.endswith("  raised ValueError: chunk_size: at least 1\n  pass\n")
    assert "no sequences" not in text


def test_a_refused_case_that_is_accepted(explain):
    text = explain("none", chunk_size=0)
    assert "  wrongly_accepted: chunk_size: no exception; the contract refuses it: chunk_size: 0" in text


def test_a_case_that_only_promises_memory_safety(explain):
    text = explain("chunk_metadata", file="good.py", cu=(0, -3), host=(0, 3))
    assert "expected: no particular values, but nothing outside the buffers may be touched. the device's length" in text
    assert text.endswith("  chunk_indices    returned int32[2, 2]\n  chunk_offsets    returned int64[2]\n  pass\n")


@pytest.mark.parametrize(
    ("name", "file", "line"),
    [
        ("none", "nonsense.py", "  chunk_indices: not returned"),
        ("float_tensors", "nonsense.py", "  chunk_indices: float64[5, 2], expected int32[5, 2]"),
        (
            "string",
            "nonsense.py",
            "  wrong_shape: outputs: returned str; the contract has chunk_indices, chunk_offsets",
        ),
        ("raises_where_it_may_not", "nonsense.py", "  raised ValueError: not today"),
        ("raises_where_it_may_not", "nonsense.py", "  wrongly_refused: ValueError: ValueError: not today"),
        ("raises_unprintable", "nonsense.py", "  raised Unprintable (its text cannot be read: RuntimeError)"),
        ("exits_with_1", "hostile.py", "  crash: exit 1: the process exited with 1"),
        ("chunk_metadata", "load_raises.py", "  could not be loaded: ImportError: this machine has no such library"),
        ("chunk_metadata", "uses_triton.py", "host: it launches Triton kernels, and backend host runs none"),
    ],
)
def test_what_can_go_wrong(explain, name, file, line):
    assert line in explain(name, file=file)


def test_several_implementations(explain, oracles):
    names = ("good.py:chunk_metadata", "nonsense.py:none")
    options = [option for name in names for option in ("--impl", f"{oracles.data / name}")]
    text = explain("wrong_value", options=options)
    assert "wrong_value" not in text
    assert "| good.py: chunk_metadata | host" in text
    assert "| nonsense.py: none | host" in text


def test_the_case_is_explained_even_if_its_implementation_is_gone(explain):
    text = explain("never_there", file="gone.py")
    assert text.startswith(TYPICAL.split("\n\nchunk_metadata.chunk_metadata | ")[0])
    assert "gone.py: there is no such file" in text


def test_a_case_of_nobody(oracles, in_process):
    """Without an origin there is nothing to compare with."""
    inputs = {"cu_seqlens": array([0], "int32"), "cu_seqlens_cpu": array([0], "int64"), "chunk_size": 2}
    Case(contract=NAME, inputs=inputs).save(oracles.folder / "case.json")
    code, out, err = in_process("explain", "case.json")
    assert (code, err) == (0, "")
    assert "no sequences" in out
    assert out.rstrip().endswith("chunk_offsets    int64[1] = [0]")


def test_layouts_and_long_inputs_are_described(oracles, in_process):
    inputs = {
        "cu_seqlens": array(list(range(50)), "int32", (3,), 2),
        "cu_seqlens_cpu": array(list(range(50)), "int64"),
        "chunk_size": 2,
    }
    Case(contract=NAME, inputs=inputs).save(oracles.folder / "case.json")
    code, out, _ = in_process("explain", "case.json")
    assert code == 0
    assert "int32[50], strides [3], 2 elements into its buffer = [0, 1, 2," in out
    assert ", 23, ... 49]" in out
    assert "..." in out[out.index("expected") :]


ZEROS = """\
import torch


def zeros(q_nope, q_pe, k_pe, **_):
    return torch.zeros(*q_nope.shape[:2], 4, dtype=q_nope.dtype, device=q_nope.device), k_pe.double()
"""

NUMBERS = """\
  q_pe             bfloat16[1, 1, 2] = [[[-0.125, -0.0]]]
                   (device) float [T, H, P], the part that is rotated
"""

ROWS = """\
expected
  q_out            bfloat16[1, 1, 4] = [[[0.5, nan (0x7fc1), 0.0, -0.125]]]
  k_pe_out         bfloat16[1, 2] = [[-3.0, 1.0]]
  kv_cache         float8_e4m3fn[1, 1, 4] = [[[1.0, -1.5, -3.0, 1.0]]]

rope_kv_cache.rope_and_cache_mla | zeros.py: zeros | host
  q_out: 3 of 4 elements differ, first at q_out[0, 0, 0]
         row  got                         expected
           0  [[0.0, 0.0, 0.0, 0.0]]      [[0.5, nan (0x7fc1), 0.0, -0.125]] <-- first difference
  k_pe_out: float64[1, 2], expected bfloat16[1, 2]
  kv_cache: 4 of 4 elements differ, first at kv_cache[0, 0, 0]
         row  got                         expected
           0  [[2.0, 2.0, 2.0, 2.0]]      [[1.0, -1.5, -3.0, 1.0]] <-- first difference
  wrong_shape: k_pe_out: float64 [1, 2] where the contract says bfloat16 [1, 2]
  wrong_value: q_out: q_out[0, 0, 0] is 0.0 (0x0000), expected 0.5 (0x3f00); 3 of 4 elements differ; token 0, head 0,\
 lane 0, which is not rotated, order "hip"
      lane 0 is 0.5
  wrong_value: kv_cache: kv_cache[0, 0, 0] is 2.0 (0x40), expected 1.0 (0x38); 4 of 4 elements differ; token 0, lane 0,\
 which is not rotated, order "hip"
      lane 0 is 1.0
      1.0 scaled with 1.0 (reciprocal)
      would be right with: float8_e4m3fnuz instead of float8_e4m3fn
"""


def test_floats_are_the_numbers_that_they_are(oracles):
    """A quarter turn of a pair, whose sine is 1 and whose cosine is 0; all of it in bits in the file."""
    inputs = {
        "q_nope": array([[[0x3F00, 0x7FC1]]], "bfloat16"),
        "q_pe": array([[[0xBE00, 0x8000]]], "bfloat16"),
        "kv_c": array([[0x3F80, 0xBFC0]], "bfloat16"),
        "k_pe": array([[0x3F80, 0x4040]], "bfloat16"),
        "cos": array([[0x0000]], "bfloat16"),
        "sin": array([[0x3F80]], "bfloat16"),
        "positions": array([0], "int32"),
        "slot_mapping": array([0], "int32"),
        "k_scale": None,
        "q_scale": None,
        "is_neox": True,
        "cache_dtype": "float8_e4m3fn",
        "kv_cache": array([[[0x40] * 4]], "float8_e4m3fn"),
    }
    (oracles.folder / "zeros.py").write_text(ZEROS)
    Case(contract="rope_kv_cache.rope_and_cache_mla", inputs=inputs).save(oracles.folder / "case.json")
    shown = oracles.run("explain", "case.json", "--impl", "zeros.py:zeros", "--backend", "host").out
    assert NUMBERS in shown
    assert ROWS in shown


def test_what_is_the_same_for_neighbours_is_said_once(oracles):
    case = Path(__file__).parents[2] / "corpus/metadata_reuse/pages-of-another-group.json"
    shown = oracles.run("explain", str(case), "--impl", "optimized", "--backend", "gfx942").out
    assert "\n  num_decodes[0..3] int = 1\n" in shown
    assert "\n  paged_kv_indices[0] int32[4] = [12, 13, -1, -1]\n  paged_kv_indices[1] int32[4] = [32, 33," in shown
    assert "\n  paged_kv_indices[0..3]: as expected\n" in shown
