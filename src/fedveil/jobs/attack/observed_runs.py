"""What each observer of hidden training sees of many runs, reduced to what may tell two data sets apart.

Everything is measured along the victim's push, the one direction in which the two data sets differ
(attack/neighbours.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from fedveil.accounting.hidden import per_round
from fedveil.audit.game import Seen
from fedveil.core.errors import BadValue, require
from fedveil.core.values import Indices, Vector
from fedveil.data.records import Records
from fedveil.jobs.attack.batched_runs import Parts, Trace, copies, stepped
from fedveil.jobs.attack.drawn_runs import drawn_scores
from fedveil.noise.entropy import Entropy
from fedveil.noise.grid import rounded_normal
from fedveil.planning.plan import Plan
from fedveil.privacy.guarantee import Adversary
from fedveil.stages.train.hidden.steps import start_row
from fedveil.stages.train.observation import AttackView, Observations, attack_view
from fedveil.stages.train.optimiser import project

# The first round of a run as each observer sees it, for any algorithm.


def with_noise(plan: Plan, factor: float) -> Plan:
    """Return the plan with its noise multiplied; 0 leaves none, or as little as the algorithm allows."""
    require(0 <= factor < np.inf, "factor", "be finite and non-negative", factor)
    return replace(plan, method=_view(plan).with_noise(plan, factor))


def observe(plan: Plan, records: Records, entropy: Entropy, clients: Sequence[int], *, noiseless: bool) -> Observations:
    """Return what is seen of a run of this plan; ``clients``: whose own messages are wanted."""
    require(records.shape == plan.data, "The records", f"have the plan's shape, {plan.data}", records.shape)
    return _view(plan).observe(plan, records, entropy, clients, noiseless)


def first_round(plan: Plan, records: Records, entropy: Entropy) -> Indices:
    """Return the records that the first round uses; at the server they are sorted by client."""
    return _view(plan).first_round(plan, records, entropy)


def _view(plan: Plan) -> AttackView:
    view = attack_view(plan.method.kind)
    if view is None:
        raise BadValue(
            f"The leakage attack must know what a round shows, and it does not know it of {plan.method.kind}: "
            "its messages are no gradients of a known round."
        )
    return view


# Two neighbouring data sets of a plan's shape that are easiest to tell apart: one unit against nothing.
#
# All other rows are zero and push nowhere, so only the noise hides the victim. The victim's rows lie on the feature
# bound, and its labels differ on the two data sets (or it is absent from the second).


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """The two data sets; ``victim``: the rows that differ; ``direction``: of the victim's push, a unit vector."""

    first: Records
    second: Records
    victim: Indices
    direction: Vector


def worst_pair(plan: Plan) -> Pair:
    """Return the pair for a plan; refuse models for which a zero row might push somewhere."""
    hint = "Zero rows push a torch model too: audit it with canaries."
    require(plan.model.linear, "model.kind", "be a loss of linear scores", plan.model.kind, hint)
    data = plan.data
    owner = _owners(plan)
    victim = _victim(plan, owner)
    row = np.zeros(data.features)
    row[0] = data.bound
    top = float(data.classes - 1) if data.classes else 1.0
    features, targets = np.zeros((data.records, data.features)), np.zeros(data.records)
    features[victim], targets[victim] = row, top
    silent, other = features.copy(), targets.copy()
    if plan.target.neighbours == "zero-out":
        silent[victim] = 0.0
    else:
        other[victim] = 0.0 if data.classes else -1.0
    first, second = (_records(plan, X, y, owner) for X, y in ((features, targets), (silent, other)))
    return Pair(first, second, victim, _direction(plan, first, second, victim))


def _owners(plan: Plan) -> Indices:
    """Return clients in order: the first has the most records, the others as even as the shape allows."""
    data = plan.data
    sizes = np.full(data.clients, data.smallest_client)
    sizes[0] = data.largest_client
    missing = data.records - int(sizes.sum())
    for client in range(1, data.clients):
        more = min(max(missing, 0), data.largest_client - data.smallest_client)
        sizes[client] += more
        missing -= more
    require(missing == 0, "plan.data", "be counts of clients that add up", data.records)
    return np.repeat(np.arange(data.clients, dtype=np.int64), sizes)


def _victim(plan: Plan, owner: Indices) -> Indices:
    """Return the first unit; with a public order, the first of the last round, after which the least noise comes."""
    unit = 0
    if plan.method.hides and plan.run.order == "public":
        ends = np.cumsum(np.broadcast_to(np.asarray(plan.run.batch), (plan.run.rounds,)))
        unit = int(ends[-1] - (plan.run.batch if isinstance(plan.run.batch, int) else plan.run.batch[-1]))
    if plan.target.unit == "client":
        return np.flatnonzero(owner == unit).astype(np.int64)
    return np.array([unit], dtype=np.int64)


def _records(plan: Plan, features: Vector, targets: Vector, owner: Indices) -> Records:
    data = plan.data
    return Records(
        features=features, targets=targets, owner=owner, clients=data.clients, bound=data.bound, classes=data.classes
    )


def _direction(plan: Plan, first: Records, second: Records, victim: Indices) -> Vector:
    """Return the direction of the difference of the two gradients at the zero model."""
    loss, clip = plan.model.loss, plan.constants.lipschitz
    start = np.zeros(plan.dimension)
    pushes = [loss.gradient(start, r.features[victim], r.targets[victim], clip=clip)[0] for r in (first, second)]
    gap = pushes[1] - pushes[0]
    return np.asarray(gap / np.linalg.norm(gap), dtype=np.float64)


Mask = NDArray[np.bool_]
_MOST_FEATURES = 60  # with more features, too few runs are left to choose a direction
_MOST_PLACES = 8  # with more rounds, a curious client does not learn a separate score for each of its rounds


@dataclass(frozen=True, slots=True, eq=False)
class Scene:
    """Many runs on one of the two data sets, and what is needed to observe them."""

    plan: Plan
    pair: Pair
    records: Records
    trace: Trace
    entropy: Entropy
    parts: Parts

    def models(self, turn: int) -> Vector:
        """Return the models before this round (from 0), one per row; at the end, the released ones."""
        rule = self.trace.rule
        if turn == 0:
            return np.tile(start_row(self.plan) * rule.unit, (self.trace.runs, 1))
        return project(self.trace.positions[:, turn - 1] * rule.unit, rule.radius)

    def along(self, vectors: Vector) -> Vector:
        """Return the component of each vector in the victim's direction."""
        return np.asarray(vectors @ self.pair.direction, dtype=np.float64)

    def pushes(self, turn: int, models: Vector) -> tuple[Vector, Vector]:
        """Return how far the victim moves each model in this round on the two data sets, in units of the round's noise.

        An attacker who sees the models can compute that.
        """
        rule, result = self.trace.rule, []
        factor = -rule.steps[turn] / (rule.batches[turn] * rule.noise[turn] * rule.unit)
        for records in (self.pair.first, self.pair.second):
            batch = copies(records, self.pair.victim, self.weights, models.shape[0])
            total, _ = self.plan.model.loss.gradient(
                models.ravel(), batch.features, batch.targets, clip=rule.clip, weights=batch.weights, norms=batch.norms
            )
            result.append(self.along(total.reshape(models.shape)) * factor)
        return result[0], result[1]

    @property
    def weights(self) -> Vector | None:
        """Weights of the victim's records in a round; all records of a client together count as one."""
        held = self.pair.victim.size
        return np.full(held, 1 / held) if self.plan.target.unit == "client" else None

    def places(self, record: int) -> Indices:
        """Return the round of a pass that uses this record, run by run; -1 if that is not known."""
        result = self.trace.places[:, record]
        return np.broadcast_to(result, (self.trace.runs,))


def look(scene: Scene, adversary: Adversary) -> Seen:
    """Return what this observer can compute from the runs.

    Where units draw their own rounds, whoever sees more than the last model looks at all rounds. Some may see more
    than that; what they are promised must hold for this look as well.
    """
    if scene.plan.run.sampled and adversary != "final-model":
        return _drawn(scene)
    if scene.plan.data.clients == 1 and adversary not in ("final-model", "curious-client"):
        adversary = "every-model"  # the one holder deals its own records and sends sums with all of their noise
    match adversary:
        case "final-model":
            return _final(scene)
        case "curious-client":
            return _curious(scene)
        case "every-model":
            return _rounds(scene, known=scene.plan.run.order == "public")
        case "server-with-secure-aggregation":
            return _rounds(scene, known=True)
        case _:
            return _server(scene)


def _final(scene: Scene) -> Seen:
    models = scene.models(scene.plan.run.total)
    along = scene.along(models)[:, None]
    return Seen(models if models.shape[1] <= _MOST_FEATURES else along, along)


def residuals(scene: Scene) -> tuple[Vector, Vector]:
    """Return what each round added along the victim's push, in units of its noise, and a log-likelihood ratio.

    The ratio compares the victim taking part on the first data set with the second.
    """
    rule, seen, ratios = scene.trace.rule, [], []
    for turn in range(scene.plan.run.total):
        models = scene.models(turn)
        moved = scene.trace.positions[:, turn] * rule.unit - models * (1 - rule.steps[turn] * scene.plan.model.l2)
        seen.append(scene.along(moved) / (rule.noise[turn] * rule.unit))
        ratios.append(_ratio(seen[-1], *scene.pushes(turn, models)))
    return np.stack(seen, axis=1), np.stack(ratios, axis=1)


def _drawn(scene: Scene) -> Seen:
    """Return what is seen in all rounds if the victim's draws are unknown: the likelihood ratio over all draws."""
    run, rule, seen, ahead, back = scene.plan.run, scene.trace.rule, list[Vector](), list[Vector](), list[Vector]()
    for turn in range(run.total):
        models = scene.models(turn)
        moved = scene.trace.positions[:, turn] * rule.unit - models * (1 - rule.steps[turn] * scene.plan.model.l2)
        seen.append(scene.along(moved) / (rule.noise[turn] * rule.unit))
        nothing = np.zeros(scene.trace.runs)
        for found, push in zip((ahead, back), scene.pushes(turn, models), strict=True):
            found.append(_ratio(seen[-1], push, nothing))
    first, second, features = (np.stack(rows, axis=1) for rows in (ahead, back, seen))
    scores = np.stack(drawn_scores(run, features, first, second), axis=1)
    return Seen(features if features.shape[1] <= _MOST_FEATURES else features[:, :0], scores)


def _ratio(seen: Vector, one: Vector, other: Vector) -> Vector:
    """Return the logarithm of the ratio of two normal densities with deviation 1."""
    return np.asarray((one - other) * seen - (one * one - other * other) / 2, dtype=np.float64)


def _rounds(scene: Scene, *, known: bool) -> Seen:
    """Return what is seen in all rounds: the likelihood ratio for a known round of the victim, or for any round."""
    run = scene.plan.run
    seen, each = residuals(scene)
    ratios = each.reshape(seen.shape[0], run.passes, run.rounds).sum(axis=1)
    places = scene.places(int(scene.pair.victim[0]))
    score = (logsumexp(ratios, axis=1) - np.log(run.rounds))[:, None]
    if known and bool(np.all(places >= 0)):
        score = np.take_along_axis(ratios, places[:, None], axis=1)
        # Start from the victim's round, so that a column has the same meaning in every run.
        turned = (places[:, None] + np.arange(run.rounds)) % run.rounds
        by_pass = seen.reshape(seen.shape[0], run.passes, run.rounds)
        seen = np.take_along_axis(by_pass, turned[:, None, :], axis=2).reshape(seen.shape)
    return Seen(seen if seen.shape[1] <= _MOST_FEATURES else seen[:, :0], score)


def _curious(scene: Scene) -> Seen:
    """Return what a curious client sees: the models it was sent, its own noise, and the last model.

    The client is a unit other than the victim.
    """
    plan, run = scene.plan, scene.plan.run
    last = scene.along(scene.models(run.total))
    others = np.flatnonzero(~np.isin(np.arange(plan.data.records), scene.pair.victim))
    places = scene.places(int(others[-1])) if others.size else np.full(scene.trace.runs, -1)
    columns: list[Vector] = [last]
    for turn in range(run.total):
        here = places == turn % run.rounds
        if not here.any() or (run.rounds > _MOST_PLACES and turn % run.rounds != run.rounds - 1):
            continue
        before = scene.along(scene.models(turn))
        share = _share(scene, turn)
        columns += [np.where(here, before, 0.0), np.where(here, share, 0.0), np.where(here, last, 0.0)]
    return Seen(np.stack(columns[:_MOST_FEATURES], axis=1), last[:, None])


def own_part(plan: Plan) -> Vector:
    """Return the part of each round's noise variance that the sender of an update has drawn itself.

    Every unit of the batch draws a share. With [trust] every client does, and the shares of the honest clients are the
    whole noise.
    """
    batches, cohorts = per_round(plan.run.batch, plan.run).tolist(), plan.method.cohorts(plan.setup)
    shares = [plan.trust.charged(cohort, batch, 1)[0] for cohort, batch in zip(cohorts, batches, strict=True)]
    return 1 / np.array(shares, dtype=np.float64)


def _share(scene: Scene, turn: int) -> Vector:
    """Return the curious client's own noise along the push.

    It is drawn given the planned noise of which it is a part.
    """
    rule, trust = scene.trace.rule, scene.plan.trust
    part = float(own_part(scene.plan)[turn])
    # the shares of the others make up the planned noise without its own
    if trust.colluders or (part == 1 and trust.senders(scene.plan.data.clients) > 1):
        return np.zeros(scene.trace.runs)
    total = scene.along(scene.trace.noise[:, turn])
    if part >= 1:
        return total * rule.unit
    fine = 2.0**30
    fresh = rounded_normal(scene.entropy.stream("own share", turn), fine, scene.trace.runs) / fine
    spread = float(rule.noise[turn]) * np.sqrt((1 - part) * part)
    return np.asarray((total * part + spread * fresh) * rule.unit, dtype=np.float64)


def _server(scene: Scene) -> Seen:
    """Return the victim's own noised update in each of its rounds."""
    run = scene.plan.run
    places = scene.places(int(scene.pair.victim[0]))
    rounds = np.where(places >= 0, places, run.rounds - 1)
    columns = [_own_updates(scene, rounds + run.rounds * number, places >= 0) for number in range(run.passes)]
    features = np.stack([seen for seen, _ in columns], axis=1)
    score = np.sum([ratio for _, ratio in columns], axis=0)
    return Seen(features if run.passes <= _MOST_FEATURES else features[:, :0], score[:, None])


def _own_updates(scene: Scene, turns: Indices, known: Mask) -> tuple[Vector, Vector]:
    """Return the real step on the victim alone, with one sender's noise, and its likelihood ratio, for each run.

    That noise is drawn given the noise of the whole round, of which it is a part. If it were drawn independently, the
    models of later rounds would be a second look at the victim that no server has. If the victim's round is not
    ``known``, the sum belongs to others, and the server looks from the zero model, which no victim has moved.
    """
    rule, seen, ratio = scene.trace.rule, np.zeros(scene.trace.runs), np.zeros(scene.trace.runs)
    part = own_part(scene.plan)
    quieter = replace(rule, noise=rule.noise * np.sqrt(part))
    for turn in np.unique(turns).tolist():
        here = np.flatnonzero(turns == turn)
        placed = known[here][:, None]
        models = np.where(placed, scene.models(turn)[here], 0.0)
        before = np.where(placed, scene.trace.positions[here, turn - 1], 0.0) if turn else np.zeros_like(models)
        drawn = scene.parts.draw(quieter, turn, models.size, _aside(scene.entropy)).reshape(models.shape)
        given = scene.trace.noise[here, turn] * part[turn] + drawn * np.sqrt(1 - part[turn])
        noise = np.where(placed, given, drawn)
        alone = copies(scene.records, scene.pair.victim, scene.weights, here.size)
        after = stepped(scene.parts, quieter, turn, before, alone, noise)
        moved = after * rule.unit - models * (1 - rule.steps[turn] * scene.plan.model.l2)
        seen[here] = scene.along(moved) / (quieter.noise[turn] * rule.unit)
        louder = np.sqrt(1 / part[turn])  # the push relative to one sender's noise
        ratio[here] = _ratio(seen[here], *(push * louder for push in scene.pushes(turn, models)))
    return seen, ratio


def _aside(entropy: Entropy) -> Entropy:
    """Return randomness under another key, because single shares are drawn separately from the sums."""
    return Entropy(entropy.words("single shares", 0, 4).tobytes(), private=entropy.private)


def some_models(scene: Scene, turns: Sequence[int]) -> Seen:
    """Return the models before these rounds (the number of rounds means the last model), along the victim's push."""
    seen = np.stack([scene.along(scene.models(turn)) for turn in turns], axis=1)
    return Seen(seen, seen[:, -1:])
