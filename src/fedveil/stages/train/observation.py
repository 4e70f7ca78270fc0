"""What attacks need of an algorithm: its real code, run and observed as an observer would.

The first round is the best one for an attacker: the model before it is public (zero, or a module's starting
parameters), every record still has a large gradient, and only the noise is unknown. Who sees what: observers.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from operator import attrgetter
from typing import Final

import numpy as np

from fedveil.core.fields import Exclusion
from fedveil.core.values import Indices, Vector
from fedveil.data.records import Records
from fedveil.noise.entropy import Entropy
from fedveil.noise.grid import rounded_normal
from fedveil.privacy.guarantee import Adversary
from fedveil.stages.train.base import Method, Training

ATTACKED: Final = (  # of a method that is attacked
    Exclusion(
        "algorithm.choose",
        "an attack",
        "Attacks need rounds that are known beforehand.",
        lambda method: True,
        lambda method: method.choice.rule if method.chooses else None,
    ),
)
GAME: Final = (  # of a method that is attacked by many small runs at once
    Exclusion(
        "algorithm.segments",
        "an attack by scores",
        "Its scores are for rounds that are alike.",
        lambda method: True,
        attrgetter("segments"),
    ),
)


@dataclass(frozen=True, slots=True, eq=False)
class Observation:
    """A sum of records' gradients as an observer sees it, with noise.

    ``records``: how many are planned to be in it; 0 if that is unknown.
    """

    adversary: Adversary
    gradient: Vector
    records: float


@dataclass(frozen=True, slots=True, eq=False)
class Observations:
    """What is seen of a round: ``own``, by the server, of each client with its own noise; ``shared``, by whoever sees
    sums or models.
    """

    own: dict[int, Observation]
    shared: tuple[Observation, ...]

    def of_client(self, client: int) -> tuple[Observation, ...]:
        """Return all observations of a client, the most informative first."""
        mine = self.own.get(client)
        return self.shared if mine is None else (mine, *self.shared)


@dataclass(frozen=True, slots=True)
class Push:
    """How far one use of a victim moves a sum, in units of its noise, and how likely it is used in a round.

    ``places``: among how many rounds of each pass the victim picks one; 0 where it does not pick. ``column``: where
    noise is correlated over rounds, the first column of its matrix; the victim then comes back every ``places`` rounds.
    """

    size: float
    rate: float
    noise: float
    places: int = 0
    column: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Releases:
    """How the distinguishing game looks at an algorithm that hides nothing: release by release, many runs at once.

    A wide problem holds as many runs as it has parameters, each with a victim of its own. ``sums``: the released sums
    of all rounds, one a row; ``towards``: 1 where sums point where the model goes, -1 where they are gradients;
    ``widened``: the method for so many victims; ``rows``: rows of each; ``clients``: whether a victim is a client;
    ``work``: how often a round goes through the records. ``shortened``: the method of the first so many rounds
    alone; None where a shorter run does not repeat the beginning of a longer one.
    """

    seen_by: Adversary
    towards: float
    sums: Callable[[Training, Records, Entropy], Vector]
    widened: Callable[[Training, int], Method]
    rows: Callable[[Training, int], int]
    push: Callable[[Training, float], Push]
    clients: bool
    work: Callable[[Training], int]
    shortened: Callable[[Training, int], Method] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class DrawnRounds:
    """Who draws its own rounds in a plan, and how: ``batch`` gives the units that join a round, by the real sampler.

    ``rounds``: of a pass; ``rate``: of a coin, None where every unit picks one round of each pass.
    """

    units: int
    rounds: int
    rate: float | None
    batch: Callable[[int], Indices]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackView:
    """``with_noise``: the method with its noise multiplied; ``observe``: what is seen of a run, ``clients`` naming
    whose own messages are wanted; ``first_round``: the records that the first round uses. ``releases``: None where only
    the last model is released. ``drawn``: the sampler where units draw their own rounds by secret draws; else None.
    """

    with_noise: Callable[[Training, float], Method]
    observe: Callable[[Training, Records, Entropy, Sequence[int], bool], Observations]
    first_round: Callable[[Training, Records, Entropy], Indices]
    releases: Releases | None = None
    drawn: Callable[[Training, Entropy], DrawnRounds | None] = lambda plan, entropy: None


def noise_of_client(entropy: Entropy, client: int, scale: float, size: int) -> Vector:
    """Draw a client's own noise in whole grid steps, from its own address, so that no two clients share any."""
    if scale == 0:
        return np.zeros(size)
    # A single share can exceed the widest noise that the sampler knows; an attacker may round it more coarsely.
    coarse = 2.0 ** max(0, math.ceil(math.log2(scale)) - 44)
    drawn = rounded_normal(entropy.stream(f"noise of client {client}", 0), scale / coarse, size)
    return np.asarray(drawn * coarse, dtype=np.float64)


def attack_view(kind: str) -> AttackView | None:
    """Return how attacks observe an algorithm; None if that is not known."""
    if find_spec(f"fedveil.stages.train.{kind}.observe") is None:
        return None
    result: AttackView = import_module(f"fedveil.stages.train.{kind}.observe").ATTACK_VIEW
    return result
