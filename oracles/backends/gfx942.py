"""The architecture of AMD's MI300 series, emulated: the machine code of Triton kernels on CPU tensors."""

from oracles.backends.cdna.backend import CdnaBackend

BACKEND = CdnaBackend("gfx942")
