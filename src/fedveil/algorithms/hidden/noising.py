"""What depends on who draws the noise of a hidden run: the bounds on what observers learn, and the cost of the grid."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, final

import numpy as np

from fedveil.account.evaluator import Evaluator
from fedveil.account.grid import Grid
from fedveil.account.hidden import per_round
from fedveil.account.observers import views
from fedveil.account.shares import views_of_shares
from fedveil.algorithms.hidden.crowd import crowd, crowded
from fedveil.algorithms.noise_shares import variation, with_masks
from fedveil.algorithms.setup import Setup
from fedveil.guarantee import Adversary
from fedveil.theory.grid import halves_of

if TYPE_CHECKING:
    from fedveil.algorithms.hidden.method import Hidden


class AtOnce:
    """One party draws the noise of a round, and rounds the whole step once."""

    __slots__ = ()

    def views(self, method: Hidden, adversary: Adversary, setup: Setup) -> Sequence[Evaluator]:
        """Return every bound on what this observer learns, with ideal noise."""
        return views(method.run, adversary, method.participation(setup))

    def grid(self, method: Hidden, adversary: Adversary, setup: Setup, exponent: int) -> Grid:
        """Return the cost of state and noise on multiples of 2**exponent."""
        grid = Grid.of(
            exponent=exponent,
            dimension=setup.dimension,
            noise=method.noise(),
            lipschitz=method.stretch(),
            errors=method.float_errors(setup),
            law=method.run.noise,
        )
        grid = replace(grid, total_variation=min(1.0, grid.total_variation + crowded(method.run)))
        if adversary in ("final-model", "every-model") or method.participation(setup).alone:
            return grid
        # The others know part of a round's noise; some unit's share is left, or no guarantee is given at all.
        left = 1 / float(per_round(method.run.batch, method.run).max())
        return replace(grid, distance=grid.distance / math.sqrt(left))

    def reach(self, method: Hidden, setup: Setup) -> float:
        """Return the largest length that the grid must hold: the ball's radius."""
        return method.radius(setup)


@final
class InShares(AtOnce):
    """Every client adds a share, and rounds its own contribution; a state has the error of all."""

    __slots__ = ()

    def views(self, method: Hidden, adversary: Adversary, setup: Setup) -> Sequence[Evaluator]:
        """Return every bound on what this observer learns, with ideal shares."""
        return views_of_shares(method.run, adversary, method.participation(setup), method.shares(setup))

    def grid(self, method: Hidden, adversary: Adversary, setup: Setup, exponent: int) -> Grid:
        """Return the cost of state, contributions and shares on multiples of 2**exponent."""
        run, cohorts, dimension = method.run, method.cohorts(setup), setup.dimension
        sizes = np.array(cohorts, dtype=np.float64)
        sent = np.minimum(sizes, crowd(run))  # zeros are not rounded
        noise, half = method.noise(), 2.0**exponent / 2 * math.sqrt(dimension)
        stretch, errors = method.stretch(), method.float_errors(setup)
        shares = method.shares(setup)
        honest = shares.honest(run)
        if adversary == "server":  # it sees every message: each is rounded on its own, against its own share
            noise, stretch = noise / np.sqrt(honest * sent), np.zeros_like(stretch)
        else:
            left = shares.beside(run) if adversary == "curious-client" else np.ones_like(noise)
            halves = np.array([halves_of(count) for count in sizes.tolist()]) if sizes.size else sizes
            errors = errors + half * (sent + stretch * (float(halves.max()) - 1))
            noise = noise * np.sqrt(left)
        found = Grid.of(exponent=exponent, dimension=dimension, noise=noise, lipschitz=stretch, errors=errors)
        sampled = variation(method.noise(), cohorts, setup.trust, found) + crowded(run)
        found = replace(found, total_variation=min(1.0, sampled))
        return with_masks(found, setup.trust, adversary, method.total)

    def reach(self, method: Hidden, setup: Setup) -> float:
        """Return the same, or the length of a client's contribution, which may be longer than the ball is wide."""
        return max(method.radius(setup), float(method.longest().max()) * 1.001)


NOISING: Final[dict[str, AtOnce]] = {"central": AtOnce(), "shares": InShares()}
