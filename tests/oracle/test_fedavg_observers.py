"""What each observer of fedavg learns, against the closed form of Gaussians and a derivation written out again."""

import math

import pytest

from fedveil.accounting.compare import account_for
from fedveil.models.spec import ModelPlan
from fedveil.planning.promises import ADVERSARIES
from fedveil.privacy.guarantee import Adversary, Neighbours
from fedveil.privacy.mechanism import IndependentGaussian, Mechanism, Repeat, SampledGaussian
from fedveil.privacy.target import Target
from fedveil.privacy.trust import CENTRAL, Trust
from fedveil.stages.train.base import Setup
from fedveil.stages.train.fedavg.method import FedAvg
from fedveil.theory.divergence import gaussian_delta
from unit.plans import some_records

SHAPE = some_records(count=60, clients=20).shape


def method(**changes: object) -> FedAvg:
    settings: dict[str, object] = {
        "rounds": 9,
        "cohort": 20,
        "update_norm": 2.0,
        "noise_multiplier": 5.0,
    }
    return FedAvg(**(settings | changes))  # type: ignore[arg-type]


def epsilon(found: FedAvg, adversary: Adversary, neighbours: Neighbours = "zero-out", trust: Trust = CENTRAL) -> float:
    target = Target(epsilon=1.0, delta=1e-5, unit="client", neighbours=neighbours)
    setup = Setup(data=SHAPE, model=ModelPlan(kind="logistic"), target=target, trust=trust)
    return found.answer(adversary, setup, 1e-5).epsilon


def exact(mu: float) -> float:
    """By bisection on the exact curve of a Gaussian."""
    low, high = 0.0, 200.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if gaussian_delta(middle, mu) > 1e-5 else (low, middle)
    return high


@pytest.mark.parametrize(("neighbours", "moved"), [("zero-out", 1.0), ("replace-one", 2.0)])
def test_all_take_part_and_share_the_noise(neighbours: Neighbours, moved: float) -> None:
    """Nine Gaussians of multiplier 5: the curious client knows a twentieth of the variance, the server 19 of 20."""
    known = {"curious-client": 1 / 20, "server": 19 / 20}
    for adversary in ADVERSARIES:
        left = 1 - known.get(adversary, 0.0)
        mu = moved * math.sqrt(9) / (5.0 * math.sqrt(left))
        assert epsilon(method(noise="shared"), adversary, neighbours) == pytest.approx(exact(mu), rel=2e-3)


def test_a_server_that_adds_the_noise_knows_it() -> None:
    for adversary in ADVERSARIES:
        trusted = not adversary.startswith("server")
        assert math.isfinite(epsilon(method(), adversary)) == trusted


def test_without_noise_nothing_is_promised() -> None:
    assert all(math.isinf(epsilon(method(noise="none", noise_multiplier=0.0), a)) for a in ADVERSARIES)


def test_poisson_cohorts_are_charged_as_such_and_a_client_learns_no_more() -> None:
    found = method(sampling="poisson", cohort=5)
    once = SampledGaussian(sampling="poisson", rate=0.25, noise_multiplier=5.0)
    charged = account_for(Repeat(of=once, times=9), delta=1e-5).epsilon
    for adversary in ("final-model", "every-model", "curious-client"):
        assert epsilon(found, adversary) == charged


def test_who_knows_the_cohort_gets_no_amplification() -> None:
    found = method(sampling="fixed-size", cohort=4, noise="shared")
    assert epsilon(found, "server-with-secure-aggregation") == pytest.approx(exact(3 / 5), rel=2e-3)
    assert epsilon(found, "server") == pytest.approx(exact(3 / 2.5), rel=2e-3)


def test_a_client_outside_a_fixed_cohort_knows_that_others_are_likelier_in_it() -> None:
    """Of 19 others 4 are in it, not 4 of 20; inside it, it knows a quarter of the noise's variance."""
    found = method(sampling="fixed-size", cohort=4, noise="shared", noise_multiplier=4.0)
    once = SampledGaussian(sampling="fixed-size", rate=4 / 19, noise_multiplier=4 * math.sqrt(3 / 4))
    assert epsilon(found, "curious-client") == account_for(Repeat(of=once, times=9), delta=1e-5).epsilon
    assert epsilon(found, "curious-client") > epsilon(found, "every-model")


DRAWN = [
    ("poisson", {"cohort": 5}, lambda z, n: Repeat(of=_coins(z, n), times=9)),
    ("independent", {"cohort": 20 / 3, "picks": 3}, lambda z, n: Repeat(of=_picks(z, n), times=3)),
]


def _coins(noise: float, neighbours: Neighbours) -> Mechanism:
    return SampledGaussian(sampling="poisson", rate=0.25, noise_multiplier=noise, neighbours=neighbours)


def _picks(noise: float, neighbours: Neighbours) -> Mechanism:
    return IndependentGaussian(rounds=3, noise_multiplier=noise, neighbours=neighbours)


@pytest.mark.parametrize("neighbours", ["zero-out", "replace-one"])
@pytest.mark.parametrize(("sampling", "settings", "law"), DRAWN)
class TestDrawn:
    """Clients of which each draws: once a pass among three rounds, or with a coin of a quarter in every round."""

    def test_draws_of_whoever_adds_the_noise(self, sampling, settings, law, neighbours) -> None:
        found = method(sampling=sampling, **settings)
        charged = account_for(law(5.0, neighbours), delta=1e-5).epsilon
        for adversary in ("final-model", "every-model", "curious-client"):
            assert epsilon(found, adversary, neighbours) == charged
        assert math.isinf(epsilon(found, "server", neighbours))
        assert math.isinf(epsilon(found, "server-with-secure-aggregation", neighbours))

    def test_clients_that_draw_and_all_send_hide_their_draws_from_the_server(
        self, sampling, settings, law, neighbours
    ) -> None:
        """20 shares of noise, of which 2 are known to the server, one to a curious client; outsiders know none."""
        found, trust = method(sampling=sampling, noise="shared", **settings), Trust(colluders=2)
        outside, beside = 5.0 * math.sqrt(20 / 18), 5.0 * math.sqrt(19 / 18)
        shares = {
            "server": 5.0 / math.sqrt(18),
            "final-model": outside,
            "every-model": outside,
            "curious-client": beside,
        }
        for adversary in ADVERSARIES:
            expected = account_for(law(shares.get(adversary, 5.0), neighbours), delta=1e-5).epsilon
            assert epsilon(found, adversary, neighbours, trust) == pytest.approx(expected, rel=1e-9)

    def test_who_may_be_missing_may_give_the_draws_away(self, sampling, settings, law, neighbours) -> None:
        """With dropouts, known draws: every round with coins, one of each pass with picks."""
        found, trust = method(sampling=sampling, noise="shared", **settings), Trust(dropouts=2)
        moved = 2.0 if neighbours == "replace-one" else 1.0
        uses = 9 if sampling == "poisson" else 3
        for adversary, left in {"server-with-secure-aggregation": 1.0, "server": 1 / 18, "every-model": 1.0}.items():
            mu = moved * math.sqrt(uses) / (5.0 * math.sqrt(left))
            assert epsilon(found, adversary, neighbours, trust) == pytest.approx(exact(mu), rel=2e-3)

    def test_a_server_that_may_have_drawn_knows_the_draws(self, sampling, settings, law, neighbours) -> None:
        """Shares that are only declared: 20 of them, and one curious client."""
        found = method(sampling=sampling, noise="shared", **settings)
        moved = 2.0 if neighbours == "replace-one" else 1.0
        uses = 9 if sampling == "poisson" else 3
        mu = moved * math.sqrt(uses) / 5.0
        assert epsilon(found, "server-with-secure-aggregation", neighbours) == pytest.approx(exact(mu), rel=2e-3)
        beside = account_for(law(5.0 * math.sqrt(19 / 20), neighbours), delta=1e-5).epsilon
        assert epsilon(found, "curious-client", neighbours) == pytest.approx(beside, rel=1e-9)
