"""Errors of answers beside those of OpenDP and diffprivlib, at equal epsilon, in the same run.

    pip install opendp diffprivlib
    python benchmarks/statistics.py [--questions 40] [--records 3000] [--epsilon 1] [--shape normal|skewed|heavy]

All questions of a list share one epsilon (delta 1e-5 where a library can use one): a quarter each of counts,
histograms of ten cells, means and box plots of five quantiles. OpenDP is tried with Laplace noise and the epsilon split
evenly, and with Gaussian noise composed by zCDP; its quantiles are drawn by its private quantile. diffprivlib splits
epsilon evenly. All protect against a record that is replaced by another while the number of records is public: a
count and a mean move by one and by the range over that number; of a histogram two cells move by one each (2 for Laplace
noise, the root of 2 for Gaussian noise), and two records are exchanged in a quantile. diffprivlib's histogram counts a
single record, so it gets half of the epsilon. Printed: mean absolute error against the records' own number.
"""

import argparse
import json
import math
import sys
import types
import warnings
from collections import defaultdict
from typing import Any

import numpy as np
from coverage import RANGES, Noisy, answers, draw, plan_for

AT = (0.05, 0.25, 0.5, 0.75, 0.95)
KINDS = ("count", "histogram", "mean", "quantiles")


def cells(span: tuple[float, float]) -> Any:
    """Return the edges of the histograms."""
    return np.linspace(*span, 11)


def questions(many: int, span: tuple[float, float]) -> list[dict[str, Any]]:
    """Return a list of questions, a quarter of each kind."""
    each: dict[str, dict[str, Any]] = {
        "count": {"kind": "count", "where": ["x > 0.5"]},
        "histogram": {"kind": "histogram", "column": "x", "edges": cells(span).tolist()},
        "mean": {"kind": "mean", "column": "x", "range": list(span)},
        "quantiles": {"kind": "quantiles", "column": "x", "range": list(span), "at": list(AT)},
    }
    return [{**each[kind], "name": f"{kind} {k}"} for k in range(max(1, many // 4)) for kind in KINDS][:many]


def truth(x: Any, span: tuple[float, float]) -> dict[str, Any]:
    """Return the records' own numbers."""
    return {
        "count": (x > 0.5).sum(),
        "histogram": np.histogram(x, cells(span))[0],
        "mean": x.mean(),
        "quantiles": np.quantile(x, AT),
    }


def ours(many: int, records: int, epsilon: float, span: tuple[float, float]) -> Any:
    """Return a function from records and a generator to our answers."""
    asked = questions(many, span)
    plan = plan_for(asked, records, epsilon)
    print(f"fedveil: {plan.sums.law} noise")

    def answer(rows: Any, generator: np.random.Generator) -> dict[str, list[Any]]:
        found = answers(plan, rows, Noisy(records, generator), records)
        result = defaultdict(list)
        for name, tables in found.items():
            values = [row["estimate"] for row in tables[""]]
            kind = name.split()[0]
            result[kind].append(np.array(values[1:-2] if kind == "histogram" else values))
        return result

    return answer


def opendp(many: int, records: int, epsilon: float, span: tuple[float, float], gaussian: bool) -> Any:
    """Return the same of OpenDP; with Laplace noise, or with Gaussian noise composed by zCDP."""
    import opendp.prelude as dp

    dp.enable_features("contrib", "honest-but-curious")
    rho = zcdp(epsilon, 1e-5) / many
    part = epsilon / many
    vector = dp.vector_domain(dp.atom_domain(T=float, nan=False)), dp.l2_distance(T=float)
    alone = dp.atom_domain(T=float, nan=False), dp.absolute_distance(T=float)
    flat = dp.vector_domain(dp.atom_domain(T=float, nan=False)), dp.l1_distance(T=float)

    def noisy(values: Any, sensitivity: float) -> Any:
        values = np.atleast_1d(values).astype(float)
        if gaussian:
            scale = sensitivity / math.sqrt(2 * rho)
            mechanism = dp.m.make_gaussian(*(alone if values.size == 1 else vector), scale=scale)
        else:
            mechanism = dp.m.make_laplace(*(alone if values.size == 1 else flat), scale=sensitivity / part)
        return np.array(mechanism(float(values[0])) if values.size == 1 else mechanism(values.tolist()))

    # A quantile is drawn with epsilon p among candidates: p pure, or p**2 / 8 in zCDP; five of them share a question.
    each = math.sqrt(8 * rho / len(AT)) if gaussian else part / len(AT)
    grid = np.linspace(*span, 257)
    domain = dp.vector_domain(dp.atom_domain(T=float, nan=False))

    def quantile(x: Any, share: float) -> float:
        made = dp.m.make_private_quantile(
            domain, dp.symmetric_distance(), dp.max_divergence(), candidates=grid.tolist(), alpha=share,
            scale=1.0,
        )  # fmt: skip
        scale = made.map(2) / each
        made = dp.m.make_private_quantile(
            domain, dp.symmetric_distance(), dp.max_divergence(), candidates=grid.tolist(), alpha=share, scale=scale
        )
        return float(made(x.tolist()))

    def answer(rows: Any, generator: np.random.Generator) -> dict[str, list[Any]]:
        x = rows["numbers"][:, 0]
        exact = truth(x, span)
        return {
            "count": [noisy(exact["count"], 1.0)],
            "histogram": [noisy(exact["histogram"], math.sqrt(2) if gaussian else 2.0)],
            "mean": [noisy(exact["mean"], (span[1] - span[0]) / records)],
            "quantiles": [np.array([quantile(x, share) for share in AT])],
        }

    return answer


def diffprivlib(many: int, records: int, epsilon: float, span: tuple[float, float]) -> Any:
    """Return the same of diffprivlib."""
    # its models do not load with every scikit-learn, and are not needed
    sys.modules.setdefault("diffprivlib.models", types.ModuleType("diffprivlib.models"))
    from diffprivlib import tools

    part = epsilon / many

    def answer(rows: Any, generator: np.random.Generator) -> dict[str, list[Any]]:
        x = rows["numbers"][:, 0]
        return {
            "count": [np.array([tools.count_nonzero(x > 0.5, epsilon=part)])],
            "histogram": [tools.histogram(x, epsilon=part / 2, bins=cells(span), range=span)[0]],
            "mean": [np.array([tools.mean(x, epsilon=part, bounds=span)])],
            "quantiles": [tools.quantile(x, list(AT), epsilon=part, bounds=span)],
        }

    return answer


def zcdp(epsilon: float, delta: float) -> float:
    """Return the rho whose Gaussian mechanism has this epsilon at this delta, by OpenDP's own conversion."""
    import opendp.prelude as dp

    dp.enable_features("contrib", "honest-but-curious")

    def reached(rho: float) -> float:
        made = dp.m.make_gaussian(
            dp.atom_domain(T=float, nan=False), dp.absolute_distance(T=float), scale=1 / math.sqrt(2 * rho)
        )
        return float(dp.c.make_zCDP_to_approxDP(made).map(1.0).epsilon(delta))

    low, high = 1e-6, 100.0
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if reached(middle) <= epsilon else (low, middle)
    return low


def main() -> None:
    """Print the errors of each kind and library."""
    warnings.filterwarnings("ignore")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=40)
    parser.add_argument("--records", type=int, default=3000)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--repetitions", type=int, default=60)
    parser.add_argument("--draws", type=int, default=5, help="of noise on the same records")
    parser.add_argument("--shape", choices=RANGES, default="normal", help="of the column, as in coverage.py")
    given = parser.parse_args()
    many, records, epsilon, span = given.questions, given.records, given.epsilon, RANGES[given.shape]
    libraries = {
        "fedveil": ours(many, records, epsilon, span),
        "opendp gaussian": opendp(many, records, epsilon, span, True),
        "opendp laplace": opendp(many, records, epsilon, span, False),
        "diffprivlib": diffprivlib(many, records, epsilon, span),
    }
    errors: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in libraries}
    for repetition in range(given.repetitions):
        generator = np.random.default_rng([11, repetition])
        rows = draw(given.shape, records, generator)
        exact = truth(rows["numbers"][:, 0], span)
        for name, answer in libraries.items():
            for _ in range(given.draws):
                for kind, values in answer(rows, generator).items():
                    errors[name][kind] += [float(np.abs(one - exact[kind]).mean()) for one in values[:1]]
    means = {name: {kind: float(np.mean(own[kind])) for kind in KINDS} for name, own in errors.items()}
    print(f"{many} questions, {records} records, {given.shape}, epsilon {epsilon:g}, delta 1e-5; mean absolute errors")
    for name, own in means.items():
        print(f"{name:16} " + "  ".join(f"{kind} {own[kind]:9.4g}" for kind in KINDS))
    best = {kind: min(own[kind] for name, own in means.items() if name != "fedveil") for kind in KINDS}
    print("ours / best other " + json.dumps({kind: round(means["fedveil"][kind] / best[kind], 3) for kind in KINDS}))


if __name__ == "__main__":
    main()
