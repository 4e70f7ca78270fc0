"""A site that falls silent without a word: its round ends without it, later ones do not wait, and it may come back."""

import os
import signal
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from flower_trials import SEED, released, text, trial_network, trial_records, until

from fedveil.engine.train import train
from fedveil.federation.aggregator.consortium import Held
from fedveil.federation.carrying.trial import deal_clients, site_names
from fedveil.federation.flower.local import LocalNetwork
from fedveil.jobs.remote import federated
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import read_plan
from fedveil.planning.study import read_study_without_data

pytest.importorskip("flwr")

LOST, BACK, ROUNDS = 2, 6, 8
SITE = "site-3"


def halted(network: LocalNetwork, parts: Sequence[str]) -> list[int]:
    """The processes that stand for a site: both, as when its machine is cut off, or the guard alone."""
    kinds = {"guard": network.guards, "node": network.nodes}
    return [kinds[part][SITE].process.pid for part in parts]


def test_a_round_ends_without_a_site_that_fell_silent_and_later_rounds_do_not_wait_for_it(tmp_path: Path) -> None:
    """Nothing is closed when a machine is cut off; the study's own time-out, five minutes, is never waited for."""
    records = trial_records()
    masked = text(dropouts=2, rounds=ROUNDS).replace("[trust]", '[trust]\nserver = "secure-aggregation"')
    (tmp_path / "study.toml").write_text(masked)
    study = read_study_without_data(tmp_path / "study.toml")
    assert study.trust.timeout == 300.0
    theirs = set(deal_clients(records.clients, site_names(3))[SITE].tolist())
    with trial_network(records, tmp_path) as network:
        for name, parts in {"machine": ("guard", "node"), "guard": ("guard",)}.items():
            times: list[float] = []
            with network.carrier() as carrier:

                def everywhere(number: int, parts: Sequence[str] = parts) -> None:
                    for pid in halted(network, parts):
                        os.kill(pid, number)

                def watch(progress: object, carrier=carrier, times=times, everywhere=everywhere) -> None:  # type: ignore[no-untyped-def]
                    times.append(time.monotonic())
                    if len(times) == LOST:
                        everywhere(signal.SIGSTOP)
                    if len(times) == BACK:
                        everywhere(signal.SIGCONT)
                        until(lambda: SITE in carrier.online(), pause=0.05)

                federated(study, tmp_path / name, network.deployment, carrier, Held(), watch=watch)
            took = [after - before for before, after in pairwise(times)]
            assert took[LOST - 1] < 60.0  # the round that loses it: eight seconds where only the guard is halted
            assert sum(took[LOST : BACK - 1]) < took[LOST - 1]
            plan = read_plan((tmp_path / name / "plan.toml").read_text())
            expected = train(
                plan,
                records,
                Entropy.from_seed(SEED),
                fails=lambda turn, client: LOST <= turn < BACK and client in theirs,
            ).model
            assert released(tmp_path / name).tobytes() == expected.tobytes()
