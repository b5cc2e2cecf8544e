"""Cases on disk: one JSON document each, content-addressed, read strictly, never executed.

Arrays of up to 4,096 elements stand in the document; larger ones in an ``.npz`` file of the same name beside it.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from oracles.arrays import DTYPES, Array, Inputs, Value, arrays_of

SCHEMA = 1
INLINE_ELEMENTS = 4096


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
        """Write the document (and its ``.npz``) so that a crash leaves the old file or the new one, never half."""
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
        if large:
            with _replacing(path.with_suffix(".npz")) as partial, partial.open("wb") as stream:
                np.savez_compressed(stream, allow_pickle=False, **large)
        with _replacing(path) as partial:
            partial.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")
        return path

    @classmethod
    def load(cls, path: Path) -> Case:
        """Read a case file. Refused: unknown fields, wrong types or shapes, another schema, a truncated file."""
        try:
            document = msgspec.json.decode(path.read_bytes(), type=Document)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise CaseError(f"{path}: {error}") from error
        if document.schema != SCHEMA:
            raise CaseError(f"{path}: schema: {document.schema} is not {SCHEMA}, the version this release reads")
        for name in ("implementation", "callable", "provider", "backend"):
            if not isinstance(document.origin.get(name, ""), str):
                raise CaseError(f"{path}: origin.{name}: {document.origin[name]!r} is no text")
        try:
            inputs = {name: _decode(name, value, path) for name, value in document.inputs.items()}
        except (ValueError, TypeError, OverflowError) as error:
            raise CaseError(f"{path}: {error}") from error
        return cls(
            contract=document.contract,
            inputs=inputs,
            origin=document.origin,
            verdict=document.verdict,
            environment=document.environment,
        )


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
    if not isinstance(value, Array):
        return value
    document = ArrayDocument(
        dtype=value.dtype,
        shape=list(value.shape),
        strides=None if value.strides is None else list(value.strides),
        offset=value.offset,
    )
    if value.data.size <= INLINE_ELEMENTS:
        document.data = [_finite(item) for item in value.data.ravel().tolist()]
    else:
        document.npz = name
        large[name] = value.data
    return document


def _finite(item: Any) -> Any:
    """JSON has no NaN and no infinities: they are written as strings that ``float`` reads."""
    return repr(item) if isinstance(item, float) and not np.isfinite(item) else item


def _decode(name: str, value: Any, path: Path) -> Value:
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
        data = _from_npz(name, str(document.npz), path.with_suffix(".npz"))
    if data.dtype != dtype or data.size != int(np.prod(shape, dtype=object)) or any(n < 0 for n in shape):
        raise ValueError(f"{name}: {data.size} values of {data.dtype} do not fill {document.dtype} {list(shape)}")
    strides = None if document.strides is None else tuple(document.strides)
    try:
        return Array(document.dtype, np.ascontiguousarray(data.reshape(shape)), strides, document.offset)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def _inline(name: str, document: ArrayDocument, dtype: np.dtype) -> np.ndarray:
    wanted: tuple[type, ...] = {"b": (bool,), "f": (float, int, str)}.get(dtype.kind, (int,))
    for item in document.data or ():
        if not isinstance(item, wanted) or (isinstance(item, bool) and bool not in wanted):
            raise ValueError(f"{name}: {item!r} is no {document.dtype}")
    try:
        wide = [float(item) if isinstance(item, str) else item for item in document.data or ()]
        with np.errstate(over="ignore"):
            data = np.array(wide, dtype=dtype)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{name}: {error}") from error
    if dtype.kind == "f" and not np.array_equal(np.isinf(data), np.isinf(np.array(wide, dtype=np.float64))):
        raise ValueError(f"{name}: a value is too large for {document.dtype}")
    return data


def _from_npz(name: str, key: str, path: Path) -> np.ndarray:
    try:
        with np.load(path, allow_pickle=False) as archive:
            return np.asarray(archive[key])
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{name}: {path}: {error}") from error


class _replacing:
    """Write beside a file, flush to the disk, then take its place."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._partial = path.with_name(f".{path.name}.{os.getpid()}")

    def __enter__(self) -> Path:
        return self._partial

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._partial.unlink(missing_ok=True)
            return
        with self._partial.open("rb+") as stream:
            os.fsync(stream.fileno())
        self._partial.replace(self._path)


def sizes(inputs: Inputs) -> str:
    """A one-line summary of an input: ``cu_seqlens int32[3] strides (2,), chunk_size=1``."""
    parts = []
    arrays = dict(arrays_of(inputs))
    for name, value in arrays.items():
        layout = f" strides {value.strides}" if value.strides is not None else ""
        layout += f" offset {value.offset}" if value.offset else ""
        parts.append(f"{name} {value.dtype}{list(value.shape)}{layout} = {_short(value.data)}")
    parts += [f"{name}={value!r}" for name, value in inputs.items() if not isinstance(value, Array | tuple)]
    return ", ".join(parts)


def _short(data: np.ndarray) -> str:
    flat = data.ravel().tolist()
    return str(data.tolist()) if len(flat) <= 12 else f"[{', '.join(map(str, flat[:9]))}, ... {flat[-1]}]"
