"""The one list of algorithms. A new one is a folder here and a name in ``KINDS``.

Parts of an algorithm are imported when they are needed: reading or certifying a plan loads no training code.
"""

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Final

from fedveil.core.fields import Exclusion
from fedveil.privacy.guarantee import Adversary
from fedveil.stages.train.base import Method, Setup
from fedveil.stages.train.share_words import Row

KINDS: Final = ["hidden", "dpsgd", "fedavg", "simfl"]
DEFAULT: Final = "hidden"  # of a study that names no algorithm


def read_method(kind: str, table: Mapping[str, Any]) -> Method:
    """Return the method that a plan's [method] table states."""
    found: Method = _part(kind, "method").METHOD.read(table)
    return found


def title_of(kind: str) -> str:
    """Return what the algorithm is called in the middle of a sentence; its name where it states none."""
    return str(getattr(_part(kind, "method"), "TITLE", kind))


def pulls_when_empty(kind: str) -> bool:
    """Return whether a client without records still sends something that depends on the model (see ``Served``)."""
    return bool(_part(kind, "method").METHOD.pulls_when_empty)


def request_type(kind: str) -> Any:
    """Return the type of the study's [algorithm] table."""
    return _part(kind, "design").REQUEST


def weighed_for(unit: str) -> list[str]:
    """Return the algorithms among which ``kind = "auto"`` chooses where this unit is protected."""
    return [kind for kind in KINDS if unit in getattr(_part(kind, "design"), "WEIGHED_FOR", ())]


def why_not(kind: str, setting: str) -> str:
    """Return why an algorithm does not have a setting of another one; empty where nothing more can be said."""
    found: str = getattr(_part(kind, "design"), "REFUSED", {}).get(setting, "")
    return found


def exclusions_of(kind: str) -> tuple[Exclusion, ...]:
    """Return what an algorithm excludes among its own settings, and beside them in a study, with the reasons."""
    part = _part(kind, "design")
    found: tuple[Exclusion, ...] = getattr(part, "EXCLUSIONS", ()) + part.BESIDE
    return found


def assumptions_of(method: Method, adversary: Adversary, setup: Setup) -> Sequence[Row]:
    """Return what a method's guarantee assumes besides feature bound, randomness and grid, in words."""
    found: Sequence[Row] = _part(method.kind, "words").assumption_rows(method, adversary, setup)
    return found


def facts_of(method: Method, setup: Setup) -> Sequence[tuple[str, str]]:
    """Return what a reader of the report should know of a method, as (name, value)."""
    found: Sequence[tuple[str, str]] = _part(method.kind, "words").fact_rows(method, setup)
    return found


def _part(kind: str, name: str) -> Any:
    return import_module(f"fedveil.stages.train.{kind}.{name}")


# Which algorithms let a module add its own answer to a noised direction, as an adversarial pair does.
#
# All that such an algorithm's update is computed from is noised before; the others promise more by hiding models, or
# let clients train with plain gradients, and an answer has no place there.


ANSWERING: Final = ("dpsgd",)


# One noised sum over all records, as tables of a study: all that a model needs whose loss is linear.


ONE_ROUND: Final[Mapping[str, Any]] = {
    "algorithm": {"kind": "dpsgd", "optimizer": "sgd", "rate": 1.0, "rounds": 1},
    "schedule": {"step_size": 1.0},
}
