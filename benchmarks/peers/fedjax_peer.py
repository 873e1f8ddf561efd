# mypy: ignore-errors
"""FedAvg as FedJAX ships it: `fedjax.algorithms.fed_avg`, devices one after the other in jitted steps (its default).

FedJAX fills the last batch of an epoch with samples of the next one, so that all batches have one shape: a device does
⌈nE / batch⌉ steps, not E⌈n / batch⌉.
"""

import sys

import fedjax
import jax
import jax.numpy as jnp
from stretches import COHORT, LEARNING_RATE, answer, assignment

CLASSES = 10
ROUNDS = 5


def logistic_regression(inputs: int) -> fedjax.Model:
    """Zero weights, mean cross-entropy."""

    def scores(params, batch, rng=None):
        return batch["x"] @ params["w"] + params["b"]

    return fedjax.Model(
        init=lambda rng: {"w": jnp.zeros((inputs, CLASSES)), "b": jnp.zeros(CLASSES)},
        apply_for_train=scores,
        apply_for_eval=scores,
        train_loss=lambda batch, predictions: fedjax.metrics.unreduced_cross_entropy_loss(batch["y"], predictions),
        eval_metrics={},
    )


def main() -> None:
    """Answer requests."""
    asked = assignment(*sys.argv[1:])
    model = logistic_regression(asked.inputs.shape[1])
    # weight_decay · w is the gradient of weight_decay / 2 · ‖w‖².
    decay = asked.weight_decay / 2

    def regularizer(params):
        return decay * sum(jnp.sum(jnp.square(part)) for part in jax.tree_util.tree_leaves(params))

    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        fedjax.model_grad(model, regularizer),
        client_optimizer=fedjax.optimizers.sgd(LEARNING_RATE),
        server_optimizer=fedjax.optimizers.sgd(1.0),
        client_batch_hparams=fedjax.ShuffleRepeatBatchHParams(asked.batch_size, num_epochs=asked.epochs),
    )
    parts = {i: dict(zip(("x", "y"), asked.samples(i), strict=True)) for i in range(asked.devices)}
    sampler = fedjax.client_samplers.UniformGetClientSampler(fedjax.InMemoryFederatedData(parts), COHORT, seed=0)
    state = algorithm.init(model.init(jax.random.PRNGKey(0)))

    def play() -> tuple[int, int]:
        nonlocal state
        steps = 0
        for _ in range(ROUNDS):
            devices = sampler.sample()
            state, _ = algorithm.apply(state, devices)
            steps += sum(-(-len(samples) * asked.epochs // asked.batch_size) for _, samples, _ in devices)
        jax.block_until_ready(state.params)
        return steps, COHORT * ROUNDS

    answer(play)


if __name__ == "__main__":
    main()
