"""A generator on real processes: guards with their own cells and books, an aggregator that is killed and goes on."""

import csv
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flower_trials import aggregator, trial_network, until

from fedveil.certificate.certify import certify_measured
from fedveil.core.tables import write_tables
from fedveil.jobs.synthesis import open_synthesis
from fedveil.ledger.entry import read_export

pytest.importorskip("flwr")

STUDY: dict[str, Any] = {
    "study": {"name": "shops"},
    "privacy": {"epsilon": 5.0, "delta": 1e-5},
    "trust": {"server": "secure-aggregation", "timeout": 300.0},
    "generator": {"whole": ["age"], "groups": 4, "coarse": 3},
}


def data(folder: Path) -> dict[str, Any]:
    draw = np.random.default_rng(0)
    rows = [
        f"{a},{'red' if r else 'blue'},{int(a + 30 * r > 55)}" for a, r in draw.integers([18, 0], [80, 2], (600, 2))
    ]
    (folder / "shops.csv").write_text("\n".join(["age,colour,label", *rows]) + "\n")
    scale, words = {"age": [0.0, 100.0]}, {"colour": ["red", "blue"]}
    return {
        "data": {
            "source": str(folder / "shops.csv"),
            "target": "label",
            "classes": 2,
            "scale": scale,
            "categories": words,
        },
        "clients": {"kind": "equal", "count": 3},
    }


def test_an_aggregator_that_is_killed_goes_on_with_its_sites(tmp_path: Path) -> None:
    _, _, cells = open_synthesis({**STUDY, **data(tmp_path)})
    (tmp_path / "study.toml").write_text(write_tables(STUDY))
    out, more = tmp_path / "out", ("--rows", "30", "--seed", "1")
    with trial_network(cells, tmp_path / "network") as network:
        first = aggregator(network, tmp_path / "study.toml", out, *more, command="synthesise")
        until(lambda: (out / "private" / "checkpoint").exists() or first.poll() is not None)
        first.send_signal(signal.SIGKILL)
        first.wait()
        assert not (out / "generator.json").exists()
        second = aggregator(network, tmp_path / "study.toml", out, *more, "--resume", command="synthesise")
        assert second.wait(300) == 0, (tmp_path / "out.log").read_text()
    found = certify_measured(out, "0")
    assert found.guarantees[0].answer.epsilon <= 5.0
    with (out / "synthetic.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 30
    assert {row["colour"] for row in rows} <= {"red", "blue"}
    sites = sorted((tmp_path / "network" / "sites").glob("*/runs/*"))
    assert len(sites) == 3
    for site in sites:
        assert (site / "generator.json").read_bytes() == (out / "generator.json").read_bytes()
        assert [entry.kind for entry in read_export(site / "ledger.jsonl")] == ["charge", "release"]
        assert certify_measured(site, "0").plan == found.plan
