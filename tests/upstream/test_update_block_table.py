"""``update_block_table(build(A), B)`` against ``build(B)``, field by field, for every builder of vLLM that has it.

The builders are lifted and constructed as a server does. Where an update does not give what a build gives, the table
below says so, and a disagreement that is gone fails as one that is new does.
"""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

from oracles.contracts import _reuse_domain as domain
from oracles.contracts import reuse_bindings
from oracles.domain import Sampler
from oracles.providers.archives import ArchiveTree
from oracles.providers.lifter import Lifter
from oracles.providers.projects import project

pytestmark = pytest.mark.upstream
torch = pytest.importorskip("torch")

BACKENDS = "vllm/v1/attention/backends"
MODES = ("none", "align", "all")
KINDS = ("decode", "mixed", "prefill", "padding", "speculative", "mixed speculative")
BLOCK, DRAFTS, WIDTH, MOST = 4, 1, 40, 5
BATCHES = 40
"""A builder and mode. All classes of batches are among them, in full graphs and without."""

FIRST_COLUMNS = "an update takes the first columns of the table, a build those of the last token"
NO_INDICES = "an update needs columns that the runner computes before; a build does not"
STATES = ("spec_state_indices_tensor", "non_spec_state_indices_tensor", "prefill_state_indices")
GDN_UPDATES = {"align": {"AssertionError": NO_INDICES}, "all": dict.fromkeys(STATES, FIRST_COLUMNS)}
DISAGREEMENTS = {
    ("0.33.0", "GDN"): GDN_UPDATES,
    ("0.32.0", "GDN"): GDN_UPDATES,
    ("0.31.0", "GDN"): {"align": GDN_UPDATES["align"]},
}
"""By release and builder: the fields, or the exception, of each mode, and the reason."""


class Names:
    """What was lifted of a release, and how a builder is made of it."""

    def __init__(self, wheel) -> None:
        vllm = project("vllm")
        stubs = {
            **vllm.stubs(),
            **reuse_bindings.STUBS,
            "vllm.config.mamba:MambaBackendEnum": SimpleNamespace(FLASHINFER="flashinfer"),
            "vllm.v1.attention.backends.fa_utils:is_flash_attn_varlen_func_available": lambda: False,
            "vllm.v1.attention.backends.flash_attn:FA4DenseAttentionKernel": SimpleNamespace,
            "vllm.envs": SimpleNamespace(VLLM_BATCH_INVARIANT=False),
        }
        follow = (*vllm.follow, *reuse_bindings.FOLLOW, "vllm.v1.attention.backends.mamba_attn")
        self._lifter = Lifter(ArchiveTree(wheel), project=("vllm",), stubs=stubs, follow=follow)

    def __call__(self, path: str, name: str):
        """One name, or a skip of the test where the release does not have it."""
        file = self._lifter.file(path)
        if file is None or not file.source.has(name):
            pytest.skip(f"not in this release: {path} has no {name}")
        return self._lifter.lift(path, [name])[name]


@pytest.fixture(scope="module")
def lifted():
    """What was lifted of each wheel, once."""
    return {}


@pytest.fixture
def names(released, lifted):
    """What a test lifts of a release."""
    return lifted.setdefault(released, Names(released))


def configuration(mode, drafts):
    """What stands for a ``VllmConfig``."""
    spec = SimpleNamespace(mamba_cache_mode=mode)
    found = reuse_bindings.configuration(
        spec, SimpleNamespace(num_speculative_tokens=drafts, max_graph_rows=MOST, max_num_reqs=MOST)
    )
    found.cache_config.use_replayssm, found.cache_config.replayssm_buffer_len = False, 0
    found.mamba_config = SimpleNamespace(backend="triton")
    found.model_config = SimpleNamespace(get_mamba_chunk_size=lambda: 8, max_model_len=BLOCK * WIDTH)
    return found


def gdn(names, mode):
    """The builder of GDN, whose constructor asks for a GPU before it allows updates."""
    names(f"{BACKENDS}/gdn_attn.py", "GDNAttentionMetadataBuilder.update_block_table")
    made = names(f"{BACKENDS}/gdn_attn.py", "GDNAttentionMetadataBuilder")(
        spec(mode, DRAFTS), [], configuration(mode, DRAFTS), torch.device("cpu")
    )
    made.supports_update_block_table, made.mamba_aligned_state_indices = True, None
    return made


def mamba(names, mode):
    """What all builders of Mamba have in common, with its own record."""
    base = names(f"{BACKENDS}/mamba_attn.py", "BaseMambaAttentionMetadataBuilder")
    record = names(f"{BACKENDS}/mamba_attn.py", "BaseMambaAttentionMetadata")
    made = type("Builder", (base,), {"metadata_cls": record})
    # With drafts, it allows no updates.
    return made(spec(mode, 0), [], configuration(mode, 0), torch.device("cpu"))


def mamba2(names, mode):
    """The builder of Mamba 2."""
    made = names(f"{BACKENDS}/mamba2_attn.py", "Mamba2AttentionMetadataBuilder")
    return made(spec(mode, 0), [], configuration(mode, 0), torch.device("cpu"))


def flash(names, mode):
    """FlashAttention's methods, on an object without a schedule: version 2 has none. It knows no modes."""
    methods = ("build", "update_block_table", "_get_scheduler_metadata", "_store_scheduler_metadata")
    path, name = f"{BACKENDS}/flash_attn.py", "FlashAttentionMetadataBuilder"
    made = type(name, (), {method: names(path, f"{name}.{method}") for method in methods})()
    vars(made).update(
        aot_schedule=False, aot_sliding_window=None, use_full_cuda_graph=True, max_cudagraph_size=MOST,
        max_num_splits=0, dcp_world_size=1, rswa_window=None, mm_prefix_query_ranges_np=None,
    )  # fmt: skip
    return made


BUILDERS = {"GDN": gdn, "mamba": mamba, "mamba2": mamba2, "flash": flash}


def spec(mode, drafts):
    """What stands for a ``MambaSpec``."""
    return reuse_bindings.Spec(BLOCK, drafts, mode, "bfloat16", 4096)


def drawn(number, drafts):
    """Requests of a step, and whether it runs from a full graph."""
    kinds = [kind for kind in KINDS if drafts or "speculative" not in kind]
    kind = kinds[number % len(kinds)]
    rows = domain.draw_rows(Sampler(5, number), kind, drafts, 2 * BLOCK, MOST)
    return rows, kind in ("decode", "padding", "speculative") and number % 2 == 0


def table(first):
    """Ids that no other table has."""
    return torch.arange(first, first + MOST * WIDTH, dtype=torch.int32).view(MOST, WIDTH)


def common(names, rows, block_table, slots):
    """The runner's record of a batch, for one group."""
    starts = torch.tensor([0, *np.cumsum([row.query for row in rows])], dtype=torch.int32)
    lengths = torch.tensor([row.length for row in rows], dtype=torch.int32)
    batch = SimpleNamespace(
        query_start_loc=starts, query_start_loc_cpu=starts, seq_lens=lengths, seq_lens_cpu=lengths,
        num_actual_tokens=int(starts[-1]), causal=True, is_prefilling=torch.tensor([row.prefilling for row in rows]),
    )  # fmt: skip
    record = names(reuse_bindings.BATCH_FILE, reuse_bindings.BATCH)
    return reuse_bindings.common(record, batch, block_table[: len(rows)], slots[: int(starts[-1])])


def built(builder, names, rows, graph, block_table, slots):
    """A build for the batch."""
    builder.use_full_cuda_graph = graph
    builder.compilation_config = SimpleNamespace(cudagraph_mode=SimpleNamespace(has_full_cudagraphs=lambda: graph))
    drafts = [row.drafts for row in rows]
    more = {}
    if any(number >= 0 for number in drafts):
        more = {
            "num_accepted_tokens": torch.ones(len(rows), dtype=torch.int32),
            "num_decode_draft_tokens_cpu": torch.tensor(drafts, dtype=torch.int32),
        }
    return builder.build(0, common(names, rows, block_table, slots), **more)


def differing(ours, theirs):
    """The fields of two records that are not equal."""
    fields = [field.name for field in dataclasses.fields(ours)]
    return {name for name in fields if not same(getattr(ours, name), getattr(theirs, name))}


def copied(record):
    """The record with tensors of its own."""
    values = {name: value.clone() for name, value in vars(record).items() if isinstance(value, torch.Tensor)}
    return dataclasses.replace(record, **values)


def same(ours, theirs):
    """Tensors by value, shape and dtype; lists in them likewise."""
    if isinstance(ours, torch.Tensor) and isinstance(theirs, torch.Tensor):
        return ours.dtype == theirs.dtype and torch.equal(ours, theirs)
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return ours.keys() == theirs.keys() and all(same(ours[key], theirs[key]) for key in ours)
    return type(ours) is type(theirs) and bool(ours == theirs)


def disagreements(name, names, mode):
    """All fields in which an update was seen to differ from a build, or exceptions that it raised."""
    make, found = BUILDERS[name], set()
    first, other, alone = (make(names, mode) for _ in range(3))
    slots = {number: torch.arange(number, number + 1000) for number in (5000, 7000)}
    for number in range(BATCHES):
        rows, graph = drawn(number, DRAFTS if name == "GDN" else 0)
        source = built(first, names, rows, graph, table(1), slots[5000])
        before = copied(source)
        wanted = built(alone, names, rows, graph, table(1001), slots[7000])
        built(other, names, rows, graph, table(2001), slots[7000])
        try:
            given = other.update_block_table(
                source, table(1001)[: len(rows)], slots[7000][: sum(r.query for r in rows)]
            )
        except AssertionError as error:
            found.add(type(error).__name__)
            continue
        found |= differing(given, wanted)
        assert differing(source, before) == set(), "the source's own values changed"
    return found


PAIRS = [(name, mode) for name in BUILDERS for mode in MODES if name != "flash" or mode == "none"]
"""FlashAttention's records have no states: a mode says nothing of them."""


@pytest.mark.parametrize(("name", "mode"), PAIRS)
def test_an_update_gives_what_a_build_gives_but_where_it_is_known_not_to(released, names, name, mode) -> None:
    listed = DISAGREEMENTS.get((released.name.split("-")[1], name), {}).get(mode, {})
    assert disagreements(name, names, mode) == set(listed)
