"""A linear layer that takes the place of a torch module where attacks make many runs at once (jobs/attack/releases)."""

from typing import Any

from fedveil.model.torch_library import torch

INPUTS = 200  # as many as an attack makes runs at once; a plan that says another number is refused


def layer() -> Any:
    """Return one score of the features, without bias, from parameters that are zero."""
    made = torch.nn.Linear(INPUTS, 1, bias=False)
    torch.nn.init.zeros_(made.weight)
    return made
