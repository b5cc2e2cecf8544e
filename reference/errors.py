"""What a specification function raises instead of giving values, and the two padding values of the contracts."""

from __future__ import annotations

PAD_SLOT_ID = -1
"""Padding in slot, token and chunk numbers: no place at all."""

NULL_BLOCK_ID = 0
"""Padding in block tables and state columns: the block that nobody owns."""


class ContractError(ValueError):
    """The contract refuses the input: a fact that the host can see breaks a rule.

    ``argument`` is the argument's name, ``value`` what was found there, ``rule`` what has to hold. The three are the
    exception's ``args`` too, so that it survives a trip between processes.
    """

    def __init__(self, argument: str, value: object, rule: str) -> None:
        super().__init__(argument, value, rule)
        self.argument = argument
        self.value = value
        self.rule = rule

    def __str__(self) -> str:
        return f"{self.argument}: {self.value!r} breaks the rule: {self.rule}"


class OnlyMemorySafety(Exception):
    """The contract promises no values for this input, only that nothing outside the buffers is touched (G5)."""
