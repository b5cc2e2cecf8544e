"""Faults of contracts 4.2 to 4.6 that steps by a rule show: products in 32 bits, and rows past the programs."""

from correct_gather import gather_block_tables, gather_block_tables_windowed
from correct_kernel_table import kernel_block_table
from correct_slots import slot_mapping, slot_mapping_hybrid
from lost_bits import reads_in_32_bits, repeats_after, writes_in_32_bits

gather_rows = reads_in_32_bits(gather_block_tables, "block_tables", 0)
gather_columns = reads_in_32_bits(gather_block_tables, "block_tables", 1)
gather_groups = reads_in_32_bits(gather_block_tables, "num_blocks", 0)
gather_counts = reads_in_32_bits(gather_block_tables, "num_blocks", 1)
gather_requests = reads_in_32_bits(gather_block_tables, "idx_mapping")
gather_out_rows = writes_in_32_bits(gather_block_tables, "out", 0)
gather_out_columns = writes_in_32_bits(gather_block_tables, "out", 1)
gather_128_requests = repeats_after(gather_block_tables, "idx_mapping", 128)

windowed_columns = reads_in_32_bits(gather_block_tables_windowed, "block_tables", 1)
windowed_tokens = reads_in_32_bits(gather_block_tables_windowed, "num_computed_tokens")
windowed_128_requests = repeats_after(gather_block_tables_windowed, "idx_mapping", 128)

slot_rows = reads_in_32_bits(slot_mapping, "block_table", 0)
slot_columns = reads_in_32_bits(slot_mapping, "block_table", 1)
slot_requests = reads_in_32_bits(slot_mapping, "idx_mapping")
slot_starts = reads_in_32_bits(slot_mapping, "query_start_loc")
slot_positions = reads_in_32_bits(slot_mapping, "positions")
slot_128_requests = repeats_after(slot_mapping, "idx_mapping", 128)

hybrid_rows = reads_in_32_bits(slot_mapping_hybrid, "block_table", 0)
hybrid_columns = reads_in_32_bits(slot_mapping_hybrid, "block_table", 1)
hybrid_requests = reads_in_32_bits(slot_mapping_hybrid, "idx_mapping")
hybrid_128_requests = repeats_after(slot_mapping_hybrid, "idx_mapping", 128)

slot_slots = writes_in_32_bits(slot_mapping, "slot_mapping")
hybrid_slots = writes_in_32_bits(slot_mapping_hybrid, "slot_mapping")

expanded_rows = reads_in_32_bits(kernel_block_table, "block_table", 0)
expanded_columns = reads_in_32_bits(kernel_block_table, "block_table", 1)
expanded_128_rows = repeats_after(kernel_block_table, "block_table", 128)
