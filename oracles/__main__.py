"""The command ``oracles``, also as ``python -m oracles``. It begins here because what it needs takes long to import."""

from __future__ import annotations

import os
import signal
from types import FrameType

INTERRUPTED = 130


def main() -> None:
    """Run the command line. Interrupted while it is imported, it ends at once: nothing has begun."""
    asked = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # else whoever started it wants it ignored
    if asked:
        signal.signal(signal.SIGINT, _leave)
    from oracles.cli import main as command

    if asked:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    command(prog_name="oracles")


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    main()
