"""What ``judge_kernels.py`` is asked for. Imported first: a backend's environment counts when Triton is imported."""

import argparse
import os

from oracles.backends import by_name

PARSER = argparse.ArgumentParser(description="two correct kernels and the six faults in each, on one backend")
PARSER.add_argument("--backend", default="interpreter", help="where the kernels run")
PARSER.add_argument("--cases", type=int, default=200, help="inputs for each faulty kernel")
PARSER.add_argument("--correct", type=int, default=0, help="inputs for each correct kernel")
PARSER.add_argument("--table", action="store_true", help="print a table for people")
OPTIONS = PARSER.parse_args()
BACKEND = by_name(OPTIONS.backend)
os.environ.update(BACKEND.environment())
