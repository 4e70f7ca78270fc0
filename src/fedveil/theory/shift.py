r"""Optimal shift: the least $\mu$ such that the last iterates of two neighbouring runs are $\mu$-GDP apart.

A gap that a round opens may be closed by later noise, never by earlier. Closing it at equal pace is cheapest,
so the best plan is a taut string: the greatest convex minorant of the gaps opened so far, over the noise's
clock. Theory page: optimal-shift.md.

References:
    [BSA24] Bok, Su, Altschuler. Shifted Interpolation for Differential Privacy. ICML 2024.
"""

import math

import numpy as np
import scipy

from fedveil.core.errors import require
from fedveil.core.values import Vector
from fedveil.theory.rounds import Indices as Indices
from fedveil.theory.rounds import Rounds

_EXHAUSTIVE = 1500  # most rounds for which every starting round is tried
_FEW = 12  # most uses for which many hulls are computed at once
_MANY = 400  # beyond this many uses only the last few are followed, if a bounded domain allows it


def unhidden_mu(rounds: Rounds, uses: Indices) -> Vector:
    """Return mu if every iterate is seen: one Gaussian per use (last axis), in quadrature."""
    return _quadrature(rounds.gap[uses] / rounds.noise[uses])


def _quadrature(parts: Vector) -> Vector:
    return np.asarray(np.sqrt(np.sum(parts**2, axis=-1)), dtype=np.float64)


def shift_mu(rounds: Rounds, leaks: Vector) -> float:
    """Return the least mu for any gaps ``leaks`` opened in the rounds; in a bounded domain the past can be forgotten.

    >>> one = np.ones(4); r = Rounds(one, one, one, one, np.full(4, math.inf), math.inf)
    >>> round(shift_mu(r, np.array([1.0, 0.0, 0.0, 0.0])), 12)  # one use, three more rounds: 1 / sqrt(4)
    0.5
    """
    require(leaks.shape == (rounds.count,), "leaks", f"have {rounds.count} entries", leaks.shape)
    require(np.all(leaks >= 0), "leaks", "be non-negative", float(leaks.min()))
    best = _separate(rounds, leaks)
    if rounds.contracts:
        opened, weights = rounds.factor * leaks, (rounds.factor * rounds.noise) ** 2
        best = min(best, _energy(opened, weights))
        if math.isfinite(rounds.diameter):
            for start in _starts(rounds.count, leaks):
                first = opened[start:].copy()
                first[0] += rounds.factor[start] * rounds.reach[start]
                best = min(best, _energy(first, weights[start:]))
    return math.sqrt(best)


def _separate(rounds: Rounds, leaks: Vector) -> float:
    """Return mu^2 if every state is seen, or every state from some round on that began with two arbitrary points."""
    with np.errstate(over="ignore"):
        parts = (leaks / rounds.noise) ** 2
        later = np.append(np.cumsum(parts[::-1])[::-1], 0.0)
        forgotten = ((leaks + rounds.reach) / rounds.noise) ** 2 + later[1:]
    return min(float(later[0]), float(np.min(forgotten))) if math.isfinite(rounds.diameter) else float(later[0])


def _starts(count: int, leaks: Vector) -> list[int]:
    """Return the rounds before which everything may be forgotten: all, or a geometric choice (any subset is valid)."""
    if count <= _EXHAUSTIVE:
        return list(range(count))
    later = {int(count - 1.3**power) for power in range(int(math.log(count) / math.log(1.3)) + 1)}
    used = np.flatnonzero(leaks > 0)
    if used.size:
        later.add(int(used[-1]) + 1)
    return sorted(start for start in later if 0 <= start < count)


def _energy(increments: Vector, weights: Vector) -> float:
    """Return the sum of slope^2 * length over the greatest convex minorant, by isotonic regression of the slopes."""
    if not (np.all(weights > 0) and np.all(np.isfinite(weights)) and np.all(np.isfinite(increments))):
        return math.inf
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        fitted = scipy.optimize.isotonic_regression(increments / weights, weights=weights).x
        energy = float(np.sum(weights * fitted**2))
    return energy if not math.isnan(energy) else math.inf


def uses_mu(rounds: Rounds, uses: Indices, gaps: Vector, ends: Indices) -> Vector:
    """Return mu for many sets of uses: ``uses`` (sorted) and ``gaps`` are (..., K), ``ends`` broadcasts to (...).

    ``ends`` counts the rounds after which the state is released. Forgetting the past after a use is tried too. A use
    after the release still counts.
    """
    shape = np.broadcast_shapes(uses.shape[:-1], gaps.shape[:-1], ends.shape)
    gaps, ends = np.broadcast_to(gaps, (*shape, uses.shape[-1])), np.broadcast_to(ends, shape)
    uses = np.broadcast_to(uses, gaps.shape)
    separate = _quadrature(gaps / rounds.noise[uses])
    if not rounds.contracts:
        return separate
    if not rounds.deep:
        return np.minimum(separate, _hidden_mu(rounds, uses, gaps, ends))
    out = separate.copy()  # products too small for a float: each release is computed separately
    for end in np.unique(ends):
        here = ends == end
        last = np.minimum(uses[here], end - 1)  # a use after the release is charged to the last round before it
        hidden = _hidden_mu(rounds.seen_at(int(end)), last, gaps[here], ends[here])
        out[here] = np.minimum(separate[here], hidden)
    return out


def _hidden_mu(rounds: Rounds, uses: Indices, gaps: Vector, ends: Indices) -> Vector:
    forget = math.isfinite(rounds.diameter) and uses.shape[-1] > _MANY
    if forget:  # in a bounded domain, what came before the last few uses may always be forgotten
        uses, gaps = uses[..., -_FEW - 1 :], gaps[..., -_FEW - 1 :]
    opened = rounds.factor[uses] * gaps
    stops = np.concatenate([uses[..., 1:], ends[..., None]], axis=-1)
    lengths = rounds.span(uses, stops)
    best = np.full(ends.shape, np.inf) if forget else _energies(opened, lengths)
    if math.isfinite(rounds.diameter):
        count = uses.shape[-1]
        for kept in range(max(0, count - _FEW), count):  # any choice is valid
            best = np.minimum(best, _forgetting(rounds, uses, opened, lengths, stops, kept))
    return np.asarray(np.sqrt(best), dtype=np.float64)


def _forgetting(rounds: Rounds, uses: Indices, opened: Vector, lengths: Vector, stops: Indices, kept: int) -> Vector:
    """Return the energy if everything up to use number ``kept`` is forgotten and two arbitrary points go on."""
    start = uses[..., kept] + 1  # the round after that use
    inside = np.minimum(start, rounds.count - 1)
    image = rounds.factor[inside] * rounds.reach[inside]
    increments = np.concatenate([image[..., None], opened[..., kept + 1 :]], axis=-1)
    span = rounds.span(start, stops[..., kept])
    widths = np.concatenate([span[..., None], lengths[..., kept + 1 :]], axis=-1)
    return np.where(start < stops[..., -1], _energies(increments, widths), np.inf)


def _energies(increments: Vector, widths: Vector) -> Vector:
    """Return :func:`_energy` along the last axis. A piece of zero width is pooled with the next."""
    count = increments.shape[-1]
    if count > _FEW:
        flat = zip(increments.reshape(-1, count), widths.reshape(-1, count), strict=True)
        values = [_energy(*_pooled(rise, run)) if run[-1] > 0 else math.inf for rise, run in flat]
        return np.asarray(values, dtype=np.float64).reshape(increments.shape[:-1])
    # Entry (a, b): the sum of pieces a..b, computed anew for each a, because a difference would lose small terms.
    rise = np.cumsum(np.triu(np.broadcast_to(increments[..., None, :], (*increments.shape, count))), axis=-1)
    run = np.cumsum(np.triu(np.broadcast_to(widths[..., None, :], (*widths.shape, count))), axis=-1)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
        slope = np.where(run > 0, rise / run, np.inf)
        least = np.minimum.accumulate(slope[..., ::-1], axis=-1)[..., ::-1]
        fitted = np.stack([np.max(least[..., : j + 1, j], axis=-1) for j in range(count)], axis=-1)
        energy = np.sum(np.where(widths > 0, widths * fitted**2, 0.0), axis=-1)
    stuck = widths[..., -1] <= 0  # no noise is left to close the last gap
    return np.asarray(np.where(stuck | np.isnan(energy), np.inf, energy), dtype=np.float64)


def _pooled(increments: Vector, widths: Vector) -> tuple[Vector, Vector]:
    """Remove pieces of zero width: the gap they open is added to the next piece."""
    wide = np.flatnonzero(widths > 0)
    return np.add.reduceat(increments, np.append(0, wide[:-1] + 1)), widths[wide]
