"""Every method and every kind of trust on real processes: the bits are those of one process.

One network serves all studies: a link with TLS, three sites of one client each. The relay serves all but two of them.
"""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flower_trials import SEED, Troubled, aggregator, released, simulated, trial_network, until

from fedveil import run_study
from fedveil.certificate.certify import certify
from fedveil.core.tables import write_tables
from fedveil.data.load import load
from fedveil.data.records import Records
from fedveil.federation.aggregator.consortium import Held
from fedveil.federation.aggregator.post import Carrier
from fedveil.federation.flower.local import LocalNetwork
from fedveil.jobs.remote import federated
from fedveil.planning.study import read_study, study_of
from fedveil.release.bundle import Bundle
from fedveil.sums.homomorphic.library import has_tenseal
from fedveil.wire.envelope import Head
from window_replay import replayed

pytest.importorskip("flwr")

DATA: dict[str, Any] = {
    "data": {"source": "sklearn:breast_cancer", "feature_bound": 2.0},
    "data.held_out": {"fraction": 0.25, "public": True},
    "clients": {"kind": "equal", "count": 3},
}
TARGET = {"epsilon": 1.0, "delta": 1e-4, "neighbours": "zero-out", "adversary": "every-model"}


def tables(trust: dict[str, Any] | None = None, **parts: Any) -> dict[str, Any]:
    """A small seeded study by its tables; hidden training of two rounds, unless other parts are given."""
    found = {
        "study": {"name": "trial", "seed": SEED},
        "model": {"kind": "logistic", "radius": 10.0},
        "privacy": TARGET,
        "schedule": {"rounds": 2, "passes": 1},
        **parts,
    }
    return found if trust is None else {**found, "trust": {"timeout": 300.0, **trust}}


MASKED = {"server": "secure-aggregation"}
STUDIES = {
    "hidden, independent, masked": tables(MASKED, algorithm={"order": "independent"}),
    "hidden, poisson": tables({"server": "trusted"}, algorithm={"order": "poisson", "rate": 0.1}),
    "hidden, encrypted": tables({"server": "homomorphic"}),
    "fedavg": tables(
        {"server": "trusted"},
        privacy={**TARGET, "epsilon": 30.0, "unit": "client"},
        algorithm={"kind": "fedavg", "noise": "shared", "local": {"batch": 40, "epochs": 2}},
        schedule={"rounds": 2},
    ),
    "dpsgd": tables(
        {"server": "trusted"},
        privacy={**TARGET, "epsilon": 30.0, "adversary": "server"},
        algorithm={"kind": "dpsgd", "rounds": 3, "network": {"window": 2.0}},
        schedule={},
    ),
    "simfl": tables(algorithm={"kind": "simfl"}, privacy={"epsilon": 5.0, "delta": 1e-4}, schedule={"rounds": 3}),
}


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Records:
    path = tmp_path_factory.mktemp("study") / "study.toml"
    path.write_text(write_tables({**tables(), **DATA}))
    study = read_study(path)
    assert study.source is not None
    return load(study.source, study.data.split, base=Path(), generator=np.random.default_rng).train


@pytest.fixture(scope="module")
def network(records: Records, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNetwork]:
    with trial_network(records, tmp_path_factory.mktemp("network")) as found:
        yield found


@pytest.fixture(scope="module")
def carrier(network: LocalNetwork) -> Iterator[Carrier]:
    with network.carrier() as found:
        yield found


def assert_same(there: Path, here: Path, sites: Path) -> None:
    """The same plan and model in a deployment and in one process; every site has kept and can certify them."""
    found, model = certify(there, "0"), (there / "model.npz").read_bytes()
    assert (found.plan, model) == (certify(here, "0").plan, (here / "model.npz").read_bytes())
    assert not found.private  # a seed is no secret
    for name in ("metrics.json", "certificate.json", "report.html"):
        assert (there / name).stat().st_size, name
    folders = sorted(sites.glob(f"*/runs/{found.run}"))
    assert len(folders) == 3
    for folder in folders:
        assert certify(folder, "0").plan == found.plan
        assert (folder / "model.npz").read_bytes() == model


def test_the_command_that_tries_a_study_here_gives_the_same_bits(tmp_path: Path) -> None:
    """And the same numbers of the held-out records, which the aggregator has. First, while no other network runs.

    The study knows nothing of its columns, so the sites learn the rule for their rows first, behind masks.
    """
    open_columns = {**DATA, "data": {"source": "sklearn:breast_cancer"}, "prepare": {"kind": "private"}}
    wanted = tables(MASKED, algorithm={"kind": "dpsgd", "rounds": 2, "noise_multiplier": 8.0}, schedule={})
    (tmp_path / "study.toml").write_text(write_tables({**wanted, **open_columns}))
    for words in (
        ["run", "study.toml", "--out", "here"],
        ["deploy", "local", "study.toml", "--sites", "3", "--out", "there"],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "fedveil", *words, "--quiet"], cwd=tmp_path, capture_output=True, text=True
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert_same(tmp_path / "there", tmp_path / "here", tmp_path / "there" / "sites")
    measured = [(tmp_path / name / "metrics.json").read_bytes() for name in ("here", "there")]
    assert measured[0] == measured[1]
    assert b'"accuracy"' in measured[0]
    learned = [(tmp_path / name / "preparation.json").read_bytes() for name in ("here", "there")]
    assert learned[0] == learned[1]
    rules = [Bundle.read(tmp_path / name).preparation for name in ("here", "there")]
    assert rules[0] == rules[1] is not None
    notes = [(tmp_path / name / "private" / "study").read_text() for name in ("here", "there")]
    assert notes == [f"{tmp_path / 'study.toml'}\n"] * 2  # by which a later request finds the data


@pytest.mark.parametrize("name", sorted(STUDIES))
def test_three_sites_give_the_bits_of_one_process(
    network: LocalNetwork, carrier: Carrier, records: Records, tmp_path: Path, name: str
) -> None:
    if name == "hidden, encrypted" and not has_tenseal():
        pytest.skip("TenSEAL is not installed (fedveil[he])")
    study, there, here = study_of(STUDIES[name], base=Path(), data_given=True), tmp_path / "there", tmp_path / "here"
    federated(study, there, network.deployment, carrier, Held())
    run_study(study, here, data=records)
    assert_same(there, here, network.records)


def test_an_aggregator_killed_between_signed_rounds_goes_on_to_the_same_bits(
    network: LocalNetwork, records: Records, tmp_path: Path
) -> None:
    """Signed masks: a round that is begun again would open nothing, and one that is done is not asked again."""
    study, there, here = tmp_path / "study.toml", tmp_path / "there", tmp_path / "here"
    wanted = tables({**MASKED, "identities": "sites"})
    study.write_text(write_tables(wanted))
    process = aggregator(network, study, there)
    until(lambda: (there / "private" / "checkpoint").exists() or process.poll() is not None)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, (tmp_path / "there.log").read_text()
    assert not (there / "model.npz").exists()
    process = aggregator(network, study, there, "--resume")
    assert process.wait(timeout=400) == 0, (tmp_path / "there.log").read_text()
    run_study(study_of(wanted, base=Path(), data_given=True), here, data=records)
    assert_same(there, here, network.records)


def test_a_guard_that_stands_still_keeps_nobody_waiting_and_joins_again(
    network: LocalNetwork, carrier: Carrier, records: Records, tmp_path: Path
) -> None:
    """A site's guard is stopped after the first window, and goes on when the others are done."""
    wanted = tables(
        {"server": "trusted", "patience": 10.0, "noise": "local"},  # shares of noise are mixed from all sites only
        privacy={**TARGET, "epsilon": 30.0, "adversary": "server"},
        algorithm={"kind": "dpsgd", "rounds": 5, "network": {"window": 2.0}},
        schedule={},
    )
    guard, done = network.guards["site-2"].process, [0]

    def tell(site: str, state: str) -> None:
        if (site, state, done[0]) == ("site-2", "asked", 3):
            guard.send_signal(signal.SIGSTOP)

    def watch(now: Any) -> None:
        done[0] = now.round
        if now.round == 7:
            guard.send_signal(signal.SIGCONT)

    study = study_of(wanted, base=Path(), data_given=True)
    try:
        federated(study, tmp_path / "out", network.deployment, carrier, Held(), watch=watch, tell=tell)
    finally:
        guard.send_signal(signal.SIGCONT)
    windows = json.loads((tmp_path / "out" / "private" / "windows.json").read_text())
    assert windows[0] == ["site-1", "site-2", "site-3"]
    assert "site-2" not in windows[1] + windows[2]
    assert sum("site-2" in window for window in windows) == 3
    owners = {"site-1": [0], "site-2": [1], "site-3": [2]}
    model = replayed(tmp_path / "out", records, owners, windows, SEED)
    assert released(tmp_path / "out").tobytes() == model.tobytes()


HIDING = {
    "masked": tables({**MASKED, "dropouts": 1}),
    "signed masks": tables({**MASKED, "identities": "sites", "dropouts": 1}),
    "encrypted": tables({"server": "homomorphic", "dropouts": 1}),
}


@pytest.mark.parametrize("name", sorted(HIDING))
def test_a_relay_killed_and_a_site_stopped_while_sums_are_hidden(
    network: LocalNetwork, carrier: Carrier, records: Records, tmp_path: Path, name: str
) -> None:
    """In the first round the relay is killed, with everybody's messages in it, and nobody is missing from the sum.

    In the second a guard is stopped before it says its masked or encrypted part: its client is missing, and alone.
    """
    if name == "encrypted" and not has_tenseal():
        pytest.skip("TenSEAL is not installed (fedveil[he])")
    guard, done = network.guards["site-2"].process, list[str]()

    def trouble(head: Head, _: int) -> bool:
        if head.kind not in ("masked", "encrypt", "consent"):
            return False
        if head.round == 0 and not done:
            done.append("killed")
            network.center[1].kill()
            network.start_relay()
        if head.round == 1 and "stopped" not in done:
            done.append("stopped")
            guard.send_signal(signal.SIGSTOP)
        return "stopped" in done

    def watch(now: Any) -> None:
        if now.round == 2:
            guard.send_signal(signal.SIGCONT)

    study, out = study_of(HIDING[name], base=Path(), data_given=True), tmp_path / "out"
    try:
        troubled = Troubled(carrier, "site-2", trouble)
        federated(study, out, network.deployment, troubled, Held(), watch=watch)
    finally:
        guard.send_signal(signal.SIGCONT)
    assert done == ["killed", "stopped"]
    expected = simulated(out, records, lambda turn, client: (turn, client) == (1, 1))[0]
    assert released(out).tobytes() == expected.tobytes()
    assert released(out).tobytes() != simulated(out, records)[0].tobytes()
    found = certify(out, "0")
    for site in network.deployment.cards:
        assert certify(network.records / site / "runs" / found.run, "0").plan == found.plan
