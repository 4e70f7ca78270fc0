"""Clipped sums against a loop over records with plain autograd, which shares nothing with us but PyTorch."""

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedveil.models.rows import rounding_bound
from fedveil.models.torch.loss import TorchLoss

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install fedveil[torch]")
torch.set_num_threads(1)  # small layers: threads would only wait for each other
nn = torch.nn
Vector = NDArray[np.float64]

ROWS, FEATURES = 12, 36


def linear() -> Any:
    return nn.Linear(FEATURES, 3)


def stack() -> Any:
    inner = nn.Sequential(nn.Linear(FEATURES, 8, bias=False), nn.ReLU(inplace=True))
    return nn.Sequential(inner, nn.Linear(8, 3))


def sequence() -> Any:
    """A linear layer that every record uses four times."""
    return nn.Sequential(nn.Unflatten(1, (4, 9)), nn.Linear(9, 5), nn.GELU(), nn.Flatten(), nn.Linear(20, 3))


def images() -> Any:
    return nn.Sequential(
        nn.Unflatten(1, (1, 6, 6)),
        nn.Conv2d(1, 4, 3, padding=1, stride=2),
        nn.ReLU(),
        nn.Conv2d(4, 2, 2, dilation=2, bias=False),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(2, 3),
    )


def normalised() -> Any:
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3))


class Tied(nn.Module):
    """A forward of its own, one weight used twice, one parameter frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.fixed = nn.Linear(FEATURES, 5), nn.Linear(5, 3), nn.Linear(5, 5)
        self.fixed.weight.requires_grad_(False)

    def forward(self, x: Any) -> Any:
        once = torch.tanh(self.fixed(torch.tanh(self.first(x))))
        return self.last(once + torch.tanh(self.first(-x)))


class Steep(nn.Module):
    """Its gradient is infinite where a feature is zero."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(FEATURES, 1))

    def forward(self, x: Any) -> Any:
        return (x.square() + 0 * self.weight.T).sqrt() @ self.weight + (x * self.weight.T).abs().sqrt().sum(1)[:, None]


tied, steep = Tied, Steep
PLAIN, OTHERS = ["linear", "stack", "sequence", "images"], ["normalised", "tied"]


def one_number() -> Any:
    return nn.Sequential(nn.Linear(FEATURES, 4), nn.Tanh(), nn.Linear(4, 1))


def own_criterion(outputs: Any, targets: Any) -> Any:
    return (outputs[:, 0] - targets).abs() + outputs[:, 0].square()


def batch(seed: int = 0, classes: int = 3) -> tuple[Vector, Vector]:
    source = np.random.default_rng(seed)
    rows = source.normal(size=(ROWS, FEATURES)) * np.geomspace(0.01, 3, ROWS)[:, None]
    return rows, (source.integers(0, classes, ROWS).astype(np.float64) if classes else source.normal(size=ROWS))


def loss_of(name: str, classes: int = 3, **more: Any) -> TorchLoss:
    return TorchLoss(module=f"{__name__}:{name}", classes=classes, **more)


def by_hand(loss: TorchLoss, criterion: Any, w: Vector, X: Vector, y: Vector, clip: float, weights: Vector) -> Vector:
    module, total = loss.module_at(w, X.shape[1]).double(), np.zeros(w.size)
    free = [value for value in module.parameters() if value.requires_grad]
    for row, target, weight in zip(X, y, weights, strict=True):
        module.zero_grad()
        criterion(module(torch.from_numpy(row[None])), torch.tensor([target])).sum().backward()
        flat = np.concatenate([value.grad.numpy().ravel() for value in free])
        total += weight * flat * min(1.0, clip / np.linalg.norm(flat))
    return total


def cross_entropy(outputs: Any, targets: Any) -> Any:
    return nn.functional.cross_entropy(outputs, targets.long())


@pytest.mark.parametrize("clip", [0.3, 1e99])
@pytest.mark.parametrize("name", PLAIN + OTHERS)
def test_the_clipped_sum_is_that_of_a_loop(name: str, clip: float) -> None:
    loss, (X, y) = loss_of(name), batch()
    source = np.random.default_rng(1)
    w, weights = source.normal(size=loss.size(FEATURES)) / 3, source.uniform(size=ROWS)
    found, left = loss.gradient(w, X, y, clip=clip, weights=weights)
    assert left == 0
    expected = by_hand(loss, cross_entropy, w, X, y, clip, weights)
    np.testing.assert_allclose(found, expected, rtol=3e-6, atol=1e-9)  # the clip is shrunk by 1e-6
    quick = loss_of(name, precision="float32").gradient(w, X, y, clip=clip, weights=weights)[0]
    np.testing.assert_allclose(quick, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("criterion", "classes", "by_torch"),
    [
        ("mse", 0, lambda z, t: (z[:, 0] - t).square()),
        ("huber", 0, lambda z, t: nn.functional.huber_loss(z[:, 0], t)),
        ("logistic", 2, lambda z, t: nn.functional.binary_cross_entropy_with_logits(z[:, 0], t)),
        (f"{__name__}:own_criterion", 0, own_criterion),
    ],
)
def test_criteria_of_one_output(criterion: str, classes: int, by_torch: Any) -> None:
    loss, (X, y) = loss_of("one_number", classes, criterion=criterion), batch(classes=classes)
    w = np.random.default_rng(2).normal(size=loss.size(FEATURES)) / 3
    expected = by_hand(loss, by_torch, w, X, y, 0.5, np.ones(ROWS))
    np.testing.assert_allclose(loss.gradient(w, X, y, clip=0.5)[0], expected, rtol=3e-6, atol=1e-9)
    outputs = loss.module_at(w, FEATURES)(torch.from_numpy(X)).detach()
    each = [float(by_torch(outputs[i : i + 1], torch.tensor(y[i : i + 1])).sum()) for i in range(ROWS)]
    assert loss.value(w, X, y) == pytest.approx(np.mean(each), rel=1e-12)
    expected = (outputs[:, 0] > 0).double().numpy() if classes else outputs[:, 0].numpy()
    np.testing.assert_array_equal(loss.predict(w, X), expected)


@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize("name", PLAIN + OTHERS)
def test_no_record_moves_the_sum_by_more_than_the_clip(name: str, precision: str) -> None:
    loss, (X, y) = loss_of(name, precision=precision), batch(3)
    w = np.random.default_rng(3).normal(size=loss.size(FEATURES))
    for place in range(ROWS):
        found, _ = loss.gradient(w, X, y, clip=0.01, weights=np.eye(ROWS)[place])
        assert math.sqrt(math.fsum(found * found)) <= 0.01


@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize("name", PLAIN + OTHERS)
def test_another_record_leaves_what_is_computed_for_the_rest_as_it_was_to_the_bit(name: str, precision: str) -> None:
    loss, (X, y) = loss_of(name, precision=precision), batch(4)
    w = np.random.default_rng(4).normal(size=loss.size(FEATURES)) / 3
    other, labels = X.copy(), y.copy()
    other[5], labels[5] = 100.0, (y[5] + 1) % 3
    lost = X.copy()
    lost[5] = np.nan
    for place in (0, 4, 6, 11):
        expected, _ = loss.gradient(w, X, y, clip=0.3, weights=np.eye(ROWS)[place])
        for rows in (other, lost):
            found, _ = loss.gradient(w, rows, labels, clip=0.3, weights=np.eye(ROWS)[place])
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize("name", PLAIN + OTHERS)
def test_the_sum_errs_by_no_more_than_stated(name: str, precision: str) -> None:
    """Against the exact sum of what is computed for each record; float32 modules are summed in float64."""
    loss, (X, y) = loss_of(name, precision=precision), batch(5)
    w, clip = np.random.default_rng(5).normal(size=loss.size(FEATURES)) / 3, 0.3
    found, _ = loss.gradient(w, X, y, clip=clip)
    each = [loss.gradient(w, X, y, clip=clip, weights=row)[0] for row in np.eye(ROWS)]
    exact = np.array([math.fsum(column) for column in np.array(each).T])
    most = rounding_bound(rows=ROWS, features=FEATURES, lipschitz=clip, smoothness=None, radius=9.0, outputs=3)
    assert np.linalg.norm(found - exact) <= ROWS * most


@pytest.mark.parametrize("name", PLAIN + OTHERS)
def test_records_that_are_no_numbers_contribute_nothing_and_are_counted(name: str) -> None:
    loss, (X, y) = loss_of(name), batch(6)
    w = np.random.default_rng(6).normal(size=loss.size(FEATURES)) / 3
    X[1, 3], X[2] = np.nan, np.inf
    y[3], y[4], y[5], y[6] = 3.0, -1.0, 0.5, np.nan
    found, left = loss.gradient(w, X, y, clip=0.3)
    assert left == 6
    kept = [0, 7, 8, 9, 10, 11]
    expected, _ = loss.gradient(w, X[kept], y[kept], clip=0.3)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-14)
    assert math.isnan(loss.value(w, X[:1], y[3:4]))


def test_a_gradient_that_is_no_number_is_left_out() -> None:
    loss, (X, y) = loss_of("steep", 0), batch(7, classes=0)
    X = np.abs(X) + 0.1
    X[3, 0] = 0.0
    found, left = loss.gradient(np.zeros(FEATURES), X, y, clip=1.0)
    assert (left, bool(np.isfinite(found).all())) == (1, True)


@pytest.mark.parametrize("name", ["images", "normalised"])
def test_parts_of_a_batch_add_up(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedveil.models.torch import engine as engines

    loss, (X, y) = loss_of(name), batch(8)
    w = np.zeros(loss.size(FEATURES))
    expected, _ = loss.gradient(w, X, y, clip=0.3)
    engine = engines.engine(loss.module, loss.criterion, 3, "float64", FEATURES)
    monkeypatch.setattr(engine, "at_once", 5)
    np.testing.assert_allclose(loss.gradient(w, X, y, clip=0.3)[0], expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(("name", "way"), [*((n, "Stack") for n in PLAIN), *((n, "Records") for n in OTHERS)])
def test_plain_stacks_take_the_short_way_and_only_they(name: str, way: str) -> None:
    from fedveil.models.torch import engine as engines

    engine = engines.engine(f"{__name__}:{name}", "cross-entropy", 3, "float64", FEATURES)
    assert type(engine.work).__name__ == way
