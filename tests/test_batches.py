import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from hybridfl.batches import Batches
from hybridfl.data.federated import Samples
from hybridfl.protocol import Job, Work

SIZES = (1, 7, 3, 12)
JOBS = st.lists(
    st.builds(
        lambda device, version, epochs, batch_size, repeat: job(device, version, epochs, batch_size, repeat),
        st.integers(0, len(SIZES) - 1),
        st.integers(0, 3),
        st.integers(1, 3),
        st.integers(1, 15),
        st.integers(0, 1),
    ),
    min_size=1,
    max_size=6,
)


def scattered() -> Samples:
    """Devices whose rows are no ranges: row r belongs to whoever a shuffle says."""
    offsets = np.concatenate([[0], np.cumsum(SIZES)])
    index = np.random.default_rng(0).permutation(sum(SIZES))
    return Samples(torch.zeros(len(index), 1), torch.zeros(len(index)), index, offsets)


def job(device: int = 3, version: int = 0, epochs: int = 1, batch_size: int = 5, repeat: int = 0) -> Job:
    return Job(device, version, torch.zeros(1), Work(epochs, batch_size, 0.1), 0.0, repeat)


def order_of(one: Job, seed: int = 0) -> list[int]:
    return list(Batches.of([one], scattered(), seed).order)


@given(JOBS)
def test_every_epoch_visits_the_devices_own_samples_once_each(jobs: list[Job]) -> None:
    samples = scattered()
    batches = Batches.of(jobs, samples, seed=0)
    for j, one in enumerate(jobs):
        own = sorted(samples.rows(one.device))
        epochs = batches.order[batches.starts[j] : batches.starts[j + 1]].reshape(one.work.epochs, len(own))
        assert all(sorted(epoch) == own for epoch in epochs)


@given(JOBS)
def test_batches_do_not_depend_on_which_jobs_go_together(jobs: list[Job]) -> None:
    batches = Batches.of(jobs, scattered(), seed=0)
    for j, one in enumerate(jobs):
        assert batches.order[batches.starts[j] : batches.starts[j + 1]].tolist() == order_of(one)


@given(JOBS)
def test_a_step_takes_the_next_batch_of_the_order(jobs: list[Job]) -> None:
    batches = Batches.of(jobs, scattered(), seed=0)
    for j in range(len(jobs)):
        walked = batches.order[batches.starts[j] : batches.starts[j + 1]].tolist()
        taken = []
        for step in range(batches.num_steps[j]):
            rows, sizes = batches.at(step, np.array([j]))
            assert 1 <= sizes[0] <= jobs[j].work.batch_size
            assert rows.shape == (1, sizes[0])
            taken += rows[0].tolist()
        assert taken == walked


def test_the_last_batch_of_an_epoch_is_shorter() -> None:
    batches = Batches.of([job(device=3, epochs=2, batch_size=5)], scattered(), seed=0)
    sizes = [int(batches.at(step, np.array([0]))[1][0]) for step in range(6)]
    assert sizes == [5, 5, 2, 5, 5, 2]
    assert batches.num_steps.tolist() == [6]


def test_a_batch_larger_than_the_data_is_the_data() -> None:
    batches = Batches.of([job(device=1, batch_size=100)], scattered(), seed=0)
    rows, sizes = batches.at(0, np.array([0]))
    assert (batches.steps_per_epoch.tolist(), sizes.tolist()) == ([1], [7])
    assert sorted(rows[0]) == sorted(scattered().rows(1))


def test_a_shorter_batch_is_filled_up_with_its_first_row() -> None:
    batches = Batches.of([job(device=3, batch_size=5), job(device=2, batch_size=5)], scattered(), seed=0)
    rows, sizes = batches.at(0, np.array([0, 1]))
    own = batches.order[batches.starts[1] :]
    assert sizes.tolist() == [5, 3]
    assert rows[1].tolist() == [*own, own[0], own[0]]


def test_at_answers_for_the_jobs_it_is_asked_about_in_their_order() -> None:
    batches = Batches.of([job(device=1), job(device=3), job(device=3, version=1)], scattered(), seed=0)
    rows, _ = batches.at(1, np.array([2, 0]))
    assert rows[0].tolist() == batches.order[batches.starts[2] + 5 : batches.starts[2] + 10].tolist()
    assert rows[1, :2].tolist() == batches.order[5:7].tolist()


def test_every_epoch_version_repeat_and_seed_has_its_own_order() -> None:
    two_epochs = order_of(job(epochs=2))
    orders = [
        two_epochs[:12],
        two_epochs[12:],
        order_of(job(version=1)),
        order_of(job(repeat=1)),
        order_of(job(), seed=1),
    ]
    assert len({tuple(order) for order in orders}) == len(orders)


def test_devices_with_equally_many_samples_have_their_own_orders() -> None:
    samples = Samples(torch.zeros(40, 1), torch.zeros(40), np.arange(40), np.array([0, 20, 40]))
    first, second = Batches.of([job(device=0), job(device=1)], samples, seed=0).order.reshape(2, 20)
    assert (second - 20).tolist() != first.tolist()


def test_the_order_does_not_depend_on_batch_size_or_number_of_epochs() -> None:
    assert order_of(job(batch_size=2)) == order_of(job(batch_size=5)) == order_of(job(epochs=2))[:12]


def test_a_batch_is_never_larger_than_the_device() -> None:
    samples = Samples.from_devices([(torch.zeros(5, 1), torch.zeros(5))])
    batches = Batches.of([Job(0, 0, torch.zeros(1), Work(2, 10**9, 0.1), 0.0)], samples, seed=0)
    assert batches.batch_sizes.tolist() == [5]
    assert batches.num_steps.tolist() == [2]
