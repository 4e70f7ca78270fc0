"""Train the best of a random number of candidates; nothing else of the trials may leave.

Everything a trial draws comes from an address of its own, so a trial that is computed again gives the same model and
the same score. What is kept on the disk, privately, is how many trials are done and which was the best.
"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fedveil.core.errors import BadValue, require
from fedveil.core.strict_json import read_object
from fedveil.data.load import Loaded
from fedveil.engine.ending import TRIALS
from fedveil.engine.files import write_atomically
from fedveil.engine.here import Here
from fedveil.engine.measure import score_of
from fedveil.engine.run import Data, Released, run_stages
from fedveil.noise.entropy import Entropy, uniform_below
from fedveil.planning.plan import Plan
from fedveil.planning.selection import Selection


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


class TrialData(Data, Protocol):
    """The records of a trial, with those that it is scored on."""

    def loaded(self, released: Released, /) -> Loaded:
        """Return the rows, and those held out."""


@dataclass(frozen=True, slots=True, eq=False)
class Trials:
    """A plan of several candidates, with its randomness; ``data``: the records, for a trial with randomness of its own.

    ``watch`` is told how many trials are done, and how many there are; only the data holder may know.
    """

    plan: Plan
    entropy: Entropy
    data: Callable[[Entropy], TrialData]
    private: Path
    watch: Callable[[int, int], None]

    def attempt(self, number: int, candidate: int) -> tuple[Released, float]:
        """Carry out one trial: return what its stages give, and its score.

        A trial learns its own preparation where there is one: that is a part of the trial, and is charged as such.
        """
        plan, own = self.plan.candidates[candidate], trial_entropy(self.entropy, number)
        data = self.data(own)
        released = run_stages(plan, data, Here(plan, own))
        test = data.loaded(released).test
        if test is None:
            raise BadValue("[data.held_out] must be there for a tuned study, got 'no held-out records'.")
        return released, score_of(plan, self.plan.selection, released["training"], test, own)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Best:
    """The selected trial: the plan that names it, what its stages released, and what may be published of the rest."""

    plan: Plan
    released: Released
    search: dict[str, Any]


def train_best(trials: Trials, records: str) -> Best:
    """Return the selected trial; ``records``: the fingerprint of what trials are trained and scored on."""
    plan, selection = trials.plan, trials.plan.selection
    mark = sha256((plan.hash + records).encode()).hexdigest()  # identifies plan and data
    best, released = best_trial(trials, trials.private / TRIALS, mark)
    search = {
        "candidates": len(plan.candidates),
        "chosen": best.candidate + 1,
        "score": selection.score,
        "metric": selection.metric,
        "expected_trials": selection.law.mean,
        **({"noisy_score": best.score} if selection.score == "private" else {}),
    }
    return Best(plan=plan.with_chosen(best.candidate), released=released, search=search)


def number_of_trials(selection: Selection, entropy: Entropy) -> int:
    """Draw how many trials there are; what the draw may be off is part of ``Selection.slip``."""
    chance = int(entropy.words("number of trials", 0, 1)[0] >> np.uint64(11)) * 2.0**-53
    masses = selection.law.masses(selection.most)
    return min(int(np.searchsorted(np.cumsum(masses), chance, side="right")) + 1, selection.most)


def trial_entropy(entropy: Entropy, number: int) -> Entropy:
    """Return the randomness of one trial, independent of that of every other."""
    return Entropy(entropy.words("trial", number, 4).tobytes(), private=entropy.private)


def best_trial(trials: Trials, path: Path, mark: str) -> tuple[Trial, Released]:
    """Return the best of a random number of trials, and what its stages released.

    ``path``: where the state is kept; ``mark`` names plan and data, so that no other run goes on from it.
    """
    candidates = len(trials.plan.candidates)
    count = number_of_trials(trials.plan.selection, trials.entropy)
    done, best = _kept(path, mark)
    require(done <= count, str(path), f"hold at most the {count} trials of this run", done)
    kept: Released = {}
    for number in range(done, count):
        own = trial_entropy(trials.entropy, number)
        candidate = uniform_below(own, "candidate", candidates)
        released, score = trials.attempt(number, candidate)
        coin = int.from_bytes(own.words("coin", 0, 2).tobytes(), "little")
        trial = Trial(number=number, candidate=candidate, score=score, coin=coin)
        if best is None or trial.rank > best.rank:
            best, kept = trial, released
        _keep(path, mark, number + 1, best)
        trials.watch(number + 1, count)
    if best is None:
        raise BadValue(f"{path} must name the best trial so far, and names none.")
    if not kept:  # it ran before an interruption: the same numbers again
        kept, _ = trials.attempt(best.number, best.candidate)
    return best, kept


def _keep(path: Path, mark: str, done: int, best: Trial) -> None:
    row = {"number": best.number, "candidate": best.candidate, "score": repr(best.score), "coin": str(best.coin)}
    write_atomically(path, json.dumps({"mark": mark, "done": done, "best": row}).encode())


def _kept(path: Path, mark: str) -> tuple[int, Trial | None]:
    """How many trials are done, and the best of them; none where the file is absent."""
    if not path.exists():
        return 0, None
    result = read_object(path.read_bytes(), str(path))
    require(result.get("mark") == mark, str(path), "be of this run", "the trials of another")
    try:
        row = result["best"]
        best = Trial(
            number=int(row["number"]),
            candidate=int(row["candidate"]),
            score=float(row["score"]),
            coin=int(row["coin"]),
        )
        return int(result["done"]), best
    except (KeyError, TypeError, ValueError) as error:
        raise BadValue(f"{path} must be as the run wrote it: {error!r}.") from error
