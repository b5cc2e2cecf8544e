"""Correct builders for MLA decodes of unusual build: nothing may be found in any of them."""

from __future__ import annotations

import torch
from correct_mla import Mla
from unusual_reuse import made_of

NeverReuses, ReturnsAnotherRecord = made_of(Mla)


class PartsOfOneBuffer(Mla):
    """Builders that share have neighbouring parts of one buffer for their pages."""

    @classmethod
    def share_reusable_metadata_buffers(cls, builders):
        super().share_reusable_metadata_buffers(builders)
        size = builders[0].own["paged_kv_indices"].shape[0]
        every = builders[0].new(size * len(builders))
        for number, builder in enumerate(builders):
            builder.own["paged_kv_indices"] = every[number * size : (number + 1) * size]


class MakesObjectsAnew(Mla):
    """Another tensor object over the same memory for each view."""

    def stage_pages(self, pages):
        found = super().stage_pages(pages)
        return found.as_strided(found.shape, found.stride(), found.storage_offset())


class ComputesInInt64(Mla):
    def pages(self, indptr, block_table, size):
        return super().pages(indptr.to(torch.int64), block_table.to(torch.int64), size).to(torch.int32)

    def indptr(self, lengths):
        return super().indptr(lengths).to(torch.int64).to(torch.int32)
