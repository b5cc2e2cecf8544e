"""Correct ``stage_decode_state`` of unusual build: nothing may be found in any of them."""

from __future__ import annotations

import torch
from correct_staging import BUFFERS, refuse, replaces, stage, views_of


def returns_a_mapping(**inputs):
    names = ("state_indices_staged", "query_start_loc_staged", "num_accepted_tokens_staged")
    return dict(zip(names, stage(**inputs), strict=True))


@replaces("states")
def pads_first_and_copies_then(call, rows):
    call.state_buffer[: call.batch_size] = 0
    call.state_buffer[:rows].copy_(call.state_indices)


@replaces("starts")
def gathers_starts_by_clamped_places(call, rows):
    """One expression for rows and padding: the place of the last start is the highest one."""
    places = torch.arange(call.batch_size + 1, device=call.query_start_loc.device).clamp(max=rows)
    call.query_start_loc_buffer[: call.batch_size + 1] = call.query_start_loc[places]


@replaces("accepted")
def copies_single_elements(call, rows):
    for row in reversed(range(call.batch_size)):
        if row < rows:
            call.num_accepted_buffer[row : row + 1] = call.num_accepted_tokens[row : row + 1]
        else:
            call.num_accepted_buffer[row : row + 1].fill_(1)


def stages_whole_rows_of_copies(**inputs):
    """Everything is made in copies of the whole buffers, which are then copied back, bytes past the graph too."""
    own = {name: inputs[name].clone() for name in BUFFERS}
    stage(**inputs | own)
    for name, buffer in own.items():
        inputs[name].copy_(buffer)
    return views_of(type("Call", (), inputs))


def selects_with_masks(**inputs):
    """Writes every row of the buffers, each with what it has to hold; those past the graph with what they held."""
    call = type("Call", (), inputs)
    refuse(call)
    rows, capacity = call.state_indices.shape[0], call.state_buffer.shape[0]
    places = torch.arange(capacity, device=call.state_buffer.device)
    own, graph = places < rows, places < call.batch_size
    wide = torch.cat([call.state_indices, call.state_indices.new_zeros(1, call.state_indices.shape[1])])
    states = wide[places.clamp(max=rows)]
    call.state_buffer.copy_(torch.where(graph[:, None], states, call.state_buffer))
    accepted = torch.cat([call.num_accepted_tokens, call.num_accepted_tokens.new_ones(1)])[places.clamp(max=rows)]
    accepted = torch.where(own, accepted, 1).to(torch.int32)
    call.num_accepted_buffer.copy_(torch.where(graph, accepted, call.num_accepted_buffer))
    replaced = call.query_start_loc[torch.arange(call.batch_size + 1, device=places.device).clamp(max=rows)]
    call.query_start_loc_buffer[: call.batch_size + 1].copy_(replaced)
    return views_of(call)


class Stager:
    """A callable object that stages twice."""

    def __call__(self, **inputs):
        stage(**inputs)
        return list(stage(**inputs))


stager = Stager()
