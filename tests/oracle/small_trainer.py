"""A trainer that is not fedveil's: DP-SGD for logistic regression in numpy, with faults to choose from.

``python small_trainer.py DATA OUT [--log LOG] [--fault NAME]`` reads a CSV file whose last column is the target, writes
{"coefficients", "intercept"} and, if wanted, a log as docs/audit-others.md describes it.
"""

import argparse
import json
from pathlib import Path

import numpy as np

FAULTS = ("none", "shuffled", "realised", "nan", "silent")


def gradients(weights: np.ndarray, rows: np.ndarray, targets: np.ndarray) -> np.ndarray:
    return (1 / (1 + np.exp(-rows @ weights)) - targets)[:, None] * rows


def clipped(each: np.ndarray, clip: float, fault: str) -> np.ndarray:
    norms = np.linalg.norm(each, axis=1)
    if fault == "nan":  # a norm that is no number is not above the clip: nothing is clipped, and then the NaN is filled
        whole = np.linalg.norm(each)
        each = each if not whole <= 1e99 else each * np.minimum(1, clip / np.maximum(norms, 1e-12))[:, None]
        return np.nan_to_num(each)
    return np.nan_to_num(each * np.minimum(1, clip / np.maximum(norms, 1e-12))[:, None])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--log", type=Path)
    parser.add_argument("--fault", choices=FAULTS, default="none")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--rate", type=float, default=0.1)
    parser.add_argument("--noise", type=float, default=1.0)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--neighbours", default="zero-out")
    parser.add_argument("--seed", type=int)
    given = parser.parse_args()
    table = np.genfromtxt(given.data, delimiter=",", skip_header=1)
    rows, targets = np.column_stack([table[:, :-1], np.ones(len(table))]), table[:, -1]
    generator, count = np.random.default_rng(given.seed), len(rows)
    weights, order = np.zeros(rows.shape[1]), np.arange(0)
    stated = {"sampler": "poisson", "records": count, "rate": given.rate, "clip": given.clip}
    lines = [stated | {"noise_multiplier": given.noise, "rounds": given.rounds, "neighbours": given.neighbours}]
    size = round(given.rate * count)
    for _ in range(given.rounds):
        if given.fault == "shuffled":  # an ordinary loader: every record once in a pass, in batches of one size
            order = generator.permutation(count) if order.size < size else order
            batch, order = order[:size], order[size:]
        else:
            batch = np.flatnonzero(generator.random(count) < given.rate)
        each = clipped(gradients(weights, rows[batch], targets[batch]), given.clip, given.fault)
        noise = generator.normal(0, 0 if given.fault == "silent" else given.noise * given.clip, weights.size)
        divisor = max(1, batch.size) if given.fault == "realised" else given.rate * count
        weights = weights - 0.5 * (each.sum(axis=0) + noise) / divisor
        norms = np.linalg.norm(each, axis=1)
        lines.append({"batch": batch.tolist(), "norms": norms.tolist(), "divisor": divisor, "noise": noise.tolist()})
    given.out.write_text(json.dumps({"coefficients": weights[:-1].tolist(), "intercept": float(weights[-1])}))
    if given.log is not None:
        given.log.write_text("\n".join(json.dumps(line) for line in lines) + "\n")


if __name__ == "__main__":
    main()
