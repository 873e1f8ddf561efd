# mypy: ignore-errors
# ruff: noqa: N803
"""The GPU kernels behind `softmax_cuda.py`: one program owns one job and walks all its steps.

Images stay bytes. A byte is exact in bfloat16, and a float32 is the sum of three bfloat16 numbers to the last bit or two, so
three products on the tensor cores give what one in float32 would, several times faster. Inputs that are floats are
multiplied in float32.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def tag(segments, tagged, BLOCK: tl.constexpr):
    """tagged[start + i] ← segment·2³² + hash(key, i), i < size: sorted, these are the shuffles of all segments."""
    segment = tl.program_id(0)
    start = tl.load(segments + 4 * segment)
    size = tl.load(segments + 4 * segment + 1)
    key = tl.load(segments + 4 * segment + 2)
    low = (key & 0xFFFFFFFF).to(tl.uint32)
    high = ((key >> 32) & 0xFFFFFFFF).to(tl.uint32)
    for first in range(0, size, BLOCK):
        i = first + tl.arange(0, BLOCK)
        hashed = _mix32(_mix32(i.to(tl.uint32) ^ low) ^ high).to(tl.int64)
        tl.store(tagged + start + i, (segment.to(tl.int64) << 32) | hashed, mask=i < size)


@triton.jit
def _mix32(x):
    """As `randomness._mix32`."""
    x = (x ^ (x >> 16)) * tl.full((), 0x7FEB352D, tl.uint32)
    x = (x ^ (x >> 15)) * tl.full((), 0x846CA68B, tl.uint32)
    return x ^ (x >> 16)


@triton.jit
def look_up(segments, sorted_places, index, order, BLOCK: tl.constexpr):
    """order[start + i] ← the row of the segment's i-th sample in its shuffle."""
    segment = tl.program_id(0)
    start = tl.load(segments + 4 * segment)
    size = tl.load(segments + 4 * segment + 1)
    index_at = tl.load(segments + 4 * segment + 3)
    for first in range(0, size, BLOCK):
        i = first + tl.arange(0, BLOCK)
        number = tl.load(sorted_places + start + i, mask=i < size, other=0) - start
        row = tl.load(index + index_at + number, mask=i < size, other=0)
        tl.store(order + start + i, row, mask=i < size)


@triton.jit
def train(
    columns,
    numbers,
    received,
    drifts,
    inputs,
    targets,
    order,
    scratch,
    residuals,
    trained,
    losses,
    FEATURES: tl.constexpr,
    CLASSES: tl.constexpr,
    CHUNKS: tl.constexpr,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    TILES: tl.constexpr,
    UNIT: tl.constexpr,
    BYTES: tl.constexpr,
    PULLS: tl.constexpr,
    DRIFTS: tl.constexpr,
    CLIPS: tl.constexpr,
):
    """Train job j: columns[j] and numbers[j] say where its weights and samples lie and how it is trained.

    While it is trained, W lies in `scratch` as [features, classes], filled up with zeros to [CHUNKS·WIDTH, COLUMNS]. A batch
    of more than ROWS samples is walked in tiles, whose residuals wait in `residuals`.
    """
    j = tl.program_id(0)
    weights_at = tl.load(columns + 8 * j)
    inputs_at = tl.load(columns + 8 * j + 1) * UNIT
    targets_at = tl.load(columns + 8 * j + 2)
    start = tl.load(columns + 8 * j + 3)
    count = tl.load(columns + 8 * j + 4).to(tl.int32)
    epochs = tl.load(columns + 8 * j + 5).to(tl.int32)
    batch = tl.load(columns + 8 * j + 6).to(tl.int32)
    rate = tl.load(numbers + 8 * j)
    keep = tl.load(numbers + 8 * j + 1)
    pulled = tl.load(numbers + 8 * j + 2)
    longest = tl.load(numbers + 8 * j + 3)
    scale = tl.load(numbers + 8 * j + 4)

    k = tl.arange(0, WIDTH)
    c = tl.arange(0, COLUMNS)
    s = tl.arange(0, ROWS)
    cell = k[:, None] * COLUMNS + c[None, :]
    size_of_w: tl.constexpr = CHUNKS * WIDTH * COLUMNS
    w_at = scratch + j.to(tl.int64) * (2 * size_of_w if CLIPS else size_of_w)
    rest = residuals + j.to(tl.int64) * (TILES * ROWS * COLUMNS)
    flat = received + weights_at + c[None, :] * FEATURES + k[:, None]
    for i in tl.static_range(CHUNKS):
        inside = (k[:, None] < FEATURES - i * WIDTH) & (c[None, :] < CLASSES)
        tl.store(w_at + i * WIDTH * COLUMNS + cell, tl.load(flat + i * WIDTH, mask=inside, other=0.0))
    b = tl.load(received + weights_at + CLASSES * FEATURES + c, mask=c < CLASSES, other=0.0)
    received_b = b
    drift = drifts + j.to(tl.int64) * (CLASSES * FEATURES + CLASSES)
    if DRIFTS:
        drift_b = tl.load(drift + CLASSES * FEATURES + c, mask=c < CLASSES, other=0.0)
    tl.debug_barrier()

    steps_an_epoch = (count + batch - 1) // batch
    steps = epochs * steps_an_epoch
    loss = 0.0
    for t in range(steps):
        done = (t % steps_an_epoch) * batch
        first = start + (t // steps_an_epoch) * count + done
        size = tl.minimum(batch, count - done)
        share = 1.0 / size.to(tl.float32)
        if TILES == 1:
            here = s < size
            rows = tl.load(order + first + s, mask=here, other=0)
            y = tl.load(targets + targets_at + rows, mask=here, other=0)
            x_at = inputs + inputs_at + rows[:, None].to(tl.int64) * FEATURES + k[None, :]
            z = tl.zeros((ROWS, COLUMNS), tl.float32)
            for i in tl.static_range(CHUNKS):
                x = tl.load(x_at + i * WIDTH, mask=k[None, :] < FEATURES - i * WIDTH, other=0)
                z = _product(x, tl.load(w_at + i * WIDTH * COLUMNS + cell), z, BYTES)
            r, sample_losses = _residuals(z * scale + b[None, :], y, c, CLASSES)
            r = tl.where(here[:, None], r * share, 0.0)
            step_b = tl.sum(r, 0)
            if t >= steps - steps_an_epoch:
                loss += tl.sum(tl.where(here, sample_losses, 0.0), 0) * share
        else:
            step_b = tl.zeros((COLUMNS,), tl.float32)
            for tile in range(0, size, ROWS):
                here = tile + s < size
                rows = tl.load(order + first + tile + s, mask=here, other=0)
                y = tl.load(targets + targets_at + rows, mask=here, other=0)
                x_at = inputs + inputs_at + rows[:, None].to(tl.int64) * FEATURES + k[None, :]
                z = tl.zeros((ROWS, COLUMNS), tl.float32)
                for i in tl.static_range(CHUNKS):
                    x = tl.load(x_at + i * WIDTH, mask=k[None, :] < FEATURES - i * WIDTH, other=0)
                    z = _product(x, tl.load(w_at + i * WIDTH * COLUMNS + cell), z, BYTES)
                r, sample_losses = _residuals(z * scale + b[None, :], y, c, CLASSES)
                r = tl.where(here[:, None], r * share, 0.0)
                step_b += tl.sum(r, 0)
                if t >= steps - steps_an_epoch:
                    loss += tl.sum(tl.where(here, sample_losses, 0.0), 0) * share
                tl.store(rest + (tile + s)[:, None] * COLUMNS + c[None, :], r)
        tl.debug_barrier()
        squares = 0.0
        for i in tl.static_range(CHUNKS):
            g = tl.zeros((WIDTH, COLUMNS), tl.float32)
            if TILES == 1:
                x = tl.load(x_at + i * WIDTH, mask=k[None, :] < FEATURES - i * WIDTH, other=0)
                g = _product(tl.trans(x), r, g, BYTES)
            else:
                for tile in range(0, size, ROWS):
                    here = tile + s < size
                    rows = tl.load(order + first + tile + s, mask=here, other=0)
                    x_at = inputs + inputs_at + rows[:, None].to(tl.int64) * FEATURES + k[None, :]
                    x = tl.load(x_at + i * WIDTH, mask=k[None, :] < FEATURES - i * WIDTH, other=0)
                    g = _product(tl.trans(x), tl.load(rest + (tile + s)[:, None] * COLUMNS + c[None, :]), g, BYTES)
            w = tl.load(w_at + i * WIDTH * COLUMNS + cell)
            new = keep * w - rate * scale * g
            if PULLS:
                inside = (k[:, None] < FEATURES - i * WIDTH) & (c[None, :] < CLASSES)
                new += pulled * tl.load(flat + i * WIDTH, mask=inside, other=0.0)
            if CLIPS:
                squares += tl.sum(tl.sum((new - w) * (new - w), 0), 0)
                tl.store(w_at + size_of_w + i * WIDTH * COLUMNS + cell, new - w)
            else:
                tl.store(w_at + i * WIDTH * COLUMNS + cell, new)
        new_b = keep * b + pulled * received_b - rate * step_b
        if CLIPS:
            squares += tl.sum((new_b - b) * (new_b - b), 0)
            part = tl.where(squares > longest * longest, longest / tl.sqrt(squares), 1.0)
            for i in tl.static_range(CHUNKS):
                w = tl.load(w_at + i * WIDTH * COLUMNS + cell)
                step = tl.load(w_at + size_of_w + i * WIDTH * COLUMNS + cell)
                tl.store(w_at + i * WIDTH * COLUMNS + cell, w + part * step)
            new_b = b + part * (new_b - b)
        if DRIFTS:
            for i in tl.static_range(CHUNKS):
                inside = (k[:, None] < FEATURES - i * WIDTH) & (c[None, :] < CLASSES)
                added = tl.load(drift + c[None, :] * FEATURES + i * WIDTH + k[:, None], mask=inside, other=0.0)
                w = tl.load(w_at + i * WIDTH * COLUMNS + cell)
                tl.store(w_at + i * WIDTH * COLUMNS + cell, w - rate * added)
            new_b -= rate * drift_b
        b = new_b
        tl.debug_barrier()

    own = trained + j.to(tl.int64) * (CLASSES * FEATURES + CLASSES)
    for i in tl.static_range(CHUNKS):
        inside = (k[:, None] < FEATURES - i * WIDTH) & (c[None, :] < CLASSES)
        w = tl.load(w_at + i * WIDTH * COLUMNS + cell)
        tl.store(own + c[None, :] * FEATURES + i * WIDTH + k[:, None], w, mask=inside)
    tl.store(own + CLASSES * FEATURES + c, b, mask=c < CLASSES)
    tl.store(losses + j, loss / steps_an_epoch)


@triton.jit
def _product(x, w, total, BYTES: tl.constexpr):
    """total + x·w. With bytes, w is taken apart into three bfloat16 numbers."""
    if BYTES:
        x = x.to(tl.bfloat16)
        first = w.to(tl.bfloat16)
        w = w - first.to(tl.float32)
        second = w.to(tl.bfloat16)
        third = (w - second.to(tl.float32)).to(tl.bfloat16)
        total = tl.dot(x, first, total)
        total = tl.dot(x, second, total)
        total = tl.dot(x, third, total)
    else:
        total = tl.dot(x.to(tl.float32), w, total, input_precision="ieee")
    return total


@triton.jit
def _residuals(z, y, c, CLASSES: tl.constexpr):
    """(softmax(z) − 1_y, −log softmax(z)[y]) of every row; columns past CLASSES are 0."""
    z = tl.where(c[None, :] < CLASSES, z, float("-inf"))
    top = tl.max(z, 1)
    powers = tl.exp(z - top[:, None])
    total = tl.sum(powers, 1)
    is_target = c[None, :] == y[:, None]
    own = tl.sum(tl.where(is_target, z, 0.0), 1)
    return powers / total[:, None] - tl.where(is_target, 1.0, 0.0), tl.log(total) + top - own


@triton.jit
def score(
    columns,
    scales,
    weights,
    inputs,
    targets,
    index,
    losses,
    right,
    tiles,
    FEATURES: tl.constexpr,
    CLASSES: tl.constexpr,
    CHUNKS: tl.constexpr,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    UNIT: tl.constexpr,
    BYTES: tl.constexpr,
):
    """losses[e, tile] ← Σ losses of ROWS samples;  right[e, s] ← 1 if the answer to sample s is right, else 0."""
    tile = tl.program_id(0)
    e = tl.program_id(1)
    weights_at = tl.load(columns + 8 * e)
    inputs_at = tl.load(columns + 8 * e + 1) * UNIT
    targets_at = tl.load(columns + 8 * e + 2)
    index_at = tl.load(columns + 8 * e + 3)
    count = tl.load(columns + 8 * e + 4)
    scale = tl.load(scales + e)
    if tile * ROWS < count:
        k = tl.arange(0, WIDTH)
        c = tl.arange(0, COLUMNS)
        s = tile * ROWS + tl.arange(0, ROWS)
        here = s < count
        rows = tl.load(index + index_at + s, mask=here, other=0)
        y = tl.load(targets + targets_at + rows, mask=here, other=0)
        x_at = inputs + inputs_at + rows[:, None].to(tl.int64) * FEATURES + k[None, :]
        flat = weights + weights_at + c[None, :] * FEATURES + k[:, None]
        z = tl.zeros((ROWS, COLUMNS), tl.float32)
        for i in range(CHUNKS):
            x = tl.load(x_at + i * WIDTH, mask=k[None, :] < FEATURES - i * WIDTH, other=0)
            inside = (k[:, None] < FEATURES - i * WIDTH) & (c[None, :] < CLASSES)
            z = _product(x, tl.load(flat + i * WIDTH, mask=inside, other=0.0), z, BYTES)
        b = tl.load(weights + weights_at + CLASSES * FEATURES + c, mask=c < CLASSES, other=0.0)
        z = tl.where(c[None, :] < CLASSES, z * scale + b[None, :], float("-inf"))
        _, own = _residuals(z, y, c, CLASSES)
        at = e.to(tl.int64) * tiles + tile
        tl.store(losses + at, tl.sum(tl.where(here, own, 0.0).to(tl.float64), 0))
        answers = tl.argmax(z, 1, tie_break_left=True) == y
        tl.store(right + at * ROWS + tl.arange(0, ROWS), answers.to(tl.uint8), mask=here)


@triton.jit
def add_up(columns, weights, losses, totals, tiles, ROWS: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """totals[e] ← (Σ losses[e, tile] over its tiles, ‖w‖²): one program per entry, so the sum's order is always the same."""
    e = tl.program_id(0)
    weights_at = tl.load(columns + 8 * e)
    count = tl.load(columns + 8 * e + 4)
    i = tl.arange(0, BLOCK)
    loss = tl.zeros((BLOCK,), tl.float64)
    for first in range(0, (count + ROWS - 1) // ROWS, BLOCK):
        here = first + i < (count + ROWS - 1) // ROWS
        loss += tl.load(losses + e.to(tl.int64) * tiles + first + i, mask=here, other=0.0)
    squares = tl.zeros((BLOCK,), tl.float64)
    for first in range(0, SIZE, BLOCK):
        w = tl.load(weights + weights_at + first + i, mask=first + i < SIZE, other=0.0).to(tl.float64)
        squares += w * w
    tl.store(totals + 2 * e, tl.sum(loss, 0))
    tl.store(totals + 2 * e + 1, tl.sum(squares, 0))
