"""The tables of docs/rounding.md: who converts how beyond the finite range, and how often rounding orders differ.

``python -m benchmarks.rounding_table`` prints them; with ``--write docs/rounding.md`` they replace what stands between
the two marks of that page. They are the same in every run: inputs are drawn from a seed, and no clock is read.
"""

from __future__ import annotations

import argparse
import itertools
import math
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from reference.floats import BFLOAT16, FLOAT8_E4M3FN, FLOAT8_E4M3FNUZ, FLOAT16, FloatArray, FloatFormat
from reference.rope_kv_cache import rope_and_cache_mla
from reference.rope_orders import CONTRACTIONS, ORDERS

MARKS = "<!-- python -m benchmarks.rounding_table -->", "<!-- end -->"
TOKENS, LANES = 16, 8192
"""Elements of a measured key: more lanes than any model has, so that few calls give many elements."""

Numbers = npt.NDArray[np.float32]


def beyond(form: FloatFormat) -> dict[str, float]:
    """Inputs for which conversions differ, in words. All are float32 numbers."""
    largest = float(form.decode(form.largest))
    step = largest - float(form.decode(form.largest - 1))
    least = float(form.decode(1))
    return {
        "largest + 1/4 step": largest + step / 4,
        "largest + 1/2 step": largest + step / 2,
        "largest + 1 step": min(largest + step, float(np.finfo(np.float32).max)),
        "-infinity": -math.inf,
        "infinity": math.inf,
        "NaN": math.nan,
        "-0": -0.0,
        "-least/2": -least / 2,
    }


def by_torch(form: FloatFormat, numbers: Numbers) -> npt.NDArray[Any]:
    """torch's conversion on a CPU."""
    import torch

    bits: npt.NDArray[Any] = (
        torch.from_numpy(numbers).to(getattr(torch, form.name)).view(getattr(torch, f"uint{form.width}")).numpy()
    )
    return bits


def by_ml_dtypes(form: FloatFormat, numbers: Numbers) -> npt.NDArray[Any]:
    """The conversion of ml_dtypes, or NumPy's where it has the type."""
    import ml_dtypes

    dtype = np.float16 if form is FLOAT16 else getattr(ml_dtypes, form.name)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return numbers.astype(dtype).view(form.storage)


def conversions() -> Iterator[str]:
    """One row an input, one column a converter."""
    yield "| to | from float32 | this project | torch | ml_dtypes |"
    yield "|---|---|---|---|---|"
    for form in (FLOAT8_E4M3FN, FLOAT8_E4M3FNUZ, FLOAT16, BFLOAT16):
        for words, number in beyond(form).items():
            numbers = np.array([number], np.float32)
            cells = [_shown(form, bits[0]) for bits in (form.encode(numbers), by_torch(form, numbers))]
            cells.append(_shown(form, by_ml_dtypes(form, numbers)[0]))
            yield f"| {form.name} | {words} | {' | '.join(cells)} |"


def _shown(form: FloatFormat, bits: Any) -> str:
    number = "NaN" if form.is_nan(bits) else f"{form.decode(bits).item():.6g}"
    return f"{number} (0x{int(bits):0{form.width // 4}X})"


def keys(dtype: str, table: str, rounding: str, contraction: str = "none") -> tuple[npt.NDArray[Any], ...]:
    """Rotated keys and their float8 codes: numbers from -4 to 4, points of the unit circle, scale 0.3."""
    generator = np.random.default_rng(6)
    # No sine or cosine: their last bits differ between processors.
    half = generator.uniform(-1, 1, (TOKENS, LANES // 2))
    circle = (
        (1 - half**2) / (1 + half**2) * np.where(generator.random(half.shape) < 0.5, 1, -1),
        2 * half / (1 + half**2),
    )
    key = FloatArray.from_numbers(dtype, generator.uniform(-4, 4, (TOKENS, LANES)))
    cos, sin = (FloatArray.from_numbers(table, numbers) for numbers in circle)
    nope, queries, latent = (
        FloatArray(dtype, np.zeros(shape, key.bits.dtype))
        for shape in ((TOKENS, 0, 0), (TOKENS, 0, LANES), (TOKENS, 0))
    )
    each = np.arange(TOKENS)
    cache = FloatArray("uint8", np.zeros((1, TOKENS, LANES), np.uint8))
    more = (each, each, 0.3, None, True, "float8_e4m3fn", cache, rounding, contraction)
    _, rotated, held = rope_and_cache_mla(nope, queries, latent, key, cos, sin, *more)
    return rotated.bits, held.bits[0]


def orders() -> Iterator[str]:
    """How often two orders differ."""
    yield "| input | table | orders | `k_pe_out` | float8 cache |"
    yield "|---|---|---|---|---|"
    for dtype, table in (("bfloat16", "float32"), ("bfloat16", "bfloat16"), ("float16", "float16")):
        names = [name for name in ORDERS if dtype == "float16" or name != "half_scale"]
        found = {name: keys(dtype, table, name) for name in names}
        for one, two in itertools.combinations(names, 2):
            cells = [_share(left != right) for left, right in zip(found[one], found[two], strict=True)]
            yield f"| {dtype} | {table} | {one}, {two} | {' | '.join(cells)} |"


def contractions() -> Iterator[str]:
    """How often the three right results are not one and the same."""
    yield "| input | table | order | `k_pe_out` | float8 cache |"
    yield "|---|---|---|---|---|"
    for dtype, table, name in (
        ("float32", "float32", "hip"),
        ("bfloat16", "float32", "hip"),
        ("bfloat16", "bfloat16", "hip"),
        ("bfloat16", "bfloat16", "torch"),
        ("float16", "float16", "hip"),
        ("float16", "float16", "torch"),
    ):
        none, cosine, sine = (keys(dtype, table, name, contraction) for contraction in CONTRACTIONS)
        differ = [(a != b) | (a != c) for a, b, c in zip(none, cosine, sine, strict=True)]
        yield f"| {dtype} | {table} | {name} | {' | '.join(_share(each) for each in differ)} |"


def _share(differ: npt.NDArray[np.bool_]) -> str:
    return "never" if not differ.any() else f"{100 * differ.mean():.3g} %"


def page() -> str:
    """All tables."""
    parts = (
        ("### Conversions beyond the finite range", conversions()),
        ("### How often orders differ", orders()),
        ("### How often contractions differ", contractions()),
    )
    return "\n\n".join(f"{title}\n\n" + "\n".join(lines) for title, lines in parts)


def main() -> None:
    """Print the tables, or write them to the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, help="the page to bring up to date")
    path = parser.parse_args().write
    if path is None:
        print(page())
        return
    first, last = (re.escape(mark) for mark in MARKS)
    text, count = re.subn(
        f"{first}.*{last}", "\n\n".join((MARKS[0], page(), MARKS[1])), path.read_text(), flags=re.DOTALL
    )
    if count != 1:
        parser.error(f"--write: {path} has no place for the tables, between {MARKS[0]} and {MARKS[1]}")
    path.write_text(text)


if __name__ == "__main__":
    main()
