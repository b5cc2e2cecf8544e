"""Faults of contracts 2.1 to 2.6 that steps by a rule show: products in 32 bits, and rows past the programs."""

from correct_dense import dense_page_indices
from correct_layouts import mla_decode_layout
from correct_lengths import sparse_indptr
from correct_pages import convert
from correct_shares import dcp_local_seq_lens
from lost_bits import reads_in_32_bits, repeats_after, writes_in_32_bits

seen_lengths = reads_in_32_bits(sparse_indptr, "seq_lens")
seen_starts = reads_in_32_bits(sparse_indptr, "query_start_loc")
seen_128_lengths = repeats_after(sparse_indptr, "seq_lens", 128)


def page_indices(**call):
    convert(**call)


page_rows = reads_in_32_bits(page_indices, "block_table", 0)
page_columns = reads_in_32_bits(page_indices, "block_table", 1)
page_requests = reads_in_32_bits(page_indices, "req_id_per_token")
page_queries = reads_in_32_bits(page_indices, "topk_indices", 0)
page_choices = reads_in_32_bits(page_indices, "topk_indices", 1)
page_starts = reads_in_32_bits(page_indices, "paged_kv_indptr")
page_slots = writes_in_32_bits(page_indices, "paged_kv_indices")
page_64_requests = repeats_after(page_indices, "req_id_per_token", 64)
page_128_requests = repeats_after(page_indices, "req_id_per_token", 128)

dense_rows = reads_in_32_bits(dense_page_indices, "block_table", 0)
dense_columns = reads_in_32_bits(dense_page_indices, "block_table", 1)
dense_lengths = reads_in_32_bits(dense_page_indices, "seq_lens")
dense_slots = writes_in_32_bits(dense_page_indices, "paged_kv_indices")
dense_128_lengths = repeats_after(dense_page_indices, "seq_lens", 128)

share_rows = reads_in_32_bits(dcp_local_seq_lens, "seq_lens", 0)
share_columns = reads_in_32_bits(dcp_local_seq_lens, "seq_lens", 1)

layout_starts = reads_in_32_bits(mla_decode_layout, "query_start_loc")
layout_lengths = reads_in_32_bits(mla_decode_layout, "seq_lens")
layout_128_lengths = repeats_after(mla_decode_layout, "seq_lens", 128)
