"""From when on hiding the models pays: designed runs in a known order, by records and epsilon, with every model seen.

    python -m benchmarks.when_hiding_pays [FIGURE.svg]

For each plan: its rounds, and what the same noise would promise if every model were seen. In a known order nothing but
hiding protects more than the noise of a record's own rounds.
"""

import sys
from pathlib import Path

from fedveil.data.records import DataShape
from fedveil.planning.promises import promise
from fedveil.planning.study import study_of

RECORDS = (400, 1000, 4000, 10_000, 40_000)
EPSILONS = (0.1, 0.5, 1.0, 2.0, 8.0)
DELTA = 1e-6


def plan_of(records: int, epsilon: float, order: str):
    """Return the plan of a logistic model on 20 features; the design looks at these numbers alone."""
    shape = DataShape(
        records=records, features=20, classes=2, clients=1, largest_client=records, smallest_client=records, bound=1.0
    )
    tables = {
        "model": {"kind": "logistic"},
        "privacy": {"epsilon": epsilon, "delta": DELTA},
        "algorithm": {"kind": "hidden", "order": order},
    }
    return study_of(tables, base=Path(), data_given=True).planned(shape)


def rows(order: str = "public"):
    """Yield records, epsilon, passes, rounds of a pass, expected risk, and epsilon with every model seen."""
    for records in RECORDS:
        for epsilon in EPSILONS:
            planned = plan_of(records, epsilon, order)
            run, seen = planned.plan.run, promise(planned.plan, "every-model").epsilon
            yield records, epsilon, run.passes, run.rounds, planned.draft.risk, seen


def figure(found: list[tuple], path: Path) -> None:
    """Draw the factor by records times epsilon."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    fig, axes = plt.subplots(figsize=(6.4, 3.6))
    for records in RECORDS:
        mine = [(row[1] * row[0], min(row[5] / row[1], 1e3)) for row in found if row[0] == records]
        axes.plot(*zip(*mine, strict=True), marker="o", label=f"{records:,} records")
    axes.set(
        xscale="log", yscale="log", xlabel="records times epsilon", ylabel="epsilon with every model seen / hidden"
    )
    axes.axvline(1500, color="grey", linewidth=0.8, linestyle=":")
    axes.legend(frameon=False)
    fig.tight_layout()
    fig.savefig(path, metadata={"Date": None})


def main(arguments: list[str]) -> None:
    """Print the table, and draw the figure if a file is named."""
    found = []
    print("| records | epsilon | passes x rounds | expected risk | every model seen |\n|---|---|---|---|---|")
    for row in rows():
        found.append(row)
        records, epsilon, passes, rounds, risk, seen = row
        said = "no guarantee" if seen == float("inf") else f"{seen:.3g}"
        print(f"| {records:,} | {epsilon:g} | {passes} x {rounds} | {risk:.3g} | {said} |", flush=True)
    if arguments:
        figure(found, Path(arguments[0]))


if __name__ == "__main__":
    main(sys.argv[1:])
