"""Whether a proposal is one that a site may look at: a plan, for data like its own, that names no code of others.

A plan is a text from outside. Reading it must run nothing: a torch model is a function by its name, and any function
that can be imported at a site could be named. So the names are looked at before the plan is made.
"""

from collections.abc import Collection
from typing import Any, Final

from fedveil.algorithms.registry import acts_of
from fedveil.data.records import Records
from fedveil.plan import Plan, read_plan, write_plan
from fedveil.tables import read_tables
from fedveil.wire.content import Content
from fedveil.wire.envelope import Refused

_LONGEST: Final = 2**20  # bytes of a plan: a client's own settings are lists of numbers


def plan_of(proposal: Content, modules: Collection[str]) -> Plan:
    """The plan in a proposal; its text must be the one way to write it, and its name what was said.

    ``modules``: functions of the site's own installation that the operator lets a plan name.
    """
    text = proposal.blocks.get("plan", b"")
    if len(text) > _LONGEST:
        raise Refused("malformed")
    try:
        _check_code(read_tables(text.decode("utf-8"), "The plan").get("model"), modules)
        plan = read_plan(text.decode("utf-8"))
        same = write_plan(plan).encode() == text and plan.hash == proposal.values.get("plan")
    except Refused:
        raise
    except Exception as error:  # numbers of the wrong kind or size may fail in any way: it is no plan
        raise Refused("malformed") from error
    if not same:
        raise Refused("other-plan")
    if (
        plan.preparation is not None
    ):  # a site knows no measurements, so nobody may ask it to train as if it had made them
        raise Refused("not-by-parts")
    if not (plan.trust.shared or acts_of(plan.method.kind).relay is not None):
        raise Refused("not-by-parts")
    return plan


def _check_code(model: Any, modules: Collection[str]) -> None:
    """Refuse functions that the operator has not named; and a model whose size would have to be found by running it."""
    if not isinstance(model, dict) or model.get("kind") != "torch":
        return
    named = [model.get("module"), *(name for name in [model.get("criterion")] if ":" in str(name))]
    if not all(isinstance(name, str) and name in modules for name in named):
        raise Refused("other-code")
    if type(model.get("parameters")) is not int:
        raise Refused("malformed")


def fits(plan: Plan, records: Records) -> None:
    """Whether the plan was made for data like these."""
    said, mine = plan.data, records.shape
    same = (said.features, said.classes, said.bound) == (mine.features, mine.classes, mine.bound)
    within = said.smallest_client <= mine.smallest_client and mine.largest_client <= said.largest_client
    together = not plan.trust.shared or mine.clients <= plan.trust.hand
    if not (same and within and together and mine.clients <= said.clients and mine.records <= said.records):
        raise Refused("other-data")
