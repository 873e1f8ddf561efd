import numpy as np
import pytest

from fakes import answer, job, lost, vector
from hybridfl.algorithms.concurrency import Crew
from hybridfl.algorithms.fedasync import FedAsyncState
from hybridfl.errors import InputError
from hybridfl.protocol import Fleet, Inbox, Outbox, Receipt
from hybridfl.run import Moment
from hybridfl.tally import MOST_IN_VAIN, Tally


def moment(now: float, *receipts: Receipt, losses: int = 0, forgotten: int = 0) -> Moment[FedAsyncState]:
    """So many updates with these receipts, and so many lost jobs, at one instant; device 9 is barred."""
    fleet = Fleet(np.ones(10, dtype=np.int64), np.ones(10), barred=frozenset({9}))
    updates = tuple(answer(job(device, 0, [0.0]), 1.0) for device in range(len(receipts)))
    inbox = Inbox(now, updates, lost(*(job(5 + number, 0, [0.0]) for number in range(losses))))
    return Moment(inbox, FedAsyncState(2, vector(0.0), fleet, Crew()), Outbox(receipts=receipts, forgotten=forgotten))


def test_every_fate_is_counted_once() -> None:
    tally = Tally(bytes_a_model=4, sent=7)
    tally.count(moment(1.0, Receipt(0), Receipt(2, discarded="late"), Receipt(1, refused="not finite"), losses=2))
    tally.count(moment(2.0, Receipt(4), forgotten=3))
    counts = tally.draft(2, 2.0, vector(0.0)).counts
    fates = ("merged", "discarded", "refused", "lost", "forgotten", "barred")
    assert [counts[fate] for fate in fates] == [2, 1, 1, 2, 3, 1]
    assert (counts["mean_staleness"], counts["max_staleness"], counts["bytes_received"]) == (2.0, 4, 16)


def test_a_run_is_given_up_after_so_many_instants_in_vain_in_a_row() -> None:
    tally = Tally(bytes_a_model=4, sent=0)
    for now in range(MOST_IN_VAIN - 1):
        tally.count(moment(float(now), losses=3))
    tally.count(moment(0.0, Receipt(0), losses=3))
    tally.count(moment(0.0))
    for now in range(MOST_IN_VAIN - 1):
        tally.count(moment(float(now), Receipt(0, refused="too long")))
        tally.check_progress()
    tally.count(moment(0.0, losses=1))
    with pytest.raises(InputError, match=r"1000 times in a row .* as 'lost on the way'"):
        tally.check_progress()
