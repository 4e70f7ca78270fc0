"""Gradient leakage on the real trainer: what each observer can read of a record, against the noise that covers it.

The attacked records are shown, so they must be public or synthetic. Never attack a run's private records with this and
publish the result. Page: docs/audit-leakage.md.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedveil.audit.leakage import read_classes, read_linear
from fedveil.audit.pictures import Greys, at_best_scale, cosine, greys, psnr, square
from fedveil.core.errors import BadValue, require
from fedveil.core.values import Vector
from fedveil.data.records import DataShape, Records
from fedveil.jobs.attack.observed_runs import first_round, observe, with_noise
from fedveil.jobs.attack.pace import Pace
from fedveil.models.loss import NetworkLoss
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import Plan
from fedveil.planning.promises import promise
from fedveil.privacy.guarantee import finite_or_none
from fedveil.stages.train.observation import Observation

FACTORS = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0)
_SHOWN = 10  # number of victims whose pictures are kept


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Guess:
    """One guess at one victim: its similarity, and whether its label was read correctly (None: not asked)."""

    attack: str
    row: Vector
    cosine: float
    psnr: float
    label: bool | None


def leakage(
    plan: Plan,
    records: Records,
    entropy: Entropy,
    *,
    public: bool,
    factors: Sequence[float] = FACTORS,
    victims: int = 10,
    steps: int = 200,
    watch: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Return the attack at each multiple of the plan's noise, ready for JSON: similarity by observer, and pictures.

    ``public``: whether the records may be shown. ``steps``: of a search by gradient matching, for torch models.
    """
    hint = "The result shows records as they are: attack stand-ins of the same shape."
    require(public is True, "public", "be true for records that the attack may show", public, hint)
    known, rule = plan.model.loss.predicts in ("class", "number"), "be of classes or of a number for the leakage attack"
    require(known, "model.kind", rule, plan.model.kind)
    require(len(factors) >= 1, "factors", "name at least one level of noise", list(factors))
    used = first_round(plan, records, entropy)
    chosen = _victims(records, used[used < len(records) - plan.canaries], victims)
    bare = replace(records, features=np.ascontiguousarray(records.features[:, : plan.real_features]))  # no canaries'
    constant = constant_of(bare)
    pictures = _pictures_of(bare, constant)
    shape = square(pictures.shape[1])
    blind = np.delete(pictures, chosen, axis=0).mean(axis=0) if len(records) > len(chosen) else pictures.mean(axis=0)
    rows = []
    levels = sorted(set(factors))
    pace = Pace(len(levels))
    for number, factor in enumerate(levels):
        watch(f"reconstructing records from gradients: noise {number + 1} of {len(levels)}{pace.left(number)}")
        noised = with_noise(plan, factor)
        clients = sorted({int(records.owner[victim]) for victim in chosen})
        seen = observe(noised, records, entropy, clients, noiseless=factor == 0)
        found: dict[tuple[str, str], list[tuple[Observation, Guess]]] = {}
        for victim in chosen:
            for observation in seen.of_client(int(records.owner[victim])):
                for guess in _guesses(plan, observation, bare, victim, constant, steps):
                    found.setdefault((observation.adversary, guess.attack), []).append((observation, guess))
        rows += [
            _row(noised, factor, who, attack, [pictures[v] for v in chosen], hits, shape)
            for (who, attack), hits in found.items()
        ]
    return {
        "format": 1,
        "method": plan.method.kind,
        "model": plan.model.kind,
        "delta": plan.target.delta,
        "victims": len(chosen),
        "labels": [int(records.targets[v]) for v in chosen] if records.classes else None,
        "shape": None if shape is None else list(shape),
        "truth": [_grey(pictures[v], pictures[v], shape) for v in chosen[:_SHOWN]] if shape else [],
        "blind": {
            "cosine": _mean([cosine(pictures[v], blind) for v in chosen]),
            "psnr": _mean([psnr(pictures[v], blind) for v in chosen]),
        },
        "rows": rows,
    }


def constant_of(records: Records) -> float:
    """Return the public constant that is the last entry of every row; 0 if there is none."""
    last = records.features[~records.blank, -1]
    same = len(records) > 1 and records.features.shape[1] > 1 and bool(np.all(last == last[0]))
    return float(last[0]) if same else 0.0


def _pictures_of(records: Records, constant: float) -> Vector:
    return np.asarray(records.features if constant == 0 else records.features[:, :-1])


def _victims(records: Records, taking_part: NDArray[np.int64], most: int) -> list[int]:
    """Return nonzero records of the first round, one of each class before a second of any."""
    taking_part = taking_part[~records.blank[taking_part]]
    require(most >= 1, "victims", "be at least 1", most)
    if taking_part.size == 0:
        raise BadValue("The first round must use a record to attack, and it uses none: give other randomness.")
    labels = records.targets[taking_part] if records.classes else np.zeros(taking_part.size)
    turns = np.zeros(taking_part.size, dtype=np.int64)
    for label in np.unique(labels):
        mine = np.flatnonzero(labels == label)
        turns[mine] = np.arange(mine.size)
    order = np.lexsort((labels, turns))
    return [int(index) for index in taking_part[order][:most]]


def _guesses(
    plan: Plan, observation: Observation, records: Records, victim: int, constant: float, steps: int
) -> list[Guess]:
    row, label = records.features[victim], int(records.targets[victim]) if records.classes else 0
    truth = row if constant == 0 else row[:-1]
    loss = plan.model.loss
    if isinstance(loss, NetworkLoss):
        return _by_matching(plan, loss, observation, truth, row.size, label, (records.features, steps))
    outputs, width = loss.outputs, row.size
    gradient = observation.gradient[: width * outputs]  # without the columns of canaries, which stand last
    by_class = read_classes(gradient, width, outputs, observation.records or np.inf, constant)
    told = read_linear(gradient, width, outputs, constant).label
    alone = observation.records == 1 and loss.classes > 0
    guess = by_class[label if outputs > 1 else min(label, 1)]
    return [_judged("analytic", truth, guess, told == label if alone else None)]


def _by_matching(
    plan: Plan,
    loss: NetworkLoss,
    observation: Observation,
    truth: Vector,
    width: int,
    label: int,
    known: tuple[Vector, int],
) -> list[Guess]:
    from fedveil.audit.matching import Search, cosine_matching, idlg, read_first_layer  # imports PyTorch

    right = plan.model.loss.link == "softmax"
    require(right, "model.criterion", "be cross-entropy for gradient matching", plan.model.criterion or "mse")
    features, steps = known
    module = loss.module_at(np.zeros(plan.dimension), width)
    span = float(features.min()), float(features.max())
    shape = square(truth.size) if truth.size == width else None
    gradient = observation.gradient / max(observation.records, 1.0)
    plain = Search(steps=steps, span=span, clip=plan.constants.lipschitz)
    smooth = Search(steps=2 * steps, restarts=1, span=span, shape=shape, smooth=0.0 if shape is None else 1e-4)
    result: list[Guess] = []
    try:
        reading = read_first_layer(module, gradient)
        result.append(_judged("analytic", truth, reading.row[: truth.size], None))
    except BadValue:
        pass  # the first layer is not linear, so only matching is left
    attacks = [("idlg", idlg, plain), ("cosine", cosine_matching, smooth)]
    for name, attack, search in attacks if observation.records == 1 else attacks[1:]:  # iDLG is for a single record
        match = attack(module, gradient, width, search)
        result.append(_judged(name, truth, match.row[: truth.size], match.label == label))
    return result


def _judged(attack: str, truth: Vector, row: Vector, label: bool | None) -> Guess:
    return Guess(attack=attack, row=row, cosine=cosine(truth, row), psnr=psnr(truth, row), label=label)


def _row(
    plan: Plan,
    factor: float,
    who: Any,
    attack: str,
    truths: list[Vector],
    hits: list[tuple[Observation, Guess]],
    shape: tuple[int, int] | None,
) -> dict[str, Any]:
    guesses = [guess for _, guess in hits]
    labels = [guess.label for guess in guesses if guess.label is not None]
    shown = zip(truths[:_SHOWN], guesses[:_SHOWN], strict=False)
    return {
        "adversary": who,
        "attack": attack,
        "noise": factor,
        "epsilon": None if factor == 0 else finite_or_none(promise(plan, who).epsilon),
        "records": float(np.mean([observation.records for observation, _ in hits])),
        "cosine": _mean([guess.cosine for guess in guesses]),
        "psnr": _mean([guess.psnr for guess in guesses]),
        "psnr_least": min(guess.psnr for guess in guesses),
        "psnr_most": max(guess.psnr for guess in guesses),
        "labels_right": _mean([float(label) for label in labels]) if labels else None,
        "pictures": [] if shape is None else [_grey(truth, guess.row, shape) for truth, guess in shown],
    }


def _grey(truth: Vector, row: Vector, shape: tuple[int, int] | None) -> Greys:
    """Return the picture on the grey scale of the true one, so that they can be compared."""
    return [] if shape is None else greys(at_best_scale(truth, row), shape, (float(truth.min()), float(truth.max())))


def _mean(values: list[float]) -> float:
    return float(np.mean(values))


# Public records in the shape of a plan's data, for attacks that may not be tried on, or shown with, the real ones.
#
# Rows that can be square pictures are scikit-learn's digits, enlarged to fit; other rows are random. Leakage depends on
# the plan (who is summed with whom, and the noise) and hardly on the records.

_MOST_NUMBERS = 200_000_000


def synthetic_records(shape: DataShape, generator: np.random.Generator) -> Records:
    """Return records of exactly this shape.

    The last entry of a row is a constant unless the row is a square picture.
    """
    numbers = shape.records * shape.features
    hint = "Attack a plan of fewer records."
    require(numbers <= _MOST_NUMBERS, "Stand-ins", f"hold at most {_MOST_NUMBERS:,} numbers", numbers, hint)
    side = square(shape.features) or square(shape.features - 1)
    if side is not None:
        rows, labels = _digits(shape.records, side[0])
    else:
        rows = generator.uniform(0.1, 1.0, size=(shape.records, max(1, shape.features - 1)))
        labels = np.arange(shape.records)
    part = shape.bound * (1 - 1e-9) * (1.0 if rows.shape[1] == shape.features else np.sqrt(0.5))
    rows = rows * (part / np.linalg.norm(rows, axis=1, keepdims=True))
    if rows.shape[1] < shape.features:
        rows = np.hstack([rows, np.full((shape.records, 1), part)])
    targets = labels % shape.classes if shape.classes else generator.uniform(-1, 1, size=shape.records)
    owner = np.repeat(np.arange(shape.clients), _sizes(shape))
    return Records(
        features=np.ascontiguousarray(rows, dtype=np.float64),
        targets=np.asarray(targets, dtype=np.float64),
        owner=owner.astype(np.int64),
        clients=shape.clients,
        bound=shape.bound,
        classes=shape.classes,
    )


def _digits(count: int, side: int) -> tuple[Vector, NDArray[np.int64]]:
    """Return pictures with ``side`` points a side, repeated if there are too few, and the digits they show."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    which, places = np.arange(count) % labels.size, np.arange(side) * 8 // side
    pictures = pixels.reshape(-1, 8, 8)[which][:, places][:, :, places]
    return pictures.reshape(count, -1) / 16 + 1e-6, labels[which].astype(np.int64)  # so that no row is zero


def _sizes(shape: DataShape) -> NDArray[np.int64]:
    """Return the number of records of each client: one largest, one smallest, the others as even as these allow."""
    clients, least, most = shape.clients, shape.smallest_client, shape.largest_client
    sizes = np.full(clients, least)
    left = shape.records - least * clients
    sizes[0] += (first := min(left, most - least))
    left -= first
    open_ = clients - 2  # the last client stays the smallest
    if left > 0 and open_ > 0:
        sizes[1:-1] += left // open_
        sizes[1 : 1 + left % open_] += 1
    fits = sizes.sum() == shape.records and sizes.max() == most and sizes.min() == least
    if not fits:
        raise BadValue(f"The data's shape must be possible, and {shape} is not.")
    return sizes
