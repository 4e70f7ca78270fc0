"""Checks whether a site may consider a proposal: a plan, for data like its own, that names no foreign code.

A plan is a text from outside, and reading it must run nothing. A torch model is given as the name of a function, and
any function that can be imported at a site could be named. So the names are checked before the plan is built.
"""

from collections.abc import Collection
from typing import Any, Final

from fedveil.core.importing import Allowed
from fedveil.core.tables import read_tables
from fedveil.data.records import DataShape
from fedveil.federation.agreements.carried import Carried
from fedveil.models.spec import code_named
from fedveil.planning.plan import read_any_plan
from fedveil.wire.content import Content
from fedveil.wire.envelope import Refused

_LONGEST: Final = 2**20  # bytes of a plan, which may list settings for every client


def plan_of(proposal: Content, modules: Collection[str]) -> Carried:
    """Return the plan in a proposal; its text must be in canonical form, and its hash must be the one stated.

    ``modules``: functions of the site's own installation that the operator allows a plan to name.
    """
    text = proposal.blocks.get("plan", b"")
    if len(text) > _LONGEST:
        raise Refused("malformed")
    try:
        tables = read_tables(text.decode("utf-8"), "The plan")
        if "tune" in tables:  # a site trains one run, and what it promises is that of a secret choice among several
            raise Refused("not-by-parts")
        _check_code(tables.get("model"), modules)
        plan = read_any_plan(text.decode("utf-8"))
        same = plan.text().encode() == text and plan.hash == proposal.values.get("plan")
    except Refused:
        raise
    except Exception as error:  # numbers of a wrong kind or size may fail in any way
        raise Refused("malformed") from error
    if not same:
        raise Refused("other-plan")
    late = plan.trust.patience is not None
    if plan.evaluation and (late or not all(stage.served for stage in plan.stages)):
        raise Refused("not-by-parts")  # there is no round for its sums
    if not carried_by_sites(plan):  # nor is a profile, or an evaluation by itself: those are made in one process
        raise Refused("not-by-parts")
    return plan


def carried_by_sites(plan: Carried) -> bool:
    """Return whether sites can carry out the plan: each adds its clients' noise, or there is no server at all."""
    return plan.trust.shared or not all(stage.served for stage in plan.stages)


def _check_code(model: Any, modules: Collection[str]) -> None:
    """Refuse functions that the operator has not named, and models whose size could only be found by running code."""
    named = list(code_named(model).values())
    if not all(Allowed(frozenset(modules)).permits(name) for name in named):
        raise Refused("other-code")
    if named and type(model.get("parameters")) is not int:
        raise Refused("malformed")


def fits(plan: Carried, mine: DataShape) -> None:
    """Refuse unless the plan was made for data like these."""
    said = plan.data
    same = (said.features, said.classes, said.bound) == (mine.features, mine.classes, mine.bound)
    within = said.smallest_client <= mine.smallest_client and mine.largest_client <= said.largest_client
    together = mine.clients <= plan.trust.hand
    if not (same and within and together and mine.clients <= said.clients and mine.records <= said.records):
        raise Refused("other-data")
