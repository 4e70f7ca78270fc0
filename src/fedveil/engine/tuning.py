"""Train the best of a random number of candidates: after the charge, and before the release."""

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from fedveil.core.checks import require
from fedveil.core.values import Vector
from fedveil.data.load import Loaded
from fedveil.engine.scoring import score_of
from fedveil.engine.train import train
from fedveil.engine.trials import NAME, best_trial, trial_entropy
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import Plan
from fedveil.stages.prepare.learned import LearnedRule

Prepare = Callable[[Plan, Entropy], tuple[Loaded, LearnedRule | None]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Best:
    """The selected trial: the plan that names it, its records, its model, and what it learned of the columns.

    ``told``: what may be published about the selection, beside the model itself.
    """

    plan: Plan
    loaded: Loaded
    model: Vector
    learned: LearnedRule | None
    told: dict[str, Any]


def train_best(
    plan: Plan,
    prepare: Prepare,
    fingerprint: Callable[[bytes], str],
    name: str,
    entropy: Entropy,
    private: Path,
    watch: Callable[[int, int], None],
) -> Best:
    """Return the selected trial of a plan.

    ``prepare`` gives the records of a trial, which learns its own preparation where there is one: that is a part of
    the trial, and is charged as such.
    """
    selection = plan.selection

    def attempt(candidate: Plan, own: Entropy) -> tuple[Vector, float]:
        loaded, _ = prepare(candidate, own)
        if loaded.test is None:
            require(False, "[data.held_out]", "be there for a tuned study", "no held-out records")
            raise AssertionError
        model = train(candidate, loaded.train, own, public=loaded.test if loaded.test_public else None).model
        return model, score_of(candidate, selection, model, loaded.test, own)

    mark = sha256((plan.hash + fingerprint(name.encode())).encode()).hexdigest()  # identifies plan and data
    best, model = best_trial(plan, entropy, attempt, private / NAME, mark, watch)
    chosen = plan.with_chosen(best.candidate)
    loaded, learned = prepare(chosen.candidates[best.candidate], trial_entropy(entropy, best.number))
    told = {
        "candidates": len(chosen.candidates),
        "chosen": best.candidate + 1,
        "score": selection.score,
        "metric": selection.metric,
        "expected_trials": selection.law.mean,
        **({"noisy_score": best.score} if selection.score == "private" else {}),
    }
    return Best(plan=chosen, loaded=loaded, model=model, learned=learned, told=told)
