"""The source of choices and its four drivers: one recorded sequence, one input."""

import itertools
from collections import Counter
from math import comb, prod

import numpy as np
import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st

from oracles.arrays import contiguous_strides
from oracles.contracts import all_contracts, by_name
from oracles.domain import (
    COUNTS,
    FEW,
    HUGE_STRIDE,
    Enumerator,
    HypothesisSource,
    Overrun,
    Replay,
    Sampler,
    Scope,
    Source,
    note_lengths,
    strategy,
    walk,
)


def pair(source: Source) -> dict:
    return {"sign": source.choose(("+", "-")), "value": source.integer(-20, 900, near=(7, 64, -3))}


def batch(source: Source) -> dict:
    return {"lengths": tuple(source.lengths(500, near=(64, 65)))}


def table(source: Source) -> dict:
    rows, columns = source.integer(0, 3), source.integer(0, 3)
    values = [[source.integer(0, 9) for _ in range(columns)] for _ in range(rows)]
    return {"table": source.view(values if rows else [[]], source.choose(("int32", "int64", "float32")))}


def optional(source: Source) -> dict:
    """A tree whose depth depends on earlier answers."""
    items: list[int] = []
    while len(items) < 9 and source.more(len(items)):
        items.append(source.pick(source.pick(3) + 1))
    return {"items": tuple(items)}


DOMAINS = (pair, batch, table, optional)
every_domain = pytest.mark.parametrize("domain", DOMAINS, ids=lambda domain: domain.__name__)


def record(domain, seed: int, index: int) -> tuple[dict, list[int]]:
    source = Sampler(seed, index)
    return domain(source), source.choices


class NoDraw:
    """Stands for Hypothesis's draw where everything is replayed."""

    def __call__(self, *_):
        raise AssertionError("a replayed choice was drawn again")


def replays(choices: list[int]) -> list[Source]:
    drivers = (Sampler(99, 99, choices), Enumerator(Scope(0, 1), choices), HypothesisSource(NoDraw(), choices))
    return [*drivers, Replay(choices), Replay(choices, lenient=True)]


@every_domain
@given(seed=st.integers(0, 2**63 - 1), index=st.integers(0, 2**40))
def test_a_recorded_sequence_gives_the_same_input_in_every_driver(domain, seed, index):
    wanted, choices = record(domain, seed, index)
    for source in replays(choices):
        assert domain(source) == wanted
        assert source.choices == choices


@every_domain
def test_what_hypothesis_draws_replays_elsewhere(domain):
    @settings(max_examples=100)
    @given(strategy(domain))
    def check(drawn):
        wanted, choices = drawn
        assert all(domain(source) == wanted for source in replays(choices))

    check()


def test_hypothesis_shrinks_to_the_simplest_choices():
    value, choices = find(strategy(pair), lambda drawn: drawn[0]["value"] >= 40)
    assert value == {"sign": "+", "value": 40}
    assert choices == [0, 0, 40]


@given(st.data())
def test_hypothesis_source_picks_only_possible_indices(data):
    source = HypothesisSource(data.draw)
    assert 0 <= source.pick(5, near=(-4, 2, 99)) < 5
    source.event("seen")
    assert source.events == ["seen"]


@pytest.mark.filterwarnings("ignore::hypothesis.errors.NonInteractiveExampleWarning")  # the case under test
def test_events_are_accepted_outside_a_running_test():
    assert strategy(lambda source: source.view([1, 2], "int32")).example()


@every_domain
def test_the_sampler_is_a_function_of_seed_and_index(domain):
    first = [record(domain, 7, index) for index in range(60)]
    assert first == [record(domain, 7, index) for index in range(60)]
    assert len({tuple(choices) for _, choices in first}) > 15
    assert first != [record(domain, 8, index) for index in range(60)]


@pytest.mark.parametrize("seed", [-1, -2, 2**63, 2**64 - 1024])
def test_neighbouring_seeds_differ_over_the_whole_64_bits(seed):
    streams = [[record(table, near, index)[1] for index in range(20)] for near in (seed, seed + 1)]
    assert streams[0] != streams[1]


def test_near_values_are_frequent():
    values = Counter(Sampler(1, index).integer(0, 1 << 20, near=(64, 4096)) for index in range(2_000))
    assert values[64] > 400
    assert values[4096] > 400
    assert len(values) > 100


def test_the_sampler_reaches_every_order_of_magnitude():
    bits = Counter(Sampler(1, index).integer(0, 1 << 20).bit_length() for index in range(4_000))
    assert set(bits) >= set(range(1, 20))
    assert min(bits[n] for n in range(1, 20)) > 20


def test_weights_bias_the_sampler():
    drawn = Counter(Sampler(3, index).choose("abc", weights=(8, 1, 1)) for index in range(2_000))
    assert drawn["a"] > 1_400
    assert min(drawn["b"], drawn["c"]) > 100


@given(st.integers(-50, 50), st.integers(0, 60), st.integers(0, 2**32), st.lists(st.integers(-60, 120), max_size=3))
def test_integers_stay_in_range(low, width, index, near):
    high = low + width
    assert low <= Sampler(0, index).integer(low, high, near=near) <= high
    nearest_zero = min(max(low, 0), high)
    assert Replay().integer(low, high, near=near) == nearest_zero


@pytest.mark.parametrize(("low", "high"), [(1, 0), (-3, -4), (10, -10)])
def test_an_empty_range_is_refused(low, high):
    with pytest.raises(ValueError, match=f"{low}..{high} is empty"):
        Replay().integer(low, high)


@pytest.mark.parametrize("options", [(), []])
def test_nothing_to_choose_from_is_refused(options):
    with pytest.raises(ValueError, match="nothing to choose from"):
        Replay().choose(options)


@pytest.mark.parametrize("impossible", [-1, 3, 1 << 40])
def test_an_impossible_replay_overruns_or_is_clamped(impossible):
    for source in (Replay([impossible]), Sampler(0, 0, [impossible]), Enumerator(Scope(2, 2), [impossible])):
        with pytest.raises(Overrun, match=f"choice 0 is {impossible}, but only 0..2"):
            source.pick(3)
    clamped = Replay([impossible], lenient=True)
    assert clamped.pick(3) == (0 if impossible < 0 else 2)
    assert clamped.choices == [0 if impossible < 0 else 2]


@every_domain
@given(choices=st.lists(st.integers(-5, 2_000), max_size=30))
def test_a_lenient_replay_never_fails_and_records_what_it_used(domain, choices):
    lenient = Replay(choices, lenient=True)
    value = domain(lenient)
    assert domain(Replay(lenient.choices)) == value
    assert all(0 <= index < size for index, size in zip(lenient.choices, lenient.sizes, strict=True))


def leaves(domain, scope: Scope, after=None) -> list[tuple[int, ...]]:
    return [tuple(source.choices) for _, source in walk(domain, scope, after)]


@every_domain
def test_the_walk_meets_every_leaf_once_in_order_and_resumes_anywhere(domain):
    scope = Scope(2, 2)
    found = leaves(domain, scope)
    assert len(set(found)) == len(found) > 2
    assert found == sorted(found)
    for position in {0, 1, len(found) // 2, len(found) - 2, len(found) - 1}:
        assert leaves(domain, scope, found[position]) == found[position + 1 :]


@given(st.lists(st.integers(1, 5), max_size=4), st.integers(1, 4))
def test_the_walk_of_independent_choices_is_their_product(sizes, value):
    def domain(source):
        return {"picked": tuple(source.pick(size) for size in sizes)}

    found = [inputs["picked"] for inputs, _ in walk(domain, Scope(9, value))]
    assert found == list(itertools.product(*(range(min(size, value)) for size in sizes)))


@given(st.integers(1, 3), st.integers(1, 3))
def test_small_overrides_the_scope(size, small):
    def domain(source):
        return {"option": source.choose("abcd"[: size + 1]), "first": source.choose("abcd"[: size + 1], small=small)}

    found = [tuple(inputs.values()) for inputs, _ in walk(domain, Scope(0, 1))]
    options = "abcd"[: size + 1]
    assert found == list(itertools.product(options, options[:small]))


def test_lists_are_walked_up_to_the_bound():
    def domain(source):
        items: list[int] = []
        while source.more(len(items)):
            items.append(source.pick(10))
        return {"items": tuple(items)}

    found = [inputs["items"] for inputs, _ in walk(domain, Scope(3, 4))]
    assert len(found) == len(set(found)) == sum(4**n for n in range(4))


@pytest.mark.parametrize(("count", "value"), [(0, 1), (1, 5), (3, 2), (4, 3)])
def test_every_vector_of_lengths_up_to_the_bound_is_walked_once(count, value):
    found = [inputs["lengths"] for inputs, _ in walk(batch, Scope(count, value))]
    vectors = [v for n in range(count + 1) for v in itertools.product(range(value), repeat=n)]
    assert Counter(found) == Counter(vectors)


def test_the_walk_counts_dependent_choices_like_the_closed_form():
    def domain(source):
        return {"subset": tuple(itertools.accumulate(source.pick(4) for _ in range(source.pick(4))))}

    assert len(leaves(domain, Scope(9, 4))) == sum(4**n for n in range(4))
    increasing = lambda source: {"a": (a := source.pick(6)), "b": a + source.pick(6 - a)}  # noqa: E731
    assert len(leaves(increasing, Scope(9, 6))) == comb(7, 2)


def test_a_walk_behind_the_last_leaf_or_a_leaf_outside_the_scope():
    scope = Scope(2, 2)
    last = leaves(pair, scope)[-1]
    assert leaves(pair, scope, last) == []
    behind = leaves(pair, scope, [0, 0, 300])
    assert behind == [choices for choices in leaves(pair, scope) if choices > (0, 0, 300)]


def test_lengths_respect_bounds_and_meet_the_special_counts():
    drawn = [Sampler(5, index).lengths(500, near=(64, 900), max_count=300) for index in range(4_000)]
    assert all(0 <= length <= 500 for lengths in drawn for length in lengths)
    counts = Counter(map(len, drawn))
    assert max(counts) <= 300
    assert set(counts) >= {*COUNTS, *range(FEW + 1)}
    assert any(len(set(lengths)) == 1 for lengths in drawn if len(lengths) > FEW)
    assert any(len(set(lengths)) > 4 for lengths in drawn if len(lengths) > FEW)


def test_no_count_above_the_limit_is_drawn():
    assert {len(Sampler(5, index).lengths(3, max_count=2)) for index in range(300) if index % 2} <= set(range(FEW + 1))


@given(st.integers(0, 2**32), st.sampled_from([(0,), (1,), (3,), (8,), (9,), (2, 2), (3, 4), (0, 4), (2, 2, 3)]))
def test_views_keep_values_and_make_distinct_addresses(index, shape):
    size = prod(shape)
    values = [*range(size)]
    source = Sampler(11, index)
    view = source.view(np.reshape(values, shape), "int32")
    assert view.shape == shape
    assert view.data.ravel().tolist() == values
    spots = [sum(i * s for i, s in zip(at, view.layout, strict=True)) for at in itertools.product(*map(range, shape))]
    assert len(set(spots)) == size
    plain = view.strides is None and view.offset == 0
    assert plain == (not source.events)


def test_a_view_of_a_scalar_has_no_dimension():
    view = Sampler(11, 0).view(5, "int32")
    assert (view.shape, view.strides, view.data.tolist()) == ((), None, 5)


def test_every_layout_is_drawn():
    seen = {}
    for index in range(600):
        source = Sampler(2, index)
        view = source.view([1, 2, 3], "int64")
        seen.setdefault(tuple(source.events), view)
    assert set(seen) == {(), ("layout: strided",), ("layout: sliced",), ("layout: huge",)}
    assert seen["layout: huge",].reach > 1 << 31
    assert 1 <= seen["layout: sliced",].offset <= 7
    assert 2 <= seen["layout: strided",].strides[0] <= 7


@pytest.mark.parametrize(("rows", "strides"), [(2, {HUGE_STRIDE}), (3, {HUGE_STRIDE, (1 << 30) + 8})])
def test_products_leave_32_bits_with_strides_that_do_and_that_do_not(rows, strides):
    views = [Sampler(2, index).view(range(rows), "int64") for index in range(600)]
    assert {view.layout[0] for view in views if view.reach > 1 << 31} == strides


def test_a_large_array_is_never_given_a_huge_stride():
    strides = {Sampler(2, index).view(range(9), "int32").layout[0] for index in range(600)}
    assert max(strides) <= 7


DRAWN_ONE_BY_ONE = (
    "block_table.BlockTables",
    "metadata_reuse.linear_metadata_reuse",
    "metadata_reuse.mla_metadata_reuse",
    "metadata_reuse.mixed_metadata_reuse",
    "rope_kv_cache.rope_and_cache_mla",
    "rope_kv_cache.mla_cache_write_dispatch",
)
"""Contracts whose inputs follow no rule: every operation of a life, or every token, is a choice."""


@pytest.mark.parametrize("name", [contract.full_name for contract in all_contracts()])
def test_what_followed_a_rule_is_offered_one_by_one(name):
    """Few elements as the same input, more of them in parts; every form costs less, and replays strictly."""
    contract, same, parts = by_name(name), 0, 0
    for index in range(400):
        source = Sampler(4, index)
        wanted = contract.domain(source)
        ruled = Replay(source.choices)
        contract.domain(ruled)
        forms = list(ruled.forms())
        assert bool(forms) == (ruled.cost > 0)
        for form in forms:
            spelled = Replay(form, lenient=True)
            made = contract.domain(spelled)
            assert spelled.cost < ruled.cost
            same += made == wanted
            parts += made != wanted
    if name in DRAWN_ONE_BY_ONE:
        assert same == parts == 0
        return
    assert same > 5
    assert parts > 100


@pytest.mark.parametrize(
    ("lengths", "labels"),
    [
        ([], {"sequences: none"}),
        ([0], {"zero length: all"}),
        ([0, 0, 0], {"zero length: all"}),
        ([5, 6], set()),
        ([0, 5], {"zero length: first"}),
        ([5, 0], {"zero length: last"}),
        ([5, 0, 6], {"zero length: middle"}),
        ([5, 0, 0, 6], {"zero length: middle", "zero length: consecutive"}),
        ([0, 5, 0, 0], {f"zero length: {where}" for where in ("first", "middle", "last", "consecutive")}),
        ([1] * (FEW + 1), {"sequences: many"}),
        ([0] * (FEW + 1), {"sequences: many", "zero length: all"}),
    ],
)
def test_the_places_of_zeros_are_noted(lengths, labels):
    source = Replay()
    note_lengths(source, lengths)
    assert set(source.events) == labels
    assert len(source.events) == len(labels)


@given(st.lists(st.integers(0, 5), max_size=4).map(tuple))
def test_contiguous_strides_number_the_elements_in_order(shape):
    strides = contiguous_strides(shape)
    spots = [sum(i * s for i, s in zip(at, strides, strict=True)) for at in itertools.product(*map(range, shape))]
    assert spots == list(range(prod(shape)))
