# mypy: ignore-errors
"""FedAvg and FedBuff as FLSim simulates them: `SyncTrainer` and `AsyncTrainer`.

Devices train one after the other, and batches are made once, as in FLSim's examples. Its asynchronous devices are drawn
at random when one starts, which happens at a constant rate: here so that 100 of 100 are busy on average, for 1 to 11
time units each.
"""

import dataclasses
import sys
from collections.abc import Callable, Iterator

import torch
from omegaconf import OmegaConf
from stretches import COHORT, LEARNING_RATE, Assignment, answer, assignment

dataclass = dataclasses.dataclass


def hashable_dataclass(cls: type | None = None, /, **options: object) -> object:
    """FLSim's configurations are defaults of each other, which Python since 3.11 only allows if they are hashable."""

    def decorate(cls: type) -> type:
        return dataclass(**options, **({"unsafe_hash": True} if cls.__module__.startswith("flsim.") else {}))(cls)

    return decorate if cls is None else decorate(cls)


dataclasses.dataclass = hashable_dataclass

from flsim.clients.base_client import ClientConfig  # noqa: E402
from flsim.data.data_provider import IFLDataProvider, IFLUserData  # noqa: E402
from flsim.interfaces.model import IFLModel  # noqa: E402
from flsim.optimizers.async_aggregators import FedAvgWithLRFedBuffAggregatorConfig  # noqa: E402
from flsim.optimizers.local_optimizers import LocalOptimizerSGDConfig  # noqa: E402
from flsim.optimizers.server_optimizers import FedAvgOptimizerConfig  # noqa: E402
from flsim.servers.sync_servers import SyncServerConfig  # noqa: E402
from flsim.trainers.async_trainer import AsyncTrainer, AsyncTrainerConfig  # noqa: E402
from flsim.trainers.sync_trainer import SyncTrainer, SyncTrainerConfig  # noqa: E402
from flsim.utils.async_trainer.training_event_generator import (  # noqa: E402
    AsyncTrainingEventGeneratorConfig,
    ConstantAsyncTrainingStartTimeDistrConfig,
)
from flsim.utils.simple_batch_metrics import FLBatchMetrics  # noqa: E402
from flsim.utils.timing.training_duration_distribution import PerUserUniformDurationDistributionConfig  # noqa: E402

dataclasses.dataclass = dataclass

ROUNDS = 5
MEAN_DURATION = 6.0


class Model(IFLModel):
    """Logistic regression that counts its steps, and all its copies'."""

    steps = 0

    def __init__(self, inputs: int) -> None:
        self.module = torch.nn.Linear(inputs, 10)

    def fl_forward(self, batch: tuple[torch.Tensor, torch.Tensor]) -> FLBatchMetrics:
        """A step's forward pass."""
        Model.steps += 1
        inputs, targets = batch
        scores = self.module(inputs)
        return FLBatchMetrics(
            loss=torch.nn.functional.cross_entropy(scores, targets),
            num_examples=len(targets),
            predictions=scores.detach(),
            targets=targets,
            model_inputs=[],
        )

    def fl_get_module(self) -> torch.nn.Module:
        """The model proper."""
        return self.module

    def unused(self, *_: object) -> None:
        """Asked for by the interface."""

    fl_create_training_batch = fl_cuda = get_eval_metrics = get_num_examples = unused


class Device(IFLUserData):
    """A device's batches."""

    def __init__(self, asked: Assignment, device: int) -> None:
        inputs, targets = (torch.from_numpy(part).split(asked.batch_size) for part in asked.samples(device))
        self.batches = list(zip(inputs, targets, strict=True))

    def num_train_examples(self) -> int:
        """Its samples."""
        return sum(len(targets) for _, targets in self.batches)

    def num_train_batches(self) -> int:
        """Its steps an epoch."""
        return len(self.batches)

    def train_data(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """An epoch."""
        return iter(self.batches)

    def nothing(self) -> int:
        """To evaluate on."""
        return 0

    num_eval_examples = num_eval_batches = eval_data = nothing


class Devices(IFLDataProvider):
    """All of them."""

    def __init__(self, asked: Assignment) -> None:
        self.devices = [Device(asked, device) for device in range(asked.devices)]

    def train_user_ids(self) -> list[int]:
        """Their numbers."""
        return list(range(len(self.devices)))

    def num_train_users(self) -> int:
        """How many."""
        return len(self.devices)

    def get_train_user(self, user_index: int) -> Device:
        """One of them."""
        return self.devices[user_index]

    def train_users(self) -> list[Device]:
        """All of them."""
        return self.devices

    def nobody(self) -> list[Device]:
        """To evaluate on."""
        return []

    eval_users = test_users = nobody


def rounds(asked: Assignment, model: Model, data: Devices, shared: dict[str, object]) -> Callable[[], int]:
    """Plays a few rounds of FedAvg; says how many updates that were."""
    epochs = ROUNDS * COHORT / asked.devices
    config = SyncTrainerConfig(
        epochs=epochs,
        eval_epoch_frequency=epochs,  # FLSim wants it to be no larger, even if nothing is evaluated
        users_per_round=COHORT,
        server=SyncServerConfig(server_optimizer=FedAvgOptimizerConfig()),
        **shared,
    )
    trainer = SyncTrainer(model=model, **OmegaConf.structured(config))

    def play() -> int:
        trainer.train(data, None, asked.devices, distributed_world_size=1)
        return ROUNDS * COHORT

    return play


def fedbuff(asked: Assignment, model: Model, data: Devices, shared: dict[str, object]) -> Callable[[], int]:
    """Plays FedBuff for as many updates as there are devices."""
    config = AsyncTrainerConfig(
        epochs=1,
        aggregator=FedAvgWithLRFedBuffAggregatorConfig(lr=1.0, buffer_size=10),
        training_event_generator=AsyncTrainingEventGeneratorConfig(
            training_start_time_distribution=ConstantAsyncTrainingStartTimeDistrConfig(
                training_rate=asked.devices / MEAN_DURATION
            ),
            duration_distribution_generator=PerUserUniformDurationDistributionConfig(
                training_duration_min=1.0, training_duration_mean=MEAN_DURATION
            ),
        ),
        **shared,
    )
    trainer = AsyncTrainer(model=model, **OmegaConf.structured(config))
    trainer.train(data, None, asked.devices)

    def play() -> int:
        # Not `train`: that would start again with no device busy.
        trainer._training_simulator.run_one_epoch()
        return asked.devices

    return play


def main() -> None:
    """Answer requests."""
    # With more threads, steps as small as these take longer.
    torch.set_num_threads(1)
    asked = assignment(*sys.argv[1:])
    model = Model(asked.inputs.shape[1])
    local = ClientConfig(
        epochs=asked.epochs,
        optimizer=LocalOptimizerSGDConfig(lr=LEARNING_RATE, weight_decay=asked.weight_decay),
    )
    shared = {"client": local, "do_eval": False, "report_train_metrics": False}
    simulate = (fedbuff if asked.asynchronous else rounds)(asked, model, Devices(asked), shared)

    def play() -> tuple[int, int]:
        before = Model.steps
        updates = simulate()
        return Model.steps - before, updates

    answer(play)


if __name__ == "__main__":
    main()
