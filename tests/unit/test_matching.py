"""Gradient matching on small torch modules: a digit comes back without noise, and does not with a plan's noise."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

from fedveil.audit.pictures import psnr
from fedveil.core.errors import BadValue

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install fedveil[torch]")
torch.set_num_threads(1)  # small layers: threads would only wait for each other
nn = torch.nn

from fedveil.audit.matching import (  # noqa: E402  after the check that torch is there
    Match,
    Search,
    cosine_matching,
    idlg,
    label_from,
    read_first_layer,
)

PIXELS, LABELS = load_digits(return_X_y=True)
DIGITS = PIXELS / 16
CLIP = 0.5
IDLG = Search(steps=150, restarts=1, clip=CLIP)
COSINE = Search(steps=300, restarts=1, shape=(8, 8), smooth=1e-4)


def dense(*, bias: bool = True) -> Any:
    torch.manual_seed(0)
    layers = nn.Linear(64, 32, bias=bias), nn.Sigmoid(), nn.Linear(32, 10, bias=bias)
    return nn.Sequential(*layers).double()


def convolution() -> Any:
    torch.manual_seed(0)
    first = nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 8, 3, padding=1)
    return nn.Sequential(*first, nn.Tanh(), nn.Flatten(), nn.Linear(512, 10)).double()


def gradient(module: Any, record: int) -> np.ndarray:
    """Of one record, clipped as the trainer clips it."""
    loss = nn.functional.cross_entropy(module(torch.tensor(DIGITS[[record]])), torch.tensor(LABELS[[record]]))
    found = torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(module.parameters()))]).numpy()
    return np.asarray(found * min(1.0, CLIP / np.linalg.norm(found)))


@pytest.mark.parametrize("make", [dense, convolution])
@pytest.mark.parametrize(("attack", "search"), [(idlg, IDLG), (cosine_matching, COSINE)])
def test_a_digit_comes_back(make: Callable[[], Any], attack: Callable[..., Match], search: Search) -> None:
    module = make()
    found = attack(module, gradient(module, 13), 64, search)
    assert found.label == LABELS[13]
    assert psnr(DIGITS[13], found.row) > 20


@pytest.mark.parametrize(("attack", "search"), [(idlg, IDLG), (cosine_matching, COSINE)])
def test_with_a_plan_s_noise_it_does_not(attack: Callable[..., Match], search: Search) -> None:
    """Noise of one clip a coordinate on 2,410 numbers is 49 times the gradient: what is left is chance."""
    module = dense()
    noise = CLIP * np.random.default_rng(5).normal(size=gradient(module, 13).size)
    found = attack(module, gradient(module, 13) + noise, 64, search)
    assert psnr(DIGITS[13], found.row) < 12


def test_the_first_layer_gives_it_away_in_closed_form() -> None:
    module = dense()
    found = read_first_layer(module, gradient(module, 20))
    np.testing.assert_allclose(found.row, DIGITS[20], atol=1e-10)
    bare = dense(bias=False)
    found = read_first_layer(bare, gradient(bare, 20))
    assert psnr(DIGITS[20], found.row) > 100
    assert not found.scaled
    with pytest.raises(BadValue, match="begins with Conv2d: use gradient matching"):
        read_first_layer(convolution(), gradient(convolution(), 20))


@pytest.mark.parametrize("bias", [True, False])
def test_labels_are_read_off_the_last_layer(bias: bool) -> None:
    module = dense(bias=bias)
    assert [label_from(module, gradient(module, record)) for record in range(50)] == LABELS[:50].tolist()


def test_the_same_seed_finds_the_same_row() -> None:
    module, short = dense(), Search(steps=20, restarts=2, seed=3)
    first, again = (idlg(module, gradient(module, 1), 64, short) for _ in range(2))
    np.testing.assert_array_equal(first.row, again.row)
    other = idlg(module, gradient(module, 1), 64, Search(steps=20, restarts=2, seed=4))
    assert not np.array_equal(first.row, other.row)


def test_what_makes_no_sense_is_refused() -> None:
    module = dense()
    with pytest.raises(BadValue, match=r"one number for each of the module's 2410 parameters"):
        idlg(module, np.ones(7), 64, IDLG)
    with pytest.raises(BadValue, match="gradient must be finite and not zero"):
        idlg(module, np.zeros(2410), 64, IDLG)
    with pytest.raises(BadValue, match="be given a torch module"):
        idlg("module", np.ones(2410), 64, IDLG)
    for bad in ({"steps": 0}, {"span": (1.0, 1.0)}, {"smooth": 1.0}, {"clip": -1.0}, {"rate": float("nan")}):
        with pytest.raises(BadValue, match=r"Search\."):
            Search(**bad)  # type: ignore[arg-type]
