"""Contract 6.2: what a dispatcher is given in each step, and paths of the harness that it may send rows over."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from oracles.contracts._write_machine import TENSORS
from reference.floats import FORMATS
from reference.rope_kv_cache import scale_of
from reference.rope_orders import RoundingOrder, lanes_of_pairs

SHARED = ("cos", "sin", "k_scale", "q_scale", "is_neox", "cache_dtype", "kv_cache")
"""Inputs that all steps have in common."""


class Steps:
    """The steps of a life: each on tensors of its own, or all on the same buffers, which are filled before each."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self.arguments = arguments
        self._buffers = {name: self._buffer(name) for name in TENSORS} if arguments["refilled"] else {}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        arguments = self.arguments
        for step, kind in enumerate(arguments["kind"]):
            rows = {name: range(*arguments[name][step]) for name in ("decode_rows", "prefill_rows")}
            tensors = {name: self._filled(name, arguments[name][step]) for name in TENSORS}
            yield {"kind": kind, **rows, **tensors, **{name: arguments[name] for name in SHARED}}

    def _buffer(self, name: str) -> torch.Tensor | None:
        """Room for the largest step's."""
        held = [item for item in self.arguments[name] if item is not None]
        if not held:
            return None
        return torch.empty(max(item.numel() for item in held), dtype=held[0].dtype, device=held[0].device)

    def _filled(self, name: str, value: torch.Tensor | None) -> torch.Tensor | None:
        buffer = self._buffers.get(name)
        if value is None or buffer is None:
            return value
        return buffer[: value.numel()].view(value.shape).copy_(value)


class Paths:
    """Paths of the harness for one step, in plain torch, which count what they do to each token.

    What is rotated is rotated in place, in ``q_out`` and ``k_pe_out``, and what is written is the key as it is by then.
    So a token that takes two paths is rotated twice, as in a server.
    """

    def __init__(self, step: Mapping[str, Any], order: RoundingOrder) -> None:
        self._step, self._order = step, order
        self._work: _Work | None = None

    def fused(self, rows: Iterable[int], slots: torch.Tensor | None) -> None:
        """Rotate these tokens, and write them: the first of ``rows`` to the first of ``slots``, and so on.

        There may be fewer slots than rows, or none at all (``None``). A token without a slot is not written.
        """
        rows = list(rows)
        self.rotate(rows)
        self.write(rows, slots)

    def rotate(self, rows: Iterable[int]) -> None:
        """Rotate the queries and keys of these tokens."""
        for token in rows:
            self._begun.rotate(self._known(token))

    def write(self, rows: Iterable[int], slots: torch.Tensor | None) -> None:
        """Write the latents and keys of these tokens, as they are by now; slots as in :meth:`fused`."""
        rows, count = list(rows), 0 if slots is None else slots.shape[0]
        if count > len(rows):
            raise IndexError(f"paths were given {count} slots for {len(rows)} rows")
        for place, token in enumerate(rows[:count]):
            assert slots is not None
            self._begun.write(self._known(token), slots[place : place + 1])

    @property
    def q_out(self) -> torch.Tensor:
        """``[T, H, L + P]``: the queries, of which those that took a path are rotated."""
        return self._begun.q_out

    @property
    def k_pe_out(self) -> torch.Tensor:
        """``[T, P]``: the keys, likewise."""
        return self._begun.k_pe_out

    def again(self) -> tuple[torch.Tensor, torch.Tensor]:
        """For each token how often it was rotated, and written to a slot, after the first time."""
        tokens = self._step["q_nope"].shape[0]
        if self._work is None:
            none = torch.zeros(tokens, dtype=torch.int32, device=self._step["q_nope"].device)
            return none, none.clone()
        return (self._work.rotations - 1).clamp(min=0), (self._work.writes - 1).clamp(min=0)

    @property
    def _begun(self) -> _Work:
        if self._work is None:
            self._work = _Work(self._step, self._order)
        return self._work

    def _known(self, token: int) -> int:
        tokens = self._step["q_nope"].shape[0]
        if not 0 <= token < tokens:
            raise IndexError(f"paths were given row {token} of a step of {tokens} tokens")
        return token


class _Work:
    """The tensors that paths work on. Nothing of them is read on the host."""

    def __init__(self, step: Mapping[str, Any], order: RoundingOrder) -> None:
        self.step, self.order = step, order
        self.q_out: torch.Tensor = torch.cat([step["q_nope"], step["q_pe"]], dim=2)
        self.k_pe_out: torch.Tensor = step["k_pe"].clone()
        name, table = (str(step[name].dtype).removeprefix("torch.") for name in ("q_pe", "cos"))
        self.arithmetic = getattr(torch, order.arithmetic(FORMATS[name], FORMATS[table]).name)
        self.keys = self.k_pe_out.to(self.arithmetic)
        tokens = self.k_pe_out.shape[0]
        self.rotations, self.writes = (
            torch.zeros(tokens, dtype=torch.int32, device=self.k_pe_out.device) for _ in range(2)
        )

    def rotate(self, token: int) -> None:
        step, latent = self.step, self.step["kv_c"].shape[1]
        row = step["positions"][token : token + 1].to(torch.int64).clamp(0, step["cos"].shape[0] - 1)
        cosine, sine = (step[name].index_select(0, row).to(self.arithmetic) for name in ("cos", "sin"))
        self.q_out[token, :, latent:] = self._rotated(self.q_out[token, :, latent:], cosine, sine)
        self.keys[token] = self._rotated(self.k_pe_out[token][None], cosine, sine)[0]
        self.k_pe_out[token] = self.keys[token]
        self.rotations[token] += 1

    def write(self, token: int, slot: torch.Tensor) -> None:
        cache = self.step["kv_cache"]
        blocks, size, _ = cache.shape
        exists = (slot >= 0) & (slot < blocks * size)
        clamped = torch.where(exists, slot, torch.zeros_like(slot)).to(torch.int64)
        block, place = torch.div(clamped, size, rounding_mode="floor"), clamped % size
        if self.step["cache_dtype"] == "auto":
            row = torch.cat([self.step["kv_c"][token], self.k_pe_out[token]])
        else:
            cache = cache.view(torch.uint8)
            key = self.keys[token] if self.order.caches_exactly else self.k_pe_out[token]
            row = torch.cat([self._float8(self.step["kv_c"][token]), self._float8(key)])
        # A token without a slot writes back what it finds.
        cache[block, place] = torch.where(exists[:, None], row[None], cache[block, place])
        self.writes[token] += exists[0]

    def _rotated(self, numbers: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        numbers = numbers.to(self.arithmetic)
        first, second = lanes_of_pairs(numbers.shape[1], self.step["is_neox"])
        x, y = numbers[:, first], numbers[:, second]
        rotated = torch.empty_like(numbers)
        rotated[:, first] = x * cosine - y * sine
        rotated[:, second] = y * cosine + x * sine
        return rotated

    def _float8(self, numbers: torch.Tensor) -> torch.Tensor:
        """The bytes of numbers in the cache."""
        scale, form = scale_of(self.step["k_scale"]), FORMATS[self.step["cache_dtype"]]
        single = numbers.to(torch.float32)
        if self.order.scales_by == "reciprocal":
            single = single * float(np.float32(1) / scale)
        else:
            single = single / float(scale)
            single = single.half().float() if self.order.scales_by == "float16 quotient" else single
        largest = float(form.decode(form.largest))
        codes: torch.Tensor = single.clamp(-largest, largest).to(getattr(torch, form.name))
        return codes.view(torch.uint8)
