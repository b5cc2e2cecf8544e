"""Has a number where the callable should be."""

chunk_metadata = 3
