"""The rows and layers of a torch model as steps of an ONNX graph: a stack of layers, in double precision."""

from typing import Any, Final, Protocol

import numpy as np

from fedveil.core.errors import BadValue
from fedveil.data.rows import slack
from fedveil.models.loss import NetworkLoss
from fedveil.release.linear import Linear
from fedveil.release.model import ReleasedModel

LAYERS: Final = ("Linear", "ReLU", "LeakyReLU", "ELU", "SiLU", "Tanh", "Sigmoid", "Flatten", "Identity", "Sequential")


class Graph(Protocol):
    """What adds steps and constants."""

    def constant(self, value: Any) -> str: ...  # noqa: D102
    def add(self, kind: str, inputs: list[str], name: str | None = None, **attributes: Any) -> str: ...  # noqa: D102


def outline_of(model: ReleasedModel) -> Linear:
    """Return what the outputs of a graph are made from: classes, link, and how many scores there are."""
    loss, known = model.loss, model.preparation
    if known is None:
        raise BadValue("The model must say how records become rows to be exported to onnx, and they came prepared.")
    room = slack(known.length, known.bound, known.intercept)
    return Linear(
        preparation=known,
        weights=np.zeros((1, loss.outputs)),
        constants=np.zeros(loss.outputs),
        link=loss.link,
        classes=known.labels.classes,
        cut=known.bound * (1 - 2 * room),
    )


def torch_scores(graph: Graph, rows: str, model: ReleasedModel) -> str:
    """Return the module's outputs for rows that were cut; of a number, in the target's own unit."""
    loss, known = model.loss, model.preparation
    assert isinstance(loss, NetworkLoss)  # noqa: S101  the caller asked
    assert known is not None  # noqa: S101  likewise
    width = known.length + (known.intercept > 0)
    placed = np.zeros((len(known.entries), width))
    placed[np.arange(len(known.entries)), list(known.places)] = 1.0
    whole = graph.add("MatMul", [rows, graph.constant(placed)])
    if known.intercept:
        constant = np.zeros((1, width))
        constant[0, -1] = known.intercept
        whole = graph.add("Add", [whole, graph.constant(constant)])
    scores = _layer(graph, whole, loss.module_at(model.parameters_now(width), width))
    if known.labels.span is None:
        return scores
    low, high = known.labels.span
    scaled = graph.add("Mul", [scores, graph.constant(high / 2 - low / 2)])
    return graph.add("Add", [scaled, graph.constant(low / 2 + high / 2)])


def _layer(graph: Graph, x: str, part: Any) -> str:
    name, own = type(part).__name__, type(part).__module__.startswith("torch.nn.")
    if not own or name not in LAYERS or (name == "Flatten" and part.start_dim != 1):
        raise BadValue(f"A torch model to be exported to onnx must be a stack of {', '.join(LAYERS)}, got a {name}.")
    match name:
        case "Sequential":
            for child in part:
                x = _layer(graph, x, child)
            return x
        case "Linear":
            weight = part.weight.detach().double().numpy().T
            x = graph.add("MatMul", [x, graph.constant(weight)])
            return (
                x if part.bias is None else graph.add("Add", [x, graph.constant(part.bias.detach().double().numpy())])
            )
        case "Tanh" | "Sigmoid":
            return graph.add(name, [x])
        case "SiLU":
            return graph.add("Mul", [x, graph.add("Sigmoid", [x])])
        case "ReLU" | "LeakyReLU" | "ELU":
            return _bent(graph, x, part, name)
    return x  # of a row, flat already


def _bent(graph: Graph, x: str, part: Any, name: str) -> str:
    """What is positive stays; what is negative becomes 0, a part of itself, or an exponential."""
    above = graph.add("Max", [x, graph.constant(0.0)])
    if name == "ReLU":
        return above
    below = graph.add("Min", [x, graph.constant(0.0)])
    if name == "ELU":
        below = graph.add("Sub", [graph.add("Exp", [below]), graph.constant(1.0)])
    slope = float(part.alpha if name == "ELU" else part.negative_slope)
    return graph.add("Add", [above, graph.add("Mul", [below, graph.constant(slope)])])
