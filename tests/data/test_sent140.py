import gzip
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridfl.data.sent140 import (
    Chosen,
    Merged,
    Tweets,
    encode,
    parse_tweets,
    read_glove,
    read_tweets,
    sent140,
    tokens,
    vocabulary,
)
from hybridfl.data.store import locate
from hybridfl.errors import InputError
from hybridfl.wording import counted


def row(target: int, user: str, text: str) -> bytes:
    quoted = text.replace('"', '""')
    return f'"{target}","17","Mon Apr 06 22:19:45 PDT 2009","NO_QUERY","{user}","{quoted}"\n'.encode()


def test_rows_by_hand() -> None:
    tweets = parse_tweets([row(0, "ann", 'sad, "really"'), row(4, "bob", "glad"), b"\n"])
    assert tweets.users == ["ann", "bob"]
    assert tweets.texts == ['sad, "really"', "glad"]
    assert tweets.labels.tolist() == [0, 1]
    assert tweets.notes == ()


def test_rows_without_quotes_and_with_windows_line_ends_are_rows() -> None:
    tweets = parse_tweets([b"4,1,today,NO_QUERY,ann,fine\r\n"])
    assert tweets.texts == ["fine"]


@pytest.mark.parametrize(
    "bad",
    [
        b'"0","1","d","q","ann"\n',
        b'"0","1","d","q","ann","t","more"\n',
        b'"2","1","d","q","ann","neutral"\n',
        b'"0","1","d","q","ann","never closed\n',
        b"garbage\n",
        b'"0","1","d","q","","nobody"\n',
        b'"0","1","d","q","ann",' + b"x" * 200_000 + b"\n",
    ],
)
def test_a_malformed_row_is_counted_and_spoils_no_other(bad: bytes) -> None:
    tweets = parse_tweets([row(0, "ann", "one"), bad, row(4, "bob", "two")])
    assert tweets.texts == ["one", "two"]
    assert tweets.malformed == 1
    assert tweets.notes == ("2 tweets read, malformed rows left out: 1",)


def test_utf_8_and_latin_1_are_both_read() -> None:
    utf8, latin1 = row(0, "ann", "café"), row(0, "ann", "caf?").replace(b"caf?", b"caf\xe9")
    assert parse_tweets([utf8, latin1]).texts == ["café", "café"]


def test_undecodable_characters_are_blanked_and_counted() -> None:
    tweets = parse_tweets([row(0, "ann", "youï¿½re \ufffd \x00bad"), row(0, "bob", "t?").replace(b"t?", b"t\x85")])
    assert tweets.texts == ["you re    bad", "t "]
    assert tweets.undecodable == 4
    assert tweets.notes == ("2 tweets read, undecodable characters blanked: 4",)


@given(st.lists(st.binary(max_size=60)))
def test_no_bytes_are_fatal(lines: list[bytes]) -> None:
    tweets = parse_tweets([*lines, row(4, "bob", "two")])
    assert tweets.texts[-1] == "two"
    assert tweets.malformed <= len(lines)


def test_the_published_archive_is_read_as_it_is(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "trainingandtestdata.zip", "w") as archive:
        archive.writestr("testdata.manual.2009.06.14.csv", row(4, "other", "file"))
        archive.writestr("training.1600000.processed.noemoticon.csv", row(0, "ann", "sad") + row(4, "bob", "glad"))
    assert read_tweets(tmp_path / "trainingandtestdata.zip").users == ["ann", "bob"]


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(b"1,2,3\n"))
    with pytest.raises(InputError, match="holds no tweets"):
        read_tweets(path)


def authors(*counts: int) -> list[str]:
    """User u wrote `counts[u]` tweets, all users in turn."""
    left = Counter({f"u{user}": count for user, count in enumerate(counts)})
    written = []
    while left.total():
        for user in sorted(left):
            if left[user]:
                written.append(user)
                left[user] -= 1
    return written


COUNTS = st.lists(st.integers(1, 9), min_size=1, max_size=12)


@given(COUNTS, st.integers(1, 4), st.integers(1, 5), st.integers(0, 2))
def test_chosen_devices_are_single_users_with_all_their_tweets(
    counts: list[int], at_least: int, devices: int, seed: int
) -> None:
    users = authors(*counts)
    if sum(count >= at_least for count in counts) < devices:
        with pytest.raises(InputError, match=f"{counted(devices, 'device')}, but"):
            Chosen(at_least)(users, devices, seed)
        return
    parts = Chosen(at_least)(users, devices, seed)
    owners = [{users[each] for each in part} for part in parts]
    assert all(len(owner) == 1 for owner in owners)
    assert len(set.union(*owners)) == devices
    for part in parts:
        assert len(part) == users.count(users[part[0]]) >= at_least


@given(COUNTS, st.integers(1, 4), st.integers(1, 5), st.integers(0, 2), st.none() | st.integers(1, 40))
def test_merged_users_are_on_one_device_each(
    counts: list[int], at_least: int, devices: int, seed: int, tweets: int | None
) -> None:
    users = authors(*counts)
    eligible = [count for count in counts if count >= at_least]
    if len(eligible) < devices:
        with pytest.raises(InputError, match=f"{counted(devices, 'device')}, but"):
            Merged(at_least, tweets)(users, devices, seed)
        return
    parts = Merged(at_least, tweets)(users, devices, seed)
    rows = np.concatenate(parts)
    assert len(set(rows.tolist())) == len(rows)
    assert min(len(part) for part in parts) >= 1
    holders = Counter(user for part in parts for user in {users[each] for each in part})
    assert set(holders.values()) == {1}
    if tweets is None:
        assert len(rows) == sum(eligible)
    elif len(holders) > devices:
        assert len(rows) == min(tweets, sum(eligible))


def test_tokens_by_hand() -> None:
    assert tokens("@Ann I'm SO happy!! 3.50 &lt;3 http://t.co/x #win") == [
        *("<user>", "i'm", "so", "happy", "!", "!", "<number>", "<number>", "<link>", "win")
    ]


def test_the_vocabulary_ranks_by_number_then_alphabet() -> None:
    codes = vocabulary([["b", "a", "c"], ["c", "b"], ["d"]], size=5)
    assert codes == {"b": 2, "c": 3, "a": 4}


def test_texts_are_cut_and_padded_in_front() -> None:
    codes = {"a": 2, "b": 3}
    assert encode([["a", "b", "a", "b"], ["b"], [], ["x", "a"]], codes, 3).tolist() == [
        [2, 3, 2],
        [0, 0, 3],
        [0, 0, 0],
        [0, 1, 2],
    ]


def test_words_of_the_test_part_alone_have_no_code() -> None:
    users = authors(*[10] * 20)
    tweets = Tweets(users, [f"word{number}" for number in range(200)], np.arange(200) % 2)
    train, test, words = sent140(tweets, Merged(tweets=None), devices=5, seed=0, size=1000, length=4)
    assert (len(train.index), len(test.index), len(words)) == (180, 20, 180)
    assert train.inputs is test.inputs
    assert sorted(train.inputs[train.index, -1].tolist()) == list(range(2, 182))
    assert set(test.inputs[test.index, -1].tolist()) == {1}


def test_glove_vectors_go_to_their_words(tmp_path: Path) -> None:
    path = tmp_path / "glove.txt"
    path.write_text("the 1 2\ngood 0.5 -0.25\n")
    assert read_glove(path, {"good": 2, "odd": 3}, 5).tolist() == [[0, 0], [0, 0], [0.5, -0.25], [0, 0], [0, 0]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("the 1 2\n", "none of the vocabulary's words"),
        ("good 1 2\nodd 1\n", r"vectors of \[1, 2\] numbers"),
        ("good 1 x\n", "Line 1"),
        (None, "There is no file"),
    ],
)
def test_what_is_no_glove_file_is_refused(content: str | None, message: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "glove.txt").write_text(content)
    with pytest.raises(InputError, match=message):
        read_glove(tmp_path / "glove.txt", {"good": 2, "odd": 3}, 4)


@pytest.mark.data("sent140")
def test_the_real_tweets() -> None:
    tweets = read_tweets(locate("sent140")[0])
    assert len(tweets.users) >= 116_505
    assert tweets.malformed == 0
    parts = Merged()(tweets.users, 100, 0)
    assert 30_000 < sum(len(part) for part in parts) <= 40_783
