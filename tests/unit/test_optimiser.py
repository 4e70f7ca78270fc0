"""Steps from noised directions: against torch's own optimisers, and the bits of the old velocity."""

import numpy as np
import pytest

from fedveil.core.values import Vector
from fedveil.stages.train.optimiser import (
    Optimiser,
    OptimiserState,
    advance,
    averaged,
    begin,
    decayed,
    from_row,
    heading,
    row_length,
    to_row,
)


def _directions(count: int = 12, size: int = 7) -> Vector:
    return np.random.default_rng(3).normal(size=(count, size))


def _walk(optimiser: Optimiser, step: float, directions: Vector) -> Vector:
    model, state = np.ones(directions.shape[1]), begin(optimiser, directions.shape[1])
    for direction in directions:
        state = advance(optimiser, state, direction)
        model = model - step * decayed(optimiser, heading(optimiser, state), model)
    return model


def test_momentum_has_the_bits_of_a_velocity() -> None:
    optimiser, velocity = Optimiser(kind="momentum", momentum=0.9), np.zeros(7)
    state = begin(optimiser, 7)
    for direction in _directions():
        velocity = 0.9 * velocity + direction
        state = advance(optimiser, state, direction)
        assert np.array_equal(heading(optimiser, state), velocity)


@pytest.mark.parametrize(
    ("optimiser", "name", "options"),
    [
        (Optimiser(), "SGD", {}),
        (Optimiser(kind="momentum", momentum=0.8), "SGD", {"momentum": 0.8}),
        (Optimiser(kind="adam", momentum=0.9), "Adam", {"betas": (0.9, 0.999), "eps": 1e-8}),
        (
            Optimiser(kind="adam", momentum=0.85, beta2=0.95, weight_decay=0.3),
            "AdamW",
            {"betas": (0.85, 0.95), "eps": 1e-8, "weight_decay": 0.3},
        ),
    ],
)
def test_steps_are_those_of_torch(optimiser: Optimiser, name: str, options: dict[str, object]) -> None:
    torch = pytest.importorskip("torch")
    weights = torch.ones(7, dtype=torch.float64, requires_grad=True)
    theirs = getattr(torch.optim, name)([weights], lr=0.05, **options)
    for direction in _directions():
        weights.grad = torch.from_numpy(direction.copy())
        theirs.step()
    assert np.allclose(_walk(optimiser, 0.05, _directions()), weights.detach().numpy(), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("kind", ["momentum", "adam"])
def test_a_state_survives_as_a_row(kind: str) -> None:
    optimiser = Optimiser(kind=kind, momentum=0.9)  # type: ignore[arg-type]
    state: OptimiserState = begin(optimiser, 7)
    for direction in _directions(5):
        state = advance(optimiser, state, direction)
    row = to_row(state)
    assert row.size == row_length(optimiser, 7)
    again = from_row(optimiser, row)
    after, same = (advance(optimiser, one, np.ones(7)) for one in (state, again))
    assert np.array_equal(heading(optimiser, after), heading(optimiser, same))
    fresh = from_row(optimiser, np.zeros(row.size))
    assert np.array_equal(to_row(fresh), to_row(begin(optimiser, 7)))


def test_an_average_of_one_model_is_that_model() -> None:
    average = np.zeros(3)
    for done in range(1, 2000):
        average = averaged(0.99, average, np.full(3, 5.0), done)
    assert np.allclose(average, 5.0, rtol=1e-6)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"kind": "lion"}, "algorithm.optimizer must be one of momentum, adam, got 'lion'"),
        ({"kind": "adam", "beta2": 1.0}, "algorithm.optimizer.beta2 must lie in"),
        ({"kind": "adam", "floor": float("nan")}, "algorithm.optimizer.floor must be at least"),
        ({"weight_decay": float("nan")}, "algorithm.optimizer.weight_decay must lie in"),
        ({"weight_decay": -1}, "algorithm.optimizer.weight_decay must lie in"),
    ],
)
def test_bad_values_are_refused(given: dict[str, object], told: str) -> None:
    with pytest.raises(ValueError, match=told.replace("(", r"\(")):
        Optimiser(**given)  # type: ignore[arg-type]
