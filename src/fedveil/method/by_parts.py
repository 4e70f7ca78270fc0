"""What is promised to whom when the clients add the noise in shares: the accounts of every method that can run so.

DP-SGD needs no shares: each of its updates carries a client's own noise, enough for itself, and whatever is done with
it afterwards is post-processing. Proofs: docs/theory/noise-shares.md.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedveil.account.compare import account_for
from fedveil.account.evaluator import Evaluator
from fedveil.account.grid import Grid
from fedveil.account.hidden import per_round
from fedveil.account.parts import Shares, observe_parts, views_by_parts
from fedveil.checks import require
from fedveil.data.records import DataShape
from fedveil.errors import BadValue
from fedveil.guarantee import Adversary, Answer, Neighbours
from fedveil.mechanism import LastIterate, Mechanism
from fedveil.method.base import Method
from fedveil.method.dpsgd import DpSgd
from fedveil.method.fedavg import FedAvg
from fedveil.method.hidden import Hidden
from fedveil.method.parts import cohorts, share_deviation
from fedveil.model.spec import ModelPlan
from fedveil.target import Target
from fedveil.theory.grid import LARGEST_STATE, LEAST_SHARE, MOST_STEPS, SAMPLER_DISTANCE, halves_of, log_aliasing
from fedveil.theory.neighbours import SAFE
from fedveil.theory.numerics import Vector
from fedveil.trust import Trust

MODULUS = 2.0**64
_ROOM = MODULUS / 4  # a sum stays within half of what can be told apart, whatever happens
_LOOSE = 1 + 2.0**-20  # for float errors, as the clients' own checks
_SAMPLE = 13.0  # deviations: no sample of a share lies farther out, as the sampler's blocks end before


def check(method: Method, trust: Trust, exponent: int, data: DataShape, model: ModelPlan, target: Target) -> None:
    """Refuse what cannot run by parts: too few clients, noise that cannot be shared, a grid that is too coarse."""
    require(isinstance(trust, Trust), "plan.trust", "be a Trust, or be left out", trust)
    sizes = cohorts(method, data, target)
    for cohort in sorted(set(sizes)):
        trust.check(cohort)
    hint = "Only updates that carry all of their noise may come late."
    late = trust.patience is None or isinstance(method, DpSgd)
    require(late, "trust.patience", f"be left out for {method.kind}", trust.patience, hint)
    match method:
        case Hidden():
            hint = "A sum of Laplace shares is no Laplace noise."
            require(method.run.noise == "gaussian", "algorithm.noise", "be gaussian with [trust]", "laplace", hint)
            most = _hidden_sum(method)  # all of it may be one client's
            _check_range(method.noise(), sizes, trust, exponent, most, most)
        case FedAvg():
            hint = "With [trust] every client adds its own share."
            require(method.noise == "shared", "algorithm.noise", "be shared with [trust]", method.noise, hint)
            noise = np.full(method.total, method.noise_std)
            each = np.full(method.total, method.update_norm)
            _check_range(noise, sizes, trust, exponent, method.cohort * each, each)
        case DpSgd():
            _check_windows(method, trust)


def _hidden_sum(method: Hidden) -> Vector:
    """How far all contributions to a round can move the model: no more units than the planned batch, each bounded."""
    return np.asarray(per_round(method.run.step_size, method.run) * method.run.lipschitz, dtype=np.float64)


def _check_range(noise: Vector, sizes: Sequence[int], trust: Trust, exponent: int, most: Vector, each: Vector) -> None:
    """The noise of a share is fine enough, and no sum of bounded contributions and shares ever leaves 64 bits.

    ``most`` and ``each`` bound the contributions of all clients to a round, and of one: what a client sends as planned
    is never too large to be sent.

    Every sample is below 13 deviations of its share, so this holds for all of them and not only for 12 deviations of
    their sum; the half step by which each contribution is rounded is far below the room that is left.
    """
    unit = 2.0**exponent
    share = np.array([share_deviation(s, trust, c) for s, c in zip(noise.tolist(), sizes, strict=True)]) / unit
    hint = "Use a smaller radius, fewer clients, or noise that varies less between rounds."
    fine = share.min() >= LEAST_SHARE and share.max() <= MOST_STEPS
    require(fine, "A share of the noise", "hold 2**8 to 2**45 steps of the grid", float(share.min()), hint)
    single = float(np.max(each)) / unit * _LOOSE + 1
    require(single <= LARGEST_STATE, "A client's contribution", "stay within 2**52 steps of the grid", single, hint)
    reach = float(np.max(most / unit * _LOOSE + np.array(sizes) * (_SAMPLE * share + 2)))
    require(reach <= _ROOM, "A round's sum with its noise", "stay within 2**62 steps of the grid", reach, hint)


def _check_windows(method: DpSgd, trust: Trust) -> None:
    """Only windows that wait for everybody can be added up by a server that may not look.

    With patience the real network decides who is late, so none is simulated beside it.
    """
    if trust.server == "trusted" and trust.patience is None:
        return
    hint = "Leave delay, loss, jitter and speeds out and take a whole window."
    if trust.patience is None:
        hint = f'{hint[:-1]}, or set trust.server = "trusted".'
    setting = trust.server if trust.patience is None else "patience"
    require(method.network.together, "[trust]", f"go with clients that wait for each other ({setting})", "others", hint)


def shares_of(run: LastIterate, method: Hidden, trust: Trust, data: DataShape, target: Target) -> Shares:
    """How the clients of a hidden run share its noise."""
    sizes = cohorts(replace(method, run=run), data, target)[: run.rounds]
    return Shares(
        cohort=sizes[0] if len(set(sizes)) == 1 else tuple(sizes),
        dropouts=trust.dropouts,
        colluders=trust.colluders,
        everyone=method.deal == "records",
        opened=trust.key_holder == "clients",
        named=trust.server != "trusted",
        together=trust.hand,
    )


def views_of(
    run: LastIterate, method: Hidden, trust: Trust, adversary: Adversary, data: DataShape, target: Target
) -> Sequence[Evaluator]:
    """Every bound on what this observer learns from a hidden run by parts."""
    return views_by_parts(
        run, adversary, method.participation(data, target), shares_of(run, method, trust, data, target)
    )


def answer(method: Method, trust: Trust, adversary: Adversary, data: DataShape, target: Target, delta: float) -> Answer:
    """The smallest epsilon that is proved against this observer, for ideal, real-valued shares."""
    match method:
        case Hidden():
            shares = shares_of(method.run, method, trust, data, target)
            return observe_parts(method.run, adversary, method.participation(data, target), shares, delta=delta)
        case FedAvg():
            return _fedavg_answer(method, trust, adversary, data, target, delta)
        case DpSgd():
            return method.answer(adversary, data, target, delta)
        case _:
            raise BadValue(f"[trust] must be left out for {method.kind}.")


def fedavg_mechanism(
    method: FedAvg, trust: Trust, adversary: Adversary, data: DataShape, neighbours: Neighbours
) -> Mechanism:
    """What this observer sees of a client in federated averaging.

    A secret cohort counts only while nobody learns who is in it, and while the noise cannot depend on who is.
    """
    cohort, noise = int(method.cohort), method.noise_multiplier
    honest = trust.honest(cohort)
    rate = method.cohort / data.clients if trust.dropouts == 0 else 1.0
    match adversary:
        case "server":
            return method.each_round(1.0, noise / math.sqrt(honest), neighbours)
        case "server-with-secure-aggregation":
            return method.each_round(1.0, noise, neighbours)
        case "curious-client":
            left = min(1.0, max(honest + trust.colluders - trust.hand, 1) / honest)
            room = min(1.0, method.cohort / max(data.clients - 1, 1))  # rounds without it have more room for the victim
            secret = rate < 1 and trust.server == "trusted" and trust.hand == 1
            return method.each_round(room if secret else 1.0, noise * math.sqrt(left), neighbours)
        case _:
            return method.each_round(rate, noise, neighbours)


def _fedavg_answer(
    method: FedAvg, trust: Trust, adversary: Adversary, data: DataShape, target: Target, delta: float
) -> Answer:
    found = account_for(fedavg_mechanism(method, trust, adversary, data, target.neighbours), delta=delta)
    if adversary not in ("final-model", "every-model"):
        return found
    # Whoever learns every sum, and who took part, sees all that these see: its guarantee is theirs too.
    sums = fedavg_mechanism(method, trust, "server-with-secure-aggregation", data, target.neighbours)
    other = account_for(sums, delta=delta)
    return other if other.epsilon < found.epsilon else found


def grid(
    method: Method,
    trust: Trust,
    exponent: int,
    adversary: Adversary,
    data: DataShape,
    model: ModelPlan,
    target: Target,
) -> Grid:
    """What the grid costs against this observer: more samples, and more that is rounded."""
    match method:
        case Hidden():
            found = _hidden_grid(method, trust, exponent, adversary, data, model, target)
        case FedAvg():
            found = method.grid(exponent, adversary, data, model, target)
            noise = np.full(method.total, method.noise_std)
            found = replace(found, total_variation=_variation(noise, method, trust, found, data, target))
        case _:
            return method.grid(exponent, adversary, data, model, target)
    if adversary == "server-with-secure-aggregation" and trust.server == "secure-aggregation":
        # The ring of neighbours may, by bad luck, show the server more than sums (docs/theory/secure-aggregation.md).
        return replace(found, mishap=min(1.0, SAFE * method.total))
    return found


def _variation(noise: Vector, method: Method, trust: Trust, found: Grid, data: DataShape, target: Target) -> float:
    """Of all shares from their law, of their sums from theirs, and of what is charged as if it never happened."""
    sizes = np.array(cohorts(method, data, target), dtype=np.float64)
    honest = sizes - trust.dropouts - trust.colluders
    steps = math.ldexp(float(np.min(noise / np.sqrt(honest))), -found.exponent)  # fewest steps: aliased most
    alias = log_aliasing(steps, float(sizes.max())) if steps >= LEAST_SHARE else 0.0
    each = SAMPLER_DISTANCE * float(np.sum(sizes + 1)) + sizes.size * math.exp(min(alias, 0.0))
    return min(1.0, found.dimension * each)


def _hidden_grid(
    method: Hidden,
    trust: Trust,
    exponent: int,
    adversary: Adversary,
    data: DataShape,
    model: ModelPlan,
    target: Target,
) -> Grid:
    """Each contribution is rounded on its own, and a state is off by the rounding of all shares."""
    sizes = np.array(cohorts(method, data, target), dtype=np.float64)
    batch = per_round(method.run.batch, method.run)
    sent = np.minimum(sizes, batch)  # zeros are not rounded
    noise, half = method.noise(), 2.0**exponent / 2 * math.sqrt(model.loss.size(data.features))
    stretch, errors = method.stretch(), method.float_errors(data, model, target)
    shares = shares_of(method.run, method, trust, data, target)
    honest = shares.honest(method.run)
    if adversary == "server":  # it sees every message: each is rounded on its own, against its own share
        noise, stretch = noise / np.sqrt(honest * sent), np.zeros_like(stretch)
    else:
        left = shares.beside(method.run) if adversary == "curious-client" else np.ones_like(noise)
        halves = np.array([halves_of(count) for count in sizes.tolist()]) if sizes.size else sizes
        errors = errors + half * (sent + stretch * (float(halves.max()) - 1))
        noise = noise * np.sqrt(left)
    found = Grid.of(
        exponent=exponent, dimension=model.loss.size(data.features), noise=noise, lipschitz=stretch, errors=errors
    )
    return replace(found, total_variation=_variation(method.noise(), method, trust, found, data, target))
