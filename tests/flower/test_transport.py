"""What only a real fleet does: devices join, leave and come back."""

from __future__ import annotations

import logging

import pytest
from flwr.app import Context, Error, Message

from flower_setting import PATIENCE, Setting, device, job
from hybridfl.errors import InputError


class TestEnrolment:
    def test_devices_that_come_at_once_go_by_their_names(self) -> None:
        setting = Setting(*(device(f"partition-{number}", number + 1) for number in (10, 9, 2))).enrolled()
        assert setting.transport.roster.names == ("partition-2", "partition-9", "partition-10")
        assert setting.transport.fleet.num_samples.tolist() == [3, 10, 11]

    def test_nameless_devices_go_by_their_nodes(self) -> None:
        setting = Setting(device(), device()).enrolled()
        assert set(setting.transport.roster.names) == {f"node-{node.node_id}" for node in setting.nodes}

    def test_too_few_devices_in_time_are_an_error(self) -> None:
        setting = Setting(device())
        with pytest.raises(InputError, match="1 of 3 devices wanted has enrolled within 20 s: start more SuperNodes"):
            setting.transport.enrol(3, seconds=20)

    def test_two_with_one_name_are_told_apart_from_too_few(self, caplog: pytest.LogCaptureFixture) -> None:
        setting = Setting(device("partition-0"), device("partition-0"))
        with (
            caplog.at_level(logging.WARNING),
            pytest.raises(
                InputError, match=r"1 of 2 devices wanted .* 2 nodes say they are 'partition-0'; give each a name"
            ),
        ):
            setting.transport.enrol(2, seconds=20)
        assert caplog.text.count("all say they are 'partition-0': give each a name, or a partition-id, of its own") == 1

    def test_who_takes_long_to_say_who_it_is_is_asked_once_and_joins(self) -> None:
        setting = Setting(device("a"), device("b"))
        setting.nodes[1].enrol_seconds = 400.0
        setting.transport.enrol(1)
        assert setting.transport.now == pytest.approx(PATIENCE.settle, abs=1), "the run begins without it"
        setting.send(wake_in=1000)
        assert setting.transport.receive().joined == {1}
        assert setting.transport.now == pytest.approx(400, abs=1)
        assert setting.nodes[1].answered == 1

    @pytest.mark.parametrize("name", ["node-123", "a\x1b[31m", "a\nb"])
    def test_a_name_that_is_none_does_not_enrol(self, name: str, caplog: pytest.LogCaptureFixture) -> None:
        setting = Setting(device("a"), device(name))
        with caplog.at_level(logging.WARNING):
            setting.transport.enrol(1)
        assert setting.transport.roster.names == ("a",)
        assert "give it one that can be printed and does not begin with 'node-'" in caplog.text
        assert "\x1b" not in caplog.text

    def test_who_keeps_silent_is_not_waited_for_for_ever(self) -> None:
        setting = Setting(device("a"), device("b"))
        setting.link.add(device("c")).is_on = False
        setting.transport.enrol(2, seconds=20)
        assert setting.transport.roster.names == ("a", "b")

    def test_a_device_that_was_repaired_and_started_again_is_asked_again(self) -> None:
        is_broken, good = [True], device("b")

        def repaired(message: Message, context: Context) -> Message:
            return Message(Error(2, "no data"), reply_to=message) if is_broken else good(message, context)

        setting = Setting(device("a"), repaired)
        setting.transport.enrol(1)
        is_broken.clear()
        setting.link.kill(setting.nodes[1])
        setting.send(wake_in=5)
        setting.transport.receive()
        setting.link.turn_on(setting.nodes[1])
        setting.send(wake_in=60)
        assert setting.transport.receive().joined == {1}
        assert setting.transport.roster.names == ("a", "b")

    def test_whose_name_another_took_gets_its_place_back_when_that_one_is_gone(self) -> None:
        setting = Setting(device("a"), device("b")).enrolled()
        setting.link.cut(setting.nodes[0])
        other = setting.link.add(device("a"))
        setting.send(wake_in=20)
        setting.transport.receive()
        assert setting.transport.roster.node_of(0) == other.node_id
        setting.link.kill(other)
        setting.link.turn_on(setting.nodes[0])
        setting.send(wake_in=20)
        setting.transport.receive()
        assert setting.transport.roster.node_of(0) == setting.nodes[0].node_id

    @pytest.mark.parametrize("samples", [0, -3, 2**63])
    def test_a_device_without_samples_does_not_enrol(self, samples: int, caplog: pytest.LogCaptureFixture) -> None:
        setting = Setting(device("a"), device("b", samples))
        with caplog.at_level(logging.WARNING):
            setting.transport.enrol(1)
        assert setting.transport.roster.names == ("a",)
        assert "does not enrol" in caplog.text

    def test_a_device_that_fails_at_it_does_not_enrol(self) -> None:
        def broken(message: Message, context: Context) -> Message:
            return Message(Error(2, "no data"), reply_to=message)

        setting = Setting(device("a"), broken)
        setting.transport.enrol(1)
        assert setting.transport.roster.names == ("a",)

    def test_who_joins_later_is_new_in_the_inbox_and_free(self) -> None:
        setting = Setting(device("a", 3)).enrolled()
        setting.link.add(device("b", 4))
        setting.send(job(0))
        inbox = setting.transport.receive()
        assert inbox.joined == inbox.devices == frozenset({1})
        assert inbox.fleet is not None
        assert inbox.fleet.num_samples.tolist() == [3, 4]
        assert setting.transport.fleet is inbox.fleet
        assert setting.transport.receive().devices == {0}
        assert setting.ask(1).devices == {1}

    def test_a_device_that_comes_back_as_another_node_has_its_old_place(self) -> None:
        setting = Setting(device("a", 3), device("b", 4)).enrolled()
        setting.link.kill(setting.nodes[0])
        setting.link.add(device("a", 3))
        setting.send(wake_in=3)
        inbox = setting.transport.receive()
        assert inbox.joined == frozenset()
        assert setting.transport.roster.names == ("a", "b")
        assert len(setting.ask(0).updates) == 1

    def test_nobody_takes_the_place_of_one_who_is_there(self, caplog: pytest.LogCaptureFixture) -> None:
        setting = Setting(device("a", 3), device("b")).enrolled()
        thief = setting.link.add(device("a", 10**9))
        setting.send(wake_in=3)
        setting.transport.receive()
        assert thief.node_id not in dict(setting.transport.roster.nodes)
        assert setting.transport.fleet.num_samples.tolist() == [3, 5]
        assert "who is online: it has to wait" in caplog.text

    def test_whoever_has_the_name_of_a_dead_node_has_its_place_once_that_is_known(self) -> None:
        """Flower takes a minute to notice that a node has died; it may have been started again within a second."""
        setting = Setting(device("a", 3), device("b")).enrolled()
        setting.send(job(0), wake_in=0.5)
        setting.transport.receive()
        setting.nodes[0].at_work = None
        again = setting.link.add(device("a", 3))
        setting.send(wake_in=3)
        setting.transport.receive()
        setting.link.kill(setting.nodes[0])
        setting.send(wake_in=3)
        inbox = setting.transport.receive()
        assert [lost.reason for lost in inbox.lost] == ["its device came back as another node"]
        assert setting.transport.roster.node_of(0) == again.node_id
        assert len(setting.ask(0).updates) == 1


class TestAbsence:
    def test_who_is_offline_cannot_be_reached_and_a_job_for_it_is_lost_at_once(self) -> None:
        setting = Setting(device("a"), device("b")).enrolled()
        setting.link.kill(setting.nodes[1])
        setting.send(wake_in=0.5)
        setting.transport.receive()
        assert setting.transport.fleet.reachable([0, 1], now=0.0) == [0]
        (lost,) = setting.ask(1).lost
        assert (lost.reason, lost.is_fault) == ("its node is offline", False)

    def test_who_goes_and_comes_is_said(self, caplog: pytest.LogCaptureFixture) -> None:
        setting = Setting(device("a"), device("b")).enrolled()
        with caplog.at_level(logging.INFO):
            for change, said in (
                ((setting.link.cut, 0), "Device 0 (a) is offline."),
                ((setting.link.cut, 1), "None of the fleet's 2 devices is online: the run waits for them."),
                ((setting.link.turn_on, 0), "Device 0 (a) is online."),
            ):
                caplog.clear()
                act, number = change
                act(setting.nodes[number])
                setting.send(wake_in=1)
                setting.transport.receive()
                assert caplog.text.count(said) == 1

    def test_with_nothing_to_wait_for_whoever_comes_online_ends_the_wait(self) -> None:
        setting = Setting(device("a")).enrolled()
        setting.link.cut(setting.nodes[0])
        setting.send(wake_in=1)
        setting.transport.receive()
        setting.send()
        original = setting.link.sleep

        def sleep(seconds: float) -> None:
            original(seconds)
            if setting.link.now > 20 and not setting.nodes[0].is_on:
                setting.link.turn_on(setting.nodes[0])

        setting.transport._sleep = sleep
        inbox = setting.transport.receive()
        assert inbox.devices == frozenset()
        assert inbox.now == pytest.approx(20, abs=0.5)

    def test_what_a_node_finished_behind_a_cut_link_is_not_lost(self) -> None:
        """Flower would delete it, if it was asked for in the meantime."""
        setting = Setting(device("a")).enrolled()
        setting.send(job(0), wake_in=50)
        setting.link.sleep(0.5)
        setting.link.cut(setting.nodes[0])
        assert setting.transport.receive().devices == frozenset()
        setting.link.turn_on(setting.nodes[0])
        setting.send(wake_in=50)
        assert len(setting.transport.receive().updates) == 1

    def test_a_node_that_was_killed_and_came_back_has_lost_its_job(self) -> None:
        setting = Setting(device("a")).enrolled()
        setting.nodes[0].seconds = 10
        setting.send(job(0), wake_in=3)
        setting.transport.receive()
        setting.link.kill(setting.nodes[0])
        setting.link.turn_on(setting.nodes[0])
        setting.send()
        inbox = setting.transport.receive()
        assert [lost.reason for lost in inbox.lost] == ["its node was started anew"]
        assert inbox.now == pytest.approx(3 + PATIENCE.restart, abs=1)
        assert setting.nodes[0].answered == 2, "both times it was asked who it is"
        assert len(setting.ask(0).updates) == 1

    def test_a_node_whose_link_was_cut_and_that_is_still_at_work_is_waited_for(self) -> None:
        setting = Setting(device("a")).enrolled()
        setting.nodes[0].seconds = 200
        setting.send(job(0), wake_in=3)
        setting.transport.receive()
        setting.link.cut(setting.nodes[0])
        setting.send(wake_in=20)
        setting.transport.receive()
        setting.link.turn_on(setting.nodes[0])
        setting.send()
        inbox = setting.transport.receive()
        assert len(inbox.updates) == 1
        assert inbox.now == pytest.approx(200, abs=1)

    def test_a_node_that_stays_away_has_lost_its_job(self) -> None:
        setting = Setting(device("a"), device("b")).enrolled()
        setting.send(job(0), wake_in=0.5)
        setting.transport.receive()
        setting.link.kill(setting.nodes[0])
        setting.send()
        inbox = setting.transport.receive()
        assert [lost.reason for lost in inbox.lost] == ["its node has been offline for 100 s"]
        assert inbox.now == pytest.approx(PATIENCE.node, abs=3)

    def test_an_answer_that_comes_after_its_job_was_given_up_counts_for_nothing(self) -> None:
        """Behind a link that was cut for too long it has finished, and gets a new job: one answer counts, the new one's."""
        setting = Setting(device("a"), device("b")).enrolled()
        setting.nodes[0].seconds = 50.0
        setting.send(job(0, version=0), wake_in=0.5)
        setting.transport.receive()
        setting.link.cut(setting.nodes[0])
        setting.send()
        assert len(setting.transport.receive().lost) == 1
        setting.link.turn_on(setting.nodes[0])
        setting.send(wake_in=0.5)
        setting.transport.receive()
        setting.send(job(0, version=7))
        inbox = setting.transport.receive()
        assert [update.job.version for update in inbox.updates] == [7]
        assert setting.nodes[0].answered == 2 + 1, "both jobs, and who it is"
        setting.send(wake_in=200.0)
        assert not setting.transport.receive().devices

    def test_nobody_ever_has_two_messages(self) -> None:
        setting = Setting(*(device(f"partition-{n}") for n in range(3))).enrolled()
        for round_number in range(5):
            setting.send(*(job(n, round_number) for n in range(3)))
            assert len(setting.transport.receive().updates) == 3
        assert setting.link.most_out == 1
