"""The generic reducer: reaches the minimum of simple predicates and never returns what does not pass.

At the end: the names of failures, which a reduction keeps fixed.
"""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oracles.domain import FEW, Replay
from oracles.reduce import Reducer, simpler
from oracles.verdict import FAILURES, KINDS, PASS, UNSUPPORTED, Failure, bucket, described, failure, readable

sequences = st.lists(st.integers(0, 60), max_size=12).map(tuple)


class Predicate:
    """A test of the reducer that counts its calls and remembers what passed."""

    def __init__(self, holds):
        self.holds = holds
        self.calls = 0
        self.passed = set()

    def __call__(self, choices):
        self.calls += 1
        if not self.holds(choices):
            return None
        self.passed.add(choices)
        return choices


def reduce(holds, start, **budget):
    test = Predicate(holds)
    reducer = Reducer(test, **budget)
    found = reducer.reduce(start)
    assert found == tuple(start) or found in test.passed
    assert found == tuple(start) or simpler(found, start)
    return found, test, reducer


@given(sequences, st.integers(0, 200))
def test_a_sum_is_reduced_to_the_bound(start, bound):
    holds = lambda choices: sum(choices) >= bound  # noqa: E731
    if not holds(start):
        return
    found, _, reducer = reduce(holds, start)
    assert sum(found) == bound
    assert len(found) <= max(1, len(start))
    assert not reducer.exhausted


@given(sequences, st.integers(0, 60), sequences)
def test_an_element_alone_remains(before, wanted, after):
    found, _, _ = reduce(lambda choices: wanted in choices, (*before, wanted, *after))
    assert found == (wanted,)


@given(st.lists(st.integers(0, 60), min_size=4, max_size=14), st.integers(0, 4))
def test_a_length_keeps_only_zeros(start, length):
    found, _, _ = reduce(lambda choices: len(choices) >= length, start)
    assert found == (0,) * length


@given(sequences, st.integers(1, 60))
def test_a_bound_on_the_largest_is_met_exactly(start, bound):
    found, _, _ = reduce(lambda choices: max(choices, default=0) >= bound, (*start, 60))
    assert found == (bound,)


def test_a_pair_out_of_order_ends_as_one_and_zero():
    start = (9, 4, 33, 12, 40, 7)
    found, _, _ = reduce(lambda c: any(a > b for a, b in itertools.pairwise(c)), start)
    assert found == (1, 0)


def test_unordered_elements_are_sorted():
    found, _, _ = reduce(lambda choices: sorted(choices) == [1, 2, 3, 4], (4, 3, 2, 1))
    assert found == (1, 2, 3, 4)


def test_pairs_swap_as_a_whole():
    pairs = lambda choices: sorted(zip(choices[::2], choices[1::2], strict=True))  # noqa: E731
    found, _, _ = reduce(lambda c: len(c) == 4 and pairs(c) == [(1, 9), (2, 0)], (2, 0, 1, 9))
    assert found == (1, 9, 2, 0)


def test_a_count_goes_with_its_element():
    """The first choice says how many follow: neither can be lowered or dropped alone."""
    counted = lambda choices: bool(choices) and choices[0] == len(choices) - 1 and 7 in choices[1:]  # noqa: E731
    found, _, _ = reduce(counted, (4, 1, 7, 2, 3))
    assert found == (1, 7)


def test_a_sum_moves_behind():
    found, _, _ = reduce(lambda c: len(c) == 3 and sum(c) == 9, (9, 0, 0))
    assert found == (0, 0, 9)


def test_the_choices_really_used_are_taken():
    """A lenient replay clamps and completes; the reducer continues from what was used."""

    def used(choices):
        source = Replay(choices, lenient=True)
        drawn = [source.integer(0, 50) for _ in range(source.integer(0, 6))]
        return tuple(source.choices) if sum(drawn) >= 20 else None

    assert Reducer(used).reduce((6, 50, 50, 50, 50, 50, 50)) == (1, 20)


@pytest.mark.parametrize(
    ("holds", "wanted"),
    [
        (lambda lengths: any((a, b) == (0, 0) for a, b in itertools.pairwise(lengths[1:-1])), [0, 0, 0, 0]),
        (lambda lengths: "".join(map(str, lengths))[1:-1].strip("123456789") == "00", [1, 0, 0, 1]),
        (
            lambda lengths: len(lengths) > FEW and [at for at, n in enumerate(lengths) if n == 2] == [3],
            [0, 0, 0, 2, 0, 0, 0, 0, 0],
        ),
        (lambda lengths: len(lengths) > FEW and lengths[-1] == 3, [3, 3, 3, 3, 3, 3, 3, 3, 3]),
    ],
)
def test_lengths_from_a_seed_end_as_lengths_of_their_own(holds, wanted):
    """A seed draws all lengths at once: what needs few of them, or one among many, is spelled out."""

    def replayed(choices):
        source = Replay(choices, lenient=True)
        return source.lengths(9, near=(1, 2, 3)), source

    def test(choices):
        lengths, source = replayed(choices)
        return tuple(source.choices) if holds(lengths) else None

    def of_source(choices):
        return replayed(choices)[1]

    for seed in itertools.islice((n for n in range(100) if test((1, 12, 1, n, 0)) is not None), 3):
        reducer = Reducer(test, cost=lambda c: of_source(c).cost, forms=lambda c: of_source(c).forms())
        assert replayed(reducer.reduce((1, 12, 1, seed, 0)))[0] == wanted


def test_an_answer_that_is_not_simpler_is_not_taken():
    assert Reducer(lambda choices: (*choices, 5, 5, 5)).reduce((1, 2)) == (1, 2)


@pytest.mark.parametrize("attempts", [0, 1, 7, 50])
def test_the_budget_of_tests_is_kept(attempts):
    start = tuple(range(30, 60))
    _, test, reducer = reduce(lambda choices: sum(choices) >= 1000, start, attempts=attempts)
    assert test.calls <= attempts
    assert reducer.exhausted


def test_the_budget_of_seconds_is_kept():
    found, test, reducer = reduce(lambda choices: True, (5, 5), seconds=-1.0)
    assert (found, test.calls, reducer.exhausted) == ((5, 5), 0, True)


def test_nothing_is_tested_twice():
    seen = []
    Reducer(lambda choices: seen.append(choices)).reduce((3, 1, 2, 8, 0, 4))
    assert len(seen) == len(set(seen))


def test_the_empty_sequence_is_the_simplest():
    found, test, reducer = reduce(lambda choices: True, ())
    assert (found, test.calls, reducer.exhausted) == ((), 0, False)


@given(sequences, sequences)
def test_simpler_is_a_total_order(one, other):
    assert simpler(one, other) + simpler(other, one) + (one == other) == 1


def test_kinds_make_their_failures():
    assert (PASS, *FAILURES, UNSUPPORTED) == KINDS
    for kind in FAILURES:
        made = failure(kind, "y", "why")
        assert (made.kind, made.key, str(made)) == (kind, f"{kind}:y", f"{kind}: y: why")
        made, wanted = made.__reduce__()[0](*made.__reduce__()[1]), made
        assert (type(made), made.args) == (type(wanted), wanted.args)
    assert str(failure("hang", "y")) == "hang: y"
    assert issubclass(FAILURES["hang"], Failure)


def test_a_bucket_adds_the_traits_in_order():
    assert bucket("hang:y", []) == "hang:y"
    assert bucket("hang:y", {"b", "a"}) == "hang:y:a+b"


def test_an_exception_without_a_text_can_be_described():
    class Mute(Exception):
        def __str__(self):
            raise RuntimeError

    assert described(KeyError("k")) == "KeyError: 'k'"
    assert described(Mute()) == "Mute (its text cannot be read: RuntimeError)"


def test_any_text_can_be_stored_and_is_not_without_end():
    assert readable("plain \N{SNOWMAN}") == "plain \N{SNOWMAN}"
    assert readable("a\udc80b").encode() == b"a\\udc80b"
    long = readable("x" * 10**6)
    assert len(long) < 10**5
    assert long.endswith("(1000000 characters)")
