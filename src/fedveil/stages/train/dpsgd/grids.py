"""What the grid costs a run of DP-SGD: for its worst client, in all segments, or in any that a rule can choose."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fedveil.accounting.grid import Grid
from fedveil.stages.train.choosing import widest_grid
from fedveil.stages.train.dpsgd.client_settings import DRAWN, ClientSettings
from fedveil.stages.train.dpsgd.correlated import error_of
from fedveil.stages.train.dpsgd.segments import costs_of_segments, joined_grids
from fedveil.stages.train.setup import Setup
from fedveil.theory.grid import SAMPLER_DISTANCE

if TYPE_CHECKING:
    from fedveil.stages.train.dpsgd.method import DpSgd


def grid_cost(method: DpSgd, setup: Setup, exponent: int) -> Grid:
    """Return the cost of the grid for the worst client, in all segments, or in any that a rule can choose."""
    kinds = list(dict.fromkeys(method.client_settings))
    found = [_one_grid(method, settings, setup, exponent) for settings in kinds]
    if method.choice is not None:
        each = [found[kinds.index(settings)] for settings in method.client_settings]
        return widest_grid(each, costs_of_segments(method), method.choice.budget)
    if method.segments:
        return joined_grids(found, [method.client_settings.count(settings) for settings in kinds])
    worst = max(found, key=lambda grid: grid.distance)
    return replace(worst, total_variation=max(grid.total_variation for grid in found))


def _one_grid(method: DpSgd, settings: ClientSettings, setup: Setup, exponent: int) -> Grid:
    noise = np.full(settings.rounds, settings.noise * method.scale(settings))
    grid = Grid.of(
        exponent=exponent,
        dimension=setup.dimension + (method.adaptive is not None),
        noise=noise,
        lipschitz=np.zeros_like(noise),
        errors=np.full_like(noise, error_of(method, settings, setup, exponent)),
    )
    overfull = settings.rounds * SAMPLER_DISTANCE if method.sampling in DRAWN else 0.0
    return replace(grid, total_variation=min(1.0, grid.total_variation + overfull))
