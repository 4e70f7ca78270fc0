"""The distinguishing game on the real trainer: many runs of a plan on two neighbouring data sets, for all observers."""

from collections.abc import Callable, Sequence

from fedveil.audit.claim import Claim, claim_of_plan
from fedveil.audit.finding import Finding
from fedveil.audit.game import Seen, play
from fedveil.core.checks import require
from fedveil.jobs.attack.batched_runs import Parts, many_runs
from fedveil.jobs.attack.neighbours import worst_pair
from fedveil.jobs.attack.observed_runs import Scene, look, some_models
from fedveil.jobs.attack.releases import releases, view_of
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import Plan
from fedveil.planning.promises import ADVERSARIES
from fedveil.privacy.guarantee import Adversary

Claims = Callable[[Adversary], Claim]


def scenes(plan: Plan, runs: int, entropy: Entropy, parts: Parts | None = None) -> tuple[Scene, Scene]:
    """Return the same plan run ``runs`` times on each of two neighbouring data sets."""
    require(plan.method.hides, "algorithm.kind", "be hidden for the distinguishing game", plan.method.kind)
    pair, parts = worst_pair(plan), parts or Parts()
    keys = [Entropy(entropy.words("scene", k, 4).tobytes(), private=entropy.private) for k in range(2)]
    found = [
        Scene(plan, pair, records, many_runs(plan, records, runs, key, parts), key, parts)
        for records, key in zip((pair.first, pair.second), keys, strict=True)
    ]
    return found[0], found[1]


def game(
    plan: Plan,
    runs: int,
    entropy: Entropy,
    *,
    adversaries: Sequence[Adversary] = ADVERSARIES,
    claims: Claims | None = None,
    alarm: float = 1e-6,
    parts: Parts | None = None,
) -> list[Finding]:
    """Return one finding for each observer; ``claims`` replaces what the plan promises. ``alarm`` is for each finding.

    For methods that hide nothing, the releases are examined as one observer sees them (attack/releases.py).
    """
    if not plan.method.hides:
        seen = releases(plan, runs, entropy)
        who = view_of(plan).seen_by
        claim = claim_of_plan(plan, who) if claims is None else claims(who)
        return [play(*seen, claim, adversary=who, delta=plan.target.delta, alarm=alarm)]
    first, second = scenes(plan, runs, entropy, parts)
    found = []
    for adversary in adversaries:
        claim = claim_of_plan(plan, adversary) if claims is None else claims(adversary)
        sides = look(first, adversary), look(second, adversary)
        found.append(play(*sides, claim, adversary=adversary, delta=plan.target.delta, alarm=alarm))
    return found


def what_hiding_buys(plan: Plan, runs: int, entropy: Entropy, *, alarm: float = 1e-6) -> list[tuple[str, Finding]]:
    """Return findings for an attacker who sees the last model, one in the middle too, or all models.

    In the middle: right after the round that uses the victim last (where that is secret: after the middle round).
    """
    first, second = scenes(plan, runs, entropy)
    total, place = plan.run.total, int(first.places(int(first.pair.victim[0]))[0])
    middle = max(1, total // 2) if plan.run.order != "public" else total - plan.run.rounds + place + 1
    looks: list[tuple[str, Adversary, Callable[[Scene], Seen]]] = [
        ("the final model", "final-model", lambda scene: look(scene, "final-model")),
        (f"the model after round {middle} too", "every-model", lambda scene: some_models(scene, (middle, total))),
        ("every model", "every-model", lambda scene: look(scene, "every-model")),
    ]
    return [
        (
            name,
            play(
                view(first),
                view(second),
                claim_of_plan(plan, adversary),
                adversary=adversary,
                delta=plan.target.delta,
                alarm=alarm,
            ),
        )
        for name, adversary, view in looks
    ]
