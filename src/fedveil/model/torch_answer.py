"""What a module adds to a noised direction by itself, from its parameters and public random numbers: no record is seen.

An adversarial pair has such an answer: the judge learns from made rows, and the maker from the judge. A module has it
if it has ``answer(generator)``, two numbers to lessen, and ``made()``, the parameters that the second is for.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from fedveil.errors import BadValue
from fedveil.model.torch_descent import deterministic
from fedveil.model.torch_library import right_threads, torch
from fedveil.values import Vector

if TYPE_CHECKING:
    from fedveil.model.torch_engine import Engine


def answers(engine: "Engine") -> bool:
    """Return whether the module has an answer."""
    return callable(getattr(engine.module, "answer", None)) and callable(getattr(engine.module, "made", None))


def answered(engine: "Engine", w: Vector, direction: Vector, turn: int, clip: float) -> Vector:
    """Return the noised direction of a round with the module's answer.

    Of the parameters that are made, the direction is the answer alone: nothing is learned from the noise there. The
    answer for all others is no longer than the clip, as what records add.
    """
    module = engine.module_at(w)
    free = [value for value in module.parameters() if value.requires_grad]
    own = {id(value) for value in module.made()}
    made = [value for value in free if id(value) in own]
    judged = [value for value in free if id(value) not in own]
    if not made or not judged:
        raise BadValue("generator.module must have parameters that are made, and others that judge them.")
    with right_threads(w.size), deterministic(), torch.enable_grad():
        first, second = module.answer(torch.Generator().manual_seed(turn))
        slopes = _slopes(first, judged, keep=True), _slopes(second, made, keep=False)
    length = float(torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(one) for one in slopes[0]])))
    shorter = min(1.0, clip / length) if length > 0 else 1.0
    parts = {id(value): one * shorter for value, one in zip(judged, slopes[0], strict=True)}
    parts |= {id(value): one for value, one in zip(made, slopes[1], strict=True)}
    answer: Vector = torch.cat([parts[id(value)].flatten() for value in free]).cpu().numpy()
    replaced = np.concatenate([np.full(value.numel(), id(value) in own) for value in free])
    return np.asarray(np.where(replaced, answer, direction + answer), dtype=np.float64)


def _slopes(loss: Any, values: list[Any], *, keep: bool) -> list[Any]:
    found = torch.autograd.grad(loss, values, retain_graph=keep, allow_unused=True)
    filled = [torch.zeros_like(value) if one is None else one for one, value in zip(found, values, strict=True)]
    return [one.detach().double() for one in filled]
