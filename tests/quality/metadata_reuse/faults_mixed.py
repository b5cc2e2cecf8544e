"""Faults of builders that live beside those of another family."""

from __future__ import annotations

import faults_linear
import faults_mla
from correct_linear import Linear
from correct_mixed import pair
from faults_reuse import key_without


class AcceptsTheOtherFamily(Linear):
    """Whatever has an origin in this batch."""

    def has_my_key(self, metadata, origin, batch):
        return super().has_my_key(metadata, origin, batch) or hasattr(metadata, "paged_kv_indices")

    def is_in_my_buffers(self, origin, batch):
        return "seq_lens" in origin.buffers or super().is_in_my_buffers(origin, batch)


accepts_the_other_family = pair(linear=AcceptsTheOtherFamily)
pages_are_not_refreshed = pair(mla=faults_mla.KeepsTheSourcesPages)
states_are_of_the_source = pair(linear=faults_linear.CopiesShallowly)
pages_remember_lengths = pair(mla=faults_mla.RemembersLengthsByAddress)
both_accept_any_batch = pair(faults_linear.AcceptsAnyBatch, faults_mla.AcceptsAnyBatch)
key_without_causal = pair(mla=key_without(faults_mla.Mla, "causal"))
