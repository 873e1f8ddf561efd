"""Ways to train a recurrent model on many devices, one SGD step each: `python benchmarks/lstm.py`.

Milliseconds a device and step (median of 5, ways taken in turn): PyTorch's LSTM one device after the other on all cores;
one device a thread, as `LocalSGD` does it; PyTorch's LSTM under `vmap`; an LSTM written by hand under `vmap`.
All of them must agree to 1e-5.
"""

from __future__ import annotations

import statistics
import threading
import time
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn

from hybridfl import CharacterLSTM, Job, LocalSGD, Samples, Work
from hybridfl.batches import Batches
from hybridfl.vectors import flatten

WINDOW = 80
SIZES = [(20, 10, 64), (20, 64, 64), (20, 10, 256), (20, 64, 256)]
"""(devices, batch, hidden)."""


class HandWritten(CharacterLSTM):
    """The same weights, but every step of the recurrence is a matrix product of its own, which `vmap` can stack."""

    def forward(self, inputs: Tensor) -> Tensor:
        """As `CharacterLSTM`."""
        outputs = self.embedding(inputs.long())
        for layer in range(self.lstm.num_layers):
            from_input, from_state, bias, other_bias = (
                getattr(self.lstm, f"{name}_l{layer}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            )
            driven = outputs @ from_input.T + (bias + other_bias)
            state = cell = outputs.new_zeros(len(inputs), self.lstm.hidden_size)
            states = []
            for step in range(driven.shape[1]):
                enter, keep, new, leave = (driven[:, step] + state @ from_state.T).chunk(4, dim=-1)
                cell = keep.sigmoid() * cell + enter.sigmoid() * new.tanh()
                state = leave.sigmoid() * cell.tanh()
                states.append(state)
            outputs = torch.stack(states, dim=1)
        logits: Tensor = self.linear(outputs[:, -1])
        return logits


def main() -> None:
    """Print the table."""
    warnings.simplefilter("ignore")
    print("| devices | batch | hidden | in turn | one a thread | vmap | vmap, by hand |\n|---|---|---|---|---|---|---|")
    for devices, batch, hidden in SIZES:
        row = " | ".join(f"{milliseconds:.1f} ms" for milliseconds in measure(devices, batch, hidden))
        print(f"| {devices} | {batch} | 2 × {hidden} | {row} |", flush=True)


def measure(devices: int, batch: int, hidden: int) -> list[float]:
    """Milliseconds a device and step of every way."""
    torch.manual_seed(0)
    model, by_hand = CharacterLSTM(hidden=hidden), HandWritten(hidden=hidden)
    samples = Samples.from_devices(
        [(torch.randint(80, (batch, WINDOW)).to(torch.uint8), torch.randint(80, (batch,))) for _ in range(devices)]
    )
    weights = torch.stack([flatten(model) + 0.01 * torch.randn(flatten(model).numel()) for _ in range(devices)])
    jobs = [Job(device, 0, weights[device], Work(1, batch, 1.0), 0.0) for device in range(devices)]
    trainer = LocalSGD(samples, model)

    def in_turn() -> Tensor:
        return torch.stack(
            [trainer._train_alone(job, Batches.of([job], samples, 0), threading.Event()).weights for job in jobs]
        )

    def stacked(model: nn.Module) -> Callable[[], Tensor]:
        other = LocalSGD(samples, model)

        def train() -> Tensor:
            updates = other._train_stacked(jobs, Batches.of(jobs, samples, 0), threading.Event())
            return torch.stack([update.weights for update in updates])

        return train

    ways = [
        in_turn,
        lambda: torch.stack([update.weights for update in trainer(jobs)]),
        stacked(model),
        stacked(by_hand),
    ]
    expected = ways[0]()
    for way in ways[1:]:
        torch.testing.assert_close(way(), expected, rtol=0, atol=1e-5)
    seconds: list[list[float]] = [[] for _ in ways]
    for _ in range(5):
        for times, way in zip(seconds, ways, strict=True):
            started = time.perf_counter()
            way()
            times.append(time.perf_counter() - started)
    return [1000 * statistics.median(times) / devices for times in seconds]


if __name__ == "__main__":
    main()
