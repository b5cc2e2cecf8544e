"""Exits while it is imported."""

import sys

sys.exit("not here")


def chunk_metadata(**inputs):
    return None
