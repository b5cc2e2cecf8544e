"""Block tables, state columns and staging together: what a graph's padding row ends as (public bug C08)."""

import numpy as np
import pytest

from oracles.contracts._batch_domain import Wanted, draw_batch
from oracles.domain import Sampler
from reference.block_table import gather_block_tables
from reference.state_columns import stage_decode_state, state_columns

STEPS = 40


@pytest.mark.parametrize("mode", ["align", "all"])
def test_a_padding_row_over_stale_tables_ends_as_null(mode):
    """Whatever tables and buffers held before."""
    padded = 0
    for number in range(STEPS):
        batch = draw_batch(Sampler(6, number), Wanted())
        rows, graph, table = len(batch.requests), batch.num_reqs_padded, batch.block_table(0)
        out = [np.full((graph, table.shape[1]), 9, np.int32)]
        (gathered,) = gather_block_tables(
            [table], np.array([batch.num_blocks(0)], int), np.array(batch.idx_mapping, int), out
        )[0]
        lengths = np.array([*batch.seq_lens, *[0] * (graph - rows)], int)
        (columns,) = state_columns(gathered, lengths, mode, batch.groups[0].block_size, 1)
        assert not columns[rows:].any()

        buffers = np.full((graph + 1, 2), 9, np.int32), np.full(graph + 2, 9, np.int32), np.full(graph + 1, 9, np.int32)
        step = columns[:rows], np.array(batch.query_start_loc), np.ones(rows, int)
        *_, states, starts, accepted = stage_decode_state(*step, graph, *buffers)
        assert states.tolist() == [*columns.tolist(), [9, 9]]
        assert starts.tolist() == [*batch.query_start_loc, *[batch.num_tokens] * (graph - rows), 9]
        assert accepted.tolist() == [*[1] * graph, 9]
        padded += graph > rows
    assert padded >= STEPS // 4


@pytest.mark.parametrize("mode", ["align", "all"])
def test_a_length_of_zero_has_the_stale_block_of_a_table_that_was_not_gathered(mode):
    """Columns are copied as they are, so it is the gather, or the staging, that has to make padding NULL."""
    (columns,) = state_columns(np.array([[4], [9]], np.int32), np.array([1, 0]), mode, 16, 0)
    assert columns.tolist() == [[4], [9]]
    buffers = np.full((2, 1), 7, np.int32), np.full(3, 7, np.int32), np.full(2, 7, np.int32)
    states, *_ = stage_decode_state(columns[:1], np.array([0, 1]), np.array([1]), 2, *buffers)
    assert states.tolist() == [[4], [0]]
