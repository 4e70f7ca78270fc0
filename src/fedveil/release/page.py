"""How a model shows itself: one line for a terminal, a small table for a notebook."""

import math
from html import escape
from typing import Any

from fedveil.release.bundle import Bundle


def summary(bundle: Bundle) -> str:
    """One line: what it is, what it predicts from what, what it promises."""
    plan, known = bundle.plan, bundle.preparation
    columns = plan.real_features if known is None else len(known.columns)
    return f"ReleasedModel({plan.name!r}: {plan.model.kind}, {columns} columns, {_promise(bundle)})"


def card(bundle: Bundle) -> str:
    """Return a table, without scripts or styles from elsewhere; every text is escaped."""
    plan, known = bundle.plan, bundle.preparation
    names = () if known is None else known.names
    rows = [
        ("model", f"{plan.model.kind}, {bundle.parameters.size:,} parameters"),
        ("predicts", _predicts(bundle)),
        ("columns", _join_names(names) or f"{plan.real_features} prepared features"),
        ("trained on", f"{plan.data.records:,} records of {plan.data.holders}"),
        ("promise", _promise(bundle)),
        ("plan", plan.hash[:16] + "..."),
    ]
    cells = "".join(
        f'<tr><th scope="row" style="text-align:left">{escape(name)}</th>'
        f'<td style="text-align:left">{escape(text)}</td></tr>'
        for name, text in rows
    )
    title = f'<caption style="text-align:left"><strong>{escape(plan.name)}</strong></caption>'
    return f"<table>{title}<tbody>{cells}</tbody></table>"


def _predicts(bundle: Bundle) -> str:
    known, classes = bundle.preparation, bundle.plan.data.classes
    name = known.labels.name if known is not None and known.labels.name else "the target"
    if not classes:
        return f"{name}, a number"
    words = known.labels.classes if known is not None else tuple(str(k) for k in range(classes))
    return f"{name}: {_join_names(words)}"


def _join_names(words: tuple[str, ...], most: int = 12) -> str:
    return ", ".join(words[:most]) + (f", ... ({len(words)})" if len(words) > most else "")


def _promise(bundle: Bundle) -> str:
    """Epsilon rounded up, against the observer that the plan was made for."""
    if bundle.personal is not None and bundle.personal.own:
        return f"the own model of {bundle.personal.client}: NOT PRIVATE if it is shown to others"
    target = bundle.plan.target
    rows = bundle.certificate.get("guarantees") or []
    guarantee: dict[str, Any] = next((row for row in rows if row.get("adversary") == target.adversary), {})
    epsilon = guarantee.get("epsilon")
    if bundle.certificate.get("private") is not True or not isinstance(epsilon, int | float):
        return "NOT PRIVATE"
    shown = math.ceil(epsilon * 10_000) / 10_000
    return f"epsilon {shown:g} at delta {target.delta:g} for one {target.unit}"
