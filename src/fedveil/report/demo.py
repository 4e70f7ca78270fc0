"""What `fedveil demo` shows: a federated run whose updates stay hidden, its certificate and its figure."""

import json
from dataclasses import asdict
from pathlib import Path

from fedveil.guarantee import Answer, finite_or_none
from fedveil.mechanism import LastIterate
from fedveil.report.figures import write_demo_figure


def demo_run() -> LastIterate:
    """A thousand people, twenty in each of fifty rounds, once each; nobody learns who was when."""
    return LastIterate(
        rounds=50,
        batch=20,
        order="secret",
        step_size=0.5,
        lipschitz=1.0,
        smoothness=1.0,
        diameter=2.0,
        noise_std=0.6,
    )


def write_demo(run: LastIterate, answer: Answer, out: Path) -> list[Path]:
    """The figure and the numbers behind it."""
    out.mkdir(parents=True, exist_ok=True)
    figure, numbers = out / "hiding.svg", out / "account.json"
    write_demo_figure(run, figure)
    rows = [{**asdict(bound), "epsilon": finite_or_none(bound.epsilon)} for bound in answer.bounds]
    content = {
        "run": asdict(run),
        "epsilon": answer.epsilon,
        "delta": answer.delta,
        "certified_by": answer.certified_by,
        "bounds": rows,
    }
    numbers.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return [figure, numbers]
