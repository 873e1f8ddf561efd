"""Synthetic(γ, ξ): the convex benchmark that needs no download."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch

from hybridfl.data.federated import Samples
from hybridfl.errors import InputError, require_whole
from hybridfl.free_memory import check_room
from hybridfl.randomness import generator

NUM_FEATURES = 60
NUM_CLASSES = 10

MOST_SPREAD = 1_000_000
"""Beyond it, sums of squares are no float32 numbers any more."""

SAMPLES_PER_DEVICE = math.exp(4.0 + 2.0**2 / 2) + 50
"""The mean of n_i."""
BYTES_PER_SAMPLE = 920
"""At the worst moment, when all samples are put together: three copies of the inputs, their checks, and the indices."""


def synthetic(gamma: float, xi: float, devices: int = 100, seed: int = 0) -> Samples:
    """y = argmax(W_i·x + b_i), with a model and an input distribution of each device's own.

        u_i ~ N(0, γ²)   W_i, b_i ~ N(u_i, 1)          γ: meant to say how much the devices' models differ
        B_i ~ N(0, ξ²)   v_i ~ N(B_i, 1) per feature   ξ: how much their inputs differ
        x ~ N(v_i, diag(j^−1.2)),  n_i = ⌊lognormal(4, 2)⌋ + 50

    γ has no effect: u_i moves all of a device's logits alike, by u_i·(Σx + 1), and leaves their order as it is. The models
    differ by the unit variance of W_i, whatever γ is. So it is in the reference generators too, and we keep to them.

    60 features, 10 classes. Shamir et al. 2014, Li et al. 2020. The HFL paper prints N(0, γ) and N(0, ξ); as in the
    reference generators, γ and ξ are standard deviations.
    """
    _check(gamma, xi, devices)
    _check_room(devices)
    parts = []
    for device in range(devices):
        rng = generator(seed, "synthetic", device)
        u, b = rng.normal(0.0, gamma), rng.normal(0.0, xi)
        parts.append(
            _device(
                rng,
                rng.normal(u, 1.0, (NUM_CLASSES, NUM_FEATURES)),
                rng.normal(u, 1.0, NUM_CLASSES),
                rng.normal(b, 1.0, NUM_FEATURES),
            )
        )
    return Samples.from_devices(parts)


def synthetic_iid(devices: int = 100, seed: int = 0) -> Samples:
    """The i.i.d. variant: one W, b ~ N(0, 1) for all, v = 0; the devices differ in their number of samples only."""
    _check(0.0, 0.0, devices)
    _check_room(devices)
    common = generator(seed, "synthetic iid")
    weight, bias = common.normal(0.0, 1.0, (NUM_CLASSES, NUM_FEATURES)), common.normal(0.0, 1.0, NUM_CLASSES)
    center = np.zeros(NUM_FEATURES)
    return Samples.from_devices(
        [_device(generator(seed, "synthetic", device), weight, bias, center) for device in range(devices)]
    )


def synthetic_crowd(
    gamma: float, xi: float, devices: int, kinds: int = 1000, samples: int = 20, test_share: float = 0.1, seed: int = 0
) -> tuple[Samples, Samples]:
    """(train, test) of a fleet of any size: device i draws `samples` of the data of device i mod `kinds` of Synthetic(γ, ξ).

    Drawn with replacement, each device for itself; so only `kinds` devices' data are ever made, and a million devices share
    them. The test samples are those devices' own, `test_share` of each; they belong to the first `kinds` of the fleet.
    """
    require_whole("devices", devices)
    require_whole("samples", samples)
    require_whole("kinds", kinds)
    check_room("devices", devices, 4 * 8 * samples + 24)
    kinds = min(kinds, devices)
    train, test = synthetic(gamma, xi, kinds, seed).split(test_share, seed)
    kind = np.arange(devices) % kinds
    held = train.num_samples[kind][:, None]
    places = (generator(seed, "crowd").random((devices, samples)) * held).astype(np.int64)
    rows = train.index[train.offsets[kind][:, None] + places]
    offsets = np.concatenate([test.offsets, np.full(devices - kinds, test.offsets[-1])])
    return replace(train, index=rows.reshape(-1), offsets=np.arange(devices + 1) * samples), replace(
        test, offsets=offsets
    )


def _device(
    rng: np.random.Generator, weight: np.ndarray, bias: np.ndarray, center: np.ndarray
) -> tuple[torch.Tensor, torch.Tensor]:
    count = int(rng.lognormal(4.0, 2.0)) + 50
    spread = np.arange(1, NUM_FEATURES + 1) ** -0.6
    inputs = center + spread * rng.normal(size=(count, NUM_FEATURES))
    targets = np.argmax(inputs @ weight.T + bias, axis=1)
    return torch.from_numpy(inputs.astype(np.float32)), torch.from_numpy(targets)


def _check_room(devices: int) -> None:
    otherwise = ", or choose synthetic-crowd, whose devices share their data"
    check_room("devices", devices, SAMPLES_PER_DEVICE * BYTES_PER_SAMPLE, otherwise)


def _check(gamma: float, xi: float, devices: int) -> None:
    require_whole("devices", devices)
    for name, value in (("gamma", gamma), ("xi", xi)):
        if not 0 <= value <= MOST_SPREAD:
            raise InputError(f"{name}={value} is a standard deviation: give a number from 0 to {MOST_SPREAD:,}.")
