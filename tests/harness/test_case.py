"""Cases on disk: what is saved is read back bit for bit, and nothing else is accepted."""

import itertools
import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracles.arrays import DTYPES, Array, array, arrays_of
from oracles.case import INLINE_ELEMENTS, SCHEMA, Case, CaseError, case_id, sizes

FLOATS = ("float16", "float32", "float64")


@st.composite
def arrays(draw) -> Array:
    """Any bits of any dtype, in any layout."""
    name = draw(st.sampled_from(sorted(DTYPES)))
    dtype = DTYPES[name]
    shape = tuple(draw(st.lists(st.integers(0, 3), min_size=1, max_size=3)))
    size = int(np.prod(shape))
    if name == "bool":
        data = np.array(draw(st.lists(st.booleans(), min_size=size, max_size=size)), bool)
    elif dtype.kind == "f":
        values = st.floats(width=8 * dtype.itemsize)
        data = np.array(draw(st.lists(values, min_size=size, max_size=size)), dtype)
        data[np.isnan(data)] = np.nan
    else:
        raw = draw(st.binary(min_size=size * dtype.itemsize, max_size=size * dtype.itemsize))
        data = np.frombuffer(raw, dtype).copy()
    strides = draw(st.none() | st.tuples(*[st.integers(0, 2**33)] * len(shape)))
    return Array(name, data.reshape(shape), strides, draw(st.integers(0, 9)))


scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=5)
scalars |= st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(scalars | arrays(), lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=5)
inputs_strategy = st.dictionaries(st.text("abcxyz_", min_size=1, max_size=6), values, max_size=4)


def saved(inputs, path: Path) -> Path:
    return Case(contract="family.name", inputs=inputs).save(path)


def types(value) -> object:
    return tuple(map(types, value)) if isinstance(value, tuple) else type(value)


@settings(max_examples=60)  # an example writes and flushes a file
@given(inputs=inputs_strategy)
def test_every_input_is_read_back(tmp_path_factory, inputs):
    case = Case(
        contract="family.name",
        inputs=inputs,
        origin={"seed": 3, "choices": [1, 2]},
        verdict={"kind": "wrong_value"},
        environment={"torch": "2"},
    )
    back = Case.load(case.save(tmp_path_factory.getbasetemp() / "case.json"))
    assert back == case
    assert back.id == case.id
    assert {name: types(value) for name, value in back.inputs.items()} == {n: types(v) for n, v in inputs.items()}


def extreme(name: str) -> list:
    dtype = DTYPES[name]
    if name == "bool":
        return [True, False]
    if dtype.kind == "f":
        return [
            float("nan"),
            float("inf"),
            -float("inf"),
            -0.0,
            float(np.finfo(dtype).max),
            float(np.finfo(dtype).tiny),
        ]
    return [np.iinfo(dtype).min, np.iinfo(dtype).max, 0, 1]


@pytest.mark.parametrize("copies", [1, INLINE_ELEMENTS])
@pytest.mark.parametrize("name", DTYPES)
def test_extreme_values_survive_inline_and_in_an_archive(tmp_path, name, copies):
    value = array(extreme(name) * copies, name, (3,), 2)
    path = saved({"x": value}, tmp_path / "case.json")
    assert path.with_suffix(".npz").exists() == (value.data.size > INLINE_ELEMENTS)
    assert Case.load(path).inputs == {"x": value}


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("payload", [1, 5])
def test_the_bits_of_a_nan_survive(tmp_path, name, payload):
    bits = DTYPES[name].itemsize
    quiet = np.array([np.nan, -np.nan], DTYPES[name]).view(f"u{bits}") + np.array(payload, f"u{bits}")
    value = Array(name, quiet.view(DTYPES[name]))
    back = Case.load(saved({"x": value}, tmp_path / "case.json")).inputs["x"]
    assert back.data.tobytes() == value.data.tobytes()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_scalar_that_json_lacks_is_not_changed(tmp_path, value):
    back = Case.load(saved({"x": value}, tmp_path / "case.json")).inputs["x"]
    assert repr(back) == repr(value)


@pytest.mark.parametrize("strides", [None, ()])
def test_an_array_without_dimensions_keeps_its_shape(tmp_path, strides):
    value = Array("int32", np.array(7, np.int32), strides)
    assert Case.load(saved({"x": value}, tmp_path / "case.json")).inputs["x"].shape == ()


def test_arrays_in_tuples_go_to_the_archive_and_back(tmp_path):
    large = [array(range(start, start + INLINE_ELEMENTS + 1), "int64") for start in (0, 5)]
    inputs = {"tables": (large[0], (large[1], None)), "k": 3}
    assert Case.load(saved(inputs, tmp_path / "case.json")).inputs == inputs


def test_a_folder_is_made(tmp_path):
    assert saved({}, tmp_path / "a" / "b" / "case.json").exists()


BASE = {"x": array([1, 2, 3, 4], "int32", (2,), 1), "t": (array([1], "int8"), None), "k": 1, "s": "1"}


@pytest.mark.parametrize(
    "change",
    [
        {"x": array([1, 2, 3, 5], "int32", (2,), 1)},
        {"x": array([1, 2, 3, 4], "int64", (2,), 1)},
        {"x": array([1, 2, 3, 4], "int32", (3,), 1)},
        {"x": array([1, 2, 3, 4], "int32", (2,), 0)},
        {"x": array([1, 2, 3, 4], "int32", None, 1)},
        {"x": array([[1, 2, 3, 4]], "int32", (9, 2), 1)},
        {"t": (array([2], "int8"), None)},
        {"t": (array([1], "int8"),)},
        {"t": (array([1], "uint8"), None)},
        {"k": 2},
        {"k": True},
        {"k": 1.0},
        {"k": "1"},
        {"k": None},
        {"s": 1},
        {"new": None},
    ],
    ids=str,
)
def test_any_change_changes_the_id(change):
    assert case_id("c", BASE | change) != case_id("c", BASE)


def test_the_id_is_that_of_contract_and_inputs_alone():
    copies = Case(contract="c", inputs=dict(reversed(BASE.items())), origin={"seed": 1}, environment={"a": "b"})
    assert copies.id == Case(contract="c", inputs=BASE).id == case_id("c", BASE)
    assert case_id("d", BASE) != case_id("c", BASE)


def test_the_id_never_changes_between_releases():
    assert case_id("family.name", {"x": array([1, 2], "int32"), "k": 3}) == "38a1b4af4ac57241"


@pytest.mark.parametrize(
    "inputs",
    [({"x": ((1,), 2)}, {"x": ((1, 2),)}), ({"x": ("1",), "y": 2}, {"x": (1,), "y": 2}), ({"a": None}, {"b": None})],
)
def test_nesting_and_names_are_part_of_the_id(inputs):
    assert len({case_id("c", item) for item in inputs}) == 2


def document(**changes) -> dict:
    return {"schema": SCHEMA, "contract": "family.name", "inputs": {}} | changes


def with_array(**changes) -> dict:
    return document(inputs={"x": {"dtype": "int32", "shape": [2], "data": [1, 2]} | changes})


def without(name: str) -> dict:
    made = document()
    del made[name]
    return made


DEEP = '{"schema": 1, "contract": "family.name", "inputs": {"x": @}}'

REFUSED = {
    "not json": (b"\x00\x01", "malformed"),
    "empty": (b"", "truncated"),
    "truncated": (json.dumps(with_array()).encode()[:-9], "truncated"),
    "not utf-8": (b'{"schema": 1, "contract": "\xff", "inputs": {}}', "utf-8"),
    "a list": ([], "array"),
    "unknown field": (document(extra=1), "extra"),
    "no contract": (without("contract"), "contract"),
    "no inputs": (without("inputs"), "inputs"),
    "no schema": (without("schema"), "schema"),
    "older schema": (document(schema=SCHEMA - 1), "schema"),
    "newer schema": (document(schema=SCHEMA + 1), "schema"),
    "schema as text": (document(schema="1"), "schema"),
    "contract as number": (document(contract=1), "contract"),
    "inputs as list": (document(inputs=[]), "inputs"),
    "unknown array field": (with_array(colour=1), "x: .*colour"),
    "no dtype": (document(inputs={"x": {"shape": [1], "data": [1]}}), "x: .*dtype"),
    "unknown dtype": (with_array(dtype="int3"), "x: dtype: 'int3'"),
    "object dtype": (with_array(dtype="object"), "x: dtype: 'object'"),
    "no shape": (document(inputs={"x": {"dtype": "int32", "data": [1]}}), "x: .*shape"),
    "too few values": (with_array(data=[1]), "x: 1 values"),
    "too many values": (with_array(data=[1, 2, 3]), "x: 3 values"),
    "negative shape": (with_array(shape=[-1, -2]), "x: 2 values"),
    "fractional shape": (with_array(shape=[2.5]), "x: .*shape"),
    "huge shape": (with_array(shape=[2**62, 2**62]), "x: 2 values"),
    "shape that wraps to the count": (with_array(shape=[2**32, 2**32, 2], data=[]), "x: 0 values"),
    "empty with a huge dimension": (with_array(shape=[0, 2**63], data=[]), "x: "),
    "float for int": (with_array(data=[1, 2.0]), "x: 2.0 is no int32"),
    "bool for int": (with_array(data=[1, True]), "x: True is no int32"),
    "text for int": (with_array(data=[1, "2"]), "x: '2' is no int32"),
    "int for bool": (with_array(dtype="bool", data=[1, 0]), "x: 1 is no bool"),
    "bool for float": (with_array(dtype="float32", data=[1.0, True]), "x: True is no float32"),
    "word for float": (with_array(dtype="float32", data=[1.0, "many"]), "x: .*many"),
    "null in data": (with_array(data=[1, None]), "x: "),
    "above int32": (with_array(data=[1, 2**31]), "x: .*2147483648"),
    "above uint64": (with_array(dtype="uint64", data=[1, 2**64]), "x: "),
    "negative for unsigned": (with_array(dtype="uint8", data=[1, -1]), "x: .*-1"),
    "bits above bfloat16": (with_array(dtype="bfloat16", data=[1, 65536]), "x: .*65536"),
    "above float16": (with_array(dtype="float16", data=[1, 1e6]), "x: "),
    "above float32": (with_array(dtype="float32", data=[1, 1e60]), "x: "),
    "strides of another rank": (with_array(strides=[1, 1]), "strides"),
    "negative stride": (with_array(strides=[-1]), "strides"),
    "fractional stride": (with_array(strides=[1.5]), "x: .*strides"),
    "negative offset": (with_array(offset=-1), "offset"),
    "neither data nor npz": (document(inputs={"x": {"dtype": "int32", "shape": [0]}}), "x: exactly one"),
    "both data and npz": (with_array(npz="x"), "x: exactly one"),
    "deep lists": (DEEP.replace("@", "[" * 9000 + "]" * 9000).encode(), ""),
    "lists that a parser takes": (DEEP.replace("@", "[" * 700 + "]" * 700).encode(), "recursion"),
    "deep objects": (DEEP.replace("@", '{"a":' * 9000 + "1" + "}" * 9000).encode(), ""),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_wrong_is_refused_with_the_path_and_the_reason(tmp_path, name):
    content, reason = REFUSED[name]
    path = tmp_path / "case.json"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    with pytest.raises(CaseError, match=f"(?is){reason}") as caught:
        Case.load(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_every_prefix_of_a_document_is_refused(tmp_path):
    path = saved(BASE, tmp_path / "case.json")
    whole = path.read_bytes().rstrip()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(CaseError, match=r"case\.json"):
            Case.load(path)


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    for path in (tmp_path / "absent.json", tmp_path):
        with pytest.raises(CaseError, match=str(path)):
            Case.load(path)


class Payload:
    """Unpickling this would make a file."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self):
        return os.mkdir, (str(self.target),)


def large_case(path: Path) -> Path:
    return saved({"x": array(range(INLINE_ELEMENTS + 1), "int32")}, path)


def archive_faults(path: Path, trap: Path):
    archive = path.with_suffix(".npz")
    whole = archive.read_bytes()
    data = np.arange(INLINE_ELEMENTS + 1, dtype=np.int32)
    yield archive.unlink
    yield lambda: archive.write_bytes(b"")
    yield lambda: archive.write_bytes(b"no archive at all")
    yield lambda: archive.write_bytes(whole[: len(whole) // 2])
    yield lambda: archive.write_bytes(whole[:40] + b"\xff" * 40 + whole[80:])
    yield lambda: np.savez(archive, y=data)
    yield lambda: np.savez(archive, x=data.astype(np.int64))
    yield lambda: np.savez(archive, x=data[1:])
    yield lambda: np.savez(archive, x=np.array([Payload(trap)] * 2, object), allow_pickle=True)
    yield lambda: archive.write_bytes(np.array([Payload(trap)], object).dumps())
    plain = path.with_suffix(".npy")
    np.save(plain, data)
    yield lambda: plain.replace(archive)


@pytest.mark.parametrize("number", range(11))
def test_a_bad_archive_is_refused_and_never_unpickled(tmp_path, number):
    path, trap = large_case(tmp_path / "case.json"), tmp_path / "trap"
    next(itertools.islice(archive_faults(path, trap), number, None))()
    with pytest.raises(CaseError, match=r"case\.json: x: "):
        Case.load(path)
    assert not trap.exists()


@pytest.mark.parametrize("key", ["../outside", "/etc/passwd", "x/../y", "", "y"])
def test_an_archive_entry_cannot_name_another_file(tmp_path, key):
    np.savez(tmp_path / "outside.npz", x=np.zeros(2, np.int32))
    path = large_case(tmp_path / "in" / "case.json")
    path.write_bytes(json.dumps(document(inputs={"x": {"dtype": "int32", "shape": [2], "npz": key}})).encode())
    with pytest.raises(CaseError, match=r"case\.json: x: "):
        Case.load(path)


WRITES = [(".json", "write_bytes"), (".json", "replace"), (".json", "open"), (".npz", "replace"), (".npz", "open")]


@pytest.mark.parametrize(("suffix", "fails"), WRITES)
@pytest.mark.parametrize("size", [3, INLINE_ELEMENTS + 2])
def test_a_failing_save_leaves_the_old_case(tmp_path, monkeypatch, suffix, fails, size):
    path = large_case(tmp_path / "case.json")
    old = Case.load(path)
    real = getattr(Path, fails)

    def failing(self, *args, **kwargs):
        if suffix in self.name and self.name.startswith("."):
            if fails == "write_bytes":
                real(self, args[0][:10])
            raise OSError("no space left")
        return real(self, *args, **kwargs)

    monkeypatch.setattr(Path, fails, failing)
    new = {"x": array(range(9, size + 9), "int32")}
    if suffix == ".npz" and size <= INLINE_ELEMENTS:  # nothing is written there
        assert Case.load(saved(new, path)).inputs == new
        return
    with pytest.raises(OSError, match="no space left"):
        saved(new, path)
    monkeypatch.undo()
    assert Case.load(path) == old
    assert [item.name for item in tmp_path.iterdir() if item.name.startswith(".")] == []


def test_no_partial_file_stays(tmp_path):
    large_case(tmp_path / "case.json")
    assert sorted(item.name for item in tmp_path.iterdir()) == ["case.json", "case.npz"]


def test_the_summary_names_every_input_with_its_layout():
    text = sizes(
        {"x": array([1, 2, 3], "int32", (2,), 4), "long": array(range(20), "int8"), "k": 1, "s": "a", "n": None}
    )
    assert text == (
        "x int32[3] strides (2,) offset 4 = [1, 2, 3], "
        "long int8[20] = [0, 1, 2, 3, 4, 5, 6, 7, 8, ... 19], k=1, s='a', n=None"
    )


def test_the_summary_has_floats_as_the_numbers_that_they_are():
    inputs = {
        "b": array([0x3F80, 0x8000, 0x7FC1], "bfloat16"),
        "h": array([0.5, -0.0], "float16"),
        "long": array([0x38] * 19 + [0x7F], "float8_e4m3fn"),
    }
    assert sizes(inputs) == (
        "b bfloat16[3] = [1.0, -0.0, nan (0x7fc1)], h float16[2] = [0.5, -0.0], "
        f"long float8_e4m3fn[20] = [{'1.0, ' * 9}... nan (0x7f)]"
    )


def test_arrays_in_tuples_have_numbered_names():
    inputs = {"t": (array([1], "int8"), (array([2], "int8"), 5)), "k": 1}
    assert [name for name, _ in arrays_of(inputs)] == ["t[0]", "t[1][0]"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("int3", np.zeros(1)), "dtype: 'int3'"),
        (("int32", np.zeros(1, np.int64)), "int64 cannot hold the bits of int32"),
        (("int32", np.zeros(1, np.int32), (1, 1)), "does not fit shape"),
        (("int32", np.zeros(1, np.int32), (-1,)), "must not be negative"),
        (("int32", np.zeros(1, np.int32), None, -1), "must not be negative"),
    ],
)
def test_an_impossible_array_is_refused(arguments, reason):
    with pytest.raises(ValueError, match=reason):
        Array(*arguments)
