"""Kill and stop what a masked run across sites consists of, again and again, and look at what it leaves.

``python tools/kill_sites.py --kills 200 --seed 1``: runs of three real sites on this machine. At random rounds a guard,
a node, the relay or the aggregator gets SIGKILL or SIGTERM and is started again, as its supervisor would; a guard or a
node may also be halted (SIGSTOP) and woken. Every run must end with the bits of a simulation and one charge in the
books of the aggregator and of every site. ``--minutes 20`` begins no further run after so long. Nothing waits for
seconds: every kill is at a round that the aggregator's status names.
"""

import argparse
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from fedveil.data.records import Records
from fedveil.engine.train import train
from fedveil.federation.aggregator.trace import read_status
from fedveil.federation.carrying.processes import environment
from fedveil.federation.flower.local import LocalNetwork, local_network
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import read_plan

ROUNDS = 120
SEED = 5
GUARD = ["--accept", "any", "--trials"]  # one person is all the operators
STUDY = f"""
[study]
seed = {SEED}
[model]
kind = "logistic"
radius = 5.0
[privacy]
epsilon = 5.0
delta = 1e-4
neighbours = "zero-out"
adversary = "every-model"
[algorithm]
kind = "hidden"
order = "public"
[schedule]
rounds = {ROUNDS}
passes = 1
[trust]
server = "secure-aggregation"
timeout = 120.0
"""


def some_records(clients: int = 6, features: int = 5) -> Records:
    """Records of a few clients in the unit ball."""
    rows = np.random.default_rng(0).normal(size=(40 * clients, features))
    rows /= 1.01 * np.linalg.norm(rows, axis=1)[:, None]
    owner = np.repeat(np.arange(clients), 40).astype(np.int64)
    return Records(features=rows, targets=(rows[:, 0] > 0) * 1.0, owner=owner, clients=clients, bound=1.0, classes=2)


class Campaign:
    """One run with kills on a network that stands; ``count``: how often each kind of process was hit."""

    def __init__(self, network: LocalNetwork, study: Path, out: Path, dice: random.Random, count: Counter[str]) -> None:
        self.network, self.study, self.out, self.dice, self.count = network, study, out, dice, count
        self.process = self._aggregator()

    def _aggregator(self, *more: str) -> "subprocess.Popen[bytes]":
        words = [sys.executable, "-m", "fedveil", "run", str(self.study), "--on", str(self.network.files), "--quiet"]
        with (self.out.parent / f"{self.out.name}.log").open("ab") as log:
            return subprocess.Popen(  # noqa: S603  the words are our own
                [*words, "--out", str(self.out), *more],
                env=environment(self.out.parent / "home"),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def run(self, kills: int) -> int:
        """Hit the run up to so many times, each at a round after the one before; return how often."""
        rounds = sorted(self.dice.sample(range(1, ROUNDS), min(kills, ROUNDS - 1)))
        done = 0
        for at in rounds:
            if not self._reached(at):
                break
            self._hit()
            done += 1
        while self.process.wait() != 0:
            text = (self.out.parent / f"{self.out.name}.log").read_text(encoding="utf-8")
            if "--resume" not in text[-2000:]:
                raise SystemExit(f"the aggregator failed:\n{text[-3000:]}")
            self.process = self._aggregator("--resume")
        return done

    def _reached(self, wanted: int) -> bool:
        """Wait until the aggregator has done so many rounds; False if the run has ended before."""
        while self.process.poll() is None:
            try:
                if read_status(self.out)["round"] >= wanted:
                    return True
            except Exception:  # noqa: S110  its folder is being made
                pass
            time.sleep(0.002)
        return False

    def _hit(self) -> None:
        kind = self.dice.choice(["guard", "node", "relay", "aggregator"])
        number = self.dice.choice(
            [signal.SIGKILL, signal.SIGTERM, *([signal.SIGSTOP] if kind in ("guard", "node") else [])]
        )
        site = self.dice.choice(sorted(self.network.guards))
        self.count[f"{kind} {number.name}"] += 1
        if kind == "aggregator":
            self.process.send_signal(number)
            self.process.wait()
            self.process = self._aggregator("--resume")
            return
        network = self.network
        again: dict[str, tuple[subprocess.Popen[bytes], Callable[[], object]]] = {
            "guard": (network.guards[site].process, lambda: network.start_guard(site, GUARD)),
            "node": (network.nodes[site].process, lambda: network.start_node(site)),
            "relay": (network.center[1].process, network.start_relay),
        }
        process, start = again[kind]
        process.send_signal(number)
        if number == signal.SIGSTOP:
            before = read_status(self.out)["round"]
            end = time.monotonic() + self.dice.uniform(0.0, 2.0)
            while time.monotonic() < end and read_status(self.out)["round"] <= before:
                time.sleep(0.05)
            process.send_signal(signal.SIGCONT)
            return
        process.wait()
        start()


def charges(path: Path) -> int:
    """Return how many charges a ledger holds."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as books:
        return int(books.execute("SELECT count(*) FROM entries WHERE kind = 'charge'").fetchone()[0])


def check(network: LocalNetwork, out: Path, records: Records, runs: int) -> None:
    """Refuse a run with other bits than a simulation's, or another number of charges than one."""
    plan = read_plan((out / "plan.toml").read_text(encoding="utf-8"))
    expected = train(plan, records, Entropy.from_seed(SEED)).model
    with np.load(out / "model.npz") as arrays:
        same = arrays["parameters"].tobytes() == expected.tobytes()
    books = [charges(path) for path in sorted(out.rglob("ledger.sqlite"))]
    sites = {site: charges(network.records / site / "ledger.sqlite") for site in network.guards}
    if not same or books != [1] or set(sites.values()) != {runs}:
        raise SystemExit(f"WRONG: same bits {same}, charges {books}, at sites {sites} after {runs} runs; see {out}")


def campaign(kills: int, seed: int, minutes: float, each: int = 100) -> Counter[str]:
    """Hit as many times as asked for, over as many runs as that takes; return how often each kind was hit."""
    dice, count, records = random.Random(seed), Counter[str](), some_records()  # noqa: S311  chooses kills, no secrets
    end, done, runs = time.monotonic() + 60 * minutes, 0, 0
    with tempfile.TemporaryDirectory(prefix="fedveil-kills-") as name:
        folder = Path(name)
        study = folder / "study.toml"
        study.write_text(STUDY, encoding="utf-8")
        with local_network(records, 3, folder / "files", folder / "sites", datetime.now(UTC), GUARD) as network:
            while done < kills and time.monotonic() < end:
                runs += 1
                out = folder / f"out-{runs}"
                done += Campaign(network, study, out, dice, count).run(min(each, kills - done))
                check(network, out, records, runs)
                sys.stdout.write(f"{done} of {kills} kills in {runs} runs: same bits, one charge each\n")
                sys.stdout.flush()
    return count


def main() -> None:
    """Run the campaign and print how often each kind of process was hit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=600.0)
    given = parser.parse_args()
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.stdout.write(json.dumps(campaign(given.kills, given.seed, given.minutes), sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
