"""Assembly text, as Triton's AMD backend keeps it beside the binary, made into instructions.

The text is what Triton assembles to the binary, so it holds the same instructions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from oracles.backends.cdna.ir import ARCHITECTURES, Instruction, Integer, Line, Operand, Program
from oracles.backends.cdna.modifiers import DWORD, is_modifier, modifiers
from oracles.backends.cdna.operands import operand, pieces, unwrapped
from oracles.backends.cdna.source_lines import SourceLines
from oracles.verdict import Unsupported

PREFIXES = ("s_", "v_", "ds_", "global_", "flat_", "buffer_", "scratch_")
ENCODINGS = ("_e32", "_e64", "_dpp", "_sdwa")

_LABEL = re.compile(r"([.\w$]+):")
_MNEMONIC = re.compile(r"[a-z][a-z0-9_]*")
_END = re.compile(r"\.Lfunc_end\d+:")
_COUNTER = re.compile(r"(vmcnt|lgkmcnt|expcnt)\((\d+)\)")
_BRANCH = re.compile(r"s_branch|s_cbranch_\w+")
_SIGNED_16 = re.compile(r"s_(movk|cmovk|addk|mulk|cmpk_\w+)_i32")
_TWO_RESULTS = re.compile(r"v_(div_scale_f\d+|mad_[iu]64_[iu]32|(add|sub|subrev|addc|subb|subbrev)_co_u32)")
_DPP_USUAL = {"row_mask": 0xF, "bank_mask": 0xF, "bound_ctrl": 0}


def parse(text: str, name: str, architecture: str) -> Program:
    """The instructions of kernel ``name`` in an assembly text for ``architecture``.

    Refused with :class:`oracles.verdict.Unsupported`: an architecture that is not in
    :data:`oracles.backends.cdna.ir.ARCHITECTURES`, a text without that kernel, a branch out of it, and an instruction
    of which any part is not known. Nothing is passed over but directives and comments.
    """
    if architecture not in ARCHITECTURES:
        raise Unsupported(f"architecture {architecture!r} is not among {', '.join(ARCHITECTURES)}")
    body = _Body()
    for line in _lines_of(text, name, body.lines):
        body.add(line)
    return Program(name, architecture, body.resolved())


def _lines_of(text: str, name: str, lines: SourceLines) -> list[str]:
    """The lines between a kernel's label and its end; files are noted wherever they are declared."""
    found: list[str] = []
    inside = ended = False
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith(".file"):
            lines.note_file(stripped)
        elif not inside:
            inside = not ended and stripped.split(";")[0].strip() == f"{name}:"
        elif _END.match(stripped):
            inside, ended = False, True
        else:
            found.append(stripped)
    if not ended:
        raise Unsupported(f"the assembly text holds no complete function {name!r}")
    return found


@dataclass
class _Body:
    """The instructions so far."""

    lines: SourceLines = field(default_factory=SourceLines)
    found: list[tuple[Instruction, str]] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)

    def add(self, line: str) -> None:
        if line.startswith(".loc"):
            self.lines.follow(line)
            return
        code = line.split(";")[0].strip()
        if match := _LABEL.fullmatch(code):
            self.labels[match[1]] = len(self.found)
        elif code and not code.startswith("."):
            self.found.append(instruction(code, len(self.found), self.lines.current))

    def resolved(self) -> tuple[Instruction, ...]:
        """With the targets of branches as places in the program."""
        return tuple(self._aimed(item, label) if label else item for item, label in self.found)

    def _aimed(self, item: Instruction, label: str) -> Instruction:
        if self.labels.get(label, len(self.found)) == len(self.found):
            raise Unsupported(f"{item.text!r} leaves the kernel")
        return replace(item, target=self.labels[label])


def instruction(text: str, number: int, line: Line | None = None) -> tuple[Instruction, str]:
    """One instruction, and the label that it branches to or an empty text."""
    mnemonic, _, rest = text.partition(" ")
    if not _MNEMONIC.fullmatch(mnemonic) or not mnemonic.startswith(PREFIXES):
        raise Unsupported(f"instruction {text!r} is of no known kind")
    name, encoding = _without_encoding(mnemonic)
    try:
        if _BRANCH.fullmatch(name):
            return Instruction(number, name, (), text=text, line=line), rest.strip()
        operands, found = _wait(rest) if name == "s_waitcnt" else _parts(name, encoding, rest)
    except Unsupported as error:
        raise Unsupported(f"{error} (in {text!r})") from None
    return Instruction(number, name, operands, found, text=text, line=line), ""


def _without_encoding(mnemonic: str) -> tuple[str, str]:
    for suffix in ENCODINGS:
        if mnemonic.startswith("v_") and mnemonic.endswith(suffix):
            return mnemonic.removesuffix(suffix), suffix
    return mnemonic, ""


def _wait(rest: str) -> tuple[tuple[Operand, ...], dict[str, int]]:
    """The counters that a wait names, as modifiers."""
    words = rest.split()
    matches = [_COUNTER.fullmatch(word) for word in words]
    if not words or not all(matches):
        raise Unsupported(f"counters {rest!r} are not known")
    return (), {match[1]: int(match[2]) for match in matches if match}


def _parts(name: str, encoding: str, rest: str) -> tuple[tuple[Operand, ...], dict[str, int]]:
    """Operands and modifiers. Modifiers follow the last operand without a comma."""
    *texts, last = pieces(rest, ",") if rest.strip() else [""]
    words = [word for word in pieces(last, " ") if word]
    if words and not is_modifier(words[0]):
        texts.append(words.pop(0))
    elif texts:
        raise Unsupported(f"an operand is missing before {last!r}")
    results = 2 if _TWO_RESULTS.fullmatch(name) else 1
    sources = len(texts) - results
    operands, found = _operands(name, texts, results)
    found |= modifiers(words, sources=sources)
    _complete(name, encoding, found, sources)
    return operands, found


def _operands(name: str, texts: list[str], results: int) -> tuple[tuple[Operand, ...], dict[str, int]]:
    """Operands, and what stands around the sources as bits."""
    found: dict[str, int] = {}
    operands = []
    for place, text in enumerate(texts):
        bare, around = unwrapped(text)
        if around and place < results:
            raise Unsupported(f"{text!r} stands in the place of a result")
        for word in sorted(around):
            found[word] = found.get(word, 0) | 1 << (place - results)
        operands.append(operand(bare))
    if _SIGNED_16.fullmatch(name) and operands and isinstance(operands[-1], Integer):
        operands[-1] = Integer((operands[-1].value & 0xFFFF ^ 0x8000) - 0x8000)
    return tuple(operands), found


def _complete(name: str, encoding: str, found: dict[str, int], sources: int) -> None:
    """What the text leaves out because it is the usual value."""
    if encoding != "_dpp" and found.keys() & {"dpp", *_DPP_USUAL}:
        raise Unsupported("a modifier of DPP stands at an instruction of another encoding")
    if encoding == "_dpp":
        if "dpp" not in found:
            raise Unsupported("the control of DPP is missing")
        usual = _DPP_USUAL
    elif encoding == "_sdwa":
        usual = {"src0_sel": DWORD} | ({"src1_sel": DWORD} if sources > 1 else {})
        usual |= {} if name.startswith("v_cmp") else {"dst_sel": DWORD, "dst_unused": 0}
    else:
        usual = {"op_sel_hi": (1 << sources) - 1} if name.startswith("v_pk_") else {}
    found.update({modifier: value for modifier, value in usual.items() if modifier not in found})
