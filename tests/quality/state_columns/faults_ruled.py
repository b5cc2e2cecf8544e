"""Faults of contracts 3.1, 3.2 and 3.4 that steps by a rule show: products in 32 bits, and rows past the programs."""

from correct_columns import state_columns
from correct_partition import spec_token_partition
from correct_staging import stage_decode_state
from lost_bits import reads_in_32_bits, repeats_after

column_rows = reads_in_32_bits(state_columns, "block_table", 0)
column_columns = reads_in_32_bits(state_columns, "block_table", 1)
column_lengths = reads_in_32_bits(state_columns, "seq_lens")
column_128_lengths = repeats_after(state_columns, "seq_lens", 128)

staged_rows = reads_in_32_bits(stage_decode_state, "state_indices", 0)
staged_columns = reads_in_32_bits(stage_decode_state, "state_indices", 1)
staged_starts = reads_in_32_bits(stage_decode_state, "query_start_loc")
staged_counts = reads_in_32_bits(stage_decode_state, "num_accepted_tokens")
staged_128_counts = repeats_after(stage_decode_state, "num_accepted_tokens", 128)

parted_starts = reads_in_32_bits(spec_token_partition, "query_start_loc")
parted_128_masks = repeats_after(spec_token_partition, "spec_mask_cpu", 128)
