"""What the operator of a site or of a key reads before the first answer: what will run, what it promises and costs."""

from fedveil.cli.show import rounded_up
from fedveil.federation.agreements import Carried
from fedveil.ledger.costs import cost_of
from fedveil.planning.plan import Plan
from fedveil.privacy.guarantee import ADVERSARIES, finite_or_none
from fedveil.stages.evaluate.words import fact_rows as evaluation_facts
from fedveil.stages.measured.plan import GENERATOR, MeasuredPlan
from fedveil.stages.prepare.request import fact_rows
from fedveil.stages.train.registry import facts_of

_COUNTED = {
    "ranges": "ranges of columns",
    "categories": "frequent words",
    "ones": "single columns",
    "pairs": "all pairs of columns coarsely",
    "cliques": "chosen pairs finely",
}


def page(plan: Carried) -> str:
    """Return the page of a proposed plan."""
    data, target, trust = plan.data, plan.target, plan.trust
    apart = ", a third party holds the key" if trust.key_holder == "third-party" else ""
    server = f"  server {trust.server}, {trust.dropouts} dropouts, {trust.colluders} colluders{apart}"
    of, shape = f"plan {plan.hash}", f"  {data.records} records of {data.holders}"
    lines = [
        of,
        *(_training_rows(plan, shape, server) if isinstance(plan, Plan) else _noisy_sum_rows(plan, shape, server)),
    ]
    lines.append(f"  one {target.unit}, {target.neighbours}, delta {target.delta:g}:")
    for adversary in ADVERSARIES:
        epsilon = cost_of(plan, adversary).epsilon
        value = "no guarantee" if finite_or_none(epsilon) is None else f"epsilon {rounded_up(epsilon)}"
        lines.append(f"    {adversary}: {value}")
    lines += [f"  warning: {warning}" for warning in plan.warnings]
    lines.append("  accept it with: --accept " + plan.hash)
    return "\n".join(line for line in lines if line)


def _training_rows(plan: Plan, shape: str, server: str) -> list[str]:
    """What a run of training does."""
    facts = "; ".join(f"{name} {value}" for name, value in facts_of(plan.method, plan.setup))
    return [
        f"  {plan.name}: {plan.model.kind}, {plan.dimension} parameters",
        f"  its model is made here by {plan.model.module}" if plan.model.module else "",
        shape,
        _forgetting_row(plan),
        *_other_stage_rows(plan),
        f"  {plan.method.kind}: {facts}",
        server if plan.method.served else "",
    ]


def _forgetting_row(plan: Plan) -> str:
    """Who has left, and which sites take no part; nothing for a run without an earlier one."""
    if not plan.forgetting:
        return ""
    left, away, keep = plan.forgetting.units, plan.forgetting.away, plan.hidden.keep
    begun = "begins anew after" if keep == 0 else "goes on from" + (f" {keep:g} of the model of" if keep < 1 else "")
    what = f"  {begun} plan {plan.lineage[-2].hash[:12]} without {left} {plan.target.unit}{'s' * (left != 1)}"
    return what + (f"; sites that have left: {', '.join(away)}" if away else "")


def _noisy_sum_rows(plan: MeasuredPlan, shape: str, server: str) -> list[str]:
    """What is measured for a generator, or by any other stage of noisy sums."""
    noise = "on a count" if all(one.counts for one in plan.sums.measurements) else "on the sum"
    measured = "; ".join(
        f"{_COUNTED.get(one.name, one.name)} (noise {one.noise * one.bound:.4g} {noise})"
        for one in plan.sums.measurements
    )
    what = f"a generator of synthetic rows, of {plan.data.features} columns"
    if plan.stage != GENERATOR:
        what = f"the stage {plan.stage} with {plan.settings}"
    return [
        f"  {plan.name}: {what}",
        shape,
        f"  measured: {measured}",
        server,
    ]


def _other_stage_rows(plan: Plan) -> list[str]:
    """What the plan measures of the site's columns before training, and of its records after it, if it does."""
    rows = [fact_rows(plan.preparation, plan.target), evaluation_facts(plan.evaluation, plan.target)]
    return [f"  {'; '.join(f'{name} {value}' for name, value in facts)}" for facts in rows]
