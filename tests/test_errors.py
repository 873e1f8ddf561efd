import math

import pytest

from hybridfl.errors import InputError, nearest, require_positive, require_share


def test_an_input_error_is_a_value_error() -> None:
    assert issubclass(InputError, ValueError)


@pytest.mark.parametrize("word", ["fedagv", "FEDAVG", "fed-avg"])
def test_nearest_suggests_the_word_as_it_is_spelled(word: str) -> None:
    assert nearest(word, ["HFL", "FedAvg", "FedBuff"]) == " Did you mean 'FedAvg'?"


@pytest.mark.parametrize("words", [["HFL", "FedAvg"], []])
def test_nearest_says_nothing_where_nothing_is_near(words: list[str]) -> None:
    assert nearest("xyzzy", words) == ""


@pytest.mark.parametrize("value", [0.0, 0.5, 1.0, 0, 1])
def test_a_share_lies_between_0_and_1(value: float) -> None:
    require_share("share", value)


@pytest.mark.parametrize("value", [-0.01, 1.01, math.nan, math.inf])
def test_what_is_not_a_share_is_refused_by_name_and_value(value: float) -> None:
    with pytest.raises(InputError, match=f"my_share={value} .*from 0 to 1"):
        require_share("my_share", value)


@pytest.mark.parametrize("value", [1e-9, 1, 5.5])
def test_a_positive_number_is_above_0(value: float) -> None:
    require_positive("epochs", value)


@pytest.mark.parametrize("value", [0, -1, math.nan])
def test_what_is_not_positive_is_refused_by_name_and_value(value: float) -> None:
    with pytest.raises(InputError, match=f"epochs={value} must be above 0"):
        require_positive("epochs", value)
