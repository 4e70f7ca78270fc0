"""Batched gradients against the definition: one record at a time, in fifty digits, sharing no code with us."""

import math
from collections.abc import Callable

import mpmath
import numpy as np
import pytest
from mpmath import mpf

from fedveil.core.errors import BadValue
from fedveil.core.values import Vector
from fedveil.models.loss import Loss
from fedveil.models.margin import Huber, Logistic, SmoothedHinge
from fedveil.models.rows import rounding_bound
from fedveil.models.softmax import Softmax

Number = mpmath.mpf
LOSSES: list[Loss] = [Logistic(), SmoothedHinge(0.25), Huber(0.7), Softmax(2), Softmax(5)]
every = pytest.mark.parametrize("loss", LOSSES, ids=repr)


def slope_of(loss: Loss, y: float) -> Callable[[Number], Number]:
    sign = 1 if y == 1 else -1
    match loss:
        case Logistic():
            return lambda z: -sign / (1 + mpmath.exp(sign * z))
        case SmoothedHinge(smoothing=width):
            return lambda z: -sign * min(max((1 - sign * z) / mpf(width), mpf(0)), mpf(1))
        case Huber(threshold=most):
            return lambda z: min(max(z - mpf(y), -mpf(most)), mpf(most))
    raise AssertionError(loss)


def record_gradient(loss: Loss, w: Vector, x: Vector, y: float, clip: float) -> list[Number]:
    """One record's clipped gradient, exactly as defined in docs/theory/losses.md."""
    row = [mpf(value) for value in x]
    norm = mpmath.sqrt(sum(value**2 for value in row))
    if isinstance(loss, Softmax):
        columns = [[mpf(value) for value in column] for column in w.reshape(len(x), -1).T]
        powers = [mpmath.exp(sum(a * b for a, b in zip(row, column, strict=True))) for column in columns]
        change = [power / sum(powers) - (k == int(y)) for k, power in enumerate(powers)]
        surrogate = mpmath.sqrt(2) * -change[int(y)] * norm
        factor = min(mpf(1), mpf(clip) / surrogate)
        return [factor * value * part for value in row for part in change]
    coefficient = slope_of(loss, y)(sum(a * mpf(b) for a, b in zip(row, w, strict=True)))
    factor = min(mpf(1), mpf(clip) / max(abs(coefficient) * norm, mpf("1e-999")))
    return [factor * coefficient * value for value in row]


def drawn(loss: Loss, rng: np.random.Generator, rows: int, features: int) -> tuple[Vector, Vector, Vector]:
    """Parameters of norm at most 10 to 0.1, rows of norm at most 2."""
    X = rng.normal(size=(rows, features))
    X *= 2 * (1 - 1e-12) * rng.random((rows, 1)) ** 0.2 / np.linalg.norm(X, axis=1, keepdims=True)
    y = rng.integers(0, loss.classes, rows).astype(float) if loss.classes else rng.normal(size=rows)
    w = rng.normal(size=loss.size(features))
    return w * 10 ** rng.uniform(-1, 1) / np.linalg.norm(w), X, y


@every
@pytest.mark.parametrize("clip", [0.05, 0.6, 5.0])
@pytest.mark.parametrize(("rows", "features"), [(1, 1), (3, 17), (40, 3)])
def test_computed_averages_are_within_the_rounding_bound(loss: Loss, clip: float, rows: int, features: int) -> None:
    rng = np.random.default_rng(rows * 100 + features)
    with mpmath.workdps(50):
        for _ in range(4):
            w, X, y = drawn(loss, rng, rows, features)
            found, dropped = loss.gradient(w, X, y, clip=clip)
            found /= rows
            parts = [record_gradient(loss, w, x, target, clip) for x, target in zip(X, y, strict=True)]
            exact = [sum(column) / rows for column in zip(*parts, strict=True)]
            error = float(mpmath.sqrt(sum((mpf(a) - b) ** 2 for a, b in zip(found, exact, strict=True))))
            promised = loss.constants(2.0, clip)
            bound = rounding_bound(
                rows=rows,
                features=features,
                outputs=loss.outputs,
                lipschitz=promised.lipschitz,
                smoothness=promised.smoothness,
                radius=float(np.linalg.norm(w)) * (1 + 1e-12),
            )
            assert dropped == 0
            assert error <= bound
            assert bound <= 1e-13 * (promised.lipschitz + promised.smoothness * 10)


def clipped_height(loss: Loss, w: Vector, x: Vector, y: float, clip: float, origin: Vector) -> Number:
    """The convex loss whose gradient the clipped gradient is said to be, up to a constant that ``origin`` fixes."""
    row = [mpf(value) for value in x]
    norm = mpmath.sqrt(sum(value**2 for value in row))
    if isinstance(loss, Softmax):
        columns = [[mpf(value) for value in column] for column in w.reshape(len(x), -1).T]
        z = [sum(a * b for a, b in zip(row, column, strict=True)) for column in columns]
        margin = mpmath.log(sum(mpmath.exp(v) for k, v in enumerate(z) if k != int(y))) - z[int(y)]
        most = mpf(clip) / (mpmath.sqrt(2) * norm)
        corner = mpmath.log(most / (1 - most)) if most < 1 else mpmath.inf
        if margin <= corner:
            return mpmath.log1p(mpmath.exp(margin))
        return mpmath.log1p(mpmath.exp(corner)) + most * (margin - corner)
    limit, slope = mpf(clip) / norm, slope_of(loss, y)
    ends = [sum(a * mpf(b) for a, b in zip(row, place, strict=True)) for place in (origin, w)]
    return mpmath.quad(lambda t: min(max(slope(t), -limit), limit), ends)


@every
@pytest.mark.parametrize("clip", [0.3, 5.0])
def test_clipped_gradients_are_gradients_of_the_clipped_loss(loss: Loss, clip: float) -> None:
    """A field that is no gradient fails this: cutting softmax to a norm does, for three classes."""
    rng = np.random.default_rng(7)
    step = 1e-4
    for _ in range(5):
        w, X, y = drawn(loss, rng, 1, 2)
        found, _ = loss.gradient(w, X, y, clip=clip)
        for place in range(w.size):
            shift = step * (np.arange(w.size) == place)
            up, down = (clipped_height(loss, w + s * shift, X[0], y[0], clip, w) for s in (1, -1))
            assert float((up - down) / (2 * step)) == pytest.approx(found[place], abs=2e-4)


@every
def test_gradients_are_finite_differences_of_the_value(loss: Loss) -> None:
    rng = np.random.default_rng(8)
    for _ in range(5):
        w, X, y = drawn(loss, rng, 9, 4)
        found, _ = loss.gradient(w, X, y, clip=1e6)
        for place in range(w.size):
            shift = 1e-6 * (np.arange(w.size) == place)
            slope = (loss.value(w + shift, X, y) - loss.value(w - shift, X, y)) / 2e-6
            assert slope == pytest.approx(found[place] / 9, abs=2e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": 0}, "rows must lie between"),
        ({"features": 2**41}, "features must lie between"),
        ({"lipschitz": math.nan}, "lipschitz must lie in"),
        ({"smoothness": math.inf}, "smoothness must lie in"),
        ({"radius": -1.0}, "radius must be non-negative"),
        ({"radius": math.nan}, "radius must be non-negative"),
    ],
)
def test_senseless_questions_about_rounding_are_refused(change: dict[str, float], message: str) -> None:
    good = {"rows": 10, "features": 10, "lipschitz": 1.0, "smoothness": 1.0, "radius": 1.0}
    with pytest.raises(BadValue, match=message):
        rounding_bound(**(good | change))  # type: ignore[arg-type]


def test_rounding_grows_with_every_size_and_an_unbounded_domain_is_unbounded() -> None:
    good = {"rows": 10, "features": 10, "outputs": 2, "lipschitz": 1.0, "smoothness": 1.0, "radius": 1.0}
    least = rounding_bound(**good)  # type: ignore[arg-type]
    assert all(rounding_bound(**(good | {name: 4 * value})) > least for name, value in good.items())  # type: ignore[arg-type]
    assert rounding_bound(**(good | {"radius": math.inf})) == math.inf  # type: ignore[arg-type]
