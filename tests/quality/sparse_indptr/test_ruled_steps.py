"""Products in 32 bits and rows past a persistent kernel's programs are found in small scopes, whatever the seed."""

from __future__ import annotations

import pytest

OF = {
    "seen": "sparse_indptr",
    "page": "sparse_page_indices",
    "dense": "dense_page_indices",
    "share": "dcp_local_seq_lens",
    "layout": "mla_decode_layout",
}
FAULTS = {
    "uninitialised_read:sparse_seq_lens": "seen_lengths seen_starts",
    "wrong_value:sparse_seq_lens": "seen_128_lengths",
    "uninitialised_read:paged_kv_indices": "page_rows page_columns page_starts dense_rows dense_columns dense_lengths",
    "wrong_value:paged_kv_indices": """
        page_requests page_queries page_choices page_64_requests page_128_requests dense_128_lengths
    """,
    "out_of_bounds_write:paged_kv_indices": "page_slots dense_slots",
    "uninitialised_read:local_seq_lens": "share_rows share_columns",
    "unwritten:qo_indptr": "layout_starts",
    "unwritten:kernel_seq_lens": "layout_lengths",
    "wrong_value:kernel_seq_lens": "layout_128_lengths",
}
PLANTED = [(fault, key) for key, names in FAULTS.items() for fault in names.split()]


@pytest.mark.parametrize(("fault", "key"), PLANTED)
def test_a_fault_is_found_in_the_small_scope(fault: str, key: str, look_for) -> None:
    found = look_for(OF[fault.split("_")[0]], f"faults_ruled.py:{fault}", key, samples=0)
    assert found.median <= found.given, found.needed
