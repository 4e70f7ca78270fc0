"""How often the intervals of a private evaluation hold the truth, which is known here: scores are drawn from normals.

Each repeat draws records and noise anew, counts and estimates. Prints, for several sizes and budgets, how many of the
repeats have the area under the ROC curve, the accuracy and the mean loss within their stated 95% intervals, and how
wide the interval of the area is on average.

    python benchmarks/evaluation_coverage.py --repeats 200
"""

import argparse
import json
from pathlib import Path

import numpy as np
from scipy.stats import norm

from fedveil.data.load import Loaded
from fedveil.data.records import Records
from fedveil.engine.study import evaluated
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import Plan
from fedveil.planning.study import study_of

REACH = 10.0  # the released model's weight; rows lie within [-1, 1]


def records_of(count: int, share: float, apart: float, clients: int, draw: np.random.Generator) -> Records:
    """Scores of the two classes are normal with deviation 1, and ``apart`` from each other."""
    targets = (draw.random(count) < share).astype(np.float64)
    scores = draw.normal(size=count) + apart * (targets - 0.5)
    rows = np.ascontiguousarray(np.clip(scores / REACH, -1.0, 1.0)[:, None])
    owner = np.sort(np.arange(count) % clients).astype(np.int64)
    return Records(features=rows, targets=targets, owner=owner, clients=clients, bound=1.0, classes=2)


def plan_of(records: Records, epsilon: float, share: float, neighbours: str) -> Plan:
    """A plan whose evaluation is on its training records."""
    tables = {
        "model": {"kind": "logistic"},
        "privacy": {"epsilon": epsilon, "delta": 1e-5, "neighbours": neighbours},
        "algorithm": {"kind": "dpsgd", "rate": 0.1, "rounds": 10},
        "evaluation": {"private": True, "records": "training", "share": share},
    }
    return study_of(tables, base=Path(), data_given=True).planned(records.shape).plan


def coverage(
    repeats: int,
    count: int,
    epsilon: float,
    share: float,
    *,
    positive: float = 0.5,
    apart: float = 1.5,
    neighbours: str = "replace-one",
    seed: int = 0,
) -> dict[str, float]:
    """Return in which share of the repeats the truth was within its interval."""
    draw = np.random.default_rng(seed)
    plan = plan_of(records_of(count, positive, apart, 4, draw), epsilon, share, neighbours)
    weight = np.array([REACH])
    far = records_of(400_000, positive, apart, 1, np.random.default_rng(seed + 1))
    margin = far.features[:, 0] * REACH
    signs = 2 * far.targets - 1
    truth = {
        "auc": float(norm.cdf(apart / np.sqrt(2))),
        "accuracy": float(norm.cdf(apart / 2)),
        "log_loss": float(np.logaddexp(0.0, -signs * margin).mean()),
    }
    held, widths, centre = dict.fromkeys(truth, 0), [], []
    for repeat in range(repeats):
        records = records_of(count, positive, apart, 4, draw)
        loaded = Loaded(train=records, test=None, test_public=True, dropped_rows=0, feature_names=("score",))
        found = evaluated(plan, loaded, weight, Entropy.from_seed(seed * 100_003 + repeat))
        for name, value in truth.items():
            low, high = found["intervals"][name]
            held[name] += low <= value <= high
        low, high = found["intervals"]["auc"]
        widths.append(high - low)
        centre.append((found["auc"] or 0.5) - truth["auc"])
    shares = {name: count / repeats for name, count in held.items()}
    error = float(np.sqrt(np.mean(np.square(centre))))
    return {**shares, "auc_width": float(np.mean(widths)), "auc_error": error, "bins": plan.evaluation.bins}  # type: ignore[union-attr]


def main() -> None:
    """Print a line of JSON for each setting."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=200)
    asked = parser.parse_args()
    for count, epsilon, share, positive in (
        (300, 1.0, 0.1, 0.5),
        (1000, 1.0, 0.1, 0.5),
        (1000, 1.0, 0.9, 0.2),
        (5000, 1.0, 0.1, 0.1),
        (20000, 0.3, 0.1, 0.3),
        (20000, 4.0, 0.3, 0.5),
    ):
        found = coverage(asked.repeats, count, epsilon, share, positive=positive)
        print(json.dumps({"records": count, "epsilon": epsilon, "share": share, "positive": positive, **found}))


if __name__ == "__main__":
    main()
