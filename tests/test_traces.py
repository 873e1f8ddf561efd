import contextlib
import json
import math
import os
import pickle
import time
import tracemalloc
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hybridfl.availability import next_on
from hybridfl.errors import InputError
from hybridfl.traces import (
    RecordedAvailability,
    import_fedscale_availability,
    import_fedscale_capacity,
    kind_of,
    read_capacities,
    read_intervals,
    read_seconds,
)

SECONDS = "device,seconds\nb,2\na,1.5\nb,3e0\n"
CAPACITIES = (
    "device,seconds_per_sample,bytes_per_second_up,bytes_per_second_down\nphone,0.01,1000,2000\ntablet,0.02,10,20\n"
)
INTERVALS = "device,start,end\nx,0,10\ny,5,6\nx,20,30\n"


@pytest.fixture
def write(tmp_path: Path) -> Callable[[Any], Path]:
    """Writes text as CSV, bytes as they are and anything else as JSON."""

    def written(content: Any) -> Path:
        path = tmp_path / ("trace.csv" if isinstance(content, str | bytes) else "trace.json")
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        return path

    return written


Write = Callable[[Any], Path]


def listed(arrays: tuple[Any, ...]) -> list[list[float]]:
    return [array.tolist() for array in arrays]


def as_json(text: str) -> list[dict[str, Any]]:
    header, *lines = (line.split(",") for line in text.split())
    return [{k: v if k == "device" else float(v) for k, v in zip(header, line, strict=True)} for line in lines]


@pytest.mark.parametrize("form", [str, as_json])
def test_seconds_are_listed_by_device_in_order_of_first_appearance(write: Write, form: Callable[[str], Any]) -> None:
    path = write(form(SECONDS))
    assert kind_of(path) == "seconds"
    assert listed(read_seconds(path)) == [[2.0, 3.0], [1.5]]
    assert listed(read_seconds(str(path))) == [[2.0, 3.0], [1.5]]


@pytest.mark.parametrize("form", [str, as_json])
def test_capacities_are_three_columns(write: Write, form: Callable[[str], Any]) -> None:
    path = write(form(CAPACITIES))
    assert kind_of(path) == "capacities"
    capacities = read_capacities(path)
    assert capacities.seconds_per_sample.tolist() == [0.01, 0.02]
    assert capacities.bytes_per_second_up.tolist() == [1000, 10]
    assert capacities.bytes_per_second_down.tolist() == [2000, 20]


@pytest.mark.parametrize("form", [str, as_json])
def test_intervals_are_starts_and_ends_by_device(write: Write, form: Callable[[str], Any]) -> None:
    path = write(form(INTERVALS))
    assert kind_of(path) == "intervals"
    starts, ends = read_intervals(path)
    assert listed(starts) == [[0, 20], [5]]
    assert listed(ends) == [[10, 30], [6]]


def test_a_name_is_any_text_and_columns_come_in_any_order(write: Write) -> None:
    path = write('\ufeffseconds, device\r\n1,"Ünal, ""the"" phone\n2"\r\n\r\n2,7\r\n3,?\r\n4,7\r\n')
    assert listed(read_seconds(path)) == [[1], [2, 4], [3]]
    assert listed(read_seconds(write([{"device": 7, "seconds": 1}, {"seconds": 2, "device": "7"}]))) == [[1, 2]]


@pytest.mark.parametrize(
    ("read", "content", "words"),
    [
        (read_seconds, "", r"trace.csv' holds no records"),
        (read_seconds, "device,seconds\n", "holds no records"),
        (read_seconds, [], r"trace.json' holds no records"),
        (read_seconds, "device,seconds\na,1\n ,2\n", r"trace.csv', line 3: device is empty"),
        (read_seconds, [{"device": None, "seconds": 1}], r"trace.json', entry 1: device is empty"),
        (read_seconds, [{"device": 1, "seconds": True}], r"entry 1: seconds=True is not a number"),
        (
            read_seconds,
            "device,second\na,1\n",
            "has the columns device,second: a trace has device,seconds or device,seconds_",
        ),
        (read_seconds, "a,1\nb,2\n", "has the columns a,1"),
        (read_seconds, INTERVALS, "holds intervals, not seconds: give a file with device,seconds"),
        (read_seconds, "device,seconds\na,1\nb,fast\n", r"trace.csv', line 3: seconds='fast' is not a number"),
        (read_seconds, "device,seconds\na,1\nb,\n", "line 3: seconds='' is not a number"),
        (read_seconds, "device,seconds\na,1\n\nb,0\n", r"line 4: seconds=0.0 must be above 0"),
        (read_seconds, "device,seconds\na,-1\n", r"line 2: seconds=-1.0 must be above 0"),
        (read_seconds, "device,seconds\na,nan\n", "line 2: seconds=nan must be above 0"),
        (read_seconds, "device,seconds\na,inf\n", "line 2: seconds=inf must be above 0"),
        (read_seconds, "device,seconds\na,1,2\n", "line 2: 3 values instead of 2"),
        (read_seconds, b"device,seconds\n\xff,1\n", "is not a CSV file"),
        (read_seconds, b'device,seconds\n"' + b"a" * 200_000 + b'",1\n', "is not a CSV file"),
        (read_seconds, {"device": 1}, "is not a list of objects"),
        (read_seconds, [1, 2], "is not a list of objects"),
        (read_seconds, [{"device": 1, "seconds": None}], r"trace.json', entry 1: seconds=None is not a number"),
        (
            read_seconds,
            [{"device": 1, "seconds": 1}, {"device": 1}],
            "entry 2: the keys device instead of device,seconds",
        ),
        (read_seconds, [{"device": 1, "seconds": math.nan}], "entry 1: seconds=nan"),
        (read_capacities, CAPACITIES + "phone,1,1,1\n", "line 4: device=phone is there for the second time"),
        (read_capacities, CAPACITIES + "watch,1,0,1\n", r"line 4: bytes_per_second_up=0.0 must be above 0"),
        (read_intervals, INTERVALS + "z,3,3\n", r"line 5: end=3.0 must be above the start"),
        (read_intervals, INTERVALS + "z,3,inf\n", "line 5: end=inf must be above the start and finite"),
        (read_intervals, INTERVALS + "z,3,nan\n", "line 5: end=nan must be above the start and finite"),
        (read_intervals, INTERVALS + "z,-1,3\n", r"line 5: start=-1.0 must be 0 or more"),
        (read_intervals, INTERVALS + "z,nan,3\n", "line 5: start=nan must be 0 or more"),
    ],
)
def test_says_what_is_wrong_with_a_file_and_where(
    write: Write, read: Callable[[Path], Any], content: Any, words: str
) -> None:
    with pytest.raises(InputError, match=words):
        read(write(content))


def test_a_file_that_is_no_json_is_said_to_be_none(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("[{")
    with pytest.raises(InputError, match=r"a.json' is not a JSON file"):
        read_seconds(tmp_path / "a.json")


@pytest.mark.parametrize("read", [kind_of, read_seconds, read_capacities, read_intervals])
def test_a_file_that_is_not_there_is_named(tmp_path: Path, read: Callable[[Path], Any]) -> None:
    with pytest.raises(InputError, match=r"nowhere.csv' cannot be read \(No such file"):
        read(tmp_path / "nowhere.csv")


def test_devices_follow_the_recorded_ones_in_turn(write: Write) -> None:
    calendar = RecordedAvailability(str(write(INTERVALS))).calendar(5, seed=0)
    assert calendar.is_on(np.arange(5), 5.5).tolist() == [True] * 5
    assert calendar.is_on(np.arange(5), 25.0).tolist() == [True, False, True, False, True]
    assert next_on(calendar, 3, 6.0) == math.inf


def test_a_recording_starts_again_where_asked_to(write: Write) -> None:
    path = str(write(INTERVALS))
    calendar = RecordedAvailability(path, repeat_every=40.0).calendar(5, seed=0)
    assert next_on(calendar, 3, 6.0) == 45.0
    with pytest.raises(InputError, match=r"repeat_every=29.0 seconds .* give 30.0 or more"):
        RecordedAvailability(path, repeat_every=29.0).calendar(5, seed=0)
    with pytest.raises(InputError, match="repeat_every=-1"):
        RecordedAvailability(path, repeat_every=-1)


def test_a_recording_is_a_value_read_once(write: Write) -> None:
    path = write(INTERVALS)
    recorded = RecordedAvailability(str(path))
    before = recorded.calendar(3, seed=0)
    path.unlink()
    assert recorded.calendar(9, seed=1) is before
    assert recorded == RecordedAvailability(str(path))
    assert hash(recorded) == hash(RecordedAvailability(str(path)))


CAPACITY = {1: {"computation": 162.0, "communication": 5648.0}, 2: {"computation": 20.5, "communication": 1.5}}
BEHAVIOUR = {
    # As FedScale prints some of its file: stretches of no length, and finish times that differ.
    107740: {"duration": 1, "inactive": [88494, 93284], "finish_time": 518400, "active": [88494, 93283], "model": "SM"},
    107741: {"duration": 1, "inactive": [39055], "finish_time": 172800, "active": [39054], "model": "SM-J730GM"},
    107742: {"duration": 1, "inactive": [120130], "finish_time": 432000, "active": [120129], "model": "SM-G357M"},
    107743: {"duration": 0, "inactive": [7], "finish_time": 518400, "active": [7], "model": "never on"},
}


def in_numpy(entries: dict[int, dict[str, float]]) -> dict[int, dict[str, np.float64]]:
    return {device: {name: np.float64(value) for name, value in entry.items()} for device, entry in entries.items()}


CONTENTS = [
    *(pickle.dumps(CAPACITY, protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)),
    # FedScale's file: protocol 3, with the numbers of a NumPy that called its module by the other name.
    pickle.dumps(in_numpy(CAPACITY), 3),
    pickle.dumps(in_numpy(CAPACITY), 3).replace(b"numpy._core.multiarray", b"numpy.core.multiarray"),
    pickle.dumps(in_numpy(CAPACITY)),
    json.dumps(CAPACITY, indent=2).encode(),
]


@pytest.mark.parametrize("content", CONTENTS)
def test_capacities_of_fedscale_are_brought_into_seconds_and_bytes(
    write: Write, tmp_path: Path, content: bytes
) -> None:
    assert import_fedscale_capacity(write(content), tmp_path / "ours.csv") == 2
    assert (tmp_path / "ours.csv").read_text().splitlines()[1] == "1,0.486,722944.0,722944.0"
    capacities = read_capacities(tmp_path / "ours.csv")
    assert capacities.seconds_per_sample.tolist() == [0.486, 0.0615]
    assert capacities.bytes_per_second_up.tolist() == capacities.bytes_per_second_down.tolist() == [722944.0, 192.0]


def test_a_job_takes_as_long_as_in_the_simulator_of_fedscale(write: Write, tmp_path: Path) -> None:
    import_fedscale_capacity(write(json.dumps(CAPACITY)), tmp_path / "ours.csv")
    ours = read_capacities(tmp_path / "ours.csv")
    samples, num_bytes = 20 * 32, 500_000
    theirs = 3.0 * samples * 162.0 / 1000 + 2 * (num_bytes / 1024 * 8) / 5648.0
    up_and_down = num_bytes / ours.bytes_per_second_up[0] + num_bytes / ours.bytes_per_second_down[0]
    assert samples * ours.seconds_per_sample[0] + up_and_down == pytest.approx(theirs)


@pytest.mark.parametrize("dump", [pickle.dumps, lambda entries: json.dumps(entries).encode()])
def test_stretches_of_fedscale_start_again_until_the_longest_recording_is_over(
    write: Write, tmp_path: Path, dump: Callable[[Any], bytes]
) -> None:
    assert import_fedscale_availability(write(dump(BEHAVIOUR)), tmp_path / "ours.csv") == 3
    starts, ends = read_intervals(tmp_path / "ours.csv")
    assert listed(starts) == [[93283], [39054, 211854, 384654], [120129]]
    assert listed(ends) == [[93284], [39055, 211855, 384655], [120130]]
    assert next_on(RecordedAvailability(str(tmp_path / "ours.csv"), 518400.0).calendar(3, 0), 0, 93284) == 611683


def test_nobody_of_fedscale_is_on_after_the_end_of_the_recording(write: Write, tmp_path: Path) -> None:
    entries = {
        "a": {"active": [1, 9, 12], "inactive": [2, 11, 13], "finish_time": 10},
        "b": {"active": [0.5], "inactive": [5.5], "finish_time": 6},
    }
    assert import_fedscale_availability(write(json.dumps(entries)), tmp_path / "ours.csv") == 2
    starts, ends = read_intervals(tmp_path / "ours.csv")
    assert listed(starts) == [[1, 9], [0.5, 6.5]]
    assert listed(ends) == [[2, 10], [5.5, 10]]


class Hostile:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("run", [import_fedscale_capacity, import_fedscale_availability])
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_hostile_pickle_gets_to_do_nothing(
    write: Write, tmp_path: Path, run: Callable[..., int], protocol: int
) -> None:
    path = write(pickle.dumps({1: Hostile(tmp_path / "harm")}, protocol))
    with pytest.raises(InputError, match=r"asks for '(posix|nt|os)\.mkdir', and only plain data is read"):
        run(path, tmp_path / "ours.csv")
    assert not (tmp_path / "harm").exists()
    assert not (tmp_path / "ours.csv").exists()


def changed(content: bytes, place: int, by: int) -> bytes:
    """With another byte at one place."""
    place %= len(content)
    return content[:place] + bytes([content[place] ^ by]) + content[place + 1 :]


JSON = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9)


def nested(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    names = st.sampled_from(["device", "seconds", "start", "end", "other"])
    return st.lists(children, max_size=4) | st.dictionaries(names, children, max_size=4)


STAND_IN = b"cnumpy.core.multiarray\nscalar\n"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (pickle.dumps(OrderedDict(CAPACITY)), r"asks for 'collections\.OrderedDict'"),
        (pickle.dumps({1: np.zeros(3)}), r"asks for 'numpy\.\S*_reconstruct'"),
        (pickle.dumps({1: np.datetime64(1, "s")}), "is neither a pickle nor JSON"),
        (b"\x80\x03" + STAND_IN + b"}(X\x08\x00\x00\x00__code__K\x01ub.", "does not map devices"),  # writes to it
        (b"\x80\x03" + STAND_IN + b"N}X\x08\x00\x00\x00__code__K\x01s\x86b.", "is neither a pickle nor JSON"),
        (b"\x80\x03cnumpy\ndtype\n}X\x08\x00\x00\x00__init__K\x01sb.", "is neither a pickle nor JSON"),
        (b"\x80\x03" + STAND_IN + b"K\x01K\x02\x86R.", "is neither a pickle nor JSON"),
        (pickle.dumps(CAPACITY)[:-10], "is neither a pickle nor JSON"),
        (b"", "is neither a pickle nor JSON"),
        (b"device,seconds\n", "is neither a pickle nor JSON"),
        (b"{1: 2}", "is not a JSON file"),
        (b"{}", "does not map devices"),
        (pickle.dumps([1, 2]), "does not map devices"),
        (pickle.dumps({7: [1, 2]}), "device 7: no computation and communication"),
        (pickle.dumps({7: {"computation": 1.0}}), "device 7: no computation and communication"),
        (pickle.dumps({7: {"computation": "1", "communication": 1}}), "device 7: computation='1' must be a number"),
        (pickle.dumps({7: {"computation": 1, "communication": 0}}), "device 7: communication=0 must be .*above 0"),
        (pickle.dumps({7: {"computation": math.nan, "communication": 1}}), "device 7: computation=nan"),
    ],
)
def test_what_is_no_file_of_capacities_is_refused(write: Write, tmp_path: Path, content: bytes, words: str) -> None:
    with pytest.raises(InputError, match=words):
        import_fedscale_capacity(write(content), tmp_path / "ours.csv")


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"active": [1], "inactive": [2]}, "no active and inactive and finish_time"),
        ({"active": [1, 2], "inactive": [2], "finish_time": 9}, "not two lists of the same length"),
        ({"active": 1, "inactive": [2], "finish_time": 9}, "not two lists of the same length"),
        ({"active": [-1], "inactive": [2], "finish_time": 9}, "active=-1 must be a number, 0 or more"),
        ({"active": [1], "inactive": ["2"], "finish_time": 9}, "inactive='2' must be a number"),
        ({"active": [1], "inactive": [2], "finish_time": 0}, "finish_time=0 must be a number, above 0"),
        ({"active": [], "inactive": [], "finish_time": 9}, "no device that is ever on"),
    ],
)
def test_what_is_no_file_of_stretches_is_refused(
    write: Write, tmp_path: Path, entry: dict[str, Any], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        import_fedscale_availability(write(pickle.dumps({3: entry})), tmp_path / "ours.csv")


def test_a_place_that_cannot_be_written_to_is_named(write: Write, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere/ours.csv' cannot be written"):
        import_fedscale_capacity(write(CONTENTS[0]), tmp_path / "nowhere" / "ours.csv")


def nested_keys(depth: int) -> bytes:
    """A dict whose key is a tuple of twice the same tuple, and so on: its hash takes 2^depth steps."""
    twice = b"".join(b"q%ch%ch%c\x86" % (place, place, place) for place in range(depth))
    return b"\x80\x03}" + b"K\x01\x85" + twice + b"K\x01s."


def nested_lists(depth: int) -> bytes:
    """Twice the same list, and so on, where a number should be: it prints as 2^depth numbers."""
    value: list[Any] = [1]
    for _ in range(depth):
        value = [value, value]
    return pickle.dumps({1: {"computation": value, "communication": 1}})


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\x80\x03Nr\xff\xff\xff\x07.", "does not map devices"),  # a memo of 2 GB
        (b"\x80\x05\x96\x00\x00\x00\x80\x00\x00\x00\x00.", "is neither a pickle nor JSON"),  # a bytearray of 2 GB
        (b"\x80\x04\x8e\x00\x00\x00\x80\x00\x00\x00\x00.", "is neither a pickle nor JSON"),
        (b"\x80\x03T\xff\xff\xff\x7f.", "is neither a pickle nor JSON"),
        (nested_keys(60), "keys are neither text nor numbers"),
        (nested_lists(60), r"computation=\[.* must be a number"),
        (pickle.dumps({1: {"computation": 10**400, "communication": 1}}, 0), "must be a number"),
        (pickle.dumps({1: {"computation": 10**600, "communication": 1}}), "a number of too many digits"),
        (pickle.dumps({1: {"computation": 10**5000, "communication": 1}}), "it holds more than plain data"),
        (b'{"1": {"computation": 1' + b"0" * 400 + b', "communication": 1}}', "must be a number"),
        (b'{"1": {"computation": 1' + b"0" * 5000 + b', "communication": 1}}', "is not a JSON file"),
        (b'{"1": ' * 100_000, "is not a JSON file"),
        (pickle.dumps({10**600: {"computation": 1, "communication": 1}}), "a number of too many digits"),
        (pickle.dumps({"\ud800": {"computation": 1, "communication": 1}}, 0), "letters that can be printed"),
        (pickle.dumps({None: {"computation": 1, "communication": 1}}), "keys are neither"),
    ],
)
def test_a_few_bytes_do_not_take_gigabytes_or_minutes(write: Write, tmp_path: Path, content: bytes, words: str) -> None:
    source = write(content)
    tracemalloc.start()
    began_at = time.perf_counter()
    with pytest.raises(InputError, match=words) as said:
        import_fedscale_capacity(source, tmp_path / "ours.csv")
    assert tracemalloc.get_traced_memory()[1] < 2**26
    tracemalloc.stop()
    assert time.perf_counter() - began_at < 10
    assert "\n" not in str(said.value)
    assert len(str(said.value)) < 1000


def test_a_recording_is_not_repeated_for_ever(write: Write, tmp_path: Path) -> None:
    entries = {
        1: {"active": [0], "inactive": [1e-9], "finish_time": 1e-9},
        2: {"active": [0], "inactive": [1], "finish_time": 1e300},
    }
    with pytest.raises(InputError, match="makes too many stretches: 10,000 times"):
        import_fedscale_availability(write(pickle.dumps(entries)), tmp_path / "ours.csv")


@pytest.mark.parametrize(
    "name", ["=1+1", "+1", "-cmd|'/C calc'!A0", "@SUM(A1)", "\t=1", "\r=1", "a\nb", " ", "", "＝1", "\x1b[2J"]
)
def test_a_name_that_a_spreadsheet_would_compute_is_refused(write: Write, tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="has a device with the name"):
        import_fedscale_capacity(write(pickle.dumps({name: CAPACITY[1]})), tmp_path / "ours.csv")
    assert not (tmp_path / "ours.csv").exists()


def test_whole_numbers_and_plain_names_are_kept(write: Write, tmp_path: Path) -> None:
    import_fedscale_capacity(write(pickle.dumps({-1: CAPACITY[1], "a-b=c": CAPACITY[1]})), tmp_path / "ours.csv")
    assert [line.split(",")[0] for line in (tmp_path / "ours.csv").read_text().splitlines()] == [
        "device",
        "-1",
        "a-b=c",
    ]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('[{"device": 1, "seconds": 1' + "0" * 400 + "}]", "entry 1: seconds is a number of more than 308 digits"),
        ('[{"device": 1, "seconds": 1' + "0" * 5000 + "}]", "is not a JSON file"),
        ('[{"device": 1, "seconds": ' + "[" * 900 + "]" * 900 + "}]", r"seconds=\[\[.* is not a number"),
        ('[{"device": 1, "seconds": ' + "[" * 100_000 + "]" * 100_000 + "}]", "is not a JSON file"),
        ('[{"device": ' + "[" * 900 + "]" * 900 + ', "seconds": 1}]', r"device=\[\[.* is no name"),
    ],
)
def test_nonsense_in_json_is_one_line(tmp_path: Path, content: str, words: str) -> None:
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(InputError, match=words) as said:
        read_seconds(tmp_path / "a.json")
    assert len(str(said.value)) < 1000


@settings(derandomize=True, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=100) | st.builds(changed, st.sampled_from(CONTENTS), st.integers(0), st.integers(1, 255)))
def test_whatever_is_imported_is_read_or_refused_in_one_line(write: Write, tmp_path: Path, content: bytes) -> None:
    for read in (import_fedscale_capacity, import_fedscale_availability):
        with contextlib.suppress(InputError):
            read(write(content), tmp_path / "ours.csv")
            kind_of(tmp_path / "ours.csv")


@settings(derandomize=True, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.binary(max_size=100) | st.recursive(JSON, nested).map(json.dumps).map(str.encode),
    st.sampled_from(["a.csv", "a.json"]),
)
def test_whatever_is_a_trace_is_read_or_refused_in_one_line(tmp_path: Path, content: bytes, name: str) -> None:
    (tmp_path / name).write_bytes(content)
    for read in (read_seconds, read_capacities, read_intervals):
        with contextlib.suppress(InputError):
            read(tmp_path / name)
