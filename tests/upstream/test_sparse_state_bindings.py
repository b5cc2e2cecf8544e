"""Adapters of upstream code for families 2 and 3, on small batches whose results were worked out by hand."""

import json
import os
import subprocess
import sys
import textwrap

import pytest

from oracles.arrays import array
from oracles.contract import Binding
from oracles.contracts import gdn_bindings, mla_decode_bindings, sparse_bindings, state_bindings
from oracles.contracts import sparse_known as sparse
from oracles.contracts import state_known as state
from oracles.providers.archives import ArchiveTree
from oracles.providers.binding import LiftedBinding, chosen
from oracles.providers.standins import MissingImport
from oracles.providers.trees import TextTree
from oracles.verdict import Unsupported


def load(binding, tree):
    choice = chosen(tree, binding, {})
    if choice.lacking:
        pytest.skip(choice.lacking)
    return LiftedBinding(lambda: tree, binding, choice)()


def plain(value):
    return value.tolist() if hasattr(value, "tolist") else value


@pytest.fixture
def bound(released):
    """``bound(bindings, number)``: one of a contract's bindings, as a function of lists that returns lists."""
    torch = pytest.importorskip("torch")

    def bind(bindings, number=0):
        function = load(bindings[number], ArchiveTree(released))

        def call(**inputs):
            tensors = {
                name: torch.tensor(value, dtype=torch.bool if value and isinstance(value[0], bool) else torch.int32)
                for name, value in inputs.items()
                if isinstance(value, list)
            }
            return [plain(value) for value in function(**(inputs | tensors))]

        return call

    return bind


pytestmark = pytest.mark.upstream

LAYOUT = {"seq_lens": [9, 5, 0], "varlen_width": 0, "full_graph": True}
PADDED = {"query_start_loc": [0, 2, 4, 4], "query_start_loc_cpu": [0, 2, 4, 4], "num_decode_tokens": 6}


def test_a_graph_gives_padding_rows_the_queries_of_all_others(bound, released):
    layout = bound(sparse_bindings.MLA_DECODE_LAYOUT)
    assert layout(**LAYOUT, **(PADDED | {"num_decode_tokens": 4})) == [[9, 5, 0], [0, 9, 14, 14], [0, 2, 4, 4], 2, 1]
    if not ArchiveTree(released).read(mla_decode_bindings.FILE).count("def _uniform_padded_mtp_qo_len"):
        pytest.skip("this release knows the plain layout only")
    assert layout(**LAYOUT, **PADDED) == [[9, 5, 2], [0, 9, 14, 16], [0, 2, 4, 6], 2, 1]


def test_rows_of_a_fixed_width_are_longer_by_the_queries_that_they_lack(bound):
    layout = bound(sparse_bindings.MLA_DECODE_LAYOUT)
    try:
        wide = layout(**(LAYOUT | {"varlen_width": 3}), **PADDED)
    except Unsupported as reason:
        pytest.skip(str(reason))
    assert wide == [[10, 6, 3], [0, 10, 16, 19], [0, 3, 6, 9], 3, 1]


def test_ranks_share_a_sequence_in_turns(bound):
    local = bound(sparse_bindings.DCP_LOCAL_SEQ_LENS)
    given = {"seq_lens": [10, 3], "dcp_size": 2, "interleave": 2}
    assert local(**given, dcp_rank=None) == [[[6, 4], [2, 1]]]
    assert local(**given, dcp_rank=1) == [[4, 1]]


def test_a_state_is_that_of_the_last_token(bound):
    columns = bound(state_bindings.STATE_COLUMNS)
    table = {"block_table": [[7, 8, 9], [4, 5, 6]], "block_size": 16}
    assert columns(**table, seq_lens=[33, 0], mamba_cache_mode="align", num_speculative_blocks=0) == [[[9], [4]]]
    assert columns(**table, seq_lens=[17, 9], mamba_cache_mode="align", num_speculative_blocks=1) == [[[8, 9], [4, 5]]]
    assert columns(**table, seq_lens=[33, 9], mamba_cache_mode="none", num_speculative_blocks=1) == [[[7, 8], [4, 5]]]


STAGED = {
    "state_indices": [[11, 12], [21, 22]],
    "query_start_loc": [0, 2, 3],
    "num_accepted_tokens": [2, 1],
    "batch_size": 3,
    "state_buffer": [[91, 92]] * 4,
    "query_start_loc_buffer": [51, 52, 53, 54, 55],
    "num_accepted_buffer": [71, 72, 73, 74],
}
STAGED_VIEWS = [[[11, 12], [21, 22], [0, 0]], [0, 2, 3, 3], [2, 1, 1]]


def test_padding_rows_are_staged_without_state_and_queries(bound):
    assert bound(gdn_bindings.GDN_STAGING)(**STAGED) == STAGED_VIEWS


def test_from_the_first_prefill_on_all_are_prefills(bound):
    split = bound(state_bindings.SPLIT_DECODES_AND_PREFILLS)
    given = {"query_start_loc": [0, 1, 6, 7], "decode_threshold": 1, "require_uniform": False}
    assert split(**given, is_prefilling=None, treat_short_extends_as_decodes=True) == [1, 2, 1, 6]
    flags = [True, True, False]
    assert split(**given, is_prefilling=flags, treat_short_extends_as_decodes=False) == [0, 3, 0, 7]


def test_tokens_are_parted_in_order(bound):
    part = bound(state_bindings.SPEC_TOKEN_PARTITION)
    starts = {"query_start_loc": [0, 2, 5, 7, 7], "query_start_loc_cpu": [0, 2, 5, 7, 7]}
    mixed = part(**starts, spec_mask_cpu=[True, False, True, False])
    assert mixed == [[0, 1, 5, 6], [2, 3, 4], [0, 2, 4], [0, 3, 3]]
    nobody = part(**starts, spec_mask_cpu=[False] * 4)
    assert nobody == [[], [0, 1, 2, 3, 4, 5, 6], [0], [0, 2, 5, 7, 7]]
    everybody = part(**starts, spec_mask_cpu=[True] * 4)
    assert everybody == [[0, 1, 2, 3, 4, 5, 6], [], [0, 2, 5, 7, 7], [0]]


def test_a_later_chunk_of_one_token_is_a_decode(bound):
    classify = bound(state_bindings.CLASSIFY)
    batch = {"query_start_loc_cpu": [0, 1, 2, 7], "seq_lens_cpu": [9, 6, 5], "is_prefilling": [False, True, True]}
    plain_batch = classify(**batch, num_decode_draft_tokens_cpu=None, num_speculative_tokens=0)
    assert plain_batch == [2, 1, 0, 2, 5, 0, [False] * 3, [True, True, False], [0, 5]]
    drafts = {"num_decode_draft_tokens_cpu": [1, -1, -1], "num_speculative_tokens": 1}
    assert classify(**batch, **drafts) == [0, 2, 1, 0, 6, 1, [True, False, False], [True, False], [0, 1, 6]]


TOKENS = {
    "req_id_per_token": [0, 1],
    "block_table": [[5, 9], [3, 4]],
    "topk_indices": [[6, 1, 0], [2, 5, -1]],
    "paged_kv_indptr": [1, 4, 6],
    "block_size": 4,
    "block_stride": 4,
    "paged_kv_indices": [71, 72, 73, 74, 75, 76, 77],
}
TABLE = {
    "block_table": [[7, 8, 9], [4, 5, 6]],
    "seq_lens": [17, 9],
    "mamba_cache_mode": "align",
    "block_size": 16,
    "num_speculative_blocks": 1,
}
LENGTHS = {
    "seq_lens": [5, 3, 10, 0],
    "query_start_loc": [0, 1, 4, 6, 6],
    "query_start_loc_cpu": [0, 1, 4, 6, 6],
    "topk": 4,
    "num_tokens": 8,
}
PAGES = {
    "block_table": [[3, 5], [7, 0]],
    "seq_lens": [6, 2],
    "kernel_block_size": 4,
    "paged_kv_indices": [71] * 16,
}
LOCAL = {"seq_lens": [10, 3], "dcp_size": 2, "dcp_rank": None, "interleave": 2}
SLOTS = [[71, 38, 21, 20, 14, 17, 77]]
KERNELS = {
    "SPARSE_INDPTR/0": (LENGTHS, [[4, 1, 2, 3, 4, 4, 0, 0], [0, 4, 5, 7, 10, 14, 18, 18, 18]]),
    "SPARSE_PAGE_INDICES/0": (TOKENS, SLOTS),
    "SPARSE_PAGE_INDICES/1": (TOKENS, SLOTS),
    "SPARSE_PAGE_INDICES/2": (TOKENS, SLOTS),
    "DENSE_PAGE_INDICES/0": (PAGES, [[0, 6, 8], [1, 1], [12, 13, 14, 15, 20, 21, 28, 29] + [-1] * 8]),
    "DCP_LOCAL_SEQ_LENS/1": (LOCAL, [[[6, 4], [2, 1]]]),
    "STATE_COLUMNS/1": (TABLE, [[[8, 9], [4, 5]]]),
    "STATE_COLUMNS/2": (TABLE, [[[8, 9], [4, 5]]]),
    "STATE_COLUMNS/3": (TABLE, [[[8, 9], [4, 5]]]),
    "STAGE_DECODE_STATE/0": (STAGED, STAGED_VIEWS),
}
CHILD = """
    import json, sys
    from pathlib import Path
    import torch
    from oracles.contracts import sparse_bindings, state_bindings
    from oracles.providers.archives import ArchiveTree
    from oracles.providers.binding import LiftedBinding, chosen
    wheel, given = json.load(sys.stdin)
    tree, results = ArchiveTree(Path(wheel)), {}
    for name, inputs in given.items():
        bindings, _, number = name.partition("/")
        module = sparse_bindings if hasattr(sparse_bindings, bindings) else state_bindings
        binding = getattr(module, bindings)[int(number)]
        choice = chosen(tree, binding, {})
        if choice.lacking:
            continue
        function = LiftedBinding(lambda: tree, binding, choice)()
        tensors = {n: torch.tensor(v, dtype=torch.int32) for n, v in inputs.items() if isinstance(v, list)}
        results[name] = [value.tolist() for value in function(**(inputs | tensors))]
    json.dump(results, sys.stdout)
"""


def test_kernels_give_what_was_worked_out_by_hand(released, tmp_path):
    pytest.importorskip("triton", reason="the interpreter is Triton's")
    given = json.dumps([str(released), {name: inputs for name, (inputs, _) in KERNELS.items()}])
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(CHILD)],
        input=given,
        env={**os.environ, "TRITON_INTERPRET": "1", "TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    assert results == {name: wanted for name, (_, wanted) in KERNELS.items() if name in results}
    assert len(results) >= len(KERNELS) - 4  # older releases lack up to four of them


# Without a wheel


def test_a_planner_that_cannot_be_lifted_says_which_import_it_needs():
    text = """
from ..jit.core import compile_ops
def get_mla_metadata_info_v1(): ...
@compile_ops("module_mla_metadata")
def _implementation(): ...
def get_mla_metadata_v1(): return _implementation()
"""
    with pytest.raises(MissingImport, match=r"aiter\.jit\.core:compile_ops was used"):
        load(sparse_bindings.MLA_SPLIT_PLAN[0], TextTree({sparse_bindings.AITER: text}, "aiter 1 (text)"))


OLDER = """
def triton_convert_req_index_to_global_index(
    req_id, block_table, token_indices, cu_seqlens, paged_kv_indices, BLOCK_SIZE=64, NUM_TOPK_TOKENS=64, BLOCK_N=64
):
    assert NUM_TOPK_TOKENS % BLOCK_N == 0
    assert req_id.dtype == token_indices.dtype == block_table.dtype
    paged_kv_indices[:] = token_indices[0, 0]
"""


def test_numbers_that_int32_lacks_still_mean_nothing_and_blocks_may_have_no_gap_in_older_releases():
    torch = pytest.importorskip("torch")
    tree = TextTree({sparse_bindings.ROCM: OLDER}, "vllm 1 (text)")
    convert = load(sparse_bindings.SPARSE_PAGE_INDICES[0], tree)
    given = {name: torch.tensor(value, dtype=torch.int32) for name, value in TOKENS.items() if isinstance(value, list)}
    given["topk_indices"] = torch.full((2, 3), 1 << 33)
    [slots] = convert(**(TOKENS | given))
    assert set(slots.tolist()) == {(1 << 31) - 1}
    with pytest.raises(Unsupported, match="nothing lies between blocks"):
        convert(**(TOKENS | given | {"block_stride": 5}))


def test_a_release_that_hands_on_the_whole_table_in_mode_all_is_not_judged_on_it():
    torch = pytest.importorskip("torch")
    text = """
def mamba_get_block_table_tensor(block_table, seq_lens, kv_cache_spec, mamba_cache_mode):
    return block_table
"""
    columns = load(state_bindings.STATE_COLUMNS[0], TextTree({state_bindings.UTILS: text}, "vllm 1 (text)"))
    given = {"block_table": torch.ones(2, 3), "seq_lens": torch.ones(2), "block_size": 4, "num_speculative_blocks": 0}
    assert columns(**given, mamba_cache_mode="none")[0].shape == (2, 1)
    with pytest.raises(Unsupported, match="whole table"):
        columns(**given, mamba_cache_mode="all")


def test_names_of_contracts_stand_for_bindings():
    for module in (sparse_bindings, state_bindings):
        for name in module.__all__:
            assert all(isinstance(item, Binding) for item in getattr(module, name)), name


# Predicates


@pytest.mark.parametrize(
    ("stride", "matches"),
    [
        (1, False),
        (2, True),
    ],
)
def test_strided_lengths_are_a_known_fault_where_a_kernel_reads_them(stride, matches):
    inputs = {
        "seq_lens": array([5, 3], "int32", (stride,)),
        "query_start_loc": array([0, 1, 2], "int32"),
        "query_start_loc_cpu": array([0, 1, 2], "int32"),
        "topk": 4,
        "num_tokens": 2,
    }
    assert sparse.SPARSE_INDPTR["lengths_or_starts_apart"](inputs) is matches
    # Without a query, nothing is launched.
    none = array([0, 0, 0], "int32")
    idle = inputs | {"query_start_loc": none, "query_start_loc_cpu": none}
    assert not sparse.SPARSE_INDPTR["lengths_or_starts_apart"](idle)


def test_a_column_past_the_row_is_a_fault_unless_what_lies_there_is_null():
    inputs = {
        "block_table": array([[7, 8], [0, 5]], "int32"),
        "seq_lens": array([33, 1], "int32"),
        "mamba_cache_mode": "align",
        "block_size": 16,
        "num_speculative_blocks": 0,
    }
    assert not state.STATE_COLUMNS["columns_elsewhere_align"](inputs)
    table = array([[7, 8], [4, 5]], "int32")
    assert state.STATE_COLUMNS["columns_elsewhere_align"](inputs | {"block_table": table})
    assert state.STATE_COLUMNS["gathers_past_the_row"](inputs)
