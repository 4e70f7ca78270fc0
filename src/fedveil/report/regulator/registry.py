"""The entry of a run for the OpenDP project's registry of deployments, as YAML.

Its keys are those of the registry's files (tier 3). What only people know, and nobody has stated, is left empty with a
remark, so that the entry shows what is still to be answered.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from fedveil.report import words
from fedveil.report.regulator.about import About
from fedveil.report.regulator.exposure import unprotected
from fedveil.report.regulator.questions import composition_text, side_channels, unit_text
from fedveil.report.view import View
from fedveil.stages.prepare.request import fact_rows
from fedveil.stages.train.registry import facts_of, title_of

_UNITS = {"record": "Record-level", "client": "Client-level", "person": "Person-level"}
_ACTORS = {
    "final-model": "readers of the model",
    "curious-client": "participants",
    "every-model": "whoever sees every model",
    "server-with-secure-aggregation": "a server that sees sums",
    "server": "a server that sees every update",
}


def entry(view: View, about: About) -> dict[str, Any]:
    """Return the entry as nested tables; None stands for what nobody has stated."""
    plan, seen = view.plan, view.target
    return {
        "url_slug": slug(plan.name, about.published),
        "status": "Draft",
        "tier": 3,
        "deployment": {
            "product": {
                "name": plan.name,
                "data_curators": list(about.curators) or None,
                "intended_use": about.intended_use,
                "data_product_type": "Machine learning model",
                "data_product_region": about.region,
                "data_product_sector": about.sector,
                "description": f"A {plan.model.kind} model of {plan.dimension:,} parameters, trained by federated "
                f"learning ({title_of(plan.method.kind)}). Only the final model is released.",
                "publication_date": about.published,
            },
            "dp_flavor": {
                "name": "Approximate DP",
                "data_domain": f"{plan.data.records:,} records of {plan.data.holders}, "
                f"{plan.data.features:,} features; every row has a norm of at most {words.nearest(plan.data.bound)}."
                + (f" {about.description}" if about.description else ""),
                "unprotected_quantities": "\n".join(f"- {what}: {remark}" for what, remark in unprotected(view)),
            },
            "privacy_loss": {
                "privacy_unit": _UNITS[plan.target.unit],
                "privacy_unit_description": unit_text(plan.target),
                "privacy_parameters": None
                if seen.epsilon is None
                else {"epsilon": float(words.up(seen.epsilon, 6)), "delta": seen.delta},
                "privacy_parameters_description": _observers(view),
            },
            "model": {
                "model_name": "Federated",
                "model_name_description": plan.trust.sentences,
                "actors": _actors(view),
                "release_type": "One-shot",
                "release_type_description": "One model, released once; the ledger counts further runs on the data.",
                "data_source_type": "Static",
                "access_type": "Non-interactive",
            },
            "accounting": {
                "post_processing": "Whatever is done with the released model costs nothing more.",
                "composition": composition_text(),
            },
            "implementation": {
                "pre_processing_eda_hyperparameter_tuning": _tuning(view, about),
                "mechanisms": _mechanisms(view),
                "justification": about.justification,
            },
            "resources": {"sources": about.sources, "registry_authors": list(about.curators) or None},
        },
    }


def slug(name: str, published: str | None) -> str:
    """Return the words of a name, with the year.

    >>> slug("Breast cancer, 4 hospitals", "2026-11-17")
    'breast-cancer-4-hospitals-2026'
    """
    words_of = re.findall(r"[a-z0-9]+", name.lower()) or ["model"]
    return "-".join([*words_of, *([published[:4]] if published else [])])


def _observers(view: View) -> str:
    rows = (f"- {words.OBSERVERS[s.adversary]}: epsilon {words.epsilon_text(s.epsilon)} at delta "
            f"{words.nearest(s.delta, 12)}" for s in view.observers)  # fmt: skip
    return "\n".join(rows)


def _actors(view: View) -> str:
    rows = [f"- Data holders ({view.plan.data.holders}) keep their records. {view.plan.trust.sentences}"]
    for seen in view.observers:
        promised = "nothing" if seen.epsilon is None else f"epsilon {words.up(seen.epsilon)}"
        rows.append(f"- {_ACTORS[seen.adversary].capitalize()} ({seen.sees}): promised against them, {promised}.")
    return "\n".join(rows)


def _tuning(view: View, about: About) -> str:
    planned = view.plan.preparation
    if not planned:
        text = "Preparation of the columns was stated, not learned from the records."
    else:
        facts = "; ".join(f"{name}: {value}" for name, value in fact_rows(planned, view.plan.target))
        text = f"The preparation of the columns was learned privately, inside this epsilon. {facts}."
    selection = view.plan.selection
    if selection:
        text += (
            f" Settings were tuned privately, inside this epsilon: the best of a random number of trials "
            f"({selection.law.mean:.4g} expected) among {len(selection.candidates)} candidates."
        )
    tuned = (
        about.tuning or "Other runs on the same records, if there were any, are in the ledger and not in this number."
    )
    return f"{text} {tuned}"


def _mechanisms(view: View) -> str:
    plan = view.plan
    facts = "; ".join(f"{name}: {value}" for name, value in facts_of(plan.method, plan.setup))
    rows = [
        f"- {title_of(plan.method.kind).capitalize()}. {facts}." if facts else f"- {title_of(plan.method.kind)}.",
        f"- {side_channels(plan)}",
        f"- Platform: Python with numpy; fedveil {view.version}, plan {view.plan_hash}.",
    ]
    return "\n".join(rows)


def yaml_text(value: Mapping[str, Any], depth: int = 0) -> str:
    """Return nested tables as YAML. Texts are written as JSON texts, which YAML reads alike, so none can break out."""
    lines = []
    for key, inner in value.items():
        start = "  " * depth + f"{key}:"
        if isinstance(inner, Mapping):
            lines += [start, yaml_text(inner, depth + 1).rstrip("\n")]
        elif isinstance(inner, list):
            lines += [start, *("  " * (depth + 1) + f"- {_scalar(item)}" for item in inner)]
        elif isinstance(inner, str) and "\n" in inner and inner.isascii() and _tame(inner):
            lines += [f"{start} |-", *("  " * (depth + 1) + line for line in inner.split("\n"))]
        else:
            lines.append(f"{start} {_scalar(inner)}")
    return "\n".join(lines) + "\n"


def _tame(text: str) -> bool:
    return all(line.startswith("- ") and line.isprintable() for line in text.split("\n"))


def _scalar(value: Any) -> str:
    if value is None:
        return "''  # to be stated"
    if isinstance(value, float):
        text = repr(value)
        return text.replace("e", ".0e") if "e" in text and "." not in text else text
    return json.dumps(value)
