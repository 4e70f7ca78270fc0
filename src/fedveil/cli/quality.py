"""How well a model does, in a terminal: beside the best constant answer, class by class, with 95% intervals."""

from collections.abc import Mapping
from typing import Any

from fedveil.cli.show import out, plain_table
from fedveil.models.metrics import no_better
from fedveil.stages.evaluate.words import why_unclear

_SHOWN = {
    "accuracy": "accuracy",
    "auc": "AUC",
    "log_loss": "log loss",
    "brier": "Brier",
    "r2": "R2",
    "mae": "mean absolute error",
    "rmse": "root mean squared error",
    "deviance": "Poisson deviance",
    "concordance": "concordance",
}
_REFERENCES = {"non-private": "same, no noise", "centralised": "one place"}
_WITH_INTERVAL = ("accuracy", "auc", "mae")  # what fits on a line; the report has all of them
_MOST = 10  # classes that are listed


def tell_quality(metrics: Mapping[str, Any]) -> None:
    """All that is known from held-out records; nothing where there are none."""
    test = metrics.get("test")
    if not test:
        return
    constant, others = test.get("baseline") or {}, metrics.get("baselines") or {}
    others = {_REFERENCES.get(name, name): row for name, row in others.items()}
    rows = {"this model": test, _answer(constant): constant, **others} if constant else {"this model": test, **others}
    shown = {key: title for key, title in _SHOWN.items() if any(row.get(key) is not None for row in rows.values())}
    public = "public" if test.get("public") else "not public: for them these numbers are a release without protection"
    out().print(f"on {test['records']:,} held-out records ({public}):", soft_wrap=True)
    plain_table([{"": name} | {title: _cell(row, key) for key, title in shown.items()} for name, row in rows.items()])
    recall, precision = test.get("recall") or {}, test.get("precision") or {}
    if 0 < len(recall) <= _MOST:
        classes = [f"{name} {_percent(recall[name])} / {_percent(precision.get(name))}" for name in recall]
        at = "the likeliest class" if test.get("threshold") is None else f"threshold {test['threshold']:g}"
        out().print(f"recall / precision ({at}): {', '.join(classes)}", soft_wrap=True)
    useless = no_better(dict(test))
    if useless is not None:
        out().print(f"WARNING: {useless}")


def tell_evaluation(metrics: Mapping[str, Any]) -> None:
    """What noisy counts say, each number with an interval that holds the noise too; nothing where there are none."""
    evaluation = metrics.get("evaluation")
    if not evaluation:
        return
    counted = "clients, each as one" if evaluation["unit"] == "client" else f"{evaluation['on']} records"
    out().print(
        f"privately, on {evaluation['units']:,} {counted} (95% intervals hold the noise and the choice of records):"
    )
    ends = evaluation["intervals"]
    rows = []
    for key, title in _SHOWN.items():
        if evaluation.get(key) is not None and ends.get(key) is not None:
            rows.append(
                {
                    "": title,
                    "estimate": f"{evaluation[key]:.3g}",
                    "from": f"{ends[key][0]:.3g}",
                    "to": f"{ends[key][1]:.3g}",
                }
            )
    for key in ("recall", "precision"):
        for name, value in list((evaluation.get(key) or {}).items())[:_MOST]:
            low, high = ends[key][name]
            shown = "-" if value is None else f"{value:.3g}"
            rows.append({"": f"{key} of {name}", "estimate": shown, "from": f"{low:.3g}", "to": f"{high:.3g}"})
    plain_table(rows)
    unclear = why_unclear(evaluation)
    if unclear is not None:
        out().print(f"WARNING: {unclear}")


def _answer(constant: Mapping[str, Any]) -> str:
    if constant["kind"] == "life table":
        return "the same chances for everybody"
    return "always the median" if constant.get("kind") == "median" else f"always {constant.get('class')!r}"


def _cell(row: Mapping[str, Any], key: str) -> str:
    value = row.get(key)
    if value is None:
        return "-"
    ends = (row.get("intervals") or {}).get(key) if key in _WITH_INTERVAL else None
    if key == "accuracy":
        return f"{value:.1%}" + ("" if ends is None else f" ({100 * ends[0]:.1f}–{100 * ends[1]:.1f})")
    return f"{value:.4g}" + ("" if ends is None else f" ({ends[0]:.3g}–{ends[1]:.3g})")


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
