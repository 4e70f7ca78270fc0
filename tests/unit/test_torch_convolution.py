"""A convolution as products of matrices against torch's own: values, and gradients in the input and the weight."""

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install fedveil[torch]")

from fedveil.models.torch.gradients import convolve, kernel_of, patches_of  # noqa: E402  after the skip

torch.set_num_threads(1)
nn = torch.nn
KINDS: list[dict[str, Any]] = [
    {"kernel_size": 3},
    {"kernel_size": (2, 4), "stride": (3, 1), "padding": (1, 2)},
    {"kernel_size": (3, 2), "stride": (1, 2), "padding": (0, 1), "dilation": (2, 3), "bias": False},
    {"kernel_size": 1, "stride": 2, "padding": 1},
]


@pytest.mark.parametrize("options", KINDS, ids=lambda options: str(options["kernel_size"]))
@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize("channels", [1, 3])
def test_it_is_torchs_convolution_and_so_are_its_gradients(options: dict[str, Any], last: bool, channels: int) -> None:
    torch.manual_seed(0)
    leaf = nn.Conv2d(channels, 5, **options).double()
    given = torch.randn(4, channels, 9, 11, dtype=torch.float64)
    given = (given.contiguous(memory_format=torch.channels_last) if last else given).requires_grad_(True)
    expected = leaf(given)
    error = torch.randn_like(expected)
    slopes = torch.autograd.grad(expected, [given, leaf.weight], error)

    patches = patches_of(leaf, given.detach())
    bias = None if leaf.bias is None else leaf.bias.detach()
    result, found = convolve(leaf, given, patches, leaf.weight.detach(), bias)
    assert torch.allclose(found, expected, rtol=1e-12, atol=1e-12)
    own, seen = torch.autograd.grad(found, [result, given], error)
    assert torch.allclose(seen, slopes[0], rtol=1e-12, atol=1e-12)
    kernel = kernel_of(leaf)
    assert kernel is not None
    weight = (own.transpose(1, 2) @ patches).sum(0).view(kernel).permute(0, 3, 1, 2)
    assert torch.allclose(weight, slopes[1], rtol=1e-12, atol=1e-12)


def test_a_first_layer_carries_the_gradient_of_its_result() -> None:
    leaf, given = nn.Conv2d(1, 2, 3), torch.zeros(2, 1, 5, 5)
    result, found = convolve(leaf, given, patches_of(leaf, given), leaf.weight.detach(), None)
    assert torch.equal(torch.autograd.grad(found.sum(), result)[0], torch.ones(2, 9, 2))
    assert kernel_of(nn.Linear(2, 2)) is None
