"""Executes the machine code that Triton's AMD backend emits for gfx942 and gfx950, instruction by instruction."""
