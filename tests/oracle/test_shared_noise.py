"""All five rows of a certificate against the noise that was really drawn: a hook at the sampler, and Gaussian sums.

Every record is in each pass once, so what an observer sees of it is one Gaussian: the squares of sensitivity over
noise add up, and epsilon follows from the closed form, by arithmetic that shares no code with the accountants. In each
round as many clients are missing as the plan tolerates, so that no noise is there beyond what is promised.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from fedveil.data.records import Records
from fedveil.engine.train import train
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import Plan
from fedveil.planning.promises import ADVERSARIES, promise
from fedveil.planning.study import study_of
from fedveil.stages import adding
from fedveil.stages.train.dpsgd import shared
from fedveil.stages.train.fedavg import steps as fedavg
from unit.plans import some_records

DELTA = 1e-5


@dataclass(frozen=True)
class Case:
    """A study, and how far a record of each client moves a pass, in the units of the sums."""

    tables: dict[str, Any]
    records: Records
    moves: tuple[float, ...]
    passes: tuple[int, ...]


def case(seed: int) -> Case:
    """A random study: DP-SGD with either clipping, in windows or segments, with lists of settings; or averaging."""
    source = np.random.default_rng(seed)
    clients = int(source.integers(3, 9))
    trust: dict[str, Any] = {"dropouts": int(source.integers(0, 2)), "colluders": int(source.integers(0, 2))}
    neighbours = str(source.choice(["replace-one", "zero-out"]))
    twice = 2.0 if neighbours == "replace-one" else 1.0
    privacy: dict[str, Any] = {"epsilon": 3.0, "delta": DELTA, "neighbours": neighbours}
    privacy["adversary"] = str(source.choice(ADVERSARIES))
    records = some_records(24 * clients, clients=clients, seed=seed)
    tables: dict[str, Any] = {"model": {"kind": "logistic", "radius": 5.0}, "privacy": privacy}
    if source.random() < 0.75:
        tables["trust"] = trust
    kind = ("plain", "batch", "windows", "adaptive", "lists", "fedavg")[seed % 6]
    rate, passes = float(source.choice([1.0, 0.5, 0.25])), int(source.integers(1, 5))
    own: dict[str, Any] = {"kind": "dpsgd", "sampling": "shuffled", "rate": rate, "rounds": round(passes / rate)}
    moves, times = (0.5 * twice,) * clients, (passes,) * clients
    if kind == "batch":  # a clipped mean moves by twice its bound, whatever the neighbours
        own["clipping"], moves = "batch", (1.0,) * clients
    elif kind == "windows":
        own |= {"network": {"window": float(source.integers(2, 4))}, "optimizer": "adam"}
        tables["schedule"] = {"step_size": 0.01}
    elif kind == "adaptive":
        own["clip"], moves = {"start": 0.3}, (twice,) * clients
    elif kind == "lists":
        clips, rates = source.choice([0.2, 0.5], clients), source.choice([1.0, 0.5], clients)
        pulls = clips / rates
        unit = clips[int(np.argmax(pulls))]
        moves = tuple((twice * unit * pulls / pulls.max()).tolist())
        own |= {"clip": clips.tolist(), "rate": rates.tolist(), "rounds": [int(passes / r) for r in rates]}
    elif kind == "fedavg":
        privacy["unit"] = "client"
        own = {"kind": "fedavg", "noise": "shared", "update_norm": 0.5}
        tables["schedule"], times = {"rounds": passes}, (passes,) * clients
    if kind in ("plain", "batch"):
        own["clip"] = 0.5
    return Case({**tables, "algorithm": own}, records, moves, times)


def plan_of(one: Case) -> Plan:
    """The plan of a study."""
    return study_of(one.tables, base=Path(), data_given=True).planned(one.records.shape).plan


def drawn_in(plan: Plan, records: Records, patch: pytest.MonkeyPatch) -> list[float]:
    """Train, and return the deviation of every sample that was drawn, in the units of the sums."""
    seen: list[float] = []

    def watched(real: Callable[..., Any]) -> Callable[..., Any]:
        def draw(source: Any, steps: float, size: int) -> Any:
            seen.append(steps * 2.0**plan.grid)
            return real(source, steps, size)

        return draw

    for module in (adding, shared, fedavg):
        patch.setattr(module, "rounded_normal", watched(module.rounded_normal))
    missing = plan.trust.dropouts
    fails = lambda turn, client: (client - turn) % records.clients < missing  # noqa: E731
    train(plan, records, Entropy.from_seed(1), fails=fails)
    return seen


def epsilon_of(mu: float) -> float:
    """The exact epsilon of a Gaussian mechanism (Balle and Wang 2018), by bisection."""

    def excess(epsilon: float) -> float:
        below = norm.logcdf(-mu / 2 - epsilon / mu) + epsilon
        return float(norm.cdf(mu / 2 - epsilon / mu) - math.exp(min(below, 50.0))) - DELTA

    return 0.0 if excess(0.0) <= 0 else float(brentq(excess, 0.0, 1e4, xtol=1e-12))


def drawn_for_a_round(plan: Plan, samples: list[float]) -> float:
    """The deviation that one party drew for one round: a window of several rounds draws their noise at once."""
    first = min(plan.method.window, plan.method.total)
    return min(samples) if first == 1 else max(samples) / math.sqrt(first)


def unknown(plan: Plan, samples: list[float], adversary: str) -> float:
    """The deviation on a round's sum that an observer does not know, from what was drawn."""
    clients, own = plan.data.clients, drawn_for_a_round(plan, samples)
    if not plan.trust.shared:  # one party draws, and observers inside count as if every client had drawn an equal part
        known = {"server": clients - 1, "curious-client": 1}.get(adversary, 0)
        return own * math.sqrt((clients - known) / clients)
    answers = clients - plan.trust.dropouts
    assert len(samples) == plan.turns * answers
    knows = {"server": answers - 1, "curious-client": 1, "server-with-secure-aggregation": plan.trust.colluders}
    return own * math.sqrt(max(answers - knows.get(adversary, 0), 1))


def certified_over_exact(seed: int, patch: pytest.MonkeyPatch) -> dict[str, float]:
    """For every observer the certified epsilon over the exact one, for the client whose records move most."""
    one = case(seed)
    plan = plan_of(one)
    samples = drawn_in(plan, one.records, patch)
    most = max(math.sqrt(count) * move for count, move in zip(one.passes, one.moves, strict=True))
    return {a: promise(plan, a).epsilon / epsilon_of(most / unknown(plan, samples, a)) for a in ADVERSARIES}


@pytest.mark.parametrize("seed", [7, 14, 21, 28, 35, 42])
def test_every_row_counts_the_noise_that_its_observer_does_not_know(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ratios = certified_over_exact(seed, monkeypatch)
    assert min(ratios.values()) >= 1
    assert max(ratios.values()) <= 1.05
