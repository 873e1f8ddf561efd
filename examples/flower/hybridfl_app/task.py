"""What is learned: the one file to edit for your own model and data."""

from __future__ import annotations

from flwr.app import Context
from torch import Tensor, nn

from hybridfl import Task
from hybridfl.flower import part_of, partition_of
from hybridfl.spelling import read_task


def load(context: Context) -> Task:
    """This device's samples and the model, on the device.

    Flower starts a process for every message, so this runs for every job: keep what takes long on the device's disk. Your own
    data are `Task.from_devices([(inputs, targets)], model)`; a tenth is held out to score on.
    """
    partition, partitions = partition_of(context)
    whole = read_task(str(context.run_config["task"])).build(partitions, int(context.run_config["seed"]))
    return part_of(whole, partition)


def model_and_test(context: Context) -> tuple[nn.Module, tuple[Tensor, Tensor] | None]:
    """The same model and, if there is one, a test set, on the server. With None, devices score on what they hold out."""
    return read_task(str(context.run_config["task"])).build(2, int(context.run_config["seed"])).model, None
