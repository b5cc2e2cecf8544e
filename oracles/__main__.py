"""``python -m oracles``: the command line, for environments without the console script."""

from oracles.cli import main

main(prog_name="oracles")
