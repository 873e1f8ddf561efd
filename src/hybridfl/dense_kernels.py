# mypy: allow-untyped-defs, allow-untyped-decorators, allow-untyped-calls
"""The compiled loops behind `dense_training.py`: no Python in any step, the interpreter's lock released."""

from __future__ import annotations

import numpy as np

from hybridfl.shuffle_kernels import compiled, shuffle

RELU, TANH, SIGMOID = 0, 1, 2
_unsigned = np.uintp


@compiled
def train(
    mine,
    weights,
    inputs,
    scale,
    targets,
    index,
    firsts,
    num_samples,
    keys,
    key_starts,
    epochs,
    batch_sizes,
    rates,
    pulls,
    drifts,
    clips,
    l2,
    shapes,
    kinds,
    losses,
    stop,
):
    """Train the jobs `mine` in place: `weights[j]` is W [outputs, inputs] row by row, then b [outputs], layer after layer.

    Job j holds the rows index[firsts[j]:firsts[j] + num_samples[j]] and shuffles them anew for each epoch. `shapes` has
    (outputs, inputs, 1 if it has biases) of every layer, `kinds` the activations between them. It ends early when
    somebody writes into `stop`.

    Inside, a row of W is followed by its bias and by zeros up to a multiple of 16 (its width), a sample by a 1 and zeros,
    and there is an even number of rows: W·x + b is one product, and every inner loop is whole SIMD registers. The two
    products run over blocks of 2 rows × 4 samples, which stay in registers. Indices are unsigned: with signed ones
    Numba guards against negative indices, and nothing vectorizes. A clip of 0 is none: fast maths knows no infinity.
    """
    layers = len(shapes)
    classes = shapes[-1, 0]
    widths = (shapes[:, 1] + 16) // 16 * 16
    rows = shapes[:, 0] + shapes[:, 0] % 2
    w_at = _offsets(rows * widths)
    widest = 0
    most = 0
    for j in mine:
        widest = max(widest, (batch_sizes[j] + 3) // 4 * 4)
        most = max(most, num_samples[j])
    x_at = _offsets(widths * widest)
    z_at = _offsets(rows * widest)
    w = np.zeros(w_at[-1], dtype=np.float32)
    received = np.zeros_like(w)
    drift = np.zeros_like(w)
    before = np.zeros_like(w)
    xs = np.zeros(x_at[-1], dtype=np.float32)
    zs = np.zeros(z_at[-1], dtype=np.float32)
    powers = np.zeros(rows[-1] * widest, dtype=np.float32)
    tops, totals, own = np.zeros((3, widest), dtype=np.float32)
    tagged, spare = np.zeros((2, most), dtype=np.uint64)
    counts = np.zeros(1 << 11, dtype=np.int64)
    order = np.zeros(most, dtype=np.int64)
    for j in mine:
        flat_at = 0
        for layer in range(layers):
            part = w[w_at[layer] : w_at[layer + 1]]
            flat_at += _pack(weights[j][flat_at:], part, shapes[layer], _unsigned(widths[layer]))
        received[:] = w
        if len(drifts):
            flat_at = 0
            for layer in range(layers):
                part = drift[w_at[layer] : w_at[layer + 1]]
                flat_at += _pack(drifts[j][flat_at:], part, shapes[layer], _unsigned(widths[layer]))
        rate, pull = np.float32(rates[j]), np.float32(pulls[j])
        keep = np.float32(1.0 - rates[j] * (2.0 * l2 + pulls[j]))
        decays = keep != np.float32(1.0) or pull != np.float32(0.0)
        loss = 0.0
        for epoch in range(epochs[j]):
            shuffle(keys[key_starts[j] + epoch], num_samples[j], tagged, spare, counts)
            for i in range(num_samples[j]):
                order[i] = index[firsts[j] + np.int64(tagged[i] & np.uint64(0xFFFFFFFF))]
            for first in range(0, num_samples[j], batch_sizes[j]):
                if stop[0]:
                    return
                batch = order[first : min(first + batch_sizes[j], num_samples[j])]
                count = (batch.size + 3) // 4 * 4
                _gather(inputs, scale, batch, xs[: x_at[1]], _unsigned(widths[0]), shapes[0, 2])
                for layer in range(layers):
                    x = xs[x_at[layer] : x_at[layer + 1]]
                    z = zs[z_at[layer] : z_at[layer + 1]]
                    _forward(w[w_at[layer] : w_at[layer + 1]], x, z, count, rows[layer], _unsigned(widths[layer]))
                    if layer < layers - 1:
                        after = xs[x_at[layer + 1] : x_at[layer + 2]]
                        _activate(kinds[layer], z, after, batch.size, count, shapes[layer + 1], widths[layer + 1])
                scores = zs[z_at[layers - 1] : z_at[layers]]
                if epoch == epochs[j] - 1:
                    _scores_of_targets(scores, targets, batch, count, own)
                _softmax(scores, tops, totals, powers, count, classes)
                if epoch == epochs[j] - 1:
                    batch_loss = 0.0
                    for s in range(batch.size):
                        batch_loss += np.log(totals[s]) + tops[s] - own[s]
                    loss += batch_loss / batch.size
                _residuals(scores, totals, targets, batch, count, classes)
                if clips[j] > 0.0:
                    before[:] = w
                for layer in range(layers - 1, -1, -1):
                    part = w[w_at[layer] : w_at[layer + 1]]
                    x = xs[x_at[layer] : x_at[layer + 1]]
                    z = zs[z_at[layer] : z_at[layer + 1]]
                    if layer > 0:
                        earlier = zs[z_at[layer - 1] : z_at[layer]]
                        _to_earlier(part, z, earlier, count, shapes[layer], widths[layer])
                        _slope(kinds[layer - 1], x, earlier, count, shapes[layer, 1], widths[layer])
                    if decays:
                        start = received[w_at[layer] : w_at[layer + 1]]
                        for i in range(part.size):
                            part[i] = keep * part[i] + rate * pull * start[i]
                    _backward(part, x, z, count, rows[layer], _unsigned(widths[layer]), rate / np.float32(batch.size))
                if clips[j] > 0.0:
                    _shorten_step(w, before, rates[j] * clips[j])
                if len(drifts):
                    for i in range(w.size):
                        w[i] -= rate * drift[i]
        flat_at = 0
        for layer in range(layers):
            part = w[w_at[layer] : w_at[layer + 1]]
            flat_at += _unpack(part, weights[j][flat_at:], shapes[layer], _unsigned(widths[layer]))
        losses[j] = loss / ((num_samples[j] + batch_sizes[j] - 1) // batch_sizes[j])


@compiled
def _offsets(sizes):
    """0 and the sums of the first, the first two, … sizes."""
    offsets = np.zeros(len(sizes) + 1, dtype=np.int64)
    for i in range(len(sizes)):
        offsets[i + 1] = offsets[i] + sizes[i]
    return offsets


@compiled
def _activate(kind, z, x, size, count, shape, width):
    """x[s, c] ← f(z[c, s]), followed by a 1 where the next layer has biases; rows that fill up a block are 0."""
    inputs, has_bias = shape[1], shape[2]
    for s in range(count):
        at = s * width
        if s >= size:
            x[at : at + width] = np.float32(0.0)
            continue
        if kind == RELU:
            for c in range(inputs):
                x[at + c] = max(z[c * count + s], np.float32(0.0))
        elif kind == TANH:
            for c in range(inputs):
                x[at + c] = np.tanh(z[c * count + s])
        else:
            for c in range(inputs):
                x[at + c] = np.float32(1.0) / (np.float32(1.0) + np.exp(-z[c * count + s]))
        x[at + inputs] = np.float32(has_bias)


@compiled
def _to_earlier(w, z, earlier, count, shape, width):
    """earlier[k, s] ← Σ_c w[c, k]·z[c, s]: a layer's gradient with respect to what it reads."""
    for k in range(shape[1]):
        row = earlier[k * count : (k + 1) * count]
        row[:] = np.float32(0.0)
        for c in range(shape[0]):
            factor = w[c * width + k]
            at = _unsigned(c * count)
            for s in range(_unsigned(count)):
                row[s] += factor * z[at + s]


@compiled
def _slope(kind, x, earlier, count, inputs, width):
    """earlier[k, s] ← earlier[k, s]·f'(z), written with x = f(z)."""
    one = np.float32(1.0)
    for k in range(inputs):
        at = k * count
        if kind == RELU:
            for s in range(count):
                if x[s * width + k] <= np.float32(0.0):
                    earlier[at + s] = np.float32(0.0)
        elif kind == TANH:
            for s in range(count):
                a = x[s * width + k]
                earlier[at + s] *= one - a * a
        else:
            for s in range(count):
                a = x[s * width + k]
                earlier[at + s] *= a * (one - a)


@compiled
def _shorten_step(w, before, longest):
    """w ← before + (w − before)·min(1, longest/‖w − before‖): a step η·g with ‖g‖ cut to `longest`/η."""
    squares = 0.0
    for i in range(w.size):
        squares += np.float64(w[i] - before[i]) ** 2
    if squares > longest**2:
        part = np.float32(longest / np.sqrt(squares))
        for i in range(w.size):
            w[i] = before[i] + part * (w[i] - before[i])


@compiled
def score(weights, inputs, scale, targets, rows_of, num_classes, losses, right):
    """The cross-entropy of every sample, and whether its target has the largest logit (the first of equals)."""
    features = inputs.shape[1]
    width = _unsigned((features + 16) // 16 * 16)
    rows = num_classes + num_classes % 2
    w = np.zeros(rows * width, dtype=np.float32)
    _pack(weights, w, np.array([num_classes, features, 1]), width)
    x = np.zeros(64 * width, dtype=np.float32)
    scores = np.zeros(rows * 64, dtype=np.float32)
    powers = np.zeros_like(scores)
    tops, totals, own = np.zeros((3, 64), dtype=np.float32)
    for first in range(0, rows_of.size, 64):
        batch = rows_of[first : first + 64]
        _gather(inputs, scale, batch, x, width, 1)
        _forward(w, x, scores, 64, rows, width)
        _scores_of_targets(scores, targets, batch, 64, own)
        for s in range(batch.size):
            best = 0
            for c in range(1, num_classes):
                if scores[c * 64 + s] > scores[best * 64 + s]:
                    best = c
            right[first + s] = best == targets[batch[s]]
        _softmax(scores, tops, totals, powers, 64, num_classes)
        for s in range(batch.size):
            losses[first + s] = np.log(totals[s]) + tops[s] - own[s]


@compiled
def _pack(flat, w, shape, width):
    """A layer's weights and biases, from a flat vector; returns how many numbers of it they are."""
    outputs, inputs, has_bias = shape
    for c in range(outputs):
        w[c * width : c * width + inputs] = flat[c * inputs : (c + 1) * inputs]
        if has_bias:
            w[c * width + inputs] = flat[outputs * inputs + c]
    return outputs * (inputs + has_bias)


@compiled
def _unpack(w, flat, shape, width):
    """Likewise, back into the flat vector."""
    outputs, inputs, has_bias = shape
    for c in range(outputs):
        flat[c * inputs : (c + 1) * inputs] = w[c * width : c * width + inputs]
        if has_bias:
            flat[outputs * inputs + c] = w[c * width + inputs]
    return outputs * (inputs + has_bias)


@compiled
def _gather(inputs, scale, batch, x, width, has_bias):
    """x[s] ← (sample, 1, 0 …); rows that fill up a block of four samples are 0. Without biases the 1 is a 0."""
    features = inputs.shape[1]
    for s in range(batch.size):
        sample = inputs[batch[s]]
        at = _unsigned(s) * width
        for d in range(_unsigned(features)):
            x[at + d] = scale * np.float32(sample[d])
        x[at + _unsigned(features)] = np.float32(has_bias)
    for i in range(_unsigned(batch.size) * width, _unsigned((batch.size + 3) // 4 * 4) * width):
        x[i] = np.float32(0.0)


@compiled
def _forward(w, x, scores, count, rows, width):
    """scores[c, s] = w[c]·x[s]."""
    zero = np.float32(0.0)
    for s in range(0, count, 4):
        x0 = _unsigned(s) * width
        x1, x2, x3 = x0 + width, x0 + width + width, x0 + width + width + width
        for c in range(0, rows, 2):
            wa = _unsigned(c) * width
            wb = wa + width
            a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = zero
            for d in range(width):
                a, b = w[wa + d], w[wb + d]
                a0 += a * x[x0 + d]
                a1 += a * x[x1 + d]
                a2 += a * x[x2 + d]
                a3 += a * x[x3 + d]
                b0 += b * x[x0 + d]
                b1 += b * x[x1 + d]
                b2 += b * x[x2 + d]
                b3 += b * x[x3 + d]
            i = c * count + s
            scores[i], scores[i + 1], scores[i + 2], scores[i + 3] = a0, a1, a2, a3
            i += count
            scores[i], scores[i + 1], scores[i + 2], scores[i + 3] = b0, b1, b2, b3


@compiled
def _softmax(scores, tops, totals, powers, count, num_classes):
    """tops[s] ← max_c scores[c, s];  scores[c, s] ← exp(scores[c, s] − tops[s]);  totals[s] ← Σ_c of these."""
    for s in range(_unsigned(count)):
        tops[s] = scores[s]
    for c in range(1, num_classes):
        at = _unsigned(c * count)
        for s in range(_unsigned(count)):
            tops[s] = max(tops[s], scores[at + s])
    for c in range(num_classes):
        at = _unsigned(c * count)
        for s in range(_unsigned(count)):
            scores[at + s] -= tops[s]
    _exponentials(scores, powers, num_classes * count)
    for s in range(_unsigned(count)):
        totals[s] = scores[s]
    for c in range(1, num_classes):
        at = _unsigned(c * count)
        for s in range(_unsigned(count)):
            totals[s] += scores[at + s]


@compiled
def _exponentials(values, powers, size):
    """values[i] ← exp(values[i]) for values ≤ 0, to 2e-7 of itself; `powers` is room to work in.

    exp(v) = 2^k·2^f with k whole and |f| ≤ ½: 2^f by a polynomial (Chebyshev, degree 6), 2^k by writing k into the exponent
    bits of a float. A call of the library's exp for each score would take longer than the products around it.
    """
    bits = powers.view(np.int32)
    for i in range(_unsigned(size)):
        v = max(values[i], np.float32(-87.0)) * np.float32(1.4426950408889634)
        k = np.floor(v + np.float32(0.5))
        f = v - k
        p = np.float32(0.00015469732) * f + np.float32(0.0013400431)
        p = p * f + np.float32(0.009618025)
        p = p * f + np.float32(0.055503272)
        p = p * f + np.float32(0.24022651)
        p = p * f + np.float32(0.6931472)
        values[i] = p * f + np.float32(1.0)
        bits[i] = (np.int32(k) + np.int32(127)) << np.int32(23)
    for i in range(_unsigned(size)):
        values[i] *= powers[i]


@compiled
def _residuals(scores, totals, targets, batch, count, num_classes):
    """scores[c, s] ← scores[c, s]/totals[s] − 1_{c = y_s}."""
    for c in range(num_classes):
        at = _unsigned(c * count)
        for s in range(_unsigned(count)):
            scores[at + s] /= totals[s]
    for s in range(batch.size):
        scores[targets[batch[s]] * count + s] -= np.float32(1.0)


@compiled
def _scores_of_targets(scores, targets, batch, count, own):
    """own[s] ← scores[y_s, s]."""
    for s in range(batch.size):
        own[s] = scores[targets[batch[s]] * count + s]


@compiled
def _backward(w, x, residuals, count, rows, width, step):
    """w[c] ← w[c] − step·Σ_s residuals[c, s]·x[s]."""
    for s in range(0, count, 4):
        x0 = _unsigned(s) * width
        x1, x2, x3 = x0 + width, x0 + width + width, x0 + width + width + width
        for c in range(0, rows, 2):
            i = c * count + s
            a0, a1, a2, a3 = (
                step * residuals[i],
                step * residuals[i + 1],
                step * residuals[i + 2],
                step * residuals[i + 3],
            )
            i += count
            b0, b1, b2, b3 = (
                step * residuals[i],
                step * residuals[i + 1],
                step * residuals[i + 2],
                step * residuals[i + 3],
            )
            wa = _unsigned(c) * width
            wb = wa + width
            for d in range(width):
                w[wa + d] -= a0 * x[x0 + d] + a1 * x[x1 + d] + a2 * x[x2 + d] + a3 * x[x3 + d]
                w[wb + d] -= b0 * x[x0 + d] + b1 * x[x1 + d] + b2 * x[x2 + d] + b3 * x[x3 + d]
