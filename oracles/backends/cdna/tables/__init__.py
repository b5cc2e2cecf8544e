"""What each instruction does, as rows that can be read beside AMD's instruction set manual.

The rows do not know who executes them. An expression is Python text over the sources; whoever executes supplies values
with Python's operators, and the functions of :data:`oracles.backends.cdna.tables.rows.VOCABULARY`.

:func:`oracles.backends.cdna.tables.forms.row_of` gives the row of a vector instruction of a program, with its
modifiers; ``scalar`` and ``memory`` are looked up by name, and ``cross_lane`` tells from which lane a lane reads.
"""
