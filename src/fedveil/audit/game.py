"""The distinguishing game: runs on two neighbouring data sets, an attacker who must tell which, and a claim to test.

The first runs choose everything (which score, which events, which weights); the rest certifies, block by block, and the
game stops as soon as its evidence suffices. Evidence is a bet whose fortune cannot grow on average if the claim holds,
so it may be looked at after every block; rates have confidence sequences, which hold at all times together.
Theory page: distinguishing-game.md.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls
from scipy.special import logsumexp, ndtri

from fedveil.audit.claim import Claim
from fedveil.audit.confidence import least_epsilon, least_rate, most_rate
from fedveil.audit.finding import Finding, Verdict
from fedveil.core.errors import require
from fedveil.core.values import Vector
from fedveil.privacy.guarantee import Adversary, finite_or_none
from fedveil.theory.concentrated import gaussian_epsilon

# Evidence against a whole claimed curve: bets on events, whose fortune cannot grow on average if the claim holds.
#
# For every event and every claimed pair, $P(A) \le e^\varepsilon Q(A) + \delta$, and the same exchanged. A weighted sum
# of such differences over one run on each data set, $Z$, has mean at most 0, for all laws that satisfy the claim. So
# $\prod_i (1 + \lambda Z_i)$ is a supermartingale of mean at most 1, and by Ville's inequality it ever exceeds
# $1/\alpha$ with chance at most $\alpha$. No law is fitted, because the last model of a hidden run is not normal.
# Theory page: distinguishing-game.md.

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


FEWEST, MOST = 40, 10_000_000
CHOOSING = 0.1  # share of the runs that only choose
_RIDGE = 1e-12  # keeps the discriminant defined if features are linearly dependent
_DOUBT = 2.5  # standard errors by which the bets may still do better than they did, before a game is given up
_REGION = 0.05  # false alarm of the region in the picture


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """What one observer saw in some runs on one data set.

    ``features``: numbers of each run, one row a run, from which a linear score is learned; ``scores``: columns that the
    attacker already considers informative (larger values suggest the first data set).
    """

    features: Vector
    scores: Vector

    def __post_init__(self) -> None:
        runs = self.features.shape[0]
        right = self.features.ndim == 2 and self.scores.ndim == 2 and self.scores.shape[0] == runs
        require(right, "Seen", "hold one row for each run", (self.features.shape, self.scores.shape))
        finite = bool(np.isfinite(self.features).all() and np.isfinite(self.scores).all())
        require(finite, "Seen", "be finite", "a number that is not")

    @property
    def runs(self) -> int:
        """Number of runs."""
        return int(self.features.shape[0])

    def part(self, first: int, last: int | None) -> "Seen":
        """Return some of the runs."""
        return Seen(self.features[first:last], self.scores[first:last])


Score = Callable[[Seen], Vector]


@dataclass(slots=True, kw_only=True, eq=False)
class Game:
    """A game in progress against one observer: runs come in by :meth:`add`, the first of them choose.

    ``runs``: the most on each data set. Half of ``alarm`` goes to the verdict, half to the measured epsilon.
    """

    claim: Claim
    adversary: Adversary
    delta: float
    alarm: float
    runs: int
    attack: str = "distinguishing-game"
    played: int = 0
    _score: Score | None = None
    _bets: list[Bet] = field(default_factory=list)
    _log_wealth: Vector = field(default_factory=lambda: np.zeros((0, STAKES)))  # of each bet at each stake
    _gains: list[Vector] = field(default_factory=list)  # a bet a row, one array a block
    _event: tuple[bool, float] = (True, 0.0)
    _cuts: Vector = field(default_factory=lambda: np.zeros(0))
    _above: Vector = field(default_factory=lambda: np.zeros((2, 1)))  # runs above each cut and the event's
    _path: list[tuple[int, float, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        require(self.runs >= FEWEST, "runs", f"be at least {FEWEST}", self.runs)

    @property
    def choosing(self) -> int:
        """Number of runs that only choose."""
        return max(20, int(self.runs * CHOOSING))

    @property
    def certifying(self) -> int:
        """Number of runs so far that count as evidence."""
        return max(0, self.played - self.choosing)

    def add(self, first: Seen, second: Seen) -> None:
        """Add runs on the two data sets, as many on each; the first addition must hold all runs that choose."""
        require(second.runs == first.runs, "runs", "be as many on both data sets", second.runs)
        if self._score is None:
            require(first.runs >= self.choosing, "runs", f"begin with at least {self.choosing}", first.runs)
            self._choose(first.part(0, self.choosing), second.part(0, self.choosing))
            first, second = first.part(self.choosing, None), second.part(self.choosing, None)
            self.played = self.choosing
        if first.runs:
            self._certify(first, second)

    def _choose(self, first: Seen, second: Seen) -> None:
        self._score = _telling_score(first, second)
        ones, others = self._score(first), self._score(second)
        self._bets = choose(self.claim, ones, others)
        self._log_wealth = np.zeros((len(self._bets), STAKES))
        self._event = _telling_event(ones, others, self.runs / self.choosing - 1, self.delta, self.alarm / 2)
        self._cuts = np.unique(np.quantile(np.concatenate([ones, others]), np.linspace(0, 1, 26)[1:-1]))
        self._above = np.zeros((2, self._cuts.size + 1))

    def _certify(self, first: Seen, second: Seen) -> None:
        assert self._score is not None  # noqa: S101  the first runs have chosen it
        sides = self._score(first), self._score(second)
        gains = np.array([bet.gains(*sides) for bet in self._bets]).reshape(len(self._bets), first.runs)
        self._log_wealth = self._log_wealth + log_growth(gains)
        self._gains.append(gains)
        cuts = np.append(self._cuts, self._event[1])
        self._above = self._above + np.array([(side[:, None] > cuts).sum(axis=0) for side in sides])
        self.played += first.runs
        self._path.append((self.played, self.measured, self.log_fortune))

    @property
    def log_fortune(self) -> float:
        """The logarithm of the fortune that all bets have made of 1; above ln(2/alarm) the claim is refuted."""
        if not self._bets or not self.certifying:
            return 0.0
        shares = np.log([bet.share / STAKES for bet in self._bets])[:, None]
        return float(logsumexp(self._log_wealth + shares))

    @property
    def measured(self) -> float:
        """The epsilon that one event proves, at all times together."""
        return self.proved(self.alarm / 2)

    def proved(self, alarm: float) -> float:
        """Return the epsilon that one event proves at all times together, too large with chance ``alarm``."""
        if not self.certifying:
            return 0.0
        return least_epsilon(*self._hits_and_errors, self.certifying, self.delta, alarm)

    @property
    def reachable(self) -> float | None:
        """About the epsilon that the best attack would prove with as many runs if the claimed curve is exactly true."""
        if self.claim.empty or not self.certifying:
            return None
        runs, most = self.certifying, 0.0
        errors = np.unique(np.rint(runs * np.append(0.0, np.geomspace(0.5 / runs, 0.5, 60))).astype(int))
        for error, hits in zip(errors, np.rint(runs * self.claim.most(errors / runs)).astype(int), strict=True):
            for yes, no in ((int(hits), int(error)), (int(runs - error), int(runs - hits))):
                most = max(most, least_epsilon(yes, no, runs, self.delta, self.alarm / 2))
        return most

    def as_gaussian(self, alarm: float) -> float:
        """Return the epsilon that the middle cut proves if the two laws are those of a Gaussian release, at all times.

        With limits p on the first data set and q on the second, the means are at least Phi^-1(p) - Phi^-1(q) apart.
        """
        if not self.certifying or not self._cuts.size:
            return 0.0
        ones, others = (int(count) for count in self._above[:, self._cuts.size // 2])
        low = least_rate(ones, self.certifying, alarm / 2, always=True)
        high = most_rate(others, self.certifying, alarm / 2, always=True)
        mu = float(ndtri(low) - ndtri(high)) if low > 0 and high < 1 else 0.0
        return gaussian_epsilon(mu, self.delta) if mu > 0 and self.delta > 0 else 0.0

    @property
    def _hits_and_errors(self) -> tuple[int, int]:
        ones, others = (int(count) for count in self._above[:, -1])
        return (ones, others) if self._event[0] else (self.certifying - others, self.certifying - ones)

    @property
    def broken(self) -> bool:
        """Whether the claim is refuted."""
        refuted = self.log_fortune > math.log(2 / self.alarm)
        return refuted or (not self.claim.empty and self.measured > self.claim.epsilon_at(self.delta))

    @property
    def decided(self) -> bool:
        """Whether more runs are of no use: the claim is refuted, all runs were made, or they would not refute it.

        The last is a forecast: even if every bet won from now on by 2.5 standard errors more than it did, the fortune
        after all runs would be too small. Giving up early cannot accuse anybody, and costs little power.
        """
        if self.broken or self.played >= self.runs:
            return True
        if runs_needed(self.claim, self.alarm) > self.runs:
            return self.certifying > 0 and not self.claim.empty
        return self.certifying >= self.choosing / 2 and self._hopeless()

    def _hopeless(self) -> bool:
        gains = np.concatenate(self._gains, axis=1)
        if not gains.size:
            return True
        mean, spread = gains.mean(axis=1), np.maximum(gains.std(axis=1), 1e-12)
        best = mean + _DOUBT * spread / math.sqrt(gains.shape[1])
        stakes = 0.5 ** np.arange(1, STAKES + 1)
        growth = stakes * best[:, None] - (stakes * spread[:, None]) ** 2 / 2
        shares = np.log([bet.share / STAKES for bet in self._bets])[:, None]
        forecast = self._log_wealth + (self.runs - self.played) * np.maximum(growth, 0.0) + shares
        return float(logsumexp(forecast)) < math.log(2 / self.alarm)

    def finding(self) -> Finding:
        """Return what the runs so far show."""
        certified, needed = self.claim.epsilon_at(self.delta), runs_needed(self.claim, self.alarm)
        verdict: Verdict = "broken" if self.broken else "consistent" if self.runs >= needed else "not-judged"
        hits, errors = self._hits_and_errors
        way, at = self._event
        return Finding(
            attack=self.attack,
            adversary=self.adversary,
            kind="lower-bound",
            certified=certified if math.isfinite(certified) else None,
            measured=self.measured,
            delta=self.delta,
            alarm=self.alarm,
            verdict=verdict,
            evidence=self._words(certified, needed),
            details={
                "runs": self.played,
                "most_runs": self.runs,
                "log_fortune": self.log_fortune,
                "needed": math.log(2 / self.alarm),
                "event": {"threshold": at, "first": way, "hits": hits, "errors": errors, "trials": self.certifying},
                "reachable": self.reachable,
                "as_gaussian": finite_or_none(self.as_gaussian(self.alarm)),
                "likely": {  # each wrong with chance at most ``alarm``
                    "alarm": _REGION,
                    "epsilon": self.proved(_REGION),
                    "as_gaussian": finite_or_none(self.as_gaussian(_REGION)),
                },
                "path": [list(row) for row in self._path],
                "region": self._region(),
            },
        )

    def _region(self) -> dict[str, list[float]]:
        """Return the attack's rates at all cuts, what the claim allows, and limits that hold for all cuts and times."""
        trials, alarm = self.certifying, _REGION / (2 * max(1, self._cuts.size))
        if not trials:
            return {}
        ones, others = (side[:-1].astype(int).tolist() for side in self._above)
        rates = np.array(others) / trials
        return {
            "false_positives": rates.tolist(),
            "true_positives": [count / trials for count in ones],
            "least": [least_rate(count, trials, alarm, always=True) for count in ones],
            "worst": [most_rate(count, trials, alarm, always=True) for count in others],
            "allowed": self.claim.most(rates).tolist(),
        }

    def _words(self, certified: float, needed: float) -> str:
        shown = f"{self.played:,} runs on each of two neighbouring data sets prove epsilon {self.measured:.4g}"
        likely, gaussian = self.proved(_REGION), self.as_gaussian(_REGION)
        shown += f" (with {1 - _REGION:.0%} confidence {likely:.3g}"
        shown += f", or {gaussian:.3g} if the laws are Gaussian)" if gaussian > likely else ")"
        if not math.isfinite(certified):
            return f"{shown}; nothing was promised against this observer."
        if self.broken:
            if self.measured > certified:
                return f"{shown}, ABOVE the certified {certified:.4g}."
            won = f"bets against the claimed curve multiplied their stake by e^{self.log_fortune:.1f}"
            return f"{shown}; {won}: the claim is FALSE."
        if self.runs < needed:
            enough = f"even a perfect attack needs {needed:,}" if needed <= MOST else "no attack can make enough"
            return f"{shown}; too few to contradict the certified {certified:.4g}: {enough}."
        early = f" The game ended early: {self.runs:,} would hardly have refuted it." * (self.played < self.runs)
        most = f" With so many runs the strongest attack we know of could show at most about {self.reachable or 0:.3g}."
        return f"{shown}, below the certified {certified:.4g}; no bet against the claimed curve paid.{early}{most}"


def play(first: Seen, second: Seen, claim: Claim, *, adversary: Adversary, delta: float, alarm: float) -> Finding:
    """Return whether all these runs contradict the claim, and the epsilon that they prove at ``delta``."""
    game = Game(claim=claim, adversary=adversary, delta=delta, alarm=alarm, runs=first.runs)
    game.add(first, second)
    return game.finding()


def runs_needed(claim: Claim, alarm: float) -> float:
    """Return how many runs on each data set are needed to be able to contradict the claim at all.

    Infinite if no number is enough.
    """
    most = runs_to_refute(claim, alarm / 2)
    return max(FEWEST, math.ceil(most / (1 - CHOOSING))) if math.isfinite(most) else math.inf


def _telling_score(first: Seen, second: Seen) -> Score:
    """Return the most informative score on these runs: one of the attacker's, or a linear discriminant of the features.

    Half of the runs find the discriminant and the other half compares, because many features fit any few runs.
    """
    half = first.runs // 2
    candidates: list[Score] = [_column(k) for k in range(first.scores.shape[1])]
    if first.features.shape[1]:
        candidates.append(_along(_discriminant(first.features[:half], second.features[:half])))
    require(len(candidates) >= 1, "Seen", "have a feature or a score", 0)

    def telling(score: Score) -> tuple[float, Score]:
        ones, others = score(first), score(second)
        if np.median(ones) < np.median(others):
            return telling(lambda seen: -score(seen))
        ranks = np.concatenate([ones[half:], others[half:]]).argsort().argsort()
        return float(ranks[: ones.size - half].mean()), score

    return max((telling(score) for score in candidates), key=lambda pair: pair[0])[1]


def _column(place: int) -> Score:
    return lambda seen: seen.scores[:, place]


def _along(direction: Vector) -> Score:
    return lambda seen: np.asarray(seen.features @ direction, dtype=np.float64)


def _discriminant(first: Vector, second: Vector) -> Vector:
    """Return Fisher's direction, in which the difference of the means is largest relative to the spread."""
    gap = first.mean(axis=0) - second.mean(axis=0)
    spread = np.atleast_2d(np.cov(first.T)) + np.atleast_2d(np.cov(second.T))
    scale = max(float(np.trace(spread)), 1e-300)
    found = np.linalg.lstsq(spread + _RIDGE * scale * np.eye(gap.size), gap, rcond=None)[0]
    return np.asarray(found, dtype=np.float64)


def _telling_event(first: Vector, second: Vector, times: float, delta: float, alarm: float) -> tuple[bool, float]:
    """Return the event that would prove the largest epsilon if ``times`` as many runs went like these.

    The event is "above the threshold" for the first data set, or else "not above it" for the second.
    """
    trials = int(times * first.size)

    def proved(option: tuple[bool, float]) -> float:
        way, at = option
        ones, others = float(np.mean(first > at)), float(np.mean(second > at))
        hits, errors = (ones, others) if way else (1 - others, 1 - ones)
        return least_epsilon(int(hits * trials), int(errors * trials), trials, delta, alarm, always=False)

    cuts = np.unique(np.quantile(np.concatenate([first, second]), np.linspace(0.002, 0.998, 200)))
    return max(((way, at) for way in (True, False) for at in cuts.tolist()), key=proved)
