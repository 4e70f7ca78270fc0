"""What the rounds of DP-SGD cost: the charge for a client's rounds, in segments or with correlated noise, and the grid.

van Dijk and Nguyen (2023), section 5.2, for segments. Pages: docs/segments.md, docs/correlated-noise.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np

from fedveil.accounting.calibrate import at_most, calibrate, scaled
from fedveil.accounting.compare import account_for
from fedveil.accounting.grid import Grid
from fedveil.core.errors import require
from fedveil.models.rows import UNIT, rounding_bound
from fedveil.privacy.guarantee import Neighbours
from fedveil.privacy.mechanism import Compose, Gaussian, Mechanism
from fedveil.privacy.target import Target
from fedveil.stages.train.adaptive_clip import relative_error
from fedveil.stages.train.base import Setup
from fedveil.stages.train.correlation import NAME, Correlation
from fedveil.stages.train.dpsgd.mixing import mixture
from fedveil.stages.train.dpsgd.rounds import DpSgdRounds, costs_of_segments
from fedveil.stages.train.dpsgd.settings import DRAWN, MOST_ROUNDS, ClientSettings, Clipping, Sampling, class_rate
from fedveil.stages.train.settings import widest_grid
from fedveil.stages.train.share_words import Row
from fedveil.theory.binomial_tail import most_joined
from fedveil.theory.grid import SAMPLER_DISTANCE

# Segments, each with its own rate, clip, noise and steps.


def charged(parts: Sequence[ClientSettings], sampling: Sampling, clipping: Clipping, target: Target) -> Mechanism:
    """Return what a client releases in all its segments: the composition of what it releases in each.

    Every segment draws its batches anew, so a shuffled or independent pass that a segment only began is charged whole.
    """
    each = tuple(settings.charged(sampling, clipping, target.neighbours) for settings in parts)
    return each[0] if len(each) == 1 else Compose(parts=each)


def affordable(
    settings: ClientSettings, sampling: Sampling, clipping: Clipping, target: Target, epsilon: float, delta: float
) -> int:
    """Return the largest number of a client's rounds whose records' cost is at most (epsilon, delta); 0 if none is."""

    def costs(rounds: int) -> float:
        part = replace(settings, rounds=rounds, step_size=1.0)
        return account_for(charged((part,), sampling, clipping, target), delta=delta).epsilon

    return largest_count(settings.rounds, lambda rounds: costs(rounds) <= epsilon)


def largest_count(high: int, fits: Callable[[int], bool]) -> int:
    """Return the largest number from 0 to ``high`` that fits, where whatever is smaller than a fitting one fits too."""
    if fits(high):
        return high
    low = 0
    while high - low > 1:  # ``low`` fits and ``high`` does not
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def check_choice(method: DpSgdRounds) -> None:
    """Refuse a rule where it could not choose, or where what it spends is not proved."""
    require(method.segments, "algorithm.choose", "go with segments to choose from", method.choice)
    network = method.network
    hint = "Leave delay, loss, jitter, speeds, max_deviation, participants and window out."
    waits = network.together and network.window == 1 and network.window_steps is None
    require(waits, "algorithm.choose", "go with clients that wait for each other in every round", "others", hint)
    costs = costs_of_segments(method)
    budget = 0.0 if not method.choice else method.choice.budget
    paid = any(cost <= Fraction(budget) for cost in costs)
    hint = "Raise privacy.epsilon, or give the segments more noise or fewer rounds."
    rule = "have one whose cost is within the budget"
    require(paid, "algorithm.segments", rule, f"a least cost of {float(min(costs)):.6g} for {budget:.6g}", hint)


def most_segments(method: DpSgdRounds) -> int:
    """Return how many segments are run at most."""
    if not method.choice:
        return len(method.client_settings)
    return max(1, math.floor(Fraction(method.choice.budget) / min(costs_of_segments(method))))


def within_budget(method: DpSgdRounds, target: Target, budget: float) -> Mechanism:
    """Return what a client releases at most, whatever is chosen, as one mechanism for the target's neighbours."""
    rows = [p.charged(method.sampling, method.clipping, target.neighbours) for p in method.client_settings]
    return at_most(rows, budget)


def joint_cost(method: DpSgdRounds) -> float:
    """Return a budget that pays for every candidate once."""
    total = sum(costs_of_segments(method))
    result = float(total)
    return result if Fraction(result) >= total else math.nextafter(result, math.inf)


def fitting_budget(method: DpSgdRounds, target: Target, epsilon: float, delta: float, left: float = 1.0) -> float:
    """Return the largest budget that costs at most (epsilon, delta) when it is used up.

    ``left``: the part of the noise's deviation that the observer does not know.
    """
    whole = scaled(within_budget(method, target, 1.0), left)
    if isinstance(whole, Gaussian):
        return float(calibrate(whole, epsilon=epsilon, delta=delta)[0]) ** -2

    def fits(count: int) -> bool:
        return account_for(scaled(within_budget(method, target, float(count)), left), delta=delta).epsilon <= epsilon

    high = 1
    while high < MOST_ROUNDS and fits(high):
        high *= 2
    result = largest_count(min(high, MOST_ROUNDS), fits)
    rule = f"cost at most epsilon {epsilon:.6g} at delta {delta:.6g} in one round at least"
    require(result >= 1, "algorithm.segments", rule, "more", "Raise privacy.epsilon, or give the segments more noise.")
    return float(result)


def joined_grids(grids: Sequence[Grid], times: Sequence[int]) -> Grid:
    """Return the grid's cost over segments, each as often as stated: squared distances add, and so do deviations."""
    pairs = list(zip(grids, times, strict=True))
    squares = math.fsum(count * grid.distance**2 for grid, count in pairs)
    return replace(
        grids[0],
        rounds=sum(count * grid.rounds for grid, count in pairs),
        distance=math.sqrt(squares) * (1 + 1e-12),
        total_variation=min(1.0, math.fsum(count * grid.total_variation for grid, count in pairs)),
    )


# Noise that is correlated over rounds: which rounds it goes with, and what it costs.


def check_correlation(method: DpSgdRounds) -> None:
    """Refuse what correlated noise is not proved for, and rounds in which records come back too early or too often."""
    found, settings = method.correlated, method.client_settings[0]
    if not found:
        hint = "Batches that come back in the same order go with [algorithm.correlation]."
        require(method.sampling != "cyclic", "algorithm.sampling", "not be cyclic here", method.sampling, hint)
        return
    hint = "Records must come back at times that the plan fixes, or draw within classes that take turns."
    fits = method.sampling in ("cyclic", "poisson")
    require(fits, "algorithm.sampling", "be cyclic or poisson for correlated noise", method.sampling, hint)
    fits = found.rounds == settings.rounds
    require(fits, NAME, f"be for the {settings.rounds} rounds of the method", found.rounds)
    single = len(method.client_settings) == 1 and not method.segments and not method.stops
    require(single, "algorithm.correlation", "go with settings that all clients share", "others", "One for all.")
    fixed = not method.adaptive
    require(fixed, "algorithm.clip", "be a number for correlated noise", "adaptive", "The matrix is for equal clips.")
    turns = settings.batches_a_pass if method.sampling == "cyclic" else found.separation
    rule = f"be at most {turns}, the rounds after which a record comes back"
    require(found.separation <= turns, "algorithm.correlation.separation", rule, found.separation)
    needed = -(-settings.rounds // turns)
    rule = f"be at least {needed}, the rounds that a record is used in"
    require(found.participations >= needed, "algorithm.correlation.participations", rule, found.participations)
    if method.sampling == "cyclic":
        even = settings.rate == 1 / settings.batches_a_pass
        require(even, "algorithm.rate", "be one over the rounds of a pass for cyclic batches", settings.rate)
        return
    most = 1 / found.separation
    hint = "A class holds only so many of the records."
    fits = settings.rate <= most * (1 + 1e-12)
    require(fits, "algorithm.rate", f"be at most one over the {found.separation} classes", settings.rate, hint)
    apart = found.factor.banded and len(found.factor.column) <= found.separation
    hint = "With buffers, or more bands, take sampling = cyclic."
    require(apart, NAME, f"have at most as many bands as classes, {found.separation}", found.words(), hint)


def check_persons(method: DpSgdRounds) -> None:
    """Refuse what is proved for single records and not for groups of them."""
    chosen = not method.choice and not method.stops
    hint = "Budgets of single clients and rules that choose are charged for single records."
    require(chosen, "algorithm.choose and own_epsilon", "be left out when persons are protected", "others", hint)
    apart = not method.correlated or method.sampling == "cyclic"
    hint = "Members of a person in different classes meet in the noise: take sampling = cyclic."
    require(apart, NAME, "go with cyclic batches when persons are protected", method.sampling, hint)


def charged_together(method: DpSgdRounds, correlation: Correlation, noise: float, target: Target) -> Mechanism:
    """Return what a client releases in all its rounds: one Gaussian, or sampled ones if records draw for themselves.

    A clipped batch moves by up to 2 * clip where a record takes part, whether it is exchanged or left out.
    """
    neighbours: Neighbours = target.neighbours
    if method.sampling == "cyclic":
        return correlation.charged(noise, "replace-one" if method.clipping == "batch" else neighbours)
    rate = class_rate(method.client_settings[0].rate, correlation.separation)
    return correlation.charged_sampled(noise / 2 if method.clipping == "batch" else noise, rate, neighbours)


def error_of(method: DpSgdRounds, settings: ClientSettings, setup: Setup, exponent: int) -> float:
    """Return how far the mean of a round is displaced, besides the half grid step that every coordinate is rounded by.

    With correlated noise the errors of earlier rounds come back with it, and what it takes off is rounded too: once,
    or at every client that adds a stream of its own.
    """
    # of a person's every record
    error = setup.target.largest_person * float_error(method, settings, setup, exponent)
    found = method.correlated
    if not method.local(setup):  # a client scales its sum before it rounds it
        error *= mixture(method, setup).factors[method.client_settings.index(settings) if not method.segments else 0]
    if not found:
        return error
    step, length = 2.0**exponent, 2.0**exponent * math.sqrt(setup.dimension)
    steps, streams = settings.noise * settings.clip / step, 1
    if setup.trust.noise == "shares" and not method.local(setup):
        steps, streams = steps / math.sqrt(setup.trust.honest(setup.data.clients)), setup.data.clients
    whole = found.displaced(steps, error, length / 2, length)
    whole += (streams - 1) * found.factor.rounding(steps, found.rounds) * length
    return max(0.0, whole - length / 2 * (1 - 1e-9))


def correlated_rows(method: DpSgdRounds) -> list[Row]:
    """Return what the guarantee assumes of correlated noise; nothing is said of independent noise."""
    correlation = method.correlated
    if not correlation:
        return []
    if method.sampling == "cyclic":
        return correlation.rows()
    rate, classes = class_rate(method.client_settings[0].rate, correlation.separation), correlation.separation
    how = "classes take turns; a record joins the rounds of its own class alone, each by a coin that nobody learns"
    once = "the norm of a column of the matrix; two participations of a record never meet in the noise"
    return [
        ("noise over rounds", correlation.words(), "made by address from the client's key: a restart repeats it"),
        ("classes of records", f"{classes}, joining with chance {rate:.6g}", how),
        ("sensitivity of a participation", f"{correlation.column_norm:.12g} contributions", once),
    ]


# The lengths that follow from a plan: noise of means, largest batches, the ball, float errors.


def mean_noise(method: DpSgdRounds, client: int, records: int) -> float:
    """Return the noise of a client's mean gradient, root mean square over its rounds."""
    parts = method.parts_of(client)
    each = [p.noise * p.clip / (1.0 if method.clipping == "batch" else method.divisor(p, records)) for p in parts]
    if len(parts) == 1:
        correlation = method.correlated
        return each[0] if not correlation else each[0] * correlation.factor.of_a_round(correlation.rounds)
    squares = math.fsum(p.rounds * noise * noise for p, noise in zip(parts, each, strict=True))
    return math.sqrt(squares / method.rounds_of(client))


def most_rows(method: DpSgdRounds, settings: ClientSettings, records: int) -> int:
    """Return a size that a batch of such a client exceeds with a chance of at most 2**-100 a round (Bernstein)."""
    if method.sampling == "cyclic":
        return -(-records // settings.batches_a_pass)
    if method.sampling not in DRAWN:
        return settings.size(records)
    return most_joined(class_rate(settings.rate, method.classes), -(-records // method.classes))


def radius_of(method: DpSgdRounds, setup: Setup) -> float:
    """Return the stated radius, or one too large to matter."""
    return usual_radius(method, setup) if setup.model.radius is None else setup.model.radius


def usual_radius(method: DpSgdRounds, setup: Setup) -> float:
    """Return a power of two that is larger than descent and noise reach together.

    Descent goes no farther than sqrt(2 steps * loss). Adam goes by the length of its steps, whatever the gradients are.
    """
    size, data = setup.dimension, setup.data
    pairs = ((settings, method.longest(index)) for index, settings in enumerate(method.client_settings))
    reach = []
    for settings, clip in set(pairs):
        planned = 1.0 if method.clipping == "batch" else method.divisor(settings, data.smallest_client)
        steps = np.array([settings.step(turn) for turn in range(settings.rounds)]) / (1 - method.optimiser.momentum)
        walk = settings.noise * clip / planned * math.sqrt(size * float(steps @ steps))
        way = math.sqrt(2 * float(steps.sum()) * math.log(max(data.classes, 3)))
        if method.optimiser.kind == "adam":
            way, walk = float(settings.steps().sum()) * math.sqrt(size), 0.0
        reach.append(2 * way + 4 * walk)
    times = most_segments(method) if method.segments else 1
    return float(2.0 ** math.ceil(math.log2(max(1.0, times * max(reach)))))


_ROUNDINGS = 60  # of a mean and its norm, beside those of the gradient


def float_error(method: DpSgdRounds, settings: ClientSettings, setup: Setup, exponent: int) -> float:
    """Return how far the computed sum (or clipped mean) is from the exact one.

    Where records are rounded on their own, only the victim's contribution is compared with one within its clip:
    the others' are what they are, the same on both data sets (docs/dpsgd.md).
    """
    data, model = setup.data, setup.model
    if method.adaptive:
        return relative_error(data.features, model.loss.outputs, setup.dimension, exponent)
    apart = method.apart(model)
    rows = 1 if apart else most_rows(method, settings, data.largest_client)
    raw = model.loss.constants(data.bound, settings.clip if method.clipping == "individual" else None)
    mean = rounding_bound(
        rows=rows,
        features=data.features,
        lipschitz=raw.lipschitz,
        smoothness=raw.smoothness,
        radius=radius_of(method, setup),
        outputs=model.loss.outputs,
    )
    if apart:
        half = 0.5 * math.sqrt(setup.dimension) * 2.0**exponent
        return mean + _ROUNDINGS * UNIT * raw.lipschitz + half
    if method.clipping == "individual":
        return rows * (mean + _ROUNDINGS * UNIT * raw.lipschitz)
    least = data.smallest_client  # there a batch exceeds the planned divisor most
    ratio = most_rows(method, settings, least) / method.divisor(settings, least)
    own = (_ROUNDINGS + setup.dimension) * UNIT
    return ratio * (mean + own * raw.lipschitz) + own * settings.clip


# The grid.


def grid_cost(method: DpSgdRounds, setup: Setup, exponent: int) -> Grid:
    """Return the cost of the grid for the worst client, in all segments, or in any that a rule can choose."""
    kinds = list(dict.fromkeys(method.client_settings))
    result = [_one_grid(method, settings, setup, exponent) for settings in kinds]
    if method.choice:
        each = [result[kinds.index(settings)] for settings in method.client_settings]
        return widest_grid(each, costs_of_segments(method), method.choice.budget)
    if method.segments:
        return joined_grids(result, [method.client_settings.count(settings) for settings in kinds])
    worst = max(result, key=lambda grid: grid.distance)
    return replace(worst, total_variation=max(grid.total_variation for grid in result))


def _one_grid(method: DpSgdRounds, settings: ClientSettings, setup: Setup, exponent: int) -> Grid:
    one = settings.noise * method.scale(settings)
    if not method.local(setup) and not method.segments:
        one = mixture(method, setup).noise
    elif not method.local(setup) and method.window > 1:  # sums of a window are scaled to one of its rounds
        pulls = [mixture(method, setup, turn).pull for turn in sorted(set(method.starts))]
        one *= min(pulls) / max(pulls)
    noise = np.full(settings.rounds, one)
    grid = Grid.of(
        exponent=exponent,
        dimension=setup.dimension + method.adaptive.votes,
        noise=noise,
        lipschitz=np.zeros_like(noise),
        errors=np.full_like(noise, error_of(method, settings, setup, exponent)),
    )
    overfull = settings.rounds * SAMPLER_DISTANCE if method.sampling in DRAWN else 0.0
    return replace(grid, total_variation=min(1.0, grid.total_variation + overfull))
