"""Rows of a batch, shared out among the programs of a launch in which each adds up what is before its own rows.

Up to so many groups a row has programs of its own. What all programs read together then grows with the number of rows,
and not with its square, and one launch is enough for any batch.
"""

from __future__ import annotations

_MOST_GROUPS = 1024


def row_groups(num_rows: int) -> tuple[int, int]:
    """How many groups there are, at least one, and how many rows each of them but the last has."""
    rows_each = max(-(-num_rows // _MOST_GROUPS), 1)
    return max(-(-num_rows // rows_each), 1), rows_each
