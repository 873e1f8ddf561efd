"""The device's side: a ClientApp that enrols, trains and scores on what `load` gives it, and always answers."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from hybridfl.engines import check_task, device_named, trainer_for
from hybridfl.errors import InputError
from hybridfl.evaluation import ModuleForward
from hybridfl.flower.answers import Answers
from hybridfl.flower.wire import Enrolment, enrolment_content, read_job, update_content
from hybridfl.protocol import Job, LocalScores, Update, Vector
from hybridfl.task import Task
from hybridfl.wording import counted

log = logging.getLogger("flwr.hybridfl")

Load = Callable[[Context], Task]
"""What a device learns from: a task whose `train` and `test` have one device, itself."""

FAILED = 2
"""Flower's code for a ClientApp that raised an exception."""


def client_app(load: Load) -> ClientApp:
    """A ClientApp that does hybridfl's jobs on the task that `load` makes of the node's context.

    Flower starts a process for every message, so `load` should be quick: keep what it prepares on the device's disk.
    With `device` in its node-config ("cuda", or "auto": a GPU if there is one) it trains there, not on the CPU.
    With `at-least-seconds` in its node-config a device takes so long for every job: a straggler, to try things out.
    One with `answers` there keeps its last answer in that folder: a server that was restarted and asks again
    gets it at once.
    """
    app = ClientApp()

    @app.query("enrol")
    @answering
    def enrol(message: Message, context: Context) -> RecordDict:
        _place_of(context)  # a mistake there is better known now than with the first job
        num_samples = int(_one_device(load(context)).train.num_samples[0])
        return enrolment_content(Enrolment(num_samples, name_of(context)))

    @app.train()
    @answering
    def train(message: Message, context: Context) -> RecordDict:
        started_at = time.monotonic()
        job, terms = read_job(message.content)
        kept = Answers(Path(str(context.node_config["answers"]))) if "answers" in context.node_config else None
        if kept is not None and (found := kept.find(job, terms)) is not None:
            return update_content(found)
        task = _one_device(load(context))
        update = trained(task, job, terms.seed, _place_of(context))
        if terms.with_scores:
            update = replace(update, scores=scores_of(task, job.weights))
        left = float(context.node_config.get("at-least-seconds", 0)) - (time.monotonic() - started_at)
        time.sleep(max(0.0, left))
        if kept is not None:
            kept.keep(update, terms)
        return update_content(update)

    return app


def trained(task: Task, job: Job, seed: int, place: torch.device) -> Update:
    """A job done on the samples of the task's one device, by the CPU or a GPU."""
    check_task(task)
    trainer = trainer_for(replace(task, train=task.train.at_place(job.device)), seed, place)
    drift = None if job.drift is None else job.drift.to(place)
    (update,) = trainer([replace(job, weights=job.weights.to(place), drift=drift)])
    return replace(update, job=job, weights=update.weights.cpu(), train_loss=float(update.train_loss))


def answering(handler: Callable[[Message, Context], RecordDict]) -> Callable[[Message, Context], Message]:
    """Whatever goes wrong, the server gets an answer: a SuperNode whose app gives none would never work again."""

    @functools.wraps(handler)
    def answer(message: Message, context: Context) -> Message:
        try:
            return Message(handler(message, context), reply_to=message)
        except (Exception, SystemExit) as error:
            log.exception("A %s message could not be answered as it should", message.metadata.message_type)
            return Message(Error(FAILED, f"{type(error).__name__}: {error}"[:500]), reply_to=message)

    return answer


def name_of(context: Context) -> str:
    """What a device is known by when it comes back: `name` in its node-config, or its part of the data, else nothing."""
    if "name" in context.node_config:
        return str(context.node_config["name"])
    return f"partition-{context.node_config['partition-id']}" if "partition-id" in context.node_config else ""


def scores_of(task: Task, weights: Vector) -> LocalScores | None:
    """On the samples the device holds out; None if there are none."""
    if not len(task.test.index):
        return None
    losses, right = ModuleForward(task.first_model, task.loss)(weights, task.test, task.test.index)
    return LocalScores(float(losses.double().mean()), float(right.double().nanmean()), len(losses))


def _place_of(context: Context) -> torch.device:
    """Where the device trains."""
    return device_named(str(context.node_config.get("device", "cpu")))


def _one_device(task: Task) -> Task:
    if not isinstance(task, Task) or len(task.train) != 1:
        held = counted(len(task.train), "device") if isinstance(task, Task) else f"a {type(task).__name__}"
        raise InputError(f"`load` gave {held}: give a Task with this device's samples only.")
    return task
