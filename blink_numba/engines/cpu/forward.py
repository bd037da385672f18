"""The forward pass of one step, run by every thread of the team at once.

A phase is a list of tasks that touch no common output; a barrier ends it. A layer is

1. norm, Q, K and V of all rows (a task: 32 outputs of all rows);
2. rotation, writing K and V to the cache, attention (a task: a row and a key/value head);
3. output projection, added to the residual stream;
4. norm, gate and up projections, gating;
5. down projection, added to the residual stream.

Phase 2 is split by a barrier when rows of the step attend to each other (prefill). The norms
of a single tile are computed by every thread for itself, which is cheaper than a barrier.
"""

from __future__ import annotations

import math

import numpy as np

from blink_numba.engines.cpu.attention import cache_offset, write_kv
from blink_numba.engines.cpu.formats import F32, PANEL
from blink_numba.engines.cpu.layers import LANES, embed, gate, norm_head, norm_into_tile, rotate_head
from blink_numba.engines.cpu.matmul import tile_rows
from blink_numba.engines.cpu.simd import add, load, store
from blink_numba.engines.cpu.team import FAULTS, ROWS, SAMPLES, TOGETHER, barrier, take_task
from blink_numba.engines.cpu.weights import (
    FORMAT,
    INPUTS,
    LAYER_MATRICES,
    MATRIX_WORDS,
    OFFSET,
    OUTPUTS,
    PANEL_BYTES,
    WDOWN,
    WGATE,
    WK,
    WO,
    WQ,
    WUP,
    WV,
)
from graphs.step_io import TICKET, record_at
from ring.atomics import store_relaxed
from ring.jit import uncounted


@uncounted
def panel_count(network, matrix):
    """Panels of a matrix."""
    return (network.matrices[matrix * MATRIX_WORDS + OUTPUTS] + PANEL - 1) // PANEL


@uncounted
def _locate(network, matrix, panel, tiles, expanded):
    """Format and place of a panel; expanded into `expanded` first if several tiles use it.

    Returns format, whether the panel is in `expanded`, where it starts, inputs.
    """
    words = network.matrices[matrix * MATRIX_WORDS : (matrix + 1) * MATRIX_WORDS]
    kind, inputs = words[FORMAT], words[INPUTS]
    at = words[OFFSET] + panel * words[PANEL_BYTES]
    if tiles > 1 and kind != F32:
        network.kernels.expand_panel(kind, network.panels, at, inputs, expanded)
        return F32, True, 0, inputs
    return kind, False, at, inputs


@uncounted
def _panel_times_tile(network, kind, is_expanded, at, inputs, expanded, height, x, x_at, out):
    if is_expanded:
        network.kernels.multiply_panel(height, kind, expanded, at, inputs, x, x_at, out)
    else:
        network.kernels.multiply_panel(height, kind, network.panels, at, inputs, x, x_at, out)


@uncounted
def project(network, matrix, panel, rows, x, out, stride, column, bias_at, scratch):
    """32 outputs of all rows, written to ``out[row * stride + column:]``, plus bias if `bias_at` ≥ 0."""
    height = tile_rows(rows)
    tiles = (rows + height - 1) // height
    kind, is_expanded, at, inputs = _locate(network, matrix, panel, tiles, scratch.panel)
    for tile in range(tiles):
        x_at = tile * height * inputs
        _panel_times_tile(
            network, kind, is_expanded, at, inputs, scratch.panel, height, x, x_at, scratch.product
        )
        for row in range(tile * height, min(rows, (tile + 1) * height)):
            source, target = (row - tile * height) * PANEL, row * stride + column
            if bias_at < 0:
                store(out, target, load(scratch.product, source))
                store(out, target + LANES, load(scratch.product, source + LANES))
            else:
                outputs = network.matrices[matrix * MATRIX_WORDS + OUTPUTS]
                for k in range(min(PANEL, outputs - panel * PANEL)):
                    out[target + k] = (
                        scratch.product[source + k] + network.vectors[bias_at + panel * PANEL + k]
                    )


@uncounted
def project_onto(network, matrix, panel, rows, x, hidden, scratch):
    """32 outputs of all rows, added to the residual stream."""
    height = tile_rows(rows)
    tiles = (rows + height - 1) // height
    kind, is_expanded, at, inputs = _locate(network, matrix, panel, tiles, scratch.panel)
    width = min(PANEL, network.hidden - panel * PANEL)
    for tile in range(tiles):
        x_at = tile * height * inputs
        _panel_times_tile(
            network, kind, is_expanded, at, inputs, scratch.panel, height, x, x_at, scratch.product
        )
        for row in range(tile * height, min(rows, (tile + 1) * height)):
            source, target = (row - tile * height) * PANEL, row * network.hidden + panel * PANEL
            if width == PANEL:
                store(hidden, target, add(load(hidden, target), load(scratch.product, source)))
                target += LANES
                source += LANES
                store(hidden, target, add(load(hidden, target), load(scratch.product, source)))
            else:
                for k in range(width):
                    hidden[target + k] += scratch.product[source + k]


@uncounted
def project_gated(network, first_matrix, panel, rows, x, gated, scratch):
    """32 outputs of gate and up projection of all rows, gated, into the down projection's packed tiles."""
    height = tile_rows(rows)
    tiles = (rows + height - 1) // height
    kind, is_expanded, at, inputs = _locate(network, first_matrix + WGATE, panel, tiles, scratch.panel)
    up_kind, up_is_expanded, up_at, _ = _locate(
        network, first_matrix + WUP, panel, tiles, scratch.other_panel
    )
    width = min(PANEL, network.intermediate - panel * PANEL)
    gates, ups = scratch.product, scratch.other_product
    for tile in range(tiles):
        x_at = tile * height * inputs
        _panel_times_tile(network, kind, is_expanded, at, inputs, scratch.panel, height, x, x_at, gates)
        _panel_times_tile(
            network, up_kind, up_is_expanded, up_at, inputs, scratch.other_panel, height, x, x_at, ups
        )
        for k in range(0, height * PANEL, LANES):
            gate(gates, ups, k)
        to = (tile * network.intermediate + panel * PANEL) * height
        for k in range(width):
            for row in range(height):
                gated[to] = gates[row * PANEL + k]
                to += 1


@uncounted
def norm_rows(network, acts, scratch, team, rows, weight_at):
    """Norm all rows into packed tiles; whether into the shared ones.

    A single tile goes into `scratch.tiles`, by every thread for itself, several into `acts.normed`.
    """
    height = tile_rows(rows)
    if rows <= height:
        for row in range(rows):
            norm_into_tile(
                acts.hidden, row * network.hidden, network.hidden, network.eps,
                network.vectors, weight_at, scratch.tiles, row, height,
            )  # fmt: skip
        return False
    while True:
        row = take_task(team, scratch.member, rows)
        if row < 0:
            break
        tile_at = (row // height) * height * network.hidden + row % height
        norm_into_tile(
            acts.hidden, row * network.hidden, network.hidden, network.eps,
            network.vectors, weight_at, acts.normed, tile_at, height,
        )  # fmt: skip
    barrier(team)
    return True


@uncounted
def _project_qkv(network, acts, scratch, team, rows, first_matrix, vectors_at, x):
    q_panels, kv_panels = panel_count(network, first_matrix + WQ), panel_count(network, first_matrix + WK)
    q_bias = vectors_at + 2 * network.hidden
    k_bias = q_bias + network.heads * network.head_dim
    v_bias = k_bias + network.kv_heads * network.head_dim
    if network.qkv_bias == 0:
        q_bias = k_bias = v_bias = np.int64(-1)
    while True:
        task = take_task(team, scratch.member, q_panels + 2 * kv_panels)
        if task < 0:
            break
        if task < q_panels:
            matrix, panel, column, bias = WQ, task, 0, q_bias
        elif task < q_panels + kv_panels:
            matrix, panel, column, bias = WK, task - q_panels, acts.k_column, k_bias
        else:
            matrix, panel, column, bias = WV, task - q_panels - kv_panels, acts.v_column, v_bias
        project(
            network, first_matrix + matrix, panel, rows, x,
            acts.qkv, acts.qkv_stride, column + panel * PANEL, bias, scratch,
        )  # fmt: skip


@uncounted
def _rotate_and_store(network, cache, acts, layer, vectors_at, row, kv_head, tables):
    """Norm (Qwen 3) and rotate a row's heads of one group; put its key and value into the cache."""
    group, dim = network.heads // network.kv_heads, network.head_dim
    position, seat = acts.row_position[row], acts.row_seat[row]
    q_at = row * acts.qkv_stride + kv_head * group * dim
    k_at = row * acts.qkv_stride + acts.k_column + kv_head * dim
    v_at = row * acts.qkv_stride + acts.v_column + kv_head * dim
    norm_at = vectors_at + network.vector_stride - 2 * dim
    scale = np.float32(1.0 / math.sqrt(dim))
    for head in range(group):
        at = q_at + head * dim
        if network.qk_norm != 0:
            norm_head(acts.qkv, at, dim, network.eps, network.vectors, norm_at)
        rotate_head(acts.qkv, at, dim, network.cosines, network.sines, position, scale)
    if network.qk_norm != 0:
        norm_head(acts.qkv, k_at, dim, network.eps, network.vectors, norm_at + dim)
    rotate_head(acts.qkv, k_at, dim, network.cosines, network.sines, position, np.float32(1.0))
    size = cache.block_size
    block = tables[seat, position // size]
    at = cache_offset(layer, block, kv_head, cache.blocks, cache.kv_heads, dim, size)
    write_kv(cache.keys, cache.values, at, position % size, size, dim, acts.qkv, k_at, v_at)


@uncounted
def _attend_row(network, cache, acts, scratch, layer, row, kv_head, tables, height):
    """Attention of a row's heads of one group, into the packed tiles of the output projection."""
    group, dim = network.heads // network.kv_heads, network.head_dim
    q_at = row * acts.qkv_stride + kv_head * group * dim
    size = cache.block_size
    network.kernels.attend(
        cache.keys, cache.values,
        cache_offset(layer, 0, kv_head, cache.blocks, cache.kv_heads, dim, size),
        cache.kv_heads * dim * size, size,
        tables[acts.row_seat[row]], acts.row_position[row] + 1,
        acts.qkv, q_at, group, dim, scratch.scores, cache.stride,
    )  # fmt: skip
    inputs = network.heads * dim
    to = ((row // height) * inputs + kv_head * group * dim) * height + row % height
    for k in range(group * dim):
        acts.attended[to + k * height] = acts.qkv[q_at + k]


@uncounted
def _attention(network, cache, acts, scratch, team, rows, layer, vectors_at, tables, together):
    height, tasks = tile_rows(rows), rows * network.kv_heads
    if together:
        while True:
            task = take_task(team, scratch.member, tasks)
            if task < 0:
                break
            _rotate_and_store(
                network,
                cache,
                acts,
                layer,
                vectors_at,
                task // network.kv_heads,
                task % network.kv_heads,
                tables,
            )
        barrier(team)
    while True:
        task = take_task(team, scratch.member, tasks)
        if task < 0:
            break
        if together:  # the longest rows come last: begin with them, so that the threads end together
            task = tasks - 1 - task
        row, kv_head = task // network.kv_heads, task % network.kv_heads
        if not together:
            _rotate_and_store(network, cache, acts, layer, vectors_at, row, kv_head, tables)
        _attend_row(network, cache, acts, scratch, layer, row, kv_head, tables, height)


@uncounted
def run_layer(network, cache, acts, scratch, team, rows, layer, tables, together):
    """One layer over all rows; `together` says whether rows of the step attend to each other."""
    first_matrix, vectors_at = layer * LAYER_MATRICES, layer * network.vector_stride
    shared = norm_rows(network, acts, scratch, team, rows, vectors_at)
    x = acts.normed if shared else scratch.tiles
    _project_qkv(network, acts, scratch, team, rows, first_matrix, vectors_at, x)
    barrier(team)
    _attention(network, cache, acts, scratch, team, rows, layer, vectors_at, tables, together)
    barrier(team)
    while True:
        panel = take_task(team, scratch.member, panel_count(network, first_matrix + WO))
        if panel < 0:
            break
        project_onto(network, first_matrix + WO, panel, rows, acts.attended, acts.hidden, scratch)
    barrier(team)
    shared = norm_rows(network, acts, scratch, team, rows, vectors_at + network.hidden)
    x = acts.normed if shared else scratch.tiles
    while True:
        panel = take_task(team, scratch.member, panel_count(network, first_matrix + WGATE))
        if panel < 0:
            break
        project_gated(network, first_matrix, panel, rows, x, acts.gated, scratch)
    barrier(team)
    while True:
        panel = take_task(team, scratch.member, panel_count(network, first_matrix + WDOWN))
        if panel < 0:
            break
        project_onto(network, first_matrix + WDOWN, panel, rows, acts.gated, acts.hidden, scratch)
    barrier(team)


@uncounted
def compute_logits(network, acts, scratch, team, samples):
    """Final norm and head of the rows that are sampled from, into `acts.logits`."""
    height = tile_rows(samples)
    norm_at = network.layers * network.vector_stride
    for k in range(samples):
        tile_at = (k // height) * height * network.hidden + k % height
        norm_into_tile(
            acts.hidden, acts.sample_row[k] * network.hidden, network.hidden, network.eps,
            network.vectors, norm_at, scratch.tiles, tile_at, height,
        )  # fmt: skip
    head = network.layers * LAYER_MATRICES + 1
    while True:
        panel = take_task(team, scratch.member, panel_count(network, head))
        if panel < 0:
            break
        project(
            network, head, panel, samples, scratch.tiles,
            acts.logits, acts.logit_stride, panel * PANEL, np.int64(-1), scratch,
        )  # fmt: skip


@uncounted
def _embed_rows(network, acts, scratch, team, rows):
    embedding = network.layers * LAYER_MATRICES
    while True:
        row = take_task(team, scratch.member, rows)
        if row < 0:
            break
        embed(network, embedding, acts.row_token[row], acts.hidden, row * network.hidden, scratch.panel)


@uncounted
def _sample_rows(network, acts, scratch, team, samples, io):
    while True:
        k = take_task(team, scratch.member, samples)
        if k < 0:
            break
        seat = acts.sample_seat[k]
        position = acts.row_position[acts.sample_row[k]] + 1
        token = network.kernels.sample_row(
            acts.logits, k * acts.logit_stride, network.vocab, network.eos_ids, io.sampling, seat, position,
            scratch.weights, scratch.work, scratch.histogram,
            io.out_logprobs, record_at(io.control[TICKET], io.seat_token.shape[0], seat),
        )  # fmt: skip
        io.out_token[seat] = max(token, 0)
        if token < 0:
            store_relaxed(team, FAULTS, -token)


@uncounted
def forward(io, network, cache, acts, scratch, team):
    """A thread's part in the step that the leader has begun, sampled tokens included."""
    rows, samples, together = team[ROWS], team[SAMPLES], team[TOGETHER] != 0
    tables = io.block_table.reshape((io.seat_token.shape[0], -1))
    _embed_rows(network, acts, scratch, team, rows)
    barrier(team)
    for layer in range(network.layers):
        run_layer(network, cache, acts, scratch, team, rows, layer, tables, together)
    if samples > 0:
        compute_logits(network, acts, scratch, team, samples)
        barrier(team)
        _sample_rows(network, acts, scratch, team, samples, io)
        barrier(team)
