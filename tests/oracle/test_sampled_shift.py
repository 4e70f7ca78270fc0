"""Hiding and sampling in one bound, against exact chains with independent draws; and Kahane's inequality itself."""

import math
import os
from collections.abc import Sequence

import numpy as np
import pytest
from sampled_chains import Chain, Part, chains, hockey, independent_law, poisson_law, random_plan, shared_plan

from fedveil.core.values import Vector
from fedveil.theory.allocation import AllocationLaw, Summands
from fedveil.theory.closing import at_once, check_plan, lengths
from fedveil.theory.composition import Uses, profile, two_hops, worst_delta_upper
from fedveil.theory.exchange import exchange_delta
from fedveil.theory.loss import GaussianLaw, LossLaw
from fedveil.theory.rounds import Rounds
from fedveil.theory.sampled_poisson import part_law

SETTINGS = int(os.environ.get("FEDVEIL_CHAINS", "8"))  # the campaign: 500
EPSILONS = (0.0, 0.3, 1.5)
FLOOR = 3e-5  # what cells and quadrature may move; halving the cells moves less


def pair_uses(rounds: Rounds, parts: Sequence[Part], rate: float, way: str, members: int = 1) -> Uses:
    return [(part_law(rounds, part, rate, group=members, way=way), 1) for part in parts]  # type: ignore[arg-type]


def summands_of(rounds: Rounds, parts: Sequence[Part], count: int) -> Summands:
    return tuple((tuple((float(mu), 1 / count) for mu in lengths(rounds, part)), 1) for part in parts)


def pass_laws(rounds: Rounds, parts: Sequence[Part], count: int) -> tuple[LossLaw, LossLaw]:
    found = summands_of(rounds, parts, count)
    if len(found) == 1 and len(found[0][0]) == 1:
        return (GaussianLaw(found[0][0][0][0]),) * 2
    return AllocationLaw(found, "present", tail=1e-7), AllocationLaw(found, "null", tail=1e-7)


def assert_covered(p: Vector, q: Vector, uses: Uses, label: str) -> None:
    for epsilon in EPSILONS:
        exact = hockey(p, q, epsilon)
        claimed = worst_delta_upper([uses], epsilon)
        assert exact <= claimed + FLOOR, f"{label}: at {epsilon} exact {exact}, claimed {claimed}"


def cases() -> list[object]:
    return [pytest.param(rng, chain, id=str(n)) for n, (rng, chain) in enumerate(chains(7, SETTINGS))]


@pytest.mark.parametrize(("rng", "chain"), cases())
def test_poisson_chains_never_tell_more(rng: np.random.Generator, chain: Chain) -> None:
    rate = float(rng.choice([0.05, 0.2, 0.5, 0.9, 1.0]))
    present, null = poisson_law(chain, rate, chain.push), poisson_law(chain, rate, None)
    other = poisson_law(chain, rate, chain.other)
    count = len(chain.maps)
    for parts in (random_plan(rng, count), random_plan(rng, count), at_once(count), shared_plan(rng, count)):
        check_plan(parts, count)
        label = f"{chain.label}, rate {rate}, {parts}"
        assert_covered(present, null, pair_uses(chain.rounds, parts, rate, "present"), label)
        assert_covered(null, present, pair_uses(chain.rounds, parts, rate, "null"), label)
        exchange = pair_uses(chain.rounds, parts, rate, "exchange")
        assert_covered(present, other, exchange, label)
        assert_covered(other, present, exchange, label)


@pytest.mark.parametrize(("rng", "chain"), cases())
def test_independent_chains_never_tell_more(rng: np.random.Generator, chain: Chain) -> None:
    present, null, other = (independent_law(chain, push) for push in (chain.push, None, chain.other))
    count = len(chain.maps)
    for parts in (random_plan(rng, count), at_once(count), shared_plan(rng, count)):
        check_plan(parts, count)
        label = f"{chain.label}, {parts}"
        try:
            ahead, back = pass_laws(chain.rounds, parts, count)
            assert_covered(present, null, [(ahead, 1)], label)
        except OverflowError:
            continue  # nothing is claimed
        assert_covered(null, present, [(back, 1)], label)
        log_delta = two_hops(profile([(ahead, 1)]), profile([(back, 1)]))[0]
        for epsilon in EPSILONS:
            worst = max(hockey(present, other, epsilon), hockey(other, present, epsilon))
            assert worst <= math.exp(log_delta(epsilon)) + FLOOR, label
            assert worst <= exchange_delta(summands_of(chain.rounds, parts, count), epsilon, 1e-7) + FLOOR, label


def test_groups_of_two_under_poisson_sampling() -> None:
    for rng, chain in chains(11, SETTINGS // 4):
        rate, count = float(rng.choice([0.1, 0.4])), len(chain.maps)
        present, null = poisson_law(chain, rate, chain.push, 2), poisson_law(chain, rate, None)
        parts = random_plan(rng, count)
        assert_covered(present, null, pair_uses(chain.rounds, parts, rate, "present", 2), f"{chain.label}, {parts}")
        assert_covered(null, present, pair_uses(chain.rounds, parts, rate, "null", 2), f"{chain.label}, {parts}")


def test_kahane_on_random_finite_families() -> None:
    """Larger covariances give larger means of convex functions: by quasi-exact integration in two dimensions."""
    rng = np.random.default_rng(5)
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    z = np.stack(np.meshgrid(nodes, nodes), axis=-1).reshape(-1, 2)
    mass = np.multiply.outer(weights, weights).ravel() / (2 * math.pi)
    for _ in range(60):
        family = rng.normal(size=(int(rng.integers(2, 6)), 2)) * rng.uniform(0.1, 0.9)
        shares = rng.dirichlet(np.ones(len(family)))
        longer = np.linalg.norm(family, axis=1) * rng.uniform(1.0, 1.1, len(family))
        small = np.exp(z @ family.T - np.sum(family**2, axis=1) / 2) @ shares
        large = np.exp(np.outer(z[:, 0], longer) - longer**2 / 2) @ shares
        for gamma in (0.5, 1.0, 2.0, 5.0):
            for convex in (lambda r, g=gamma: np.maximum(r - g, 0.0), lambda r, g=gamma: np.maximum(1 - g * r, 0.0)):
                assert mass @ convex(small) <= mass @ convex(large) + 2e-3
