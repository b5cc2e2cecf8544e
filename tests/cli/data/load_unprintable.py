"""Raises what cannot be printed while it is imported."""


class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError("no text")


raise Unprintable


def chunk_metadata(**inputs):
    return None
