"""The inputs of chunk metadata: nothing special is rare, nothing small is left out, everything replays."""

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracles.arrays import array
from oracles.contract import OnlyMemorySafety, Refused, Values
from oracles.contracts import by_name
from oracles.contracts.chunk_metadata import LONGEST, MOST_CHUNKS, MOST_TOKENS, ONE_LENGTH, lengths_of
from oracles.domain import Enumerator, HypothesisSource, Replay, Sampler, Scope, strategy, walk

CONTRACT = by_name("chunk_metadata.chunk_metadata")
DRAWN = 4_000


def record(index: int):
    source = Sampler(5, index)
    return CONTRACT.domain(source), source


@pytest.fixture(scope="module")
def samples():
    return [record(index) for index in range(DRAWN)]


def no_draw(*_):
    raise AssertionError("a replayed choice was drawn again")


def replays(choices):
    drivers = (Sampler(0, 0, choices), Enumerator(Scope(0, 1), choices), HypothesisSource(no_draw, choices))
    return [*drivers, Replay(choices), Replay(choices, lenient=True)]


@given(st.integers(0, 2**40))
def test_a_sampled_input_replays_in_every_driver(index):
    wanted, source = record(index)
    for driver in replays(source.choices):
        assert CONTRACT.domain(driver) == wanted
        assert (driver.choices, driver.events) == (source.choices, source.events)


@given(strategy(CONTRACT.domain))
def test_what_hypothesis_draws_replays_in_every_driver(drawn):
    wanted, choices = drawn
    assert all(CONTRACT.domain(driver) == wanted for driver in replays(choices))


def test_walked_inputs_replay_in_every_driver():
    for inputs, source in itertools.islice(walk(CONTRACT.domain, Scope(2, 2)), 0, None, 37):
        assert all(CONTRACT.domain(driver) == inputs for driver in replays(source.choices))


@settings(max_examples=50)
@given(st.lists(st.integers(-3, 3_000), max_size=40))
def test_any_sequence_of_choices_is_an_input_when_read_leniently(choices):
    source = Replay(choices, lenient=True)
    inputs = CONTRACT.domain(source)
    assert CONTRACT.domain(Replay(source.choices)) == inputs
    CONTRACT.expected(inputs)


def test_the_simplest_input_is_one_without_sequences():
    inputs = CONTRACT.domain(Replay())
    assert inputs == {"cu_seqlens": array([0], "int32"), "cu_seqlens_cpu": array([0], "int32"), "chunk_size": 1}


FAULTS = (
    *("chunk_size 0", "chunk_size negative", "no element", "host longer", "device longer", "host decreasing"),
    *("two dimensions", "device int16", "device float", "host float"),
)
# At least so many percent of the samples: half of what was measured, so that only a real loss is reported.
SHARES = {
    "device lengths: garbage": 0.4,
    "device lengths: large": 0.9,
    "device lengths: negative": 1.5,
    "device lengths: other": 3.0,
    "flavour: agreeing": 35,
    "flavour: disagreeing": 7,
    "flavour: refused": 7,
    "layout: far apart within 32 bits": 1.0,
    "layout: huge": 1.2,
    "layout: sliced": 7,
    "layout: strided": 9,
    "sequences: many": 7,
    "sequences: none": 9,
    "zero length: all": 2.1,
    "zero length: consecutive": 17,
    "zero length: first": 6,
    "zero length: last": 16,
    "zero length: middle": 22,
    **dict.fromkeys((f"refused: {fault}" for fault in FAULTS), 0.5),
}


@pytest.mark.parametrize("label", SHARES)
def test_no_event_is_rare(samples, label):
    count = sum(label in source.events for _, source in samples)
    assert 100 * count / DRAWN >= SHARES[label]


def test_every_event_that_is_drawn_has_its_share(samples):
    assert {label for _, source in samples for label in source.events} == set(SHARES)


def sequences(inputs) -> int:
    return inputs["cu_seqlens_cpu"].data.size - 1


@pytest.mark.parametrize("around", [32, 64, 128, 256])
def test_counts_around_widths_are_frequent(samples, around):
    seen = Counter(sequences(inputs) for inputs, _ in samples)
    for count in (around - 1, around, around + 1):
        assert seen[count] >= 10


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("name", ["cu_seqlens", "cu_seqlens_cpu"])
def test_both_widths_are_frequent(samples, name, dtype):
    assert sum(inputs[name].dtype == dtype for inputs, _ in samples) > DRAWN // 4


def test_every_trait_is_met(samples):
    seen = Counter(trait for inputs, _ in samples for trait in CONTRACT.traits(inputs))
    traits = ("no_sequences", "empty_sequence", "lengths_disagree", "negative_length", "strided", "huge_stride")
    for trait in (*traits, "sliced", "int64", "first_not_zero", "host_strided"):
        assert seen[trait] >= DRAWN // 250, trait


def test_every_kind_of_answer_is_met(samples):
    kinds = Counter(type(CONTRACT.expected(inputs)) for inputs, _ in samples[:1_000])
    assert kinds[Values] > 600
    assert kinds[Refused] > 80
    assert kinds[OnlyMemorySafety] > 20


def test_what_is_called_refused_is_refused_and_nothing_else_is(samples):
    for inputs, source in samples[:1_500]:
        refused = isinstance(CONTRACT.expected(inputs), Refused)
        assert refused == ("flavour: refused" in source.events), source.events


@pytest.mark.parametrize("argument", ["cu_seqlens", "cu_seqlens_cpu", "chunk_size"])
def test_every_argument_is_refused_for_some_reason(samples, argument):
    answers = [CONTRACT.expected(inputs) for inputs, source in samples if "flavour: refused" in source.events]
    assert sum(answer.argument == argument for answer in answers) > 20


def test_agreeing_batches_keep_their_bounds(samples):
    for inputs, source in samples:
        if "flavour: agreeing" not in source.events:
            continue
        cu, host, size = inputs["cu_seqlens"], inputs["cu_seqlens_cpu"], inputs["chunk_size"]
        lengths = lengths_of(cu)
        assert lengths == lengths_of(host)
        assert not lengths or 0 <= min(lengths) <= max(lengths) <= max(LONGEST, 2 * size)
        assert sum(lengths) <= min(max(MOST_CHUNKS) * size, MOST_TOKENS)
        assert 0 <= cu.data[0] <= LONGEST


@pytest.mark.parametrize("bound", MOST_CHUNKS)
def test_each_bound_on_the_chunks_is_reached_at_times(samples, bound):
    below = max((other for other in MOST_CHUNKS if other < bound), default=0)
    reached = 0
    for inputs, source in samples:
        if "flavour: agreeing" in source.events:
            size = inputs["chunk_size"]
            reached += below < sum(-(-length // size) for length in lengths_of(inputs["cu_seqlens"])) <= bound
    assert reached >= 20


def agreeing_contiguous(scope: Scope):
    for inputs, source in walk(CONTRACT.domain, scope):
        cu = inputs["cu_seqlens"]
        plain = cu.strides is None and not cu.offset and cu.dtype == "int32"
        if "flavour: agreeing" in source.events and plain and cu.data[0] == 0 and inputs["chunk_size"] == 1:
            yield tuple(lengths_of(cu))


@pytest.mark.parametrize(("count", "value"), [(1, 2), (2, 2), (3, 2), (2, 3)])
def test_the_small_scope_holds_every_vector_of_lengths_once(count, value):
    found = Counter(agreeing_contiguous(Scope(count, value)))
    vectors = {v for n in range(count + 1) for v in itertools.product(range(value), repeat=n)}
    assert set(found) == vectors
    assert set(found.values()) == {1}


def test_the_walk_resumes_behind_any_input():
    scope = Scope(1, 2)
    whole = [tuple(source.choices) for _, source in walk(CONTRACT.domain, scope)]
    assert whole == sorted(set(whole))
    for position in range(0, len(whole), 97):
        rest = [tuple(source.choices) for _, source in walk(CONTRACT.domain, scope, whole[position])]
        assert rest == whole[position + 1 :]


def test_resampling_rotates_and_grows():
    inputs = {
        "cu_seqlens": array([1, 4, 4], "int32"),
        "cu_seqlens_cpu": array([0, 3, 3], "int64", (2,)),
        "chunk_size": 2,
    }
    rotated, grown = CONTRACT.resample(inputs)
    assert rotated["cu_seqlens"].data.tolist() == [1, 1, 4]
    assert grown["cu_seqlens"].data.tolist() == [1, 1, 6]
    assert grown["cu_seqlens_cpu"].strides == (2,)


@pytest.mark.parametrize(
    ("cu", "host", "count"),
    [([0], [0], 0), ([0, 3], [0, 4], 0), ([0, 3, 6], [0, 3, 6], 1), ([0, np.iinfo(np.int32).max], None, 0)],
)
def test_what_cannot_be_resampled(cu, host, count):
    inputs = {"cu_seqlens": array(cu, "int32"), "cu_seqlens_cpu": array(host or cu, "int64"), "chunk_size": 64}
    assert len(CONTRACT.resample(inputs)) == count


def test_the_sketch_draws_sequences_and_chunks():
    def sketch(cu, size, dtype="int64"):
        values = {"cu_seqlens": array(cu, dtype), "cu_seqlens_cpu": array(cu, dtype), "chunk_size": size}
        return CONTRACT.sketch(values).split("\n")

    first, second, third = sketch([5, 8, 8, 30], 2)
    assert first.split() == ["sequence", "0", "tokens", "5..7", "rows", "0..1", "|########|####....|"]
    assert second.split() == ["sequence", "1", "no", "tokens", "no", "row", "(empty)"]
    assert "rows 2..12" in third
    assert third.endswith("| ... 5 more")
    assert sketch([0], 1) == ["no sequences"]
    assert sketch([0, 5], 0) == sketch([[0, 5]], 1) == [""]
    assert len(sketch(range(40), 1)) == 24


def test_the_narrowing_excludes_what_the_host_cannot_know():
    agreeing = {"cu_seqlens": array([0, 3], "int32"), "cu_seqlens_cpu": array([0, 3], "int64"), "chunk_size": 2}
    assert not ONE_LENGTH.excludes(agreeing)
    assert ONE_LENGTH.excludes(agreeing | {"cu_seqlens": array([0, 4], "int32")})


def test_the_bindings_adapt_upstream_s_functions():
    device, host, *aiter = CONTRACT.bindings
    assert {binding.project for binding in aiter} == {"aiter"}
    assert device.adapt({"prepare_chunk_metadata_device": max}) is max
    names = {"prepare_chunk_indices": lambda cu, size: (cu, size), "prepare_chunk_offsets": lambda cu, size: [cu, size]}
    assert host.adapt(names)(cu_seqlens=1, cu_seqlens_cpu=2, chunk_size=3) == ((1, 3), [1, 3])
    assert {name for binding in (device, host) for group in binding.symbols.values() for name in group} == {
        "prepare_chunk_metadata_device",
        *names,
    }
