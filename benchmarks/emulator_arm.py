"""One arm of ``benchmarks.emulator`` in a process of its own: it does what it is asked for on a line, and answers.

``names`` is answered with the names of all workloads, any of these with what one round of it took.
"""

from __future__ import annotations

import json
import sys
import time
import zlib
from typing import Any

from oracles.backends import by_name
from oracles.backends.base import Variation
from oracles.verdict import Unsupported

VARIATIONS = (Variation(0, "forward"), Variation(1, "random", 5), Variation(0, "reverse"))
"""The runs that the judge makes, as far as speed is concerned."""


class Arm:
    """A backend with the inputs of every workload, drawn once."""

    def __init__(self, backend: str, vllm: str, count: int) -> None:
        self._backend = by_name(backend)
        self._backend.prepare()
        from benchmarks.emulator_workloads import as_mapping

        self.workloads = as_mapping(vllm)
        self._inputs = {name: workload.inputs(count) for name, workload in self.workloads.items()}

    def round(self, name: str) -> dict[str, Any]:
        """Run every input of a workload once: launches, processor seconds inside the watched calls, a checksum."""
        workload, launches, instructions, seconds, checksum = self.workloads[name], 0, 0, 0.0, 0
        for number, inputs in enumerate(self._inputs[name]):
            variation = VARIATIONS[number % len(VARIATIONS)]
            memory = self._backend.memory(variation)
            given = workload.placed(memory, inputs)
            begin = time.process_time()
            with self._backend.watch(memory, variation) as seen:
                outputs = workload.launch(given)
            seconds += time.process_time() - begin
            launches += seen.launches
            instructions += getattr(seen, "instructions", 0)
            found = [output.numpy() for output in outputs]
            self._refuse_wrong(name, inputs, found, [*seen.failures, *memory.faults()])
            for output in found:
                checksum = zlib.crc32(output.tobytes(), checksum)
        return {"launches": launches, "seconds": seconds, "checksum": checksum, "instructions": instructions}

    def _refuse_wrong(self, name: str, inputs: Any, found: list[Any], failures: list[Any]) -> None:
        if failures:
            raise SystemExit(f"{name}: {failures[0].key}: {failures[0].detail}")
        expected = self.workloads[name].expected
        if expected is None:
            return
        for got, wanted in zip(found, expected(inputs), strict=True):
            if got.tolist() != wanted.tolist():
                raise SystemExit(f"{name}: a wrong result, so its time means nothing")


def main() -> None:
    """Answer lines until there are none."""
    import torch

    backend, vllm, count = sys.argv[1:]
    torch.set_num_threads(1)
    arm = Arm(backend, vllm, int(count))
    for line in sys.stdin:
        name = line.strip()
        try:
            answer: Any = list(arm.workloads) if name == "names" else arm.round(name)
        except Unsupported as reason:
            answer = {"unsupported": str(reason)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
