"""Cases on disk: one JSON document each, content-addressed, read strictly, never executed.

Arrays of up to 4,096 elements stand in the document; larger ones in an ``.npz`` file of the same name beside it.
"""

from __future__ import annotations

import hashlib
import os
import stat
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np

from oracles.arrays import DTYPES, Array, Inputs, Value, arrays_of
from oracles.notation import shortened
from oracles.state import free

SCHEMA = 1
INLINE_ELEMENTS = 4096

MOST_BYTES = 1 << 26
"""Of a document. 4,096 elements take 150 KiB at most, and no contract has more than a few dozen arrays."""

MOST_ARRAY_BYTES = 1 << 30
"""Of an array in the file beside a document: far more than any input has."""

HEADER = 1 << 16
"""Bytes that NumPy may put before an array."""

LONGEST_SCALAR = 600
"""Characters of a scalar, or of a list of them, in a summary."""


class CaseError(ValueError):
    """A case file that cannot be read: the message has the path and the reason."""


class Document(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The JSON document. ``inputs`` maps names to scalars, array documents or lists of them."""

    schema: int
    contract: str
    inputs: dict[str, Any]
    origin: dict[str, Any] = {}
    verdict: dict[str, str] | None = None
    environment: dict[str, str] = {}


class ArrayDocument(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """One array: values inline, or the name of an entry of the ``.npz`` file beside the document."""

    dtype: str
    shape: list[int]
    data: list[int | float | bool | str] | None = None
    npz: str | None = None
    strides: list[int] | None = None
    offset: int = 0


@dataclass(frozen=True, kw_only=True)
class Case:
    """One concrete input of a contract, where it came from, and for a finding how it was judged."""

    contract: str
    inputs: Inputs
    origin: Mapping[str, Any] = field(default_factory=dict)
    verdict: Mapping[str, str] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """Hash of contract and inputs: equal inputs have equal ids wherever they were found."""
        return case_id(self.contract, self.inputs)

    def save(self, path: Path) -> Path:
        """Write the document (and its ``.npz``) so that a crash leaves the old file or the new one, never half.

        Where a folder has the name of one of them, the case is named otherwise. Returns the document's path.
        """
        path = free(path, ".npz")
        large: dict[str, np.ndarray] = {}
        inputs = {name: _encode(name, value, large) for name, value in self.inputs.items()}
        document = Document(
            schema=SCHEMA,
            contract=self.contract,
            inputs=inputs,
            origin=dict(self.origin),
            verdict=dict(self.verdict) if self.verdict else None,
            environment=dict(self.environment),
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        text = msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"
        with _partial(path) as partial:
            partial.write_bytes(text)
            if large:
                _replace_with_archive(partial, path, large)
            else:
                _flush(partial).replace(path)
        return path

    @classmethod
    def load(cls, path: Path) -> Case:
        """Read a case file.

        Refused: what is no regular file, more than ``MOST_BYTES``, unknown fields, wrong types or shapes, another
        schema, a truncated file.
        """
        try:
            document = msgspec.json.decode(_content(path), type=Document)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise CaseError(f"{path}: {error}") from error
        if document.schema != SCHEMA:
            raise CaseError(f"{path}: schema: {document.schema} is not {SCHEMA}, the version this release reads")
        for name in ("implementation", "callable", "provider", "backend"):
            if not isinstance(document.origin.get(name, ""), str):
                raise CaseError(f"{path}: origin.{name}: {document.origin[name]!r} is no text")
        try:
            inputs = {name: _decode(name, value, path) for name, value in document.inputs.items()}
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            raise CaseError(f"{path}: {error}") from error
        return cls(
            contract=document.contract,
            inputs=inputs,
            origin=document.origin,
            verdict=document.verdict,
            environment=document.environment,
        )


def _content(path: Path) -> bytes:
    with _opened(path) as stream:
        content = stream.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise CaseError(f"{path}: larger than {MOST_BYTES >> 20} MiB, which no case is: large arrays lie beside it")
    return content


def _opened(path: Path) -> BinaryIO:
    """A file for reading. Refused: what is none, such as a pipe that nobody writes to, or a device without end."""
    try:
        # A pipe is not waited for; that it is none is looked at once it is open, when nobody can replace it any more.
        stream = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115
    except OSError as error:
        raise CaseError(f"{path}: cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
        stream.close()
        raise CaseError(f"{path}: cannot be read: it is no regular file")
    return stream


def case_id(contract: str, inputs: Inputs) -> str:
    """BLAKE2 of contract and inputs, 16 hexadecimal digits."""
    digest = hashlib.blake2b(contract.encode(), digest_size=8)
    for name in sorted(inputs):
        digest.update(b"\0" + name.encode() + b"\0")
        _hash(inputs[name], digest)
    return digest.hexdigest()


def _hash(value: Value, digest: hashlib.blake2b) -> None:
    if isinstance(value, Array):
        digest.update(repr((value.dtype, value.shape, value.strides, value.offset)).encode())
        digest.update(value.data.tobytes())
    elif isinstance(value, tuple):
        digest.update(b"(%d" % len(value))
        for item in value:
            _hash(item, digest)
    else:
        digest.update(repr((type(value).__name__, value)).encode())


def _encode(name: str, value: Value, large: dict[str, np.ndarray]) -> Any:
    if isinstance(value, tuple):
        return [_encode(f"{name}.{index}", item, large) for index, item in enumerate(value)]
    if isinstance(value, float) and not np.isfinite(value):
        return {"scalar": repr(value)}
    if not isinstance(value, Array):
        return value
    document = ArrayDocument(
        dtype=value.dtype,
        shape=list(value.shape),
        strides=None if value.strides is None else list(value.strides),
        offset=value.offset,
    )
    if value.data.size <= INLINE_ELEMENTS:
        document.data = _elements(value.data.ravel())
    else:
        document.npz = name
        large[name] = value.data
    return document


def _elements(values: np.ndarray) -> list[Any]:
    """JSON has no NaN and no infinities: floats that are not finite are written as their bits, ``0x7fc00000``."""
    if values.dtype.kind != "f" or bool(np.isfinite(values).all()):
        return list(values.tolist())
    size = values.dtype.itemsize
    pairs = zip(values.tolist(), values.view(f"u{size}").tolist(), strict=True)
    return [number if np.isfinite(number) else f"0x{bits:0{2 * size}x}" for number, bits in pairs]


def _word(item: str) -> float:
    """A float from a word such as ``nan`` or ``-inf``; bits are put in afterwards."""
    return 0.0 if item.startswith("0x") else float(item)


def _decode(name: str, value: Any, path: Path) -> Value:
    if isinstance(value, dict) and value.keys() == {"scalar"}:
        return float(str(value["scalar"]))
    if isinstance(value, dict):
        return _decode_array(name, value, path)
    if isinstance(value, list):
        return tuple(_decode(f"{name}.{index}", item, path) for index, item in enumerate(value))
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ValueError(f"{name}: {value!r} is neither a scalar, an array nor a list of them")


def _decode_array(name: str, value: dict[str, Any], path: Path) -> Array:
    try:
        document = msgspec.convert(value, ArrayDocument)
    except msgspec.ValidationError as error:
        raise ValueError(f"{name}: {error}") from error
    if document.dtype not in DTYPES:
        raise ValueError(f"{name}: dtype: {document.dtype!r} is not one of {', '.join(DTYPES)}")
    dtype, shape = DTYPES[document.dtype], tuple(document.shape)
    if (document.data is None) == (document.npz is None):
        raise ValueError(f"{name}: exactly one of data and npz must be there")
    if document.data is not None:
        data = _inline(name, document, dtype)
    else:
        size = dtype.itemsize * int(np.prod(shape, dtype=object))
        data = _from_npz(name, str(document.npz), path.with_suffix(".npz"), size)
    if data.dtype != dtype or data.size != int(np.prod(shape, dtype=object)) or any(n < 0 for n in shape):
        raise ValueError(f"{name}: {data.size} values of {data.dtype} do not fill {document.dtype} {list(shape)}")
    strides = None if document.strides is None else tuple(document.strides)
    try:
        return Array(document.dtype, np.asarray(data.reshape(shape), order="C"), strides, document.offset)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def _inline(name: str, document: ArrayDocument, dtype: np.dtype) -> np.ndarray:
    wanted: tuple[type, ...] = {"b": (bool,), "f": (float, int, str)}.get(dtype.kind, (int,))
    for item in document.data or ():
        if not isinstance(item, wanted) or (isinstance(item, bool) and bool not in wanted):
            raise ValueError(f"{name}: {item!r} is no {document.dtype}")
    items = document.data or []
    try:
        if dtype.kind != "f":
            return np.array(items, dtype=dtype)
        return _floats([item if isinstance(item, int | float | str) else 0 for item in items], dtype)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{name}: {error}") from error


def _floats(items: list[int | float | str], dtype: np.dtype) -> np.ndarray:
    wide = np.array([_word(item) if isinstance(item, str) else item for item in items], dtype=np.float64)
    with np.errstate(over="ignore"):
        data = wide.astype(dtype)
    if not np.array_equal(np.isinf(data), np.isinf(wide)):
        raise ValueError(f"a value is too large for {dtype}")
    for at, item in enumerate(items):
        if isinstance(item, str) and item.startswith("0x"):
            data.view(f"u{dtype.itemsize}")[at] = int(item, 16)
    return data


def _from_npz(name: str, key: str, path: Path, size: int) -> np.ndarray:
    """An array of that many bytes. What the archive would unpack to is looked at before it is."""
    try:
        with _opened(path) as stream, np.load(stream, allow_pickle=False) as archive:
            there = archive.zip.getinfo(f"{key}.npy").file_size
            if not 0 <= size <= min(there, MOST_ARRAY_BYTES) or there > size + HEADER:
                raise ValueError(f"{there} bytes do not hold an array of {size}, at most {MOST_ARRAY_BYTES}")
            return np.asarray(archive[key])
    except CaseError as error:
        raise ValueError(f"{name}: {error}") from error
    except (OSError, ValueError, KeyError, EOFError, TypeError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{name}: {path}: {error}") from error


@contextmanager
def _partial(path: Path) -> Iterator[Path]:
    """A hidden file beside ``path`` to write first; whatever happens, it does not stay."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield partial
    finally:
        partial.unlink(missing_ok=True)


def _flush(path: Path) -> Path:
    with path.open("rb+") as stream:
        os.fsync(stream.fileno())
    return path


def _replace_with_archive(partial: Path, path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Replace document and archive together: if the second fails, the first is taken back."""
    target = path.with_suffix(".npz")
    with _partial(target) as archive, _partial(target.with_suffix(".npz.old")) as kept:
        with archive.open("wb") as stream:
            np.savez_compressed(stream, allow_pickle=False, **arrays)
        _flush(archive)
        _flush(partial)
        if target.exists():
            os.link(target, kept)
        archive.replace(target)
        try:
            partial.replace(path)
        except BaseException:
            target.unlink()
            if kept.exists():
                kept.replace(target)
            raise


def sizes(inputs: Inputs) -> str:
    """A one-line summary of an input: ``cu_seqlens int32[3] strides (2,), chunk_size=1``."""
    parts = []
    arrays = dict(arrays_of(inputs))
    for name, value in arrays.items():
        layout = f" strides {value.strides}" if value.strides is not None else ""
        layout += f" offset {value.offset}" if value.offset else ""
        parts.append(f"{name} {value.dtype}{list(value.shape)}{layout} = {shortened(value.dtype, value.data, 12, 9)}")
    named = {name.split("[")[0] for name in arrays}
    parts += [f"{name}={_scalar(value)}" for name, value in inputs.items() if name not in named]
    return ", ".join(parts)


def _scalar(value: Value) -> str:
    text = repr(value)
    return text if len(text) <= LONGEST_SCALAR else f"{text[: LONGEST_SCALAR - 4]} ..."
