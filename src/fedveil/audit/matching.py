"""Gradient matching: search for rows on which a torch module's gradient looks like the one that was seen.

Two attacks of the literature, on one record. iDLG: the label from the last layer's signs, then L-BFGS on the squared
difference of gradients [ZMB20]. Cosine: signed Adam steps on one minus the cosine, with a total-variation prior that
prefers smooth pictures [GBDM20]. Deterministic given the seed; a bound on the steps bounds the time.

References:
    [ZMB20] Zhao, Mopuri, Bilen. iDLG: Improved Deep Leakage from Gradients. 2020.
    [GBDM20] Geiping, Bauermeister, Droege, Moeller. Inverting Gradients: How Easy Is It to Break Privacy in Federated
        Learning? NeurIPS 2020.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedveil.audit.leakage import Reading, label_of, read_layer, read_outer
from fedveil.core.errors import BadValue, require
from fedveil.core.values import Vector
from fedveil.models.torch.library import need_torch, torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """Settings of a search: ``span`` is the public range of a row's entries, ``smooth`` the weight of total variation.

    ``shape``: of the picture, (height, width), or None if rows are not pictures. ``clip``: the norm to which the
    trainer clips a record's gradient, which is public; None if it does not.
    """

    steps: int = 200
    restarts: int = 2
    seed: int = 0
    span: tuple[float, float] = (0.0, 1.0)
    shape: tuple[int, int] | None = None
    smooth: float = 0.0
    rate: float = 0.05
    clip: float | None = None

    def __post_init__(self) -> None:
        require(1 <= self.steps <= 100_000, "Search.steps", "lie between 1 and 100000", self.steps)
        require(1 <= self.restarts <= 100, "Search.restarts", "lie between 1 and 100", self.restarts)
        require(self.span[0] < self.span[1], "Search.span", "rise", self.span)
        require(self.smooth >= 0, "Search.smooth", "be non-negative", self.smooth)
        require(self.smooth == 0 or self.shape is not None, "Search.shape", "be given for a smooth picture", None)
        require(self.rate > 0, "Search.rate", "be positive", self.rate)
        require(self.clip is None or self.clip > 0, "Search.clip", "be absent or positive", self.clip)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Match:
    """The best row of all restarts, the label that was read, and the remaining value of the objective."""

    row: Vector
    label: int
    left: float


def read_first_layer(module: Any, gradient: Vector) -> Reading:
    """Read the input in closed form, if the module's first parameters are those of a linear layer."""
    parts = _parts(module, gradient)
    first = next((layer for layer in module.modules() if next(layer.parameters(recurse=False), None) is not None), None)
    if not isinstance(first, torch.nn.Linear):
        raise BadValue(
            "Analytic reconstruction must find a linear first layer, and this module begins with "
            f"{type(first).__name__}: use gradient matching."
        )
    weight = parts[0].double().numpy()
    return read_outer(weight) if first.bias is None else read_layer(weight, parts[1].double().numpy())


def label_from(module: Any, gradient: Vector) -> int:
    """Return the label, from the signs of the last layer's bias gradient.

    If there is no bias, the row sums of its weights are used.
    """
    last = _parts(module, gradient)[-1]
    slopes = (last if last.ndim == 1 else last.flatten(1).sum(1)).double().numpy()
    result = label_of(slopes)
    return int(slopes.argmin()) if result is None else result


def idlg(module: Any, gradient: Vector, features: int, search: Search) -> Match:
    """Minimise the squared difference of gradients, by L-BFGS with a line search."""

    def distance(found: Any, wanted: Any) -> Any:
        return ((found - wanted) ** 2).sum() / (wanted**2).sum()

    def descend(row: Any, objective: Any) -> float:
        solver = torch.optim.LBFGS(
            [row],
            max_iter=search.steps,
            max_eval=2 * search.steps,
            tolerance_grad=1e-12,
            tolerance_change=1e-16,
            line_search_fn="strong_wolfe",
        )
        solver.step(objective)
        return float(objective())

    return _best(module, gradient, features, search, distance, descend)


def cosine_matching(module: Any, gradient: Vector, features: int, search: Search) -> Match:
    """Minimise one minus the cosine of gradients plus the prior, by Adam on signs, within the public range."""

    def distance(found: Any, wanted: Any) -> Any:
        return 1 - (found @ wanted) / (found.norm() * wanted.norm()).clamp_min(1e-300)

    def descend(row: Any, objective: Any) -> float:
        solver = torch.optim.Adam([row], lr=search.rate * (search.span[1] - search.span[0]))
        falls = [int(search.steps * share) for share in (3 / 8, 5 / 8, 7 / 8)]
        slower = torch.optim.lr_scheduler.MultiStepLR(solver, milestones=falls, gamma=0.1)
        for _ in range(search.steps):
            objective()
            row.grad.sign_()
            solver.step()
            slower.step()
            with torch.no_grad():
                row.clamp_(*search.span)
        return float(objective())

    return _best(module, gradient, features, search, distance, descend)


def _best(module: Any, gradient: Vector, features: int, search: Search, distance: Any, descend: Any) -> Match:
    parts = _parts(module, gradient)
    wanted = torch.cat([part.flatten() for part in parts])
    right = bool(torch.isfinite(wanted).all()) and float(wanted.norm()) > 0
    require(right, "gradient", "be finite and not zero", float(wanted.norm()))
    label = label_from(module, gradient)
    free = [value for value in module.parameters() if value.requires_grad]
    source = torch.Generator().manual_seed(search.seed)
    best: Match | None = None
    for _ in range(search.restarts):
        row = torch.rand(1, features, generator=source, dtype=torch.float64).to(wanted.dtype)
        row = (search.span[0] + (search.span[1] - search.span[0]) * row).requires_grad_()
        objective = _objective(module, free, row, label, wanted, search, distance)
        left = descend(row, objective)
        if np.isfinite(left) and (best is None or left < best.left):
            best = Match(row=row.detach().double().numpy()[0].copy(), label=label, left=left)
    if best is None:
        raise BadValue("Gradient matching must end at a finite row, and it ran away from every start: lower the rate.")
    return best


def _objective(module: Any, free: list[Any], row: Any, label: int, wanted: Any, search: Search, distance: Any) -> Any:
    """Return the objective as a function that also stores its gradient with the row."""
    target = torch.tensor([label])

    def objective() -> Any:
        loss = torch.nn.functional.cross_entropy(module(row), target)
        found = torch.cat([part.flatten() for part in torch.autograd.grad(loss, free, create_graph=True)])
        if search.clip is not None:  # as the trainer does
            found = found * (search.clip / found.norm().clamp_min(search.clip))
        value = distance(found, wanted)
        if search.smooth > 0:
            value = value + search.smooth * _variation(row, search)
        (row.grad,) = torch.autograd.grad(value, [row])
        return value.detach()

    return objective


def _variation(row: Any, search: Search) -> Any:
    """Return the total variation: the mean absolute difference between neighbouring points."""
    picture = row.reshape(search.shape)
    return (picture[1:] - picture[:-1]).abs().mean() + (picture[:, 1:] - picture[:, :-1]).abs().mean()


def _parts(module: Any, gradient: Vector) -> list[Any]:
    """Return the flat gradient cut into the shapes of the module's trainable parameters."""
    need_torch()
    right = isinstance(module, torch.nn.Module)
    require(right, "The attack", "be given a torch module", type(module).__name__)
    free = [value for value in module.parameters() if value.requires_grad]
    sizes = [value.numel() for value in free]
    fits = gradient.shape == (sum(sizes),)
    require(fits, "gradient", f"have one number for each of the module's {sum(sizes)} parameters", gradient.shape)
    whole = torch.from_numpy(np.ascontiguousarray(gradient, dtype=np.float64)).to(free[0].dtype)
    return [part.view(value.shape) for part, value in zip(whole.split(sizes), free, strict=True)]
