"""The server's side: a ServerApp that runs an algorithm of hybridfl on Flower's Grid, and goes on where it was killed."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import Any

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from hybridfl.algorithms.guard import TOO_EARLY
from hybridfl.contract import begun
from hybridfl.errors import InputError, require_seed
from hybridfl.flower.deployment import Deployment
from hybridfl.flower.heard import Heard, Scoring
from hybridfl.flower.journal import Journaled
from hybridfl.flower.standing import Keeper, Standing
from hybridfl.flower.transport import FlowerTransport
from hybridfl.flower.wire import Terms
from hybridfl.folder_lock import locked
from hybridfl.protocol import Fleet, Update, Vector
from hybridfl.records import Record, changed_code, check_finished, check_folder, checked_config, fingerprint
from hybridfl.run import Moment, run
from hybridfl.run_folder import RunFolder
from hybridfl.tally import Draft, Tally, models_in
from hybridfl.vectors import flatten, state_of

log = logging.getLogger("flwr.hybridfl")


def server_app(build: Callable[[Context], Deployment]) -> ServerApp:
    """A ServerApp that serves the deployment that `build` makes of the run's context."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        try:
            _seed_first_weights(context)
            serve(build(context), grid)
        except InputError as error:
            log.error("%s", error)  # Flower's own report of it is a traceback
            raise error.with_traceback(None) from None

    return app


def _seed_first_weights(context: Context) -> None:
    """A model that is made at random is made by the run's seed."""
    seed = context.run_config.get("seed", 0)
    if isinstance(seed, int):  # what else it may be is refused when the deployment is made
        require_seed(seed)
        torch.manual_seed(seed)


def serve(
    deployment: Deployment,
    grid: Grid,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Run a deployment to its end, from its beginning or from where it was killed."""
    checked_config(deployment.config, "The deployment", "it could not be read back, so give another")
    check_folder(deployment.out, deployment.config)
    files = RunFolder(deployment.out, deployment.config)
    for name in changed_code(deployment.out, deployment.config):
        log.warning("'%s' is not what it was when the run in '%s' began.", name, deployment.out)
    with locked([deployment.out]):
        if files.is_finished:
            check_finished(deployment.out)
            files.check_model()
            log.info("The run in '%s' has ended already.", deployment.out)
            return
        keeper = Keeper(deployment, files, clock)
        terms = Terms(deployment.seed, with_scores=deployment.test is None, run=fingerprint(deployment.config))
        transport = FlowerTransport(grid, terms, keeper.roster, keeper.now, deployment.patience, clock, sleep)
        scoring = Scoring(deployment)

        def record(draft: Draft, heard: Heard) -> Record:
            snapshot = draft.scored(scoring(draft.weights, heard, transport.fleet))
            files.write(snapshot.record, snapshot.arrivals)
            log.info(
                "%s, %d of %d online", _said(snapshot.record), len(transport.online_devices), len(transport.roster)
            )
            return snapshot.record

        standing = keeper.standing(transport.fleet)
        if standing is None:
            standing = _beginning(deployment, transport)
            files.announce()
            keeper.clear()
            record(standing.tally.draft(0, 0.0, standing.state.weights), standing.heard)
            keeper.save(standing, transport.fleet, transport.roster, now=0.0)
        else:
            transport.wait_for(range(len(transport.roster)), deployment.patience.restart)
        weights, last = _play(deployment, transport, keeper, standing, record)
        files.finish(state_of(deployment.model, weights), keeper.wall_seconds)
        keeper.journal.forget_all()
        if last.has_diverged:
            raise InputError(
                f"The run has diverged at version {last.version}: its weights are not finite, and it has ended. Use a smaller "
                "learning rate, clip the gradients, or refuse bad updates by a guard, and run into another folder."
            )
        log.info("Done. `hybridfl report %s` draws what happened.", deployment.out)


def _beginning(deployment: Deployment, transport: FlowerTransport) -> Standing:
    transport.enrol(deployment.devices, deployment.enrol_seconds)
    log.info("%d devices have enrolled.", len(transport.roster))
    weights = flatten(deployment.model)
    state, outbox = begun(deployment.guarded, weights, transport.fleet)
    tally = Tally(bytes_a_model=weights.nbytes, sent=models_in(outbox.jobs))
    return Standing(state, outbox, (), tally, Heard(), due=0.0)


def _play(
    deployment: Deployment,
    transport: FlowerTransport,
    keeper: Keeper,
    standing: Standing,
    record: Callable[[Draft, Heard], Record],
) -> tuple[Vector, Record]:
    """Turn after turn to the end, or to the first version that is not finite: its weights, and the last record."""
    tally, heard, due, version = standing.tally, standing.heard, standing.due, standing.state.version
    journaled = Journaled(transport, keeper.journal, keeper.past, standing.jobs, deployment.seconds)
    every, barred = deployment.evaluate_every, standing.state.fleet.barred
    for moment in run(deployment.guarded, journaled, standing.state, standing.outbox):
        state, now = moment.state, moment.inbox.now
        tally.count(moment)
        heard.listen(_merged(moment))
        _say_what_failed(moment)
        _say_who_is_barred(moment.state.fleet.barred - barred)
        _check_who_is_left(moment.state.fleet)
        barred = moment.state.fleet.barred
        if deployment.seconds is None:
            tally.check_progress()
        is_last = _is_last(deployment, moment)
        if is_last or (state.version > version and now >= due):
            last = record(tally.draft(state.version, now, state.weights), heard)
            due = (math.floor(now / every) + 1) * every if every else now
            if is_last or last.has_diverged:
                return state.weights, last
        version = state.version
        if journaled.is_live and keeper.age >= deployment.checkpoint_every:
            jobs = tuple(journaled.in_flight.values())
            now_standing = Standing(state, moment.outbox, jobs, tally, heard, due)
            keeper.save(now_standing, transport.fleet, transport.roster, now)
    raise AssertionError("The loop has no end of its own.")


def _said(record: Record) -> str:
    """What is known of a version, in a line."""
    if record.has_diverged:
        return f"version {record.version} after {record.seconds:.1f} s: diverged"
    scores = f"accuracy {record.test_accuracy:.1%}, test loss {record.test_loss:.3f}, "
    return (
        f"version {record.version} after {record.seconds:.1f} s: {'' if math.isnan(record.test_loss) else scores}"
        f"{record.merged} merged, {record.refused} refused, {record.lost} lost"
    )


def _say_what_failed(moment: Moment[Any]) -> None:
    """Whatever came to nothing, and why."""
    for update, receipt in zip(moment.inbox.updates, moment.outbox.receipts, strict=True):
        if receipt.refused is not None:
            level = logging.INFO if receipt.refused == TOO_EARLY else logging.WARNING
            log.log(level, "Device %d's update is refused: %s.", update.job.device, receipt.refused)
    for lost in moment.inbox.lost:
        log.warning("Device %d's job is lost: %s.", lost.job.device, lost.reason.removesuffix("."))


def _say_who_is_barred(devices: frozenset[int]) -> None:
    for device in sorted(devices):
        log.warning("Device %d is in quarantine: it gets no more jobs.", device)


def _check_who_is_left(fleet: Fleet) -> None:
    """A run whose devices have all been put in quarantine would wait for ever."""
    if len(fleet.barred) == len(fleet) > 0:
        raise InputError(
            f"All {len(fleet)} devices are in quarantine, for what the warnings above say of them: is the server's model the "
            "devices'? Repair them, and run again into another folder."
        )


def _is_last(deployment: Deployment, moment: Moment[Any]) -> bool:
    has_rounds = deployment.rounds is not None and moment.state.version >= deployment.rounds
    return has_rounds or (deployment.seconds is not None and moment.inbox.now >= deployment.seconds)


def _merged(moment: Moment[Any]) -> list[Update]:
    pairs = zip(moment.inbox.updates, moment.outbox.receipts, strict=True)
    return [update for update, receipt in pairs if receipt.is_merged]
