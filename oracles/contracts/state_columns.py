"""Contracts 3.1 to 3.5: which state each request works on, and which requests and tokens belong together."""

from __future__ import annotations

from oracles.contract import Contract, Input, Output
from oracles.contracts import _batch_classes as classes
from oracles.contracts import _state_rows as rows
from oracles.contracts import state_bindings, state_known
from oracles.contracts._class_relations import CLASSES_RELATIONS
from oracles.contracts._partition_relations import PARTITION_RELATIONS
from oracles.contracts._split_relations import SPLIT_RELATIONS
from oracles.contracts._staging_relations import STAGING_RELATIONS
from oracles.contracts._state_relations import COLUMNS_RELATIONS

INDEX = "int32 or int64"
STARTS = Input(name="query_start_loc", role="device", doc=f"{INDEX} [R+1], first query of each request")
HOST_STARTS = Input(name="query_start_loc_cpu", role="host", doc=f"{INDEX} [R+1], the same values on the host")
PREFILLING = Input(
    name="is_prefilling", role="host", optional=True, doc="bool [R] or None, whether prompt tokens are left"
)

STAGING = (
    Input(name="state_indices", role="device", compiled_axes=(1,), doc="int32 [D, 1+S], state blocks of each row"),
    Input(name="query_start_loc", role="device", doc=f"{INDEX} [D+1], first query of each row"),
    Input(name="num_accepted_tokens", role="device", doc=f"{INDEX} [D], tokens accepted in the step before"),
    Input(name="batch_size", role="scalar", doc="int, D <= batch_size <= cap: rows of the graph"),
    Input(name="state_buffer", role="device", inout=True, compiled_axes=(1,), doc="int32 [cap, 1+S]"),
    Input(name="query_start_loc_buffer", role="device", inout=True, doc="int32 [cap+1]"),
    Input(name="num_accepted_buffer", role="device", inout=True, doc="int32 [cap]"),
)

CONTRACTS = (
    Contract(
        family="state_columns",
        name="state_columns",
        section="3.1",
        summary="the blocks of recurrent state of each request, in each mamba_cache_mode",
        inputs=(
            Input(name="block_table", role="device", doc="int32 [R, M], state blocks"),
            Input(name="seq_lens", role="device", doc=f"{INDEX} [R], tokens, the queries included"),
            Input(name="mamba_cache_mode", role="scalar", text=True, doc="none, align or all"),
            Input(name="block_size", role="scalar", compiled=True, doc="int >= 1, tokens a state block"),
            Input(name="num_speculative_blocks", role="scalar", compiled=True, doc="int S >= 0"),
        ),
        outputs=(Output(name="state_indices", doc="int32 [R, 1+S], NULL past the row", view_of="block_table"),),
        domain=rows.columns_domain,
        resample=rows.columns_resample,
        expected=rows.columns_expected,
        traits=rows.columns_traits,
        relations=COLUMNS_RELATIONS,
        optimized="optimized.state_columns:state_columns",
        runs="triton",
        bindings=state_bindings.STATE_COLUMNS,
        known=state_known.STATE_COLUMNS,
    ),
    Contract(
        family="state_columns",
        name="stage_decode_state",
        section="3.2",
        summary="a decode step's state in the buffers of a full CUDA graph",
        inputs=STAGING,
        outputs=(
            Output(name="state_indices_staged", inside="state_buffer", doc="the view state_buffer[:batch_size]"),
            Output(
                name="query_start_loc_staged",
                inside="query_start_loc_buffer",
                doc="the view query_start_loc_buffer[:batch_size+1]",
            ),
            Output(
                name="num_accepted_tokens_staged",
                inside="num_accepted_buffer",
                doc="the view num_accepted_buffer[:batch_size]",
            ),
        ),
        domain=rows.staging_domain,
        resample=rows.staging_resample,
        expected=rows.staging_expected,
        traits=rows.staging_traits,
        relations=STAGING_RELATIONS,
        optimized="optimized.state_columns:stage_decode_state",
        runs="triton",
        bindings=state_bindings.STAGE_DECODE_STATE,
        known=state_known.STAGE_DECODE_STATE,
    ),
    Contract(
        family="state_columns",
        name="split_decodes_and_prefills",
        section="3.3",
        summary="how many requests of a batch are decodes, and how many prefills",
        inputs=(
            Input(name="query_start_loc", role="host", doc=f"{INDEX} [R+1], first query of each request"),
            PREFILLING,
            Input(name="decode_threshold", role="scalar", doc="int >= 1, the most queries of a decode"),
            Input(name="require_uniform", role="scalar", doc="bool, whether decodes need one number of queries"),
            Input(name="treat_short_extends_as_decodes", role="scalar", doc="bool"),
        ),
        outputs=tuple(Output(name=name, doc="int") for name in classes.SPLIT),
        domain=classes.split_domain,
        resample=classes.split_resample,
        expected=classes.split_expected,
        traits=classes.split_traits,
        relations=SPLIT_RELATIONS,
        optimized="optimized.batch_classes:split_decodes_and_prefills",
        runs="host",
        bindings=state_bindings.SPLIT_DECODES_AND_PREFILLS,
        known=state_known.SPLIT_DECODES_AND_PREFILLS,
    ),
    Contract(
        family="state_columns",
        name="spec_token_partition",
        section="3.4",
        summary="the tokens of requests that speculate, and all others",
        inputs=(STARTS, HOST_STARTS, Input(name="spec_mask_cpu", role="host", doc="bool [R], who speculates")),
        outputs=(
            Output(name="spec_token_indices", doc="int32, increasing"),
            Output(name="non_spec_token_indices", doc="int32, increasing"),
            Output(name="spec_query_start_loc", doc="int32 [A+1]"),
            Output(name="non_spec_query_start_loc", doc="int32 [R-A+1]"),
        ),
        domain=classes.partition_domain,
        resample=classes.partition_resample,
        expected=classes.partition_expected,
        traits=classes.partition_traits,
        relations=PARTITION_RELATIONS,
        optimized="optimized.state_columns:spec_token_partition",
        runs="triton",
        bindings=state_bindings.SPEC_TOKEN_PARTITION,
        known=state_known.SPEC_TOKEN_PARTITION,
    ),
    Contract(
        family="state_columns",
        name="classify_linear_attention_batch",
        section="3.5",
        summary="what a linear-attention layer takes each request of a batch for",
        inputs=(
            HOST_STARTS,
            Input(name="seq_lens_cpu", role="host", doc=f"{INDEX} [R], tokens, the queries included"),
            PREFILLING,
            Input(
                name="num_decode_draft_tokens_cpu",
                role="host",
                optional=True,
                doc=f"{INDEX} [R] or None, drafts; -1: none",
            ),
            Input(
                name="num_speculative_tokens",
                role="scalar",
                compiled=True,
                doc="int >= 0, the most drafts of a request",
            ),
        ),
        outputs=(
            *(Output(name=name, doc="int") for name in classes.CLASSES[:6]),
            Output(name="spec_mask", doc="bool [R]"),
            Output(name="has_initial_state", doc="bool, one a request that does not speculate"),
            Output(name="prefill_query_start_loc", doc="the starts of prefills, rebased"),
        ),
        domain=classes.classes_domain,
        resample=classes.classes_resample,
        expected=classes.classes_expected,
        traits=classes.classes_traits,
        relations=CLASSES_RELATIONS,
        optimized="optimized.batch_classes:classify_linear_attention_batch",
        runs="host",
        bindings=state_bindings.CLASSIFY,
        known=state_known.CLASSIFY,
    ),
)
