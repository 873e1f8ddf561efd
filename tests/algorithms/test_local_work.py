import pytest

from fakes import fleet_of
from hybridfl.algorithms.local_work import ConstantRate, Cosine, FullWork, InverseSqrt, InverseTime, PartialWork
from hybridfl.errors import InputError
from hybridfl.protocol import Work

FLEET = fleet_of(1, 1, 1, 1, seconds=[1.0, 4.0, 2.0, 3.0])


def test_schedules_by_hand() -> None:
    assert [InverseTime(0.1)(t) for t in (0, 1, 4)] == pytest.approx([0.1, 0.05, 0.02])
    assert [InverseSqrt(0.1)(t) for t in (0, 3, 24)] == pytest.approx([0.1, 0.05, 0.02])
    assert [ConstantRate(0.1)(t) for t in (0, 3, 24)] == [0.1, 0.1, 0.1]
    # (1 + cos 0)/2 = 1, (1 + cos(π/3))/2 = ¾, (1 + cos(π/2))/2 = ½, then 1/T for good
    assert [Cosine(0.1, 60)(t) for t in (0, 20, 30, 60, 500)] == pytest.approx([0.1, 0.075, 0.05, 0.1 / 60, 0.1 / 60])


def test_full_work_is_the_same_for_every_device() -> None:
    local = FullWork(epochs=2, batch_size=8, learning_rate=InverseTime(0.4), proximal=0.3)
    assert {local.works([device], 3, FLEET)[0] for device in range(4)} == {Work(2, 8, 0.1, 0.3)}


def test_partial_work_shortens_the_slowest_share_only() -> None:
    local = PartialWork(FullWork(epochs=5), share=0.5)
    drawn = {device: {local.works([device], version, FLEET)[0].epochs for version in range(200)} for device in range(4)}
    assert drawn[0] == {5}
    assert drawn[2] == {5}
    assert drawn[1] == {1, 2, 3, 4, 5}
    assert drawn[3] == {1, 2, 3, 4, 5}


def test_by_default_who_is_behind_the_pace_runs_less() -> None:
    """The fastest takes 1 s, so a round 1.5 s: the others miss it. On a fleet of equals nobody does."""
    local = PartialWork(FullWork(epochs=5))
    assert local.works([0], 0, FLEET)[0].part == 1.0
    assert {local.works([2], version, FLEET)[0].epochs for version in range(200)} == {1, 2, 3, 4, 5}
    equals = fleet_of(1, 1, seconds=[3.0, 3.0])
    assert {local.works([1], version, equals)[0].epochs for version in range(50)} == {5}


def test_partial_work_says_what_part_it_is() -> None:
    local = PartialWork(FullWork(epochs=5), share=0.5)
    assert local.works([0], 0, FLEET)[0].part == 1.0
    for version in range(20):
        work = local.works([1], version, FLEET)[0]
        assert work.part == work.epochs / 5


def test_partial_work_of_a_job_is_always_the_same() -> None:
    local = PartialWork(FullWork(epochs=5), share=1.0)
    assert [local.works([1], v, FLEET)[0] for v in range(9)] == [local.works([1], v, FLEET)[0] for v in range(9)]


@pytest.mark.parametrize(("field", "value"), [("epochs", 0), ("batch_size", 0), ("proximal", -1.0)])
def test_bad_numbers_are_named(field: str, value: float) -> None:
    with pytest.raises(InputError, match=f"{field}={value}"):
        FullWork(**{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("schedule", [InverseTime, InverseSqrt, ConstantRate])
def test_a_learning_rate_is_above_zero(schedule: type) -> None:
    with pytest.raises(InputError, match="learning rate=0"):
        schedule(0)
