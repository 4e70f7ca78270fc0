r"""How far the expected loss on new data may exceed the loss on the training data, from mutual information.

``K`` nodes, ``n`` samples each; node ``k`` turns its samples $S_k$ into $W_k$; the model is their mean $W$.
``gap``: $E[\ell(W, Z')] - E[\ell(W, Z_i)]$ averaged over samples, $Z'$ fresh. Information is in nats.
Assumptions, proofs and misprints: docs/theory/generalization.md.

References:
    [BDP22] Barnes, Dytso, Poor. Improved Information Theoretic Generalization Bounds for Distributed and
        Federated Learning. ISIT 2022.
    [BZV20] Bu, Zou, Veeravalli. Tightening Mutual Information-Based Bounds on Generalization Error. 2020.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, final

from fedveil.core.errors import require


class Tail(Protocol):
    r"""What is known of the loss's lower tail, for independent $W$ and $Z$."""

    def inverse(self, y: float, /) -> float:
        r"""$\psi^{*-1}(y)$: how far ``y`` nats of dependence can lower the mean loss."""
        ...


@final
@dataclass(frozen=True, slots=True)
class SubGaussian:
    r"""$\psi(\lambda) = R^2\lambda^2/2$; a loss with values in $[a, b]$ has $R = (b - a)/2$.

    >>> SubGaussian(0.5).inverse(0.02)
    0.1
    """

    R: float

    def __post_init__(self) -> None:
        require(0 <= self.R < math.inf, "SubGaussian.R", "be finite and non-negative", self.R)

    def inverse(self, y: float, /) -> float:
        r"""Return $\sqrt{2 R^2 y}$, the inverse in closed form."""
        _check_information("y", y)
        return math.inf if y == math.inf else self.R * math.sqrt(2 * y)  # 0 * inf is undefined, so the answer is inf


def sample_bound(tail: Tail, mutual_information: Sequence[float]) -> float:
    r"""$\frac1n \sum_i \psi^{*-1}(I(W; Z_i))$ [BZV20]: any loss, any algorithm; all samples count alike.

    >>> sample_bound(SubGaussian(1.0), [0.5, 0.125])
    0.75
    """
    require(len(mutual_information) >= 1, "mutual_information", "name at least one sample", mutual_information)
    return math.fsum(tail.inverse(information) for information in mutual_information) / len(mutual_information)


def dataset_bound(tail: Tail, information: float, samples: int) -> float:
    r"""$\psi^{*-1}(I(W; S)/n)$, so $\sqrt{2R^2 I/n}$ when sub-Gaussian: looser, but needs one number.

    >>> dataset_bound(SubGaussian(1.0), 50.0, samples=100)
    1.0
    """
    _check_count("samples", samples)
    _check_information("information", information)
    return tail.inverse(information / samples)


def mean_node_gap(gaps: Sequence[float]) -> float:
    r"""$\frac1K \sum_k \Delta_k$: convex loss, each $W_k$ minimises its own node's training loss.

    It holds for every single data set, not only on average.

    >>> mean_node_gap([0.25, 0.75])
    0.5
    """
    require(len(gaps) >= 1, "gaps", "name at least one node", gaps)
    for gap in gaps:
        require(not math.isnan(gap), "gaps", "be numbers", gap)
    return math.fsum(gaps) / len(gaps)


def federated_bound(tail: Tail, mutual_information: Sequence[float], samples: int) -> float:
    r"""$\frac1{K^2} \sum_k \psi^{*-1}(I(W_k; S_k)/n)$; for a location loss $D_F(w, z)$.

    Also for $D_F(\langle x, w\rangle, y)$ if the ``x`` are fixed (new labels at the old points). With random
    ``x`` it is false, although it is quoted so: the theory page has a counterexample.

    >>> federated_bound(SubGaussian(1.0), [50.0, 50.0], samples=100)
    0.5
    """
    require(len(mutual_information) >= 1, "mutual_information", "name at least one node", mutual_information)
    return mean_node_gap([dataset_bound(tail, i, samples) for i in mutual_information]) / len(mutual_information)


def stable_bound(points: Sequence[tuple[float, float]], *, exchanged: bool) -> float:
    r"""$\min \frac{e^\varepsilon - 1 + 2\delta}{e^\varepsilon + 1}$: how far a loss in [0, 1] may rise on new units.

    Every pair (epsilon, delta) holds for the released model, in both directions. ``exchanged``: for a unit replaced by
    another; otherwise for one that is left out, and replacing is two such steps. Any model, any number of units.

    >>> round(stable_bound([(1.0, 0.0), (0.0, 0.2)], exchanged=True), 12)
    0.2
    """
    shift = 1.0
    for epsilon, delta in points:
        require(
            epsilon >= 0 and 0 <= delta <= 1, "points", "be pairs of epsilon >= 0, delta in [0, 1]", (epsilon, delta)
        )
        shift = min(shift, math.tanh(epsilon / 2) + 2 * delta / (1 + math.exp(min(epsilon, 700.0))))
    return min(1.0, shift * (1 if exchanged else 2) * (1 + 1e-12))


def private_information(epsilon: float) -> float:
    r"""Most nats a locally private node can tell: $x - 1 - \ln x$ with $x = \varepsilon/(e^\varepsilon - 1)$.

    Whatever it sends, posterior over prior varies by at most a factor $e^\varepsilon$, and no two laws so
    close have a greater divergence. Below $\varepsilon^2/8$, and below the published
    $\min(\varepsilon, (e-1)\varepsilon^2)$ [BDP22].

    >>> round(private_information(1.0), 9), round(private_information(20.0), 9)
    (0.123301561, 16.004267766)
    """
    require(0 <= epsilon < math.inf, "epsilon", "be finite and non-negative", epsilon)
    if epsilon < 0.03:  # the closed form cancels here; its series does not
        square = epsilon * epsilon
        return square * (1 / 8 - square * (1 / 576 - square / 25920))
    log_x = math.log(epsilon) - epsilon - math.log(-math.expm1(-epsilon))
    return math.exp(log_x) - 1 - log_x


def coded_information(bits: float) -> float:
    r"""$B \ln 2$: a model sent in ``bits`` bits tells no more.

    >>> coded_information(1.0)
    0.6931471805599453
    """
    require(0 <= bits < math.inf, "bits", "be finite and non-negative", bits)
    return bits * math.log(2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The number of nodes, and of samples at each."""

    nodes: int
    samples: int

    def __post_init__(self) -> None:
        _check_count("Network.nodes", self.nodes)
        _check_count("Network.samples", self.samples)


def locally_private_bound(tail: Tail, network: Network, epsilon: float) -> float:
    r"""$\frac1K \psi^{*-1}(I/n)$ for ``epsilon``-locally private nodes; losses as in :func:`federated_bound`.

    $I$ is :func:`private_information`, so this is below [BDP22]'s $\frac1K \sqrt{2R^2\min(\ldots)/n}$.

    >>> round(locally_private_bound(SubGaussian(1.0), Network(nodes=10, samples=100), 1.0), 9)
    0.004965915
    """
    return dataset_bound(tail, private_information(epsilon), network.samples) / network.nodes


def coded_bound(tail: Tail, network: Network, bits: float) -> float:
    r"""$\frac1K \psi^{*-1}(B \ln 2/n)$ if a node sends ``bits`` bits; losses as in :func:`federated_bound`.

    >>> round(coded_bound(SubGaussian(1.0), Network(nodes=10, samples=100), 32), 9)
    0.066604369
    """
    return dataset_bound(tail, coded_information(bits), network.samples) / network.nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianMean:
    r"""The mean of $N(\mu, \sigma^2 I_d)$ under squared loss; a node sends its samples' mean [BDP22]."""

    network: Network
    d: int
    sigma: float

    def __post_init__(self) -> None:
        _check_count("GaussianMean.d", self.d)
        require(0 < self.sigma < math.inf, "GaussianMean.sigma", "be finite and positive", self.sigma)

    def gap(self) -> float:
        r"""Exactly $2\sigma^2 d/(nK)$.

        >>> GaussianMean(network=Network(nodes=5, samples=10), d=3, sigma=1.0).gap()
        0.12
        """
        return 2 * self.sigma**2 * self.d / (self.network.nodes * self.network.samples)

    def centralised_bound(self) -> float:
        r"""$\sigma^2 d \sqrt{2(1 + 1/(nK))^2 \ln(nK/(nK-1))}$: all samples as if at one place."""
        return self._pooled(self.network.nodes * self.network.samples)

    def federated_bound(self) -> float:
        r"""$(\sigma^2 d/K) \sqrt{2(1 + 1/n)^2 \ln(n/(n-1))}$."""
        return self._pooled(self.network.samples) / self.network.nodes

    def _pooled(self, count: int) -> float:
        tail = SubGaussian(math.sqrt(2 * self.d) * self.sigma**2 * (1 + 1 / count))
        return sample_bound(tail, [mean_information(count, self.d)])


def mean_information(count: int, d: int) -> float:
    r"""$I(\bar Z; Z_i) = \frac d2\ln\frac{m}{m-1}$, mean of $m$ (``count``) Gaussians; ``inf`` for one.

    >>> mean_information(2, d=2)
    0.6931471805599453
    """
    _check_count("count", count)
    _check_count("d", d)
    return math.inf if count == 1 else -d / 2 * math.log1p(-1 / count)


def _check_information(name: str, value: float) -> None:
    require(value >= 0, name, "be non-negative", value, "Mutual information is measured in nats.")


def _check_count(name: str, value: int) -> None:
    require(isinstance(value, int) and value >= 1, name, "be a whole number, at least 1", value)
