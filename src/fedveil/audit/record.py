"""The file audit.json that an audit leaves in the run's folder: every finding, and the data for pictures."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from fedveil.audit.finding import Finding, finding_of
from fedveil.core.errors import BadValue, require
from fedveil.core.strict_json import read_object

FORMAT = 1
FILE = "audit.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """``plan`` and ``run``: hash and name of what was attacked; ``leakage``, ``hidden_state``: data for pictures."""

    plan: str
    run: str
    findings: tuple[Finding, ...]
    leakage: Mapping[str, Any] | None = None
    hidden_state: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        for name in ("plan", "run"):
            given = getattr(self, name)
            require(isinstance(given, str) and given, f"Audit.{name}", "be a text", given)
        fine = isinstance(self.findings, tuple) and all(isinstance(found, Finding) for found in self.findings)
        require(fine, "Audit.findings", "be a tuple of findings", type(self.findings).__name__)
        for name in ("leakage", "hidden_state"):
            given = getattr(self, name)
            require(given is None or isinstance(given, Mapping), f"Audit.{name}", "be a table or absent", type(given))
            if given is not None:
                object.__setattr__(self, name, MappingProxyType(dict(given)))

    @property
    def broken(self) -> tuple[Finding, ...]:
        """The findings that contradict what was certified."""
        return tuple(result for result in self.findings if result.verdict == "broken")

    def check(self, *, plan: str, run: str) -> None:
        """Refuse an audit of another plan or another run."""
        hint = "Audit this run again, or remove the file."
        require(self.plan == plan, f"{FILE}: plan", f"be the plan of this run, {plan}", self.plan, hint)
        require(self.run == run, f"{FILE}: run", f"be this run, {run}", self.run, hint)


def write_audit(audit: Audit) -> str:
    """Return the audit as JSON; reading it gives an equal audit."""
    values: dict[str, Any] = {
        "format": FORMAT,
        "plan": audit.plan,
        "run": audit.run,
        "findings": [found.as_json() for found in audit.findings],
    }
    for name in ("leakage", "hidden_state"):
        given = getattr(audit, name)
        if given is not None:
            values[name] = dict(given)
    try:
        return json.dumps(values, indent=1, allow_nan=False) + "\n"
    except (TypeError, ValueError) as error:
        raise BadValue(f"An audit must hold finite numbers and plain values only: {error}.") from error


def read_audit(text: str) -> Audit:
    """Return the audit that a text holds."""
    given = read_object(text, FILE)
    form = given.get("format")
    require(form == FORMAT, f"{FILE}: format", f"be {FORMAT}", form, "It was written by another version of fedveil.")
    try:
        findings = tuple(finding_of(found) for found in given["findings"])
        return Audit(
            plan=given["plan"],
            run=given["run"],
            findings=findings,
            leakage=given.get("leakage"),
            hidden_state=given.get("hidden_state"),
        )
    except BadValue:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BadValue(f"{FILE} must be complete: {error!r}. Audit the run again.") from error
