"""Variants of a kernel that were compiled, over all cases of a worker: how many are too many, and how they differ.

A variant is one line of text, as backends note it: the kernel, and each parameter with its type and what was assumed
of it (``n=i32:D``, ``n: i32 divisible``) or with the number that it was compiled for (``BLOCK=constexpr:64``,
``BLOCK=64``).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from oracles.verdict import Recompiled

MOST = 2
"""Compilations a dtype and mode that the contracts allow, for instance with and without an alignment."""

HINT = "named in do_not_specialize, and pointers also in do_not_specialize_on_alignment, arguments are not compiled for"

PARAMETER = re.compile(r"(?:^|\(|, )(\w+)(=|: )")
CONSTANT = "constexpr:"


@dataclass
class Recompilations:
    """What each mode's calls have compiled: the variants, and for each kernel the sets of them within one call."""

    variants: dict[str, set[str]] = field(default_factory=dict)
    calls: dict[tuple[str, str], set[frozenset[str]]] = field(default_factory=dict)

    def __len__(self) -> int:
        """All variants of all modes."""
        return sum(map(len, self.variants.values()))

    def note(self, mode: str, compiled: Collection[str]) -> None:
        """Add what one call used."""
        self.variants.setdefault(mode, set()).update(compiled)
        for kernel in {_kernel(variant) for variant in compiled}:
            own = frozenset(variant for variant in compiled if _kernel(variant) == kernel)
            self.calls.setdefault((mode, kernel), set()).add(own)

    def failures(self, mode: str) -> list[Recompiled]:
        """The kernels of a mode that were compiled too often.

        One call may launch a kernel for several things, such as queries in 16 bits and keys in 32; each may be compiled
        as often as one alone. A number that a kernel is declared to be compiled for makes another thing in every call.
        """
        found = []
        for kernel in sorted({_kernel(variant) for variant in self.variants[mode]}):
            names = [variant for variant in self.variants[mode] if _kernel(variant) == kernel]
            if len(names) <= MOST:
                continue  # this is asked after every case: what is few enough need not be taken apart
            own = {variant: _parameters(variant) for variant in names}
            declared = _always_constant(own.values())
            roles = {variant: _role(parameters, declared) for variant, parameters in own.items()}
            allowed = MOST * max(len({roles[variant] for variant in call}) for call in self.calls[mode, kernel])
            role, count = Counter(roles.values()).most_common(1)[0]
            if count > MOST or len(own) > allowed:
                shown = own if len(own) > allowed else {name: own[name] for name in own if roles[name] == role}
                found.append(Recompiled(kernel, f"{len(shown)} compilations for {mode}; {_difference(shown)}; {HINT}"))
        return found


def _kernel(variant: str) -> str:
    return variant.split(" ")[0]


def _parameters(variant: str) -> dict[str, str]:
    """What stands behind each parameter; of a number that the kernel was compiled for, behind ``constexpr:``."""
    text = variant.partition(" ")[2].rpartition(")")[0]  # what follows is no parameter: warps, a checksum
    marks = list(PARAMETER.finditer(text))
    ends = [mark.start() for mark in marks[1:]] + [len(text)] * bool(marks)
    found = {}
    for mark, end in zip(marks, ends, strict=True):
        value = text[mark.end() : end]
        constant = mark[2] == "=" and not re.match(r"\*|[iuf]p?\d|bf16|constexpr:", value)
        found[mark[1]] = CONSTANT + value if constant else value
    return found


def _always_constant(variants: Collection[Mapping[str, str]]) -> frozenset[str]:
    """Parameters that every variant was compiled for: those declared so, unlike a count that happened to be 1."""
    names = {name for variant in variants for name in variant}
    return frozenset(name for name in names if all(variant.get(name, "").startswith(CONSTANT) for variant in variants))


def _role(parameters: Mapping[str, str], declared: frozenset[str]) -> tuple[tuple[str, str], ...]:
    """What a launch is for: the types of its pointers, and what it was declared to be compiled for."""
    pointers = {name: re.split("[: ]", value)[0] for name, value in parameters.items() if value.startswith("*")}
    return tuple(sorted({**pointers, **{name: parameters[name] for name in declared}}.items()))


def _difference(variants: Mapping[str, Mapping[str, str]]) -> str:
    """The parameters that differ, each with what it was in any of the variants; the variants, if none is known."""
    names = dict.fromkeys(name for parameters in variants.values() for name in parameters)
    told = []
    for name in names:
        values = sorted({parameters.get(name, "absent") for parameters in variants.values()})
        if len(values) > 1:
            told.append(f"{name} is {', '.join(values[:-1])} or {values[-1]}")
    return "; ".join(told) if told else "; ".join(sorted(variants))
