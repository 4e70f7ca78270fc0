"""Generalisation bounds against closed forms in fifty digits, exact enumeration, and a simulation."""

import itertools
import math

import mpmath
import numpy as np
import pytest

from fedveil.report.bounds import Problem, Table, simulate
from fedveil.theory.generalization import (
    GaussianMean,
    Network,
    SubGaussian,
    coded_bound,
    federated_bound,
    locally_private_bound,
    mean_information,
    mean_node_gap,
    private_information,
    sample_bound,
    stable_bound,
)
from oracle.generalization_tails import Cumulant, federated_sample_bound, inverse_conjugate

INFORMATION = [1e-12, 1e-6, 0.01, 0.5, 3.0, 1e3]


@pytest.mark.parametrize("y", INFORMATION)
@pytest.mark.parametrize("c", [0.01, 1.0, 50.0])
def test_sub_gamma_tail_has_its_closed_form(y: float, c: float) -> None:
    def psi(lam: float) -> float:
        return lam**2 / (2 * (1 - c * lam))

    assert inverse_conjugate(psi, y, b=1 / c) == pytest.approx(math.sqrt(2 * y) + c * y, rel=1e-12)


@pytest.mark.parametrize("y", INFORMATION)
def test_poisson_tail_is_the_root_of_its_conjugate(y: float) -> None:
    """psi = e^lam - 1 - lam, so psi*(t) = (1 + t) ln(1 + t) - t; math.expm1 overflows beyond lam = 709."""
    got = inverse_conjugate(lambda lam: math.expm1(lam) - lam, y)
    with mpmath.workdps(50):
        expected = mpmath.findroot(
            lambda t: (1 + t) * mpmath.log1p(t) - t - mpmath.mpf(y),
            (got * 0.9, got * 1.1),
            solver="anderson",
            tol=1e-60,
        )
        assert got == pytest.approx(float(expected), rel=1e-8)


@pytest.mark.parametrize("y", [1e-6, 0.01, 0.5, 3.0])
@pytest.mark.parametrize("d", [1, 7])
def test_exact_squared_loss_tail_beats_the_quadratic_one(y: float, d: int) -> None:
    """|N(0, I_d)|^2 has psi = lam d - (d/2) ln(1 + 2 lam) < lam^2 d; its inverse is a Lambert function."""
    exact = Cumulant(lambda lam: lam * d - d / 2 * math.log1p(2 * lam)).inverse(y)
    with mpmath.workdps(50):
        root = -mpmath.lambertw(-mpmath.exp(-1 - 2 * mpmath.mpf(y) / d)).real
        assert exact == pytest.approx(float(d * (1 - root)), rel=1e-9)
    assert exact < SubGaussian(math.sqrt(2 * d)).inverse(y)


def test_unusual_tails_are_safe() -> None:
    assert inverse_conjugate(lambda lam: lam * lam, 0.0) < 1e-100
    assert inverse_conjugate(lambda lam: math.inf, 1.0) == math.inf
    assert inverse_conjugate(lambda lam: math.nan, 1.0) == math.inf
    assert inverse_conjugate(lambda lam: lam, math.inf) == math.inf
    assert inverse_conjugate(lambda lam: 0.0 if lam <= 2 else math.inf, 1.0) == pytest.approx(0.5)
    assert inverse_conjugate(lambda lam: 0.0, 1.0, b=4.0) == pytest.approx(0.25)
    assert SubGaussian(0.0).inverse(math.inf) == math.inf
    with pytest.raises(ValueError, match="psi must be non-negative"):
        inverse_conjugate(lambda lam: -lam, 1.0)


@pytest.mark.parametrize("bad", [-1.0, math.nan])
def test_senseless_numbers_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="y must be non-negative"):
        inverse_conjugate(lambda lam: lam, bad)
    with pytest.raises(ValueError, match=r"SubGaussian\.R must"):
        SubGaussian(bad)
    with pytest.raises(ValueError, match="b must be positive"):
        inverse_conjugate(lambda lam: lam, 1.0, b=bad)
    with pytest.raises(ValueError, match="epsilon must"):
        private_information(bad)
    with pytest.raises(ValueError, match="gaps must"):
        mean_node_gap([math.nan])


@pytest.mark.parametrize(("count", "d"), [(2, 1), (5, 3), (1000, 2)])
def test_gaussian_mean_information_from_covariances(count: int, d: int) -> None:
    """I(W; Z) = (1/2) ln(det cov(W) det cov(Z) / det cov(W, Z)), in each coordinate."""
    with mpmath.workdps(50):
        m = mpmath.mpf(count)
        joint = mpmath.matrix([[1 / m, 1 / m], [1 / m, 1]])
        expected = d * mpmath.log(1 / m / mpmath.det(joint)) / 2
        assert mean_information(count, d) == pytest.approx(float(expected), rel=1e-12)
    assert mean_information(1, d) == math.inf


@pytest.mark.parametrize(("nodes", "samples", "d", "sigma"), [(1, 2, 1, 1.0), (4, 10, 3, 0.5), (50, 200, 8, 3.0)])
def test_gaussian_mean_bounds_as_printed(nodes: int, samples: int, d: int, sigma: float) -> None:
    case = GaussianMean(network=Network(nodes=nodes, samples=samples), d=d, sigma=sigma)
    with mpmath.workdps(50):
        n, K, scale = mpmath.mpf(samples), mpmath.mpf(nodes), mpmath.mpf(sigma) ** 2 * d
        pooled = scale * mpmath.sqrt(2 * (1 + 1 / (n * K)) ** 2 * mpmath.log(n * K / (n * K - 1)))
        nodewise = scale / K * mpmath.sqrt(2 * (1 + 1 / n) ** 2 * mpmath.log(n / (n - 1)))
    assert case.centralised_bound() == pytest.approx(float(pooled), rel=1e-12)
    assert case.federated_bound() == pytest.approx(float(nodewise), rel=1e-12)
    tail = SubGaussian(math.sqrt(2 * d) * sigma**2 * (1 + 1 / samples))
    rows = [[mean_information(samples, d)] * samples] * nodes
    assert federated_sample_bound(tail, rows) == pytest.approx(case.federated_bound(), rel=1e-12)
    assert case.gap() <= case.federated_bound() <= case.centralised_bound() * (1 + 1e-12)


def mutual_information(prior: np.ndarray, channel: np.ndarray) -> float:
    output = prior @ channel
    terms = [
        prior[s] * channel[s, w] * math.log(channel[s, w] / output[w])
        for s, w in itertools.product(*map(range, channel.shape))
    ]
    return math.fsum(terms)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0, 8.0])
def test_private_information_is_a_bound_and_nearly_reached(epsilon: float) -> None:
    """Subset selection: the output is a random subset, more likely by e^epsilon if it holds the input."""
    size, best = 400, 0.0
    for chosen in range(1, size):
        share = chosen / size  # closed form of the information of this channel with a uniform input
        inside = share * math.exp(epsilon) / (share * math.exp(epsilon) + 1 - share)
        value = inside * math.log(inside / share) + (1 - inside) * math.log((1 - inside) / (1 - share))
        best = max(best, value)
    assert best <= private_information(epsilon) * (1 + 1e-9)
    assert best >= private_information(epsilon) * 0.999
    flip = 1 / (1 + math.exp(epsilon))
    response = np.array([[1 - flip, flip], [flip, 1 - flip]])
    assert mutual_information(np.array([0.5, 0.5]), response) <= private_information(epsilon)


def test_private_information_has_no_seam() -> None:
    for epsilon in (1e-8, 1e-3, 0.0299999, 0.03, 0.1, 50.0, 1e4):
        with mpmath.workdps(60):
            x = epsilon / mpmath.expm1(epsilon)
            expected = float(x - 1 - mpmath.log(x))
        assert private_information(epsilon) == pytest.approx(expected, rel=1e-11)


def test_nodes_with_few_secrets_or_bits() -> None:
    net, tail = Network(nodes=10, samples=100), SubGaussian(2.0)
    assert coded_bound(tail, net, 8) == pytest.approx(math.sqrt(2 * math.log(2) * 4 * 8 / 100) / 10)
    told = [private_information(0.7)] * 10
    assert locally_private_bound(tail, net, 0.7) == pytest.approx(federated_bound(tail, told, 100))
    printed = math.sqrt(2 * 4 * min(0.7, (math.e - 1) * 0.49) / 100) / 10
    assert locally_private_bound(tail, net, 0.7) < printed


def test_extra_factor_fails_for_linear_models_with_random_design() -> None:
    """Why ``federated_sample_bound`` excludes them: every node's loss is constant, yet the average overfits.

    z = e1 with probability 1/4, else e2; the loss is <z, w>^2 = D_F(<z, w>, 0) with F = t^2;
    a node's model is (-1, 1) after e1 and (1, 1) after e2.
    """
    chance, nodes = {0: 0.25, 1: 0.75}, 2
    gap = 0.0
    for data in itertools.product((0, 1), repeat=nodes):
        weight = math.prod(chance[z] for z in data)
        model = (sum(-1 if z == 0 else 1 for z in data) / nodes, 1.0)
        new = sum(chance[z] * model[z] ** 2 for z in chance)
        gap += weight * (new - sum(model[z] ** 2 for z in data) / nodes)
    constant = SubGaussian(0.0)  # <z, W_k>^2 = 1 whatever happens, at one node
    information = [-0.25 * math.log(0.25) - 0.75 * math.log(0.75)]  # W_k determines Z_k: the entropy
    assert federated_sample_bound(constant, [information] * nodes) == 0.0
    assert gap == 3 / 32


# A normal estimate is 6.5 standard errors off with probability 8e-11; the skewness of a mean of 4,000 trials
# (0.03) may make that 20 times as much. Six gaps and one slope: false alarms below 1e-6, over all seeds.
SIGMAS = 6.5


@pytest.fixture(scope="module")
def table() -> Table:
    return simulate(Problem(trials=4_000), (1, 2, 4, 8, 16, 32), np.random.default_rng(20240707))


def test_simulation_meets_the_exact_gap_below_both_bounds(table: Table) -> None:
    for row in table.rows:
        assert abs(row.gap - row.exact) <= SIGMAS * row.standard_error
        assert row.gap - SIGMAS * row.standard_error <= row.federated <= row.centralised * (1 + 1e-12)


def test_orders_in_the_number_of_nodes(table: Table) -> None:
    slopes = table.slopes()
    assert slopes.federated == pytest.approx(-1.0, abs=1e-12)
    assert abs(slopes.gap + 1.0) <= SIGMAS * slopes.standard_error
    assert slopes.standard_error < 0.01  # so that an order of -1/2 would be 50 standard errors away
    assert slopes.centralised == pytest.approx(-0.5, abs=0.05)


def gap_of(model: float, data: np.ndarray) -> float:
    """Squared loss of ``model`` on new N(0, 1) data, less that on the old."""
    return 1 + model**2 - float(((data - model) ** 2).mean())


def test_local_gaps_average_to_a_bound_for_every_data_set() -> None:
    """Squared loss is convex and the node's mean minimises it: the inequality needs no expectation."""
    generator = np.random.default_rng(5)
    for _ in range(50):
        data = generator.standard_normal((4, 6))
        models = data.mean(axis=1)
        local = mean_node_gap([gap_of(w, z) for w, z in zip(models, data, strict=True)])
        assert gap_of(float(models.mean()), data) <= local + 1e-12


def test_simulation_is_repeatable_and_blocks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem(trials=50)
    once = simulate(problem, (1, 3), np.random.default_rng(1))
    monkeypatch.setattr("fedveil.report.bounds._BLOCK", 100)
    again = simulate(problem, (1, 3), np.random.default_rng(1))
    assert [row.gap for row in once.rows] == pytest.approx([row.gap for row in again.rows], rel=1e-12)
    with pytest.raises(ValueError, match=r"Problem\.trials must"):
        Problem(trials=1)
    with pytest.raises(ValueError, match="node_counts must"):
        simulate(problem, (), np.random.default_rng(1))


def test_mean_over_samples_is_what_it_says() -> None:
    tail = Cumulant(lambda lam: lam * lam / 2)
    assert sample_bound(tail, [0.5, 2.0]) == pytest.approx(1.5)


@pytest.mark.parametrize("exchanged", [True, False])
def test_no_private_answer_is_learned_by_heart_beyond_the_stable_bound(exchanged: bool) -> None:
    """Fair bits, an answer that follows most of them, and a loss of 1 where it differs, over all data sets.

    A bit that is left out counts as half a one, so the answer's log odds then move half as far as if it is turned.
    """
    shares = []
    for epsilon, count in itertools.product((0.2, 1.0, 3.0), (1, 2, 5)):
        odds = 2 * epsilon if count == 1 else epsilon  # for each bit: a single one may be told with odds e^epsilon
        gap = 0.0
        for bits in itertools.product((0, 1), repeat=count):
            one = 1 / (1 + math.exp(-odds * (sum(bits) - count / 2)))
            gap += (0.5 - sum(1 - one if bit else one for bit in bits) / count) / 2**count  # a new bit is a coin
        least = epsilon if exchanged else odds / 2
        found = stable_bound([(least, 0.0)], exchanged=exchanged)
        assert 0 < gap <= found
        shares.append(gap / found)
    assert not exchanged or max(shares) == pytest.approx(0.5)  # half of all new bits are the old ones


def test_the_stable_bound_is_the_largest_distance_that_the_points_allow() -> None:
    for epsilon, delta in ((0.0, 0.25), (1.0, 0.0), (0.5, 0.1)):
        found = stable_bound([(epsilon, delta)], exchanged=True)
        low, high = (1 - found) / 2, (1 + found) / 2  # two coins so far apart are private, and none farther apart are
        assert high - math.exp(epsilon) * low == pytest.approx(delta, abs=1e-9)
        assert stable_bound([(epsilon, delta)], exchanged=False) == pytest.approx(min(1.0, 2 * found))
    assert stable_bound([], exchanged=True) == 1.0
    assert stable_bound([(900.0, 0.0)], exchanged=True) == 1.0
    with pytest.raises(ValueError, match="points must be pairs"):
        stable_bound([(math.nan, 0.1)], exchanged=True)
