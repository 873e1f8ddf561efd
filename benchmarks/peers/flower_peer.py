# mypy: ignore-errors
"""FedAvg as Flower simulates it: a `ServerApp` with the strategy `FedAvg`, and a `ClientApp` in one Ray actor a core.

All requests are answered by one run of the `ServerApp`: starting Ray is not measured. How a device trains is the user's
code; here it slices batches out of tensors, which is faster than the `DataLoader` of Flower's templates.
"""

import os
import sys

# Before the import: Flower would report each run, and Ray each cluster.
os.environ.update(FLWR_TELEMETRY_ENABLED="0", RAY_USAGE_STATS_ENABLED="0")

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from stretches import COHORT, LEARNING_RATE, Assignment, answer, assignment

ROUNDS = 5

server, device = ServerApp(), ClientApp()


def train_locally(model: torch.nn.Module, inputs: torch.Tensor, targets: torch.Tensor, asked: Assignment) -> int:
    """How many steps it took."""
    optimiser = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, weight_decay=asked.weight_decay)
    steps = 0
    for _ in range(asked.epochs):
        for rows in torch.randperm(len(inputs)).split(asked.batch_size):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs[rows]), targets[rows]).backward()
            optimiser.step()
            steps += 1
    return steps


@device.train()
def train(message: Message, context: Context) -> Message:
    """A device's part of a round."""
    torch.set_num_threads(1)
    asked = assignment(*message.content["config"]["arguments"])
    model = torch.nn.Linear(asked.inputs.shape[1], 10)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    inputs, targets = (torch.from_numpy(part) for part in asked.samples(context.node_config["partition-id"]))
    steps = train_locally(model, inputs, targets, asked)
    metrics = MetricRecord({"num-examples": len(inputs), "steps": steps})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)


def all_steps(replies: list[RecordDict], weighted_by: str) -> MetricRecord:
    """The sum over devices; Flower would take their mean."""
    return MetricRecord({"steps": sum(reply["metrics"]["steps"] for reply in replies)})


@server.main()
def serve(grid: Grid, context: Context) -> None:
    """Answer requests."""
    arguments = sys.argv[1:]
    asked = assignment(*arguments)
    strategy = FedAvg(
        fraction_train=COHORT / asked.devices,
        fraction_evaluate=0.0,
        min_available_nodes=asked.devices,
        train_metrics_aggr_fn=all_steps,
    )
    arrays = ArrayRecord(torch.nn.Linear(asked.inputs.shape[1], 10).state_dict())

    def play() -> tuple[int, int]:
        nonlocal arrays
        result = strategy.start(grid, arrays, ROUNDS, train_config=ConfigRecord({"arguments": arguments}))
        arrays = result.arrays
        return sum(metrics["steps"] for metrics in result.train_metrics_clientapp.values()), COHORT * ROUNDS

    answer(play)


def main() -> None:
    """Start Ray and the server."""
    run_simulation(
        server,
        device,
        num_supernodes=assignment(*sys.argv[1:]).devices,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": len(os.sched_getaffinity(0)), "include_dashboard": False},
        },
    )


if __name__ == "__main__":
    # Ray's actors import an app that has a name; one out of __main__ would travel with every message.
    from flower_peer import main as simulate

    simulate()
