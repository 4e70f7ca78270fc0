"""Observers of a run whose clients add the noise in shares: what each does not know of it.

The planned noise of a round is made up by the shares of the honest clients that surely answer; any more is extra.
Theory page: noise-shares.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedveil.accounting.curious import NOBODY, curious_bounds, secret_from_client
from fedveil.accounting.evaluator import Evaluator, bound_of, least_of, withdrawn
from fedveil.accounting.hidden import per_round
from fedveil.accounting.observers import Participation, every_update, views
from fedveil.accounting.sampled_observers import sampled_views_of_shares
from fedveil.core.checks import require
from fedveil.core.errors import CannotCertify
from fedveil.core.values import Vector
from fedveil.privacy.guarantee import Adversary, Answer
from fedveil.privacy.mechanism import LastIterate


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Who shares the noise of a round: ``cohort`` clients, one number or one for each round of a pass.

    ``dropouts`` of them may be missing, and ``colluders`` may tell the server what they added. ``everyone``: all
    clients take part in every round, and so are sent every model. ``opened``: clients see every sum; ``named``: they
    learn who else is in their rounds. ``together``: clients of one site, which look together.
    """

    cohort: int | tuple[int, ...]
    dropouts: int = 0
    colluders: int = 0
    everyone: bool
    opened: bool = False
    named: bool = False
    together: int = 1

    def __post_init__(self) -> None:
        sizes = self.cohort if isinstance(self.cohort, tuple) else (self.cohort,)
        require(len(sizes) >= 1 and min(sizes) >= 1, "Shares.cohort", "be at least 1", self.cohort)
        for name in ("dropouts", "colluders"):
            require(getattr(self, name) >= 0, f"Shares.{name}", "be non-negative", getattr(self, name))
        require(self.together >= 1, "Shares.together", "be at least 1", self.together)

    @property
    def steady(self) -> bool:
        """True if the number of answers in a round cannot depend on which clients were dealt into it."""
        return self.everyone or self.dropouts == 0

    def honest(self, run: LastIterate) -> Vector:
        """Return the number of honest clients that surely answer, in each round."""
        found = per_round(self.cohort, run) - self.dropouts - self.colluders
        if not bool(np.all(found >= 1)):
            missing = f"{self.dropouts} dropouts and {self.colluders} colluders"
            raise CannotCertify(f"a round of {per_round(self.cohort, run).min():g} clients tolerates no {missing}")
        return found

    def beside(self, run: LastIterate) -> Vector:
        """Return the share of each round's planned variance that a site with clients in it does not know.

        Besides its clients at least the victim answers, and no fewer than ``cohort - dropouts`` in all; what exceeds
        the plan is not counted.
        """
        honest = self.honest(run)
        return np.minimum(1.0, np.maximum(honest + self.colluders - self.together, 1.0) / honest)


def observe_shares(
    run: LastIterate, adversary: Adversary, who: Participation, shares: Shares, *, delta: float
) -> Answer:
    """Return the smallest epsilon that is proved against this observer, for ideal, real-valued shares."""
    bounds = [bound_of(e, delta, None) for e in views_of_shares(run, adversary, who, shares)]
    return least_of(bounds, delta, None)


def views_of_shares(run: LastIterate, adversary: Adversary, who: Participation, shares: Shares) -> Sequence[Evaluator]:
    """Return every bound on what this observer learns."""
    require(run.noise == "gaussian", "The noise", "be gaussian when clients share it", run.noise)
    honest = shares.honest(run)
    if run.sampled:
        left = shares.beside(run)
        return sampled_views_of_shares(run, adversary, who, everyone=shares.everyone, honest=honest, beside=left)
    match adversary:
        case "final-model":
            return _apart(views(run, adversary, who), shares)
        case "every-model":
            return views(run, adversary, who)
        case "curious-client":
            return _curious(run, who, shares)
        case "server-with-secure-aggregation":
            why = "every sum seen, at the worst round, with the planned noise of the honest clients that answer"
            return every_update(replace(run, order="public"), why)
        case _:
            why = "each client's own update seen with its own share of the noise, at the worst round"
            return every_update(_scaled(replace(run, order="public"), 1 / honest), why)


def _curious(run: LastIterate, who: Participation, shares: Shares) -> Sequence[Evaluator]:
    """Return bounds for a client that knows its own share."""
    if who.clients == 1:
        return every_update(run, NOBODY)
    left = shares.beside(run)
    if shares.together > 1:  # it may have a client in every round, so all models and sums are counted as seen
        why = f"every model counted as seen, at the worst round; a site of {shares.together} clients knows their shares"
        return every_update(_scaled(replace(run, order="public"), left), why)
    if shares.everyone or shares.opened:
        dealt = run if secret_from_client(run, who) else replace(run, order="public")
        seen = "takes part in every round" if shares.everyone else "can open sums"
        return every_update(_scaled(dealt, left), f"every model counted as seen, as the client {seen}; its share known")
    # It enters one round of a pass, where a client among C equals is charged with (C - 1)/C of the noise. If it
    # knows more because others may be missing, all noise is counted as less.
    cohort = per_round(shares.cohort, run)
    usual = np.where(cohort > 1, (cohort - 1) / cohort, 1.0)
    found = _apart(curious_bounds(_scaled(run, np.minimum(1.0, left / usual)), who), shares)
    if not shares.named:
        return found
    why = "clients of a round learn who else is in it, so one of them may know whether the victim is"
    return [withdrawn(e.name, why) if e.name == "position" and e.log_delta is not None else e for e in found]


def _apart(found: Sequence[Evaluator], shares: Shares) -> Sequence[Evaluator]:
    """Withdraw coupling of positions unless all rounds have the same noise, because it compares arrangements."""
    if shares.steady:
        return found
    why = "clients may be missing, so how much noise a round has may depend on who was dealt into it"
    return [withdrawn(e.name, why) if e.name == "position" and e.log_delta is not None else e for e in found]


def _scaled(run: LastIterate, variance: Vector) -> LastIterate:
    """Return the run with this share of each round's variance."""
    factor = np.sqrt(variance)
    if bool(np.all(factor == factor[0])) and not isinstance(run.noise_std, tuple):
        return run if factor[0] == 1 else replace(run, noise_std=float(run.noise_std * factor[0]))
    noise = per_round(run.noise_std, run) * factor
    return replace(run, noise_std=tuple(noise.tolist()))
