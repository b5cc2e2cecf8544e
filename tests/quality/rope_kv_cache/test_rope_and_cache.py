"""Faults planted in the rotation and the cache write are found and explained; unusual correct code raises no alarm."""

from __future__ import annotations

import os
import re
from itertools import islice

import pytest

from oracles.check import judge
from oracles.providers.base import ProviderError

CONTRACT = "rope_and_cache_mla"
FEW_ELEMENTS = 1000
"""Of queries: the large shapes say what small ones say."""

NIGHTLY = bool(os.environ.get("ORACLES_NIGHTLY"))

ROTATION_FAULTS = {
    "wrong_value:q_out": """
        pairs_the_other_way knows_neox_only knows_interleaved_pairs_only splits_neox_halves_of_a_power_of_two
        rotates_queries_twice leaves_queries_as_they_are turns_the_other_way adds_in_both_lanes
        uses_the_lane_that_it_has_overwritten swaps_sine_and_cosine takes_sines_from_the_other_end
        reads_every_angle_twice takes_the_first_tokens_position takes_the_next_tokens_position
        numbers_tokens_from_zero takes_negative_positions_from_the_end starts_again_past_the_table
        clamps_to_the_row_before_the_last positions_in_32_bits reads_sines_from_the_table_of_cosines
        leaves_queries_without_a_slot_as_they_are puts_the_rotated_part_first heads_share_the_first_ones
        takes_the_rest_of_the_next_head copies_through_float32 loses_the_sign_of_zero flushes_denormals_of_the_copy
        flushes_denormals_of_the_rotation rotates_in_16_bits rotates_in_float32 rounds_the_table_first
        truncates_to_16_bits contracts_both_products
    """,
    "wrong_value:k_pe_out": """
        rotates_keys_twice leaves_keys_as_they_are returns_the_key_unrotated leaves_keys_without_a_slot_as_they_are
        rounds_half_away_from_zero
    """,
    "wrong_value:kv_cache": "divides_by_multiplying skips_the_rounding_before_the_cache",
    "unwritten:q_out": """
        returns_early_without_a_slot knows_the_tokens_of_the_slot_mapping_only forgets_the_last_head
    """,
    "crash:IndexError": "does_not_clamp_positions clamps_positions_of_written_tokens_only",
    "crash:AssertionError": "asserts_tight_queries",
    "wrongly_refused:ValueError": "refuses_empty_batches refuses_fewer_slots_than_tokens",
    "wrongly_accepted:q_pe": "accepts_an_odd_width",
    "wrongly_accepted:slot_mapping": "accepts_more_slots_than_tokens",
}

CACHE_FAULTS = {
    "wrong_value:kv_cache": """
        puts_the_key_before_the_latent caches_the_key_unrotated rotates_the_latent takes_the_next_tokens_latent
        multiplies_latents_by_one flushes_denormal_latents ignores_the_scale multiplies_by_the_scale scales_keys_only
        scales_latents_only scales_keys_of_any_cache rounds_the_scale_to_bfloat16 divides_instead_of_multiplying
        keeps_the_scale_in_float64 rounds_before_the_cache writes_fn_for_both_kinds writes_fnuz_for_both_kinds
        gives_nan_for_what_is_too_large gives_nan_for_infinity saturates_nan gives_fnuz_a_negative_zero
        saturates_fn_where_fnuz_does rounds_half_away truncates flushes_subnormals rounds_through_float16
        rounds_through_bfloat16 assumes_a_scale_of_at_most_one
    """,
    "stale:k_pe_out": "rotates_keys_in_place",
    "stale:q_out": """
        returns_one_buffer_again_and_again keeps_queries_by_identity keeps_rows_by_the_identity_of_the_table
        keeps_the_table_in_float32_by_identity
    """,
    "input_mutated:q_pe": "rotates_queries_in_place",
    "input_mutated:k_pe": "rotates_keys_in_place",
    "wrong_shape:k_pe_out": "returns_the_key_in_float64",
    "wrong_shape:outputs": "returns_queries_only",
    "host_sync:tolist": "reads_slots_on_the_host",
    "host_sync:int": "asks_for_the_farthest_position",
    "host_sync:boolean mask": "selects_tokens_by_a_mask",
    "wrongly_accepted:k_scale": "accepts_any_scale",
    "wrongly_accepted:cache_dtype": "takes_unknown_kinds_for_auto refuses_after_it_has_written",
    "wrongly_accepted:q_scale": "ignores_a_scale_of_queries",
    "wrongly_refused:ValueError": "refuses_bytes_for_float8",
}

SLOT_FAULTS = {
    "wrong_value:kv_cache": """
        minus_one_is_the_last_slot tests_the_upper_bound_only takes_slots_outside_for_the_first
        clamps_slots_into_the_cache starts_again_past_the_last_slot takes_slot_0_for_none never_writes_the_last_slot
        slots_in_32_bits takes_slots_for_blocks counts_places_before_blocks masks_places_as_if_blocks_were_of_16
        writes_one_lane_too_few clears_the_cache_first puts_the_last_row_in_place_of_missing_ones
        writes_bytes_that_it_has_read_as_floats forgets_the_last_token stops_at_the_first_token_without_a_slot
        writes_to_a_copy
    """,
    "crash:IndexError": "tests_the_lower_bound_only",
    "out_of_bounds_write:kv_cache": """
        assumes_tight_blocks assumes_tight_rows writes_past_the_last_slot writes_one_element_too_far
    """,
}

SIZE_FAULTS = {
    "wrong_value:kv_cache": """
        masks_places_as_if_block_sizes_were_powers_of_two shifts_slots_as_if_block_sizes_were_powers_of_two
        sixteen_programs_keep_their_slots thirty_two_programs_keep_their_slots sixty_four_programs_keep_their_slots
        a_hundred_and_twenty_eight_programs_keep_their_slots
        tokens_of_kv_c_in_32_bits slots_in_32_bits blocks_in_32_bits places_in_32_bits
    """,
    "wrong_value:k_pe_out": "tokens_of_k_pe_in_32_bits",
    "wrong_value:q_out": """
        sixteen_programs_keep_their_rows sixty_four_programs_keep_their_rows
        tokens_of_q_nope_in_32_bits tokens_of_q_pe_in_32_bits heads_of_q_nope_in_32_bits heads_of_q_pe_in_32_bits
        rows_of_cos_in_32_bits rows_of_sin_in_32_bits positions_in_32_bits
    """,
}

PLANTED = [
    pytest.param(f"{file}:{fault}", key, id=f"{fault}-{key.partition(':')[0]}")
    for file, faults in (
        ("faults_rotation.py", ROTATION_FAULTS),
        ("faults_cache.py", CACHE_FAULTS),
        ("faults_slots.py", SLOT_FAULTS),
    )
    for key, names in faults.items()
    for fault in names.split()
]


@pytest.mark.parametrize(("spec", "key"), PLANTED)
def test_a_fault_is_found(spec: str, key: str, look_for) -> None:
    found = look_for(CONTRACT, spec, key)
    assert found.median <= found.given, found.needed


IN_EVERY_RUN = [
    *[(f"faults_sizes.py:{fault}", key) for key, names in SIZE_FAULTS.items() for fault in names.split()],
    ("faults_cache.py:keeps_the_scale_in_float64", "wrong_value:kv_cache"),
    ("faults_rotation.py:knows_the_tokens_of_the_slot_mapping_only", "unwritten:q_out"),
    ("faults_slots.py:masks_places_as_if_blocks_were_of_16", "wrong_value:kv_cache"),
]
"""Few samples have these sizes and values, so that every small scope has them."""


@pytest.mark.parametrize(("spec", "key"), IN_EVERY_RUN, ids=[spec.partition(":")[2] for spec, _ in IN_EVERY_RUN])
def test_a_fault_is_found_in_the_small_scope(spec: str, key: str, look_for, folder) -> None:
    found = look_for(CONTRACT, spec, key, samples=0)
    assert found.median <= len(folder.stream(CONTRACT).small), found.needed


CORRECT = [
    "correct_rope.py:rope_and_cache_mla",
    "correct_rope.py:in_torch_order",
    "unusual_rope.py:in_half_scale_order",
    "unusual_rope.py:contracts_another_product_in_each_lane",
    "unusual_rope.py:asks_every_slot_for_its_token",
]

NIGHTLY_ONLY = [
    "unusual_rope.py:returns_parts_of_one_tensor",
    "unusual_rope.py:keeps_a_workspace",
    "unusual_rope.py:in_triton_order",
    "unusual_rope.py:in_promote_order",
    "unusual_rope.py:contracts_cosine_products",
    "unusual_rope.py:turns_by_complex_numbers_of_products",
    "unusual_rope.py:writes_tokens_in_reverse",
    "unusual_rope.py:rotates_every_lane_by_itself",
    "unusual_rope.py:returns_a_mapping",
    "unusual_rope.py:returns_the_cache_too",
    "unusual_rope.py:writer",
]
"""Each takes some seconds: a case is called about five times."""


@pytest.mark.parametrize("spec", CORRECT + NIGHTLY_ONLY * NIGHTLY)
def test_correct_code_is_accepted(spec: str, complaints) -> None:
    assert complaints(CONTRACT, spec) == []


@pytest.mark.parametrize("spec", [*CORRECT, *NIGHTLY_ONLY])
def test_correct_code_is_right_on_many_samples(spec: str, folder) -> None:
    """Without the calls that look for stale results, which are most of them."""
    subject, stream = folder.loaded(CONTRACT, spec), folder.stream(CONTRACT)
    sampled = islice(stream.cases(0, 80), len(stream.small), None)
    cases = (inputs for inputs in sampled if inputs["q_pe"].data.size < FEW_ELEMENTS)
    wrong = [failure.detail for inputs in cases for failure in judge(subject, inputs, fresh=False)]
    assert wrong == []


def first_failure(folder, spec: str, key: str) -> str:
    """What is said of a fault on the first case that shows it."""
    subject = folder.loaded(CONTRACT, spec)
    for inputs in folder.stream(CONTRACT).cases(0):
        for failure in judge(subject, inputs, fresh=False):
            if failure.key == key:
                return failure.detail
    raise AssertionError(f"{spec} does not show {key}")


@pytest.mark.parametrize(
    ("spec", "key", "said"),
    [
        (
            "faults_rotation.py:pairs_the_other_way",
            "wrong_value:q_out",
            (r"token \d, head \d, rotated lane \d", "would be right with: the other pairing of lanes"),
        ),
        (
            "faults_rotation.py:rotates_in_16_bits",
            "wrong_value:q_out",
            (
                r"^q_out\[.*\] is \S+ \(0x[0-9a-f]{4}\), expected \S+ \(0x[0-9a-f]{4}\)",
                r'token \d, head \d, rotated lane \d, order "hip"',
                'would be right with: order "torch"',
                re.escape('declare it: function.rounding = "torch" (docs/rounding.md)'),
            ),
        ),
        (
            "faults_cache.py:ignores_the_scale",
            "wrong_value:kv_cache",
            (
                r"token \d, lane \d, which is not rotated",
                r"got 0x\w\w \(.*\), right 0x\w\w",
                "scaled with",
                "would be right with: no scale",
            ),
        ),
        (
            "faults_cache.py:divides_instead_of_multiplying",
            "wrong_value:kv_cache",
            (r"token \d, .*lane \d", r"\(reciprocal\)", 'would be right with: order "torch"'),
        ),
    ],
)
def test_a_wrong_element_is_explained(spec: str, key: str, said: tuple[str, ...], folder) -> None:
    text = first_failure(folder, spec, key)
    for part in said:
        assert re.search(part, text), text


def test_only_an_element_that_another_order_explains_says_how_to_declare_one(folder) -> None:
    text = first_failure(folder, "faults_rotation.py:pairs_the_other_way", "wrong_value:q_out")
    assert "function.rounding" not in text


@pytest.mark.parametrize("rounding", ["hop", None, ["hip"]])
def test_an_order_that_there_is_not_is_refused_before_anything_is_judged(rounding, folder) -> None:
    """Else every input would count as one to be refused, and code that leaves refusals out would pass."""

    def declares(**call):
        raise AssertionError("it is not called")

    declares.rounding = rounding
    message = f"the callable's rounding is {rounding!r}; it must be one of hip, torch, promote, triton, half_scale"
    with pytest.raises(ProviderError, match=re.escape(message)):
        folder.stream(CONTRACT).contract_of(declares)
