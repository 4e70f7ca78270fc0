"""Carry out a random number of trials, and return the best one; nothing else of them may leave.

Everything a trial draws comes from an address of its own, so a trial that is computed again gives the same model and
the same score. What is kept on the disk, privately, is how many trials are done and which was the best.
"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from fedveil.core.checks import require
from fedveil.core.errors import BadValue
from fedveil.core.strict_json import read_object
from fedveil.core.values import Vector
from fedveil.engine.files import write_atomically
from fedveil.noise.entropy import Entropy, uniform_below
from fedveil.planning.plan import Plan
from fedveil.planning.selection import Selection

NAME: Final = "trials"  # in the private folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One trial: its number from 0, which candidate it drew, its score (larger is better), and a coin for ties."""

    number: int
    candidate: int
    score: float
    coin: int

    @property
    def rank(self) -> tuple[float, int]:
        """Trials are ordered by score, and by the coin where scores are equal; a score that is no number comes last."""
        return (-math.inf if math.isnan(self.score) else self.score, self.coin)


Attempt = Callable[[Plan, Entropy], tuple[Vector, float]]  # the model and the score of one trial


def number_of_trials(selection: Selection, entropy: Entropy) -> int:
    """Draw how many trials there are; what the draw may be off is part of ``Selection.slip``."""
    chance = int(entropy.words("number of trials", 0, 1)[0] >> np.uint64(11)) * 2.0**-53
    masses = selection.law.masses(selection.most)
    return min(int(np.searchsorted(np.cumsum(masses), chance, side="right")) + 1, selection.most)


def trial_entropy(entropy: Entropy, number: int) -> Entropy:
    """Return the randomness of one trial, independent of that of every other."""
    return Entropy(entropy.words("trial", number, 4).tobytes(), private=entropy.private)


def best_trial(
    plan: Plan,
    entropy: Entropy,
    attempt: Attempt,
    path: Path,
    mark: str,
    watch: Callable[[int, int], None],
) -> tuple[Trial, Vector]:
    """Return the best of a random number of trials, and its model.

    ``path``: where the state is kept; ``mark`` names plan and data, so that no other run goes on from it. ``watch`` is
    told how many trials are done, and how many there are; only the data holder may know.
    """
    selection, candidates = plan.selection, plan.candidates
    count = number_of_trials(selection, entropy)
    done, best = _kept(path, mark)
    require(done <= count, str(path), f"hold at most the {count} trials of this run", done)
    model: Vector | None = None
    for number in range(done, count):
        own = trial_entropy(entropy, number)
        chosen = uniform_below(own, "candidate", len(candidates))
        found, score = attempt(candidates[chosen], own)
        coin = int.from_bytes(own.words("coin", 0, 2).tobytes(), "little")
        trial = Trial(number=number, candidate=chosen, score=score, coin=coin)
        if best is None or trial.rank > best.rank:
            best, model = trial, found
        _keep(path, mark, number + 1, best)
        watch(number + 1, count)
    if best is None:
        raise BadValue(f"{path} must name the best trial so far, and names none.")
    if model is None:  # it was found before an interruption: the same numbers again
        model, _ = attempt(candidates[best.candidate], trial_entropy(entropy, best.number))
    return best, model


def _keep(path: Path, mark: str, done: int, best: Trial) -> None:
    row = {"number": best.number, "candidate": best.candidate, "score": repr(best.score), "coin": str(best.coin)}
    write_atomically(path, json.dumps({"mark": mark, "done": done, "best": row}).encode())


def _kept(path: Path, mark: str) -> tuple[int, Trial | None]:
    """How many trials are done, and the best of them; none where the file is absent."""
    if not path.exists():
        return 0, None
    found = read_object(path.read_bytes(), str(path))
    require(found.get("mark") == mark, str(path), "be of this run", "the trials of another")
    try:
        row = found["best"]
        best = Trial(
            number=int(row["number"]),
            candidate=int(row["candidate"]),
            score=float(row["score"]),
            coin=int(row["coin"]),
        )
        return int(found["done"]), best
    except (KeyError, TypeError, ValueError) as error:
        raise BadValue(f"{path} must be as the run wrote it: {error!r}.") from error
