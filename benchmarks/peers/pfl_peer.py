# mypy: ignore-errors
"""FedAvg as pfl-research runs it: `SimulatedBackend`, `PyTorchModel` and `FederatedAveraging`.

It spreads a round's devices over processes that torchrun starts, here one a core with one thread each: faster than one
process with a thread a core. Rank 0 answers; the others play when it does.
"""

import functools
import sys
from collections.abc import Callable

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.model.pytorch import PyTorchModel
from stretches import COHORT, LEARNING_RATE, Assignment, answer, assignment
from torch import distributed

ROUNDS = 5


class LogisticRegression(torch.nn.Linear):
    """With the two methods that pfl asks of a model; it counts its steps."""

    steps = 0

    def loss(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Mean cross-entropy."""
        self.steps += 1
        return torch.nn.functional.cross_entropy(self(inputs), targets)

    def metrics(self, inputs: torch.Tensor, targets: torch.Tensor) -> dict[str, float]:
        """Nothing is evaluated."""
        return {}


def simulation(asked: Assignment) -> Callable[[], int]:
    """Plays a few rounds and says how many steps this process did."""
    devices = {
        i: Dataset([torch.from_numpy(part) for part in asked.samples(i)], user_id=i) for i in range(asked.devices)
    }
    sizes = {i: len(device) for i, device in devices.items()}
    # pfl shares the work out evenly by sizes; where they are equal, that would only cost time.
    weights = sizes if len(set(sizes.values())) > 1 else None
    data = FederatedDataset(devices.__getitem__, get_user_sampler("random", list(devices)), weights)
    backend = SimulatedBackend(data, data)
    torch_model = LogisticRegression(asked.inputs.shape[1], 10)
    model = PyTorchModel(
        torch_model,
        local_optimizer_create=functools.partial(torch.optim.SGD, weight_decay=asked.weight_decay),
        central_optimizer=torch.optim.SGD(torch_model.parameters(), lr=1.0),
    )
    training = NNTrainHyperParams(
        local_num_epochs=asked.epochs, local_learning_rate=LEARNING_RATE, local_batch_size=asked.batch_size
    )
    algorithm, iterations = FederatedAveraging(), 0

    def play() -> int:
        nonlocal iterations
        iterations += ROUNDS
        before = torch_model.steps
        # Iteration 0 is always evaluated, and that is in the warm-up.
        rounds = NNAlgorithmParams(iterations, evaluation_frequency=10**9, train_cohort_size=COHORT, val_cohort_size=0)
        algorithm.run(rounds, backend, model, training, send_metrics_to_platform=False)
        return torch_model.steps - before

    return play


def main() -> None:
    """Answer requests."""
    torch.set_num_threads(1)
    play = simulation(assignment(*sys.argv[1:]))
    go_on = torch.ones(1)

    def play_together() -> tuple[int, int]:
        distributed.broadcast(go_on, 0)
        steps = torch.tensor([play()])
        distributed.all_reduce(steps)
        return int(steps), COHORT * ROUNDS

    if distributed.get_rank() == 0:
        answer(play_together)
        distributed.broadcast(torch.zeros(1), 0)
    else:
        while True:
            distributed.broadcast(go_on, 0)
            if not go_on:
                break
            distributed.all_reduce(torch.tensor([play()]))


if __name__ == "__main__":
    main()
