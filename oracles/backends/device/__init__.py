"""What the backends ``cuda`` and ``rocm`` share: guarded memory on a device, and what is observed there."""
