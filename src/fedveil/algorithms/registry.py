"""The one list of algorithms. A new one is a folder here and a name in ``KINDS``.

Parts of an algorithm are imported when they are needed: reading or certifying a plan loads no training code.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from fedveil.algorithms.base import Method

if TYPE_CHECKING:
    from fedveil.algorithms.acting import Acts
    from fedveil.algorithms.observation import AttackView
    from fedveil.fields import Exclusion

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
    """Return the pairs of an algorithm's settings that exclude each other, with the reasons."""
    found: tuple[Exclusion, ...] = getattr(_part(kind, "design"), "EXCLUSIONS", ())
    return found


def acts_of(kind: str) -> Acts:
    """Return the functions that carry out the algorithm."""
    found: Acts = _part(kind, "acts").ACTS
    return found


def attack_view(kind: str) -> AttackView | None:
    """Return how attacks observe the algorithm; None if that is not known."""
    if find_spec(f"fedveil.algorithms.{kind}.observe") is None:
        return None
    found: AttackView = _part(kind, "observe").ATTACK_VIEW
    return found


def _part(kind: str, name: str) -> Any:
    return import_module(f"fedveil.algorithms.{kind}.{name}")
