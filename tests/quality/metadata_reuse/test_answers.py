"""What builders return is judged before it is used; what was never tried, and what happens in a life, is told."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from oracles import tally
from oracles.check import judge
from oracles.contract import Values
from oracles.contracts import by_name
from oracles.domain import Sampler

LINEAR, MIXED = "linear_metadata_reuse", "mixed_metadata_reuse"
PAGE = Path(__file__).resolve().parents[3] / "docs" / "metadata-reuse.md"


def of_one_spec(inputs) -> bool:
    return len(set(inputs["groups"])) == 1


def of_several_specs(inputs) -> bool:
    return len(set(inputs["groups"])) == len(inputs["groups"])


def is_of_decodes(inputs) -> bool:
    return of_one_spec(inputs) and not any(flags.data.any() for flags in inputs["is_prefilling"])


def life(contract, plans, *, groups=2, holds=of_one_spec, **values):
    """A drawn life of so many groups, of which something holds, that goes by these plans; with other values in it."""
    domain = by_name(f"metadata_reuse.{contract}").domain
    sizes = groups, len(plans)
    for index in range(999):
        inputs = domain(Sampler(2, index))
        if (len(inputs["groups"]), len(inputs["steps"])) == sizes and holds(inputs):
            steps = tuple((plan, ()) for plan in plans)
            return {**inputs, "steps": steps, "shared": True, "joins": 0, **values}
    raise AssertionError("no such life is drawn")


@pytest.mark.parametrize(
    ("name", "plan", "key", "words"),
    [
        ("BuildsNothing", "reuse", "build", "step 0: build of group 0's builder returned None, where an object with"),
        ("BuildsADict", "reuse", "build", "returned a dict, .* the attributes of LinearMetadata belongs .*records.py"),
        ("BuildsWithoutSomeFields", "all", "build", "a Metadata, which lacks num_decodes, chunk_indices, .* 1 more of"),
        ("UpdatesATuple", "reuse", "update_block_table", "step 0: .* of group 1's builder returned a tuple, where"),
        ("UpdatesNone", "all", "update_block_tables", "step 0: .* returned None, where a list of 1 metadata belongs"),
        ("UpdatesLists", "all", "update_block_tables", "update_block_tables, for group 1, returned a list, where"),
        ("AnswersNone", "all", "can_reuse_metadata", "group 1's builder returned None, where True or False belongs"),
        ("CanNotUpdate", "reuse", "update_block_table", r"group 1, a CanNotUpdate, has no method .*\(metadata, block_"),
        ("SharesNothing", "all", "share_reusable_metadata_buffers", "class SharesNothing, has no method .*class meth"),
        ("makes_nothing", "all", "build", r"the builder of group 0, None, has no method build\(batch, block_table"),
    ],
)
def test_an_answer_of_another_kind_is_a_finding(name, plan, key, words, folder) -> None:
    subject = folder.loaded(LINEAR, f"wrong_answers.py:{name}")
    found = judge(subject, life(LINEAR, [plan]), fresh=False)
    assert [failure.key for failure in found] == [f"wrong_shape:{key}"]
    assert re.search(words, found[0].detail), found[0].detail


def test_what_is_no_builder_class_is_a_finding(folder) -> None:
    subject = folder.loaded(MIXED, "wrong_answers.py:no_classes")
    found = judge(subject, life(MIXED, ["all"], holds=of_several_specs), fresh=False)
    assert [failure.key for failure in found] == ["wrong_shape:builder class"]
    assert found[0].detail == "returned a str for 'linear', where a builder class belongs"


@pytest.mark.parametrize(
    ("spec", "plan", "said"),
    [
        ("unusual_linear.py:NeverReuses", "all", "no reuse of linear metadata was judged, only builds: .* all 2 times"),
        ("unusual_linear.py:NeverReuses", "build", "^$"),
        ("correct_linear.py:Linear", "all", "^$"),
    ],
)
def test_builders_that_never_reuse_are_told_of(spec, plan, said, folder) -> None:
    subject = folder.loaded(LINEAR, spec)
    tally.taken()
    assert judge(subject, life(LINEAR, [plan]), fresh=False) == []
    assert re.match(said, subject.contract.remarks(tally.taken()))
    assert tally.taken() == {}


def test_what_must_be_rejected_is_no_reuse_that_was_left_out(folder) -> None:
    """Of another spec, or in buffers that a graph does not read."""
    subject = folder.loaded(LINEAR, "correct_linear.py:Linear")
    other = life(LINEAR, ["all"], holds=of_several_specs)
    apart = life(LINEAR, ["all"], shared=False, full_graph=(True,), max_graph_rows=9, holds=is_of_decodes)
    tally.taken()
    for inputs in (other, apart):
        assert judge(subject, inputs, fresh=False) == []
    assert tally.taken() == {}


def test_one_family_s_answers_say_nothing_of_the_other_s() -> None:
    remarks = by_name(f"metadata_reuse.{MIXED}").remarks
    said = remarks({"linear reuse accepted": 3, "linear reuse rejected": 1, "mla reuse rejected": 1200})
    assert said.startswith("no reuse of mla metadata was judged")
    assert "all 1,200 times" in said
    assert remarks({"linear reuse accepted": 3}) == remarks({}) == ""


def test_a_life_tells_which_metadata_is_built_and_which_updated() -> None:
    contract = by_name(f"metadata_reuse.{LINEAR}")
    drawn = contract.sketch(life(LINEAR, ["reuse", "all"], groups=3, max_graph_rows=9)).splitlines()
    for said in (
        "  [0] step 0, group 0, built",
        "  [2] step 0, group 2, updated",
        "  [3] step 0, group 0, kept",
        "  [6] step 1, group 0, built",
        "  [8] step 1, group 2, updated, all at once",
    ):
        assert said in drawn
    other = contract.sketch(life(LINEAR, ["all"], holds=of_several_specs))
    assert "  [1] step 0, group 1, built, because of R1: the keys differ\n" in other
    assert "  [1] step 0, group 1, built\n" in contract.sketch(life(LINEAR, ["build"]))


def test_a_replay_tells_when_its_graph_was_captured() -> None:
    sketch = by_name(f"metadata_reuse.{LINEAR}").sketch

    def is_replayed(inputs) -> bool:
        return of_one_spec(inputs) and "group 1, replayed" in sketch(inputs)

    assert "step 1, group 1, replayed, captured in step 0\n" in sketch(life(LINEAR, ["all"] * 2, holds=is_replayed))


def test_results_are_the_fields_of_the_contract_s_families() -> None:
    for name, lacking, there in (
        (LINEAR, "paged_kv_indices", "chunk_offsets"),
        ("mla_metadata_reuse", "chunk_offsets", "paged_kv_indices"),
        (MIXED, "", "chunk_offsets"),
    ):
        contract = by_name(f"metadata_reuse.{name}")
        expected = contract.expected(life(name, ["all"], holds=lambda inputs: True))
        assert isinstance(expected, Values)
        names = [output.name for output in contract.outputs]
        assert sorted(names) == sorted(expected.outputs)
        assert lacking not in names
        assert there in names


def test_the_builder_on_the_page_is_correct_and_its_fault_is_found(tmp_path, said_of, first_shown) -> None:
    """As the page says: its file, its command, and the line that is replaced."""
    text = PAGE.read_text(encoding="utf-8")
    (file, code), *others = re.findall(r"^```python (\S+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (spec,) = re.findall(rf"^oracles check metadata_reuse\.{LINEAR} --impl (\S+) --backend host$", text, re.MULTILINE)
    (wrong, right) = re.findall(r"With `(.*?)` in place of `(.*?)`", text)[0]
    assert others == []
    assert spec.partition(":")[0] == file
    assert code.count(right) == 1
    (tmp_path / file).write_text(code, encoding="utf-8")
    (tmp_path / f"wrong_{file}").write_text(code.replace(right, wrong), encoding="utf-8")
    assert said_of(LINEAR, str(tmp_path / spec)) == []
    found = first_shown(LINEAR, str(tmp_path / f"wrong_{spec}"), "wrongly_accepted:can_reuse_metadata", 60)
    assert found is not None
    assert "but its graphs read buffers of group 1, not those of group 0" in found.failures[0].detail
    assert found.failures[0].detail in text
