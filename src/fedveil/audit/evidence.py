r"""Evidence against a whole claimed curve: bets on events, whose fortune cannot grow on average if the claim holds.

For every event and every claimed pair, $P(A) \le e^\varepsilon Q(A) + \delta$, and the same exchanged. A weighted sum
of such differences over one run on each data set, $Z$, has mean at most 0, for all laws that satisfy the claim. So
$\prod_i (1 + \lambda Z_i)$ is a supermartingale of mean at most 1, and by Ville's inequality it ever exceeds $1/\alpha$
with chance at most $\alpha$. No law is fitted, because the last model of a hidden run is not normal. Theory page:
distinguishing-game.md.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls
from scipy.special import ndtri

from fedveil.audit.claim import Claim
from fedveil.core.values import Vector

Mask = NDArray[np.bool_]
_THRESHOLDS = 40
_HOPELESS = 40.0  # an epsilon that no number of runs can refute; its exponential would overflow
STAKES = 10  # number of stakes, each half of the one before
# Shares of the fortune: on noise slightly too small, on what the first runs showed, on one event.
_TRUST = (0.8, 0.1, 0.1)


@dataclass(frozen=True, slots=True, eq=False)
class Events:
    """Events {score above a threshold}, each with the claimed pair that it tests.

    ``forward``: tests P(A) <= ratio Q(A) + offset; otherwise it tests the complement with P and Q exchanged.
    """

    thresholds: Vector
    forward: Mask
    ratio: Vector
    offset: Vector

    @property
    def floor(self) -> Vector:
        """The least possible gain of each event."""
        return -(self.ratio + self.offset)

    def gains(self, weights: Vector, first: Vector, second: Vector) -> Vector:
        """Return the weighted gain of each pair of runs."""
        ahead, behind = np.where(self.forward, weights, 0.0), np.where(self.forward, 0.0, weights)
        on_first = _steps(self.thresholds, ahead, behind * self.ratio, first)
        on_second = _steps(self.thresholds, ahead * self.ratio, behind, second)
        return np.asarray(on_first - on_second - float(weights @ self.offset), dtype=np.float64)


def _steps(thresholds: Vector, above: Vector, below: Vector, scores: Vector) -> Vector:
    """Return the sum of ``above`` over thresholds below the score, minus the sum of ``below`` over the others."""
    total = np.concatenate([[0.0], np.cumsum(above + below)]) - below.sum()
    return np.asarray(total[np.searchsorted(thresholds, scores, side="left")], dtype=np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class Bet:
    """A share of the fortune, bet on events with weights such that no pair of runs can lose more than the stake."""

    share: float
    events: Events
    weights: Vector

    @classmethod
    def on(cls, share: float, events: Events, weights: Vector) -> "Bet":
        """Return a bet whose weights are scaled so that its least gain is -1."""
        return cls(share, events, weights / float(weights @ -events.floor))

    def gains(self, first: Vector, second: Vector) -> Vector:
        """Return the gain of each pair of runs, at least -1."""
        return self.events.gains(self.weights, first, second)


def choose(claim: Claim, first: Vector, second: Vector) -> list[Bet]:
    """Choose bets against the claim, from runs that are used for nothing else; high scores mean the first data set."""
    claim = Claim(tuple((epsilon, delta) for epsilon, delta in claim.points if epsilon <= _HOPELESS))
    if claim.empty:
        return []
    both = np.concatenate([first, second])
    thresholds = np.unique(np.quantile(both, np.linspace(0, 1, _THRESHOLDS + 2)[1:-1]))
    # Add two errors and two hits to each count, otherwise a rare event would look certain.
    hits, errors = ((np.sum(runs[:, None] > thresholds, axis=0) + 2) / (runs.size + 4) for runs in (first, second))
    events = _held_against(claim, thresholds, errors)
    each = np.stack([events.gains(row, first, second) for row in np.eye(thresholds.size)])
    spread = np.atleast_2d(np.cov(each)) + np.diag(1e-6 + 2 * events.ratio**2 / second.size)
    shapes = _stronger(claim.most(errors), errors), np.maximum(each.mean(axis=1), 0.0)
    found = [(events, _weights(spread, shape)) for shape in shapes]
    bets = zip(_TRUST, [*found, _one_event(claim, thresholds, hits, errors)], strict=True)
    return [Bet.on(share, seen, weights) for share, (seen, weights) in bets if weights.sum() > 0]


def _one_event(claim: Claim, thresholds: Vector, hits: Vector, errors: Vector) -> tuple[Events, Vector]:
    """Return the event and the pair that gain most; they reveal a gross fault."""
    ratio, offset = np.exp(claim.epsilon)[:, None], claim.delta[:, None]
    ahead = (hits - ratio * errors - offset) / (ratio + offset)
    behind = ((1 - errors) - ratio * (1 - hits) - offset) / (ratio + offset)
    forward = bool(ahead.max() >= behind.max())
    pair, place = np.unravel_index(int((ahead if forward else behind).argmax()), ahead.shape)
    single = Events(thresholds[place : place + 1], np.array([forward]), ratio[pair], offset[pair])
    return single, np.ones(1)


def _held_against(claim: Claim, thresholds: Vector, errors: Vector) -> Events:
    """Return, for each threshold, the pair of the claim that allows least there."""
    ratio, offset = np.exp(claim.epsilon)[:, None], claim.delta[:, None]
    ahead, behind = ratio * errors + offset, 1 - (1 - errors - offset) / ratio
    here = np.arange(thresholds.size)
    best_ahead, best_behind = ahead.argmin(axis=0), behind.argmin(axis=0)
    forward = ahead[best_ahead, here] <= behind[best_behind, here]
    pick = np.where(forward, best_ahead, best_behind)
    return Events(thresholds, forward, ratio[pick, 0], offset[pick, 0])


def _stronger(allowed: Vector, errors: Vector) -> Vector:
    """Return the excess of an attack slightly stronger than allowed: the curve moved in normal units."""
    inside = np.clip(allowed, 1e-9, 1 - 1e-9), np.clip(errors, 1e-9, 1 - 1e-9)
    high, low = (ndtri(rate) for rate in inside)
    return np.asarray(np.exp(-high * high / 2) * np.maximum(high - low, 0.0), dtype=np.float64)


def _weights(spread: Vector, shape: Vector) -> Vector:
    """Return non-negative weights with the largest ratio of mean to deviation, if ``shape`` were the mean."""
    root = np.linalg.cholesky(spread)
    found, _ = nnls(root.T, np.linalg.solve(root, shape))
    return np.asarray(found, dtype=np.float64)


def log_growth(gains: Vector) -> Vector:
    """Return by how much the logarithm of each bet's wealth grows at each stake; a bet a row, a pair of runs a column.

    >>> log_growth(np.array([[1.0, 1.0]])).shape
    (1, 10)
    """
    stakes = 0.5 ** np.arange(1, STAKES + 1)
    return np.asarray([[np.log1p(row * stake).sum() for stake in stakes] for row in gains]).reshape(-1, STAKES)


def runs_to_refute(claim: Claim, alarm: float) -> float:
    """Return how many certifying runs on each data set a perfect attack needs to refute the claim.

    A perfect attack hits in every run and never errs, and bets on one event: each pair of runs then gains
    (1 - delta)/(ratio + delta) of the stake.

    >>> runs_to_refute(Claim(((1.0, 1e-5),)), 1e-6)
    110
    """
    if claim.empty:
        return math.inf
    ratio = np.exp(np.minimum(claim.epsilon, 700.0))
    growth = np.log1p(0.5 * (1 - claim.delta) / (ratio + claim.delta))
    most = float(growth.max())
    return math.ceil(math.log(STAKES / (_TRUST[-1] * alarm)) / most) if most > 0 else math.inf
