import json

import numpy as np
import pytest
import torch

from hybridfl.data.federated import Samples
from hybridfl.data.packed import open_packed
from hybridfl.data.shakespeare import (
    ALPHABET,
    WINDOW,
    Role,
    draw_roles,
    draw_sequences,
    kept_by_leaf,
    read_roles,
    windows,
)
from hybridfl.data.store import data_dir, locate
from hybridfl.errors import InputError

EDITION = """1609

THE SONNETS

by William Shakespeare

  From. This looks like a speech but is none,
    in a work of one voice.

1601

AS YOU LIKE IT

by William Shakespeare

DRAMATIS PERSONAE
  DUKE

ACT I. SCENE I.
  ORLANDO. As I remember, Adam,   it was
    upon this fashion.

                       Enter OLIVER
    Come.
  Oliver. Now, sir!
  [They fight]
    What make you here?
  Orlando. Nothing.

1593

THE COMEDY OF ERRORS


by William Shakespeare

ACT I. SCENE 1
DUKE. Merchant of Syracuse, plead no more.
I am not partial.

<<THIS ELECTRONIC VERSION>>
Not spoken.
AEGEON. Yet this my comfort.
ACT II. SCENE 2
Neither is this.
"""


def test_roles_by_hand() -> None:
    assert read_roles(EDITION) == [
        Role(
            "AS YOU LIKE IT",
            "ORLANDO",
            (
                "As I remember, Adam,   it was",
                "upon this fashion.",
                "                   Enter OLIVER",
                "Come.",
                "Nothing.",
            ),
        ),
        Role("AS YOU LIKE IT", "OLIVER", ("Now, sir!", "What make you here?")),
        Role("THE COMEDY OF ERRORS", "DUKE", ("Merchant of Syracuse, plead no more.", "I am not partial.", "")),
        Role("THE COMEDY OF ERRORS", "AEGEON", ("Yet this my comfort.",)),
    ]


def test_a_roles_text_has_single_spaces() -> None:
    role = Role("A PLAY", "HE", ("one,   two", "  three", ""))
    assert role.text == "one, two three "


def test_a_role_is_named_as_leaf_names_it() -> None:
    assert Role("A MIDSUMMER NIGHT'S DREAM", "FIRST FAIRY", ()).name == "A_MIDSUMMER_NIGHT_S_DREAM_FIRST_FAIRY"
    assert Role("TWELFTH NIGHT; OR, WHAT YOU WILL", "VIOLA", ()).name == "TWELFTH_NIGHT__OR__WHAT_YOU_WILL_VIOLA"


def test_short_roles_are_left_out() -> None:
    line = "x" * WINDOW
    kept = [Role("P", "A", ("", "", line)), Role("P", "B", (line[:-1], "", ""))]
    assert [len(role.text) for role in kept] == [82, 80]
    assert kept_by_leaf([*kept, Role("P", "C", (line, line))]) == kept[:1]


def spoken(*lengths: int) -> list[Role]:
    """Role r says the first `lengths[r]` letters of the alphabet over and over, from letter r on (its last is a space)."""
    letters = ALPHABET[26:76] * 10
    return [Role("P", str(r), (letters[r : r + length - 1],)) for r, length in enumerate(lengths)]


def text_of(samples: Samples, row: int) -> str:
    return "".join(ALPHABET[code] for code in samples.inputs[row].tolist())


def test_windows_are_views_of_the_text_and_never_cross_roles() -> None:
    roles = spoken(WINDOW + 1, WINDOW + 30)
    samples = windows(roles)
    assert samples.num_samples.tolist() == [1, 30]
    for device, role in enumerate(roles):
        for at, row in enumerate(samples.rows(device)):
            assert text_of(samples, row) == role.text[at : at + WINDOW]
            assert ALPHABET[samples.targets[row]] == role.text[at + WINDOW]
    assert samples.inputs.untyped_storage().nbytes() == 2 * WINDOW + 31


def test_a_strange_character_is_named() -> None:
    with pytest.raises(InputError, match=r"'§' is not one of the 80 characters"):
        windows([Role("P", "A", ("§" * 100,))])


def test_the_split_leaks_nothing() -> None:
    samples = windows(spoken(WINDOW + 300, WINDOW + 90, WINDOW + 50))
    train, test = samples.split_in_order(0.1, WINDOW - 1)
    assert train.num_samples.tolist() == [198, 9, 50]
    assert test.num_samples.tolist() == [23, 2, 0]
    for device in (0, 1):
        read_in_training = max(train.rows(device)) + WINDOW - 1
        assert min(test.rows(device)) == read_in_training + 1
        assert max(test.rows(device)) == max(samples.rows(device))


def test_drawn_roles_keep_all_they_say() -> None:
    samples = windows(spoken(100, 120, 140, 160))
    drawn = draw_roles(samples, 2, seed=3)
    everything = [samples.rows(role).tolist() for role in range(4)]
    assert all(drawn.rows(device).tolist() in everything for device in range(2))
    assert drawn.rows(0).tolist() != drawn.rows(1).tolist()
    assert np.array_equal(drawn.index, draw_roles(samples, 2, seed=3).index)
    with pytest.raises(InputError, match="5 devices, but the plays have 4 roles"):
        draw_roles(samples, 5, seed=0)


@pytest.mark.parametrize("sequences", [8, 200, 441])
def test_drawn_sequences_add_up(sequences: int) -> None:
    samples = windows(spoken(300, 250, 280, 165, 270))
    train, test = draw_sequences(samples, 4, sequences, 0, WINDOW - 1).split_in_order(0.1, WINDOW - 1)
    assert len(train.index) + len(test.index) == sequences
    assert min(train.num_samples) >= 1
    assert min(test.num_samples) >= 1


@pytest.mark.parametrize(
    ("devices", "sequences", "message"),
    [
        (6, 100, "6 devices, but 5 roles are long enough"),
        (4, 7, "sequences=7 are too few for 4 devices"),
        (4, 100_000, "can hardly hold 100,000 sequences"),
    ],
)
def test_what_cannot_be_drawn_is_said(devices: int, sequences: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        draw_sequences(windows(spoken(300, 250, 280, 165, 270, 100)), devices, sequences, 0, WINDOW - 1)


def real_text() -> str:
    with open_packed(locate("shakespeare")[0], ".txt") as file:
        return file.read().decode("latin-1")


@pytest.mark.data("shakespeare")
def test_the_real_edition_gives_the_roles_of_leaf() -> None:
    roles = read_roles(real_text())
    if not (data_dir() / "shakespeare" / "users_and_plays.json").exists():
        pytest.skip("no users_and_plays.json of LEAF beside the text")
    published = json.loads((data_dir() / "shakespeare" / "users_and_plays.json").read_text())
    assert [(role.name, role.play) for role in roles] == list(published.items())
    kept = kept_by_leaf(roles)
    assert len(kept) == 1129
    assert len({role.play for role in kept}) == 36


@pytest.mark.data("shakespeare")
def test_the_real_edition_gives_4_226_159_windows() -> None:
    samples = windows(kept_by_leaf(read_roles(real_text())))
    assert len(samples.index) == 4_226_159
    assert samples.inputs.shape[1] == WINDOW
    assert samples.inputs.dtype == torch.uint8
    assert samples.inputs.untyped_storage().nbytes() < 5_000_000
    assert int(samples.targets.max()) < len(ALPHABET) == 80
    assert text_of(samples, 0).startswith("In delivering my son from me, I bury a second husband. ")
