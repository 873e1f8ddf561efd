import pytest

from hybridfl.wording import counted, in_bytes, shares_in_words


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 devices"), (1, "1 device"), (2, "2 devices"), (300_000, "300,000 devices")]
)
def test_one_thing_is_singular(count: int, text: str) -> None:
    assert counted(count, "device") == text


def test_a_plural_that_takes_no_s_is_given() -> None:
    assert counted(1, "study", "studies") == "1 study"
    assert counted(3, "study", "studies") == "3 studies"


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (500, "0.5 kB"),
        (1.5e6, "1.5 MB"),
        (21.4e9, "21.4 GB"),
        (6.4e11, "640 GB"),
        (4.3e14, "430 TB"),
        (2e19, "20,000 PB"),
    ],
)
def test_bytes_are_told_in_three_digits(count: float, text: str) -> None:
    assert in_bytes(count) == text


def test_shares_that_differ_are_a_range() -> None:
    assert shares_in_words([0.9]) == "90%"
    assert shares_in_words([0.301, 0.299]) == "30%"
    assert shares_in_words([0.4, 0.3, 0.35]) == "30 to 40%"
