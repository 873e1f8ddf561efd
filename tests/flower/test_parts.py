"""The small parts: credentials, the proxy's configuration, kept answers, rosters, the journal, an app's configuration."""

from __future__ import annotations

import math
import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, MetricRecord, RecordDict
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from typer.testing import CliRunner

from hybridfl.algorithms.fedavg import FedAvg
from hybridfl.algorithms.guard import Guard
from hybridfl.algorithms.hfl import HFL
from hybridfl.cli_deploy import app
from hybridfl.errors import InputError
from hybridfl.flower.answers import Answers
from hybridfl.flower.configured import deployment_of, part_of, partition_of
from hybridfl.flower.credentials import make_certificates, make_keys
from hybridfl.flower.deployment import Deployment
from hybridfl.flower.journal import Arrived, Entry, Gone, Journal
from hybridfl.flower.proxy import nginx_config
from hybridfl.flower.roster import Roster
from hybridfl.flower.wire import (
    Enrolment,
    Terms,
    Unreadable,
    job_content,
    read_enrolment,
    read_job,
    read_update,
    update_content,
)
from hybridfl.protocol import Job, LocalScores, Update, Work
from hybridfl.tasks import Synthetic

MODEL = nn.Linear(2, 2)


class TestCredentials:
    def test_the_servers_certificate_is_the_authoritys_and_good_for_its_hosts(self, tmp_path: Path) -> None:
        authority, server = (
            x509.load_pem_x509_certificate(path.read_bytes())
            for path in make_certificates(tmp_path, ["fl.example.org", "10.0.0.7"])[:2]
        )
        server.verify_directly_issued_by(authority)
        names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert names.get_values_for_type(x509.DNSName) == ["fl.example.org"]
        assert [str(each) for each in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.7"]

    @pytest.mark.parametrize("name", ["ca.crt", "server.crt", "server.key", "device-0", "device-0.pub"])
    @pytest.mark.parametrize("when", ["before", "meanwhile"])
    def test_nothing_is_written_through_a_link(
        self, tmp_path: Path, name: str, when: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Not even through one to nowhere, or one that is made while the keys are."""
        (tmp_path / "keys").mkdir()
        (tmp_path / "keys" / name).symlink_to(tmp_path / "elsewhere")
        if when == "meanwhile":
            monkeypatch.setattr("hybridfl.flower.credentials._check_new", lambda paths: None)
        is_of_device = name.startswith("device")
        make, names = (make_keys, ["device-0"]) if is_of_device else (make_certificates, ["localhost"])
        with pytest.raises(InputError, match=f"{name}' is there already"):
            make(tmp_path / "keys", names)
        assert not (tmp_path / "elsewhere").exists()

    def test_a_key_is_its_owners_from_the_first_moment(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        made: dict[str, int] = {}
        opening = os.open

        def watched(path: Any, flags: int, mode: int = 0o777, **more: Any) -> int:
            if flags & os.O_CREAT:
                made[Path(path).name] = mode
                assert flags & os.O_EXCL
            return opening(path, flags, mode, **more)

        monkeypatch.setattr(os, "open", watched)
        make_certificates(tmp_path, ["localhost"])
        make_keys(tmp_path, ["device-0"])
        assert made == {
            "ca.crt": 0o644,
            "server.crt": 0o644,
            "server.key": 0o600,
            "device-0": 0o600,
            "device-0.pub": 0o644,
        }

    def test_secrets_are_for_their_owner_only(self, tmp_path: Path) -> None:
        make_certificates(tmp_path, ["localhost"])
        make_keys(tmp_path, ["device-0"])
        for name in ("server.key", "device-0"):
            assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600

    def test_a_key_pair_is_a_pair(self, tmp_path: Path) -> None:
        (path,) = make_keys(tmp_path, ["device-0"])
        private = load_ssh_private_key(path.read_bytes(), None)
        public = load_ssh_public_key((tmp_path / "device-0.pub").read_bytes())
        assert private.public_key() == public

    def test_nothing_is_overwritten(self, tmp_path: Path) -> None:
        make_keys(tmp_path, ["device-0"])
        with pytest.raises(InputError, match="device-0' is there already"):
            make_keys(tmp_path, ["device-0"])

    @pytest.mark.parametrize(
        "host", ["", "https://fl.example.org", "fl.example.org:8443", "10.0.0.7/24", "fl example", "-x", 65 * "a"]
    )
    def test_a_host_is_a_name_or_an_address(self, host: str, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="is no name or address of a server: give one like"):
            make_certificates(tmp_path, ["localhost", host])
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("name", ["../device-0", "sub/device-0", ""])
    def test_a_key_stays_in_its_folder(self, name: str, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="is no name for a key"):
            make_keys(tmp_path / "keys", [name])

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"listen": "99999"}, "listen '99999' is not of the form that nginx wants: give 8443"),
            ({"listen": "8443; include /etc/passwd"}, "listen"),
            ({"superlink": "nowhere"}, "superlink 'nowhere' .* give 127.0.0.1:8000"),
            ({"largest": "5quux"}, "largest '5quux' .* give 64m"),
            ({"state": Path("a$b")}, "folder .* a path without quotes"),
        ],
    )
    def test_nothing_else_gets_into_a_proxys_configuration(
        self, changes: dict[str, Any], message: str, tmp_path: Path
    ) -> None:
        make_certificates(tmp_path, ["localhost"])
        with pytest.raises(InputError, match=message):
            nginx_config(**({"certificates": tmp_path, "state": tmp_path} | changes))

    def test_a_proxys_certificate_is_one(self, tmp_path: Path) -> None:
        (tmp_path / "server.crt").write_text("garbage")
        with pytest.raises(InputError, match="is no server's certificate"):
            nginx_config(tmp_path, tmp_path)

    @pytest.mark.parametrize("command", [["certificates"], ["keys"]])
    def test_a_folder_that_is_none_is_said_in_one_line(self, command: list[str], tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        result = CliRunner().invoke(app, [*command, str(tmp_path / "file" / "folder")])
        assert isinstance(result.exception, InputError)
        assert "Not a directory): choose another folder" in str(result.exception)

    def test_a_proxy_needs_a_name_to_compare(self, tmp_path: Path) -> None:
        make_certificates(tmp_path / "named", ["10.0.0.7", "fl.example.org"])
        assert "proxy_ssl_name fl.example.org;" in nginx_config(tmp_path / "named", tmp_path)
        make_certificates(tmp_path / "nameless", ["10.0.0.7"])
        with pytest.raises(InputError, match="good for addresses only"):
            nginx_config(tmp_path / "nameless", tmp_path)


def a_job(**changes: Any) -> Job:
    job = Job(3, 7, torch.tensor([1.0, -2.0, 0.5]), Work(2, 16, 0.1, clip=math.inf), 4.5, 1, torch.ones(3))
    return replace(job, **changes)


def test_a_job_is_the_same_on_the_device() -> None:
    for job in (a_job(), a_job(drift=None)):
        again, terms = read_job(job_content(job, Terms(5, True, "this")))
        assert terms == Terms(5, True, "this")
        assert torch.equal(again.weights, job.weights)
        assert (again.drift is None) == (job.drift is None)
        names = ("device", "version", "work", "sent_at", "repeat")
        assert [getattr(again, name) for name in names] == [getattr(job, name) for name in names]


@pytest.mark.parametrize("loss", [10**400, -(10**400), 1e308, math.inf, math.nan])
def test_a_loss_beyond_all_bounds_is_none(loss: float) -> None:
    content = update_content(Update(a_job(), torch.zeros(3), 1, 0.5))
    content.metric_records["metrics"]["train_loss"] = loss
    assert math.isnan(read_update(a_job(), content).train_loss)


NUMBERS = st.integers() | st.floats() | st.just(10**400)
HEADER = "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }".ljust(117) + "\n"
ARRAYS = st.binary(max_size=60) | st.binary(max_size=30).map(
    lambda end: b"\x93NUMPY\x01\x00\x76\x00" + HEADER.encode() + end
)


@settings(derandomize=True, deadline=None)
@given(
    ARRAYS,
    st.dictionaries(
        st.sampled_from(["num_steps", "train_loss", "test_loss", "test_accuracy", "test_num_samples"]), NUMBERS
    ),
)
def test_any_answer_is_read_or_refused_in_one_line(data: bytes, numbers: dict[str, Any]) -> None:
    content = RecordDict(
        {
            "arrays": ArrayRecord({"weights": Array("float32", (3,), "numpy.ndarray", data)}),
            "metrics": MetricRecord(numbers),
        }
    )
    try:
        update = read_update(a_job(), content)
    except Unreadable as error:
        said = str(error)
    else:
        assert update.weights.shape == (3,)
        said = ""
    assert said.isprintable()
    assert len(said) < 500


@settings(derandomize=True, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["num_samples", "name"]),
        NUMBERS | st.text(max_size=300) | st.binary(max_size=5) | st.booleans(),
    )
)
def test_any_enrolment_is_read_or_refused_in_one_line(said: dict[str, Any]) -> None:
    try:
        enrolment = read_enrolment(RecordDict({"enrolment": ConfigRecord(said)}))
    except Unreadable as error:
        assert str(error).isprintable()  # noqa: PT017 - either is well
    else:
        assert enrolment.name.isprintable()
        assert 1 <= enrolment.num_samples <= 10**12


class TestAnswers:
    def test_an_answer_with_a_changed_byte_is_the_same_or_none(self, tmp_path: Path) -> None:
        answers, update = Answers(tmp_path), Update(a_job(), torch.tensor([1.0, 2.0, 3.0]), 6, 0.25)
        answers.keep(update, Terms())
        (path,) = tmp_path.iterdir()
        whole = path.read_bytes()
        for place in range(len(whole)):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
            found = answers.find(a_job(), Terms())
            if found is not None:
                assert torch.equal(found.weights, update.weights)
                assert (found.num_steps, found.train_loss) == (6, 0.25)

    def test_the_last_answer_to_the_very_job_is_found(self, tmp_path: Path) -> None:
        answers, update = (
            Answers(tmp_path),
            Update(a_job(), torch.tensor([3.0, 4.0, 5.0]), 6, 0.25, LocalScores(0.5, 0.75, 8)),
        )
        assert answers.find(a_job(), Terms()) is None
        answers.keep(update, Terms())
        found = answers.find(a_job(sent_at=99.0), Terms())
        assert found is not None
        assert torch.equal(found.weights, update.weights)
        assert (found.num_steps, found.train_loss, found.scores) == (6, 0.25, LocalScores(0.5, 0.75, 8))

    @pytest.mark.parametrize(
        "other",
        [{"version": 8}, {"repeat": 2}, {"weights": torch.zeros(3)}, {"drift": None}, {"work": Work(1, 16, 0.1)}],
    )
    def test_not_to_another_job(self, other: dict[str, Any], tmp_path: Path) -> None:
        Answers(tmp_path).keep(Update(a_job(), torch.zeros(3), 6, 0.25), Terms())
        assert Answers(tmp_path).find(a_job(**other), Terms()) is None
        assert Answers(tmp_path).find(a_job(), Terms(seed=1)) is None
        assert Answers(tmp_path).find(a_job(), Terms(with_scores=True)) is None
        assert Answers(tmp_path).find(a_job(), Terms(run="another")) is None

    def test_one_is_kept_a_device_and_a_damaged_one_is_none(self, tmp_path: Path) -> None:
        for version in range(3):
            Answers(tmp_path).keep(Update(a_job(version=version), torch.zeros(3), 6, 0.25), Terms())
        (kept,) = tmp_path.iterdir()
        kept.write_bytes(b"cut off")
        assert Answers(tmp_path).find(a_job(version=2), Terms()) is None


class TestRoster:
    def test_who_comes_back_keeps_its_place_and_its_samples(self) -> None:
        roster = Roster().with_enrolments([(11, Enrolment(5, "b")), (12, Enrolment(6, "a"))])
        assert (roster.names, roster.num_samples) == (("a", "b"), (6, 5))
        again = roster.with_enrolments([(13, Enrolment(10**9, "a"))])
        assert (again.names, again.num_samples) == (("a", "b"), (6, 5))
        assert dict(again.nodes) == {13: 0, 11: 1}

    def test_it_survives_json(self) -> None:
        import json
        from dataclasses import asdict

        roster = Roster().with_enrolments([(2**63 + 5, Enrolment(5, "ü")), (12, Enrolment(6))])
        assert Roster.read(json.loads(json.dumps(asdict(roster)))) == roster


def entry(now: float) -> Entry:
    arrived = Arrived(1, torch.tensor([math.nan, 2.0]), 3, 0.5, LocalScores(0.1, 0.2, 3))
    return Entry(
        now, (arrived,), (Gone(0, "gone", True),), frozenset({2}), Roster(("a",), (1,), ((7, 0),)), frozenset({1})
    )


class TestJournal:
    def test_what_was_written_is_read_again(self, tmp_path: Path) -> None:
        journal = Journal(tmp_path / "journal")
        journal.write(entry(1.5))
        journal.write(replace(entry(2.5), arrived=(), gone=()))
        first, second = Journal(tmp_path / "journal").read()
        assert (first.now, first.gone, first.joined, first.roster, first.online) == (
            1.5,
            (Gone(0, "gone", True),),
            frozenset({2}),
            Roster(("a",), (1,), ((7, 0),)),
            frozenset({1}),
        )
        assert torch.isnan(first.arrived[0].weights[0])
        assert first.arrived[0].scores == LocalScores(0.1, 0.2, 3)
        assert second.arrived == ()

    def test_it_goes_on_where_a_checkpoint_was_and_forgets_what_is_old(self, tmp_path: Path) -> None:
        journal = Journal(tmp_path)
        for number in range(5):
            journal.write(entry(float(number)))
        assert [each.now for each in Journal(tmp_path, 3).read()] == [3.0, 4.0]
        journal.forget(3)
        assert [each.now for each in Journal(tmp_path, 3).read()] == [3.0, 4.0]
        assert Journal(tmp_path).read() == []

    def test_a_disk_that_takes_nothing_stops_the_run_with_what_to_do(self, tmp_path: Path) -> None:
        (tmp_path / "journal").write_text("a file where the folder should be")
        with pytest.raises(
            InputError, match=r"Cannot write down what has arrived.*File exists.*Make room, then run the same"
        ):
            Journal(tmp_path / "journal").write(entry(1.0))

    def test_entries_after_a_gap_or_in_anothers_place_do_not_count(self, tmp_path: Path) -> None:
        journal = Journal(tmp_path)
        for number in range(4):
            journal.write(entry(float(number)))
        paths = sorted(tmp_path.iterdir())
        paths[1].unlink()
        assert [each.now for each in Journal(tmp_path).read()] == [0.0]
        assert sorted(tmp_path.iterdir()) == paths[:1], "they would pass for what is written next"
        paths[0].rename(paths[1])
        with pytest.raises(InputError, match="it is number 1"):
            Journal(tmp_path, 1).read()

    def test_a_damaged_entry_is_an_error(self, tmp_path: Path) -> None:
        Journal(tmp_path).write(entry(1.0))
        (path,) = tmp_path.iterdir()
        path.write_bytes(path.read_bytes()[:20])
        with pytest.raises(InputError, match=r"is not what was written .*: put it back, or remove it and all after it"):
            Journal(tmp_path).read()

    def test_a_flipped_bit_of_an_entry_is_never_another_model(self, tmp_path: Path) -> None:
        """Or any other number: what is read is what was written, or there is an error of one line."""
        Journal(tmp_path).write(entry(1.0))
        (path,) = tmp_path.iterdir()
        whole, first = path.read_bytes(), said_by(Journal(tmp_path).read())
        refused = 0
        for place in range(len(whole)):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
            try:
                assert said_by(Journal(tmp_path).read()) == first, place
            except InputError:
                refused += 1
        assert refused > 0.9 * len(whole)

    def test_entries_of_earlier_versions_have_no_checksum_and_are_read(self, tmp_path: Path) -> None:
        Journal(tmp_path).write(entry(1.0))
        (path,) = tmp_path.iterdir()
        first = said_by(Journal(tmp_path).read())
        with safetensors.safe_open(path, "pt") as file:
            said, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        del said["checksum"]
        safetensors.torch.save_file(tensors, path, said)
        assert said_by(Journal(tmp_path).read()) == first

    def test_an_entry_that_was_being_written_counts_for_nothing(self, tmp_path: Path) -> None:
        Journal(tmp_path).write(entry(1.0))
        (path,) = tmp_path.iterdir()
        (tmp_path / "00000002.safetensors.new").write_bytes(path.read_bytes()[:50])
        assert [each.now for each in Journal(tmp_path).read()] == [1.0]

    @given(content=st.binary(max_size=200), tree=st.text(max_size=50))
    @settings(
        derandomize=True, max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
    )
    def test_nonsense_is_one_line(self, tmp_path: Path, content: bytes, tree: str) -> None:
        path = tmp_path / "00000001.safetensors"
        tensors = {"0": torch.zeros(1)}
        for each in (content, safetensors.torch.save(tensors, {"number": "1", "entry": tree})):
            path.write_bytes(each)
            with pytest.raises(InputError) as said:
                Journal(tmp_path).read()
            assert "\n" not in str(said.value)


def said_by(entries: list[Entry]) -> str:
    """All that entries hold, weights too."""
    return repr(
        [replace(each, arrived=()) for each in entries]
        + [
            (a.device, a.weights.numpy().tobytes(), a.num_steps, a.train_loss, a.scores)
            for e in entries
            for a in e.arrived
        ]
    )


def context(**config: str | int | float | bool) -> Context:
    return Context(1, 1, {}, RecordDict(), {name.replace("_", "-"): value for name, value in config.items()})


class TestConfiguration:
    def test_an_app_says_what_to_run(self, tmp_path: Path) -> None:
        made = deployment_of(
            context(algorithm="HFL()", rounds=7, seconds=0.0, round_seconds=12, devices=3, seed=4, out=str(tmp_path)),
            MODEL,
        )
        assert made.algorithm == HFL(round_seconds=12.0)
        assert (made.rounds, made.seconds, made.devices, made.seed) == (7, None, 3, 4)
        assert made.guard == Guard()

    def test_other_algorithms_and_no_guard(self) -> None:
        made = deployment_of(context(algorithm="fedavg", guard="off", seconds=60), MODEL)
        assert isinstance(made.algorithm, FedAvg)
        assert made.guard is None

    @pytest.mark.parametrize(
        ("config", "message"),
        [
            ({"rounds": 0, "seconds": 0.0}, "has no end"),
            ({"rounds": "ten"}, "rounds='ten' should be of type int"),
            ({"rounds": True}, "rounds=True should be of type int"),
            ({"rounds": 3, "out": ""}, "out='' is no folder"),
            ({"rounds": 3, "algoritm": "hfl"}, "Unknown setting 'algoritm'. Did you mean 'algorithm'"),
            ({"rounds": 3, "algorithm": "hlf"}, "hlf"),
            ({"rounds": 3, "algorithm": "fedavg", "round_seconds": 3.0}, "round-seconds=3 is for HFL"),
            ({"rounds": 3, "devices": 0}, "devices=0 must be a whole number, 1 or more"),
            ({"rounds": 3, "seed": -1}, "seed=-1 is no seed: give a whole number from 0"),
            ({"rounds": 3, "seed": 2**63}, "is no seed"),
        ],
    )
    def test_mistakes_are_named(self, config: dict[str, Any], message: str) -> None:
        with pytest.raises(InputError, match=message):
            deployment_of(context(**config), MODEL)

    def test_an_apps_own_settings_are_left_alone(self) -> None:
        assert deployment_of(context(rounds=3, my_folder="x"), MODEL).rounds == 3

    def test_a_device_has_to_know_its_part(self) -> None:
        def of(config: dict[str, int]) -> tuple[int, int]:
            return partition_of(Context(1, 1, {**config}, RecordDict(), {}))

        assert of({"partition-id": 1, "num-partitions": 3}) == (1, 3)
        with pytest.raises(InputError, match="has no num-partitions: start the SuperNode with, say, --node-config"):
            of({"partition-id": 1})

    def test_a_part_of_a_task_is_what_that_device_has(self) -> None:
        task = Synthetic(1, 1).build(5, seed=0)
        part = part_of(task, 3)
        assert len(part.train) == len(part.test) == 1
        assert part.train.num_samples[0] == task.train.num_samples[3]
        assert part.train.rows(0).tolist() == task.train.rows(3).tolist()
        with pytest.raises(InputError, match="partition-id=5, but the task has 5 partitions"):
            part_of(task, 5)


def test_a_deployment_needs_an_end_and_a_model_that_can_be_trained(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no end"):
        Deployment(MODEL, HFL(), tmp_path)
    with pytest.raises(InputError):
        Deployment(nn.ReLU(), HFL(), tmp_path, rounds=1)
