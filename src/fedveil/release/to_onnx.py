"""A model as an ONNX graph that takes raw columns: a column of numbers or of texts each, records one below another.

A graph cannot refuse a record. Where fedveil would (a missing value without a fill, an unknown category), its numbers
are NaN. Needs the extra ``fedveil[onnx]``.
"""

import importlib
import math
from typing import Any, Final, Protocol

import numpy as np

from fedveil.core.errors import BadValue
from fedveil.core.values import Matrix
from fedveil.data.cells import number_marks
from fedveil.data.column import LINE, OWN, Column
from fedveil.data.rows import slack
from fedveil.models.adjusted import score_at
from fedveil.models.loss import NetworkLoss
from fedveil.release.bundle import Bundle
from fedveil.release.linear import Linear, known_texts, linear_of, other_place
from fedveil.release.model import ReleasedModel
from fedveil.version import __version__

# The rows and layers of a torch model as steps of an ONNX graph: a stack of layers, in double precision.

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
            return _activation(graph, x, part, name)
    return x  # of a row, flat already


def _activation(graph: Graph, x: str, part: Any, name: str) -> str:
    """What is positive stays; what is negative becomes 0, a part of itself, or an exponential."""
    above = graph.add("Max", [x, graph.constant(0.0)])
    if name == "ReLU":
        return above
    below = graph.add("Min", [x, graph.constant(0.0)])
    if name == "ELU":
        below = graph.add("Sub", [graph.add("Exp", [below]), graph.constant(1.0)])
    slope = float(part.alpha if name == "ELU" else part.negative_slope)
    return graph.add("Add", [above, graph.add("Mul", [below, graph.constant(slope)])])


OPSET: Final = 18
ML_OPSET: Final = 3
IR: Final = 8  # read by every runtime of the last years


def to_onnx(bundle: Bundle) -> bytes:
    """Return the file; of a torch model where its code is allowed by name, and its module is a stack of layers.

    Outputs ``label`` and ``probabilities`` (or ``scores``) for classes, ``prediction`` for a number; for survival the
    risk as ``prediction``, and as ``survival`` the chance to be without the event after each interval.
    """
    try:
        onnx = importlib.import_module("onnx")
    except ImportError as error:
        raise BadValue("An ONNX file needs the package onnx: install the extra fedveil[onnx].") from error
    deep = None if bundle.plan.model.linear else ReleasedModel(bundle)
    linear = linear_of(bundle, "onnx") if deep is None else outline_of(deep)
    graph = _Graph(onnx)
    parts = [_column(graph, column, linear.preparation.missing) for column in linear.preparation.columns]
    rows = graph.add("Concat", parts, axis=1)
    rows = _clip_rows(graph, rows, linear.cut)
    if linear.turn is not None:
        rows = _clip_rows(graph, graph.add("MatMul", [rows, graph.constant(linear.turn)]), linear.again)
    if deep is None:
        product = graph.add("MatMul", [rows, graph.constant(linear.weights)])
        scores = graph.add("Add", [product, graph.constant(linear.constants[None, :])])
    else:
        scores = torch_scores(graph, rows, deep)
    outputs = _outputs(graph, linear, scores)
    made = onnx.helper.make_graph(graph.nodes, "fedveil", graph.inputs, outputs, graph.constants)
    opsets = [onnx.helper.make_opsetid("", OPSET), onnx.helper.make_opsetid("ai.onnx.ml", ML_OPSET)]
    model = onnx.helper.make_model(
        made, opset_imports=opsets, ir_version=IR, producer_name="fedveil", producer_version=__version__
    )
    notes = {"plan": bundle.plan.hash, "study": bundle.plan.name}
    notes["certificate"] = bundle.files["certificate.json"].decode()
    onnx.helper.set_model_props(model, notes)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString(deterministic=True))


class _Graph:
    """Nodes, constants and inputs as they come; every result has a name of its own."""

    def __init__(self, onnx: Any) -> None:
        self.helper, self.numpy, self.kinds = onnx.helper, onnx.numpy_helper, onnx.TensorProto
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.inputs: list[Any] = []

    def input(self, name: str, kind: int) -> str:
        self.inputs.append(self.helper.make_tensor_value_info(name, kind, [None, 1]))
        return name

    def constant(self, value: Any) -> str:
        name = f"constant_{len(self.constants)}"
        self.constants.append(self.numpy.from_array(np.asarray(value), name))
        return name

    def add(self, kind: str, inputs: list[str], name: str | None = None, **attributes: Any) -> str:
        result = name or f"step_{len(self.nodes)}"
        self.nodes.append(self.helper.make_node(kind, inputs, [result], **attributes))
        return result


def _column(graph: _Graph, column: Column, missing: tuple[str, ...]) -> str:
    return _category(graph, column, missing) if column.categories else _numbers(graph, column, missing)


def _numbers(graph: _Graph, column: Column, missing: tuple[str, ...]) -> str:
    values = graph.input(column.name, graph.kinds.DOUBLE)
    stand_in = column.filled and column.fill != OWN
    fill = graph.constant(float(column.fill) if stand_in else np.nan)
    values = graph.add("Where", [graph.add("IsNaN", [values]), fill, values])
    for mark in number_marks(missing):
        values = graph.add("Where", [graph.add("Equal", [values, graph.constant(mark)]), fill, values])
    if column.unit:
        values = _bent(graph, graph.add("Div", [values, graph.constant(column.unit)]))
    centre, scale, low, high = column.affine
    values = graph.add("Div", [graph.add("Sub", [values, graph.constant(centre)]), graph.constant(scale)])
    if not (np.isinf(low) and np.isinf(high)):
        cut = graph.add("Min", [graph.add("Max", [values, graph.constant(low)]), graph.constant(high)])
        values = graph.add("Where", [graph.add("IsNaN", [values]), values, cut])
    return _block(graph, column, values) if column.knots else values


def _block(graph: _Graph, column: Column, values: str) -> str:
    """The line, the hats and the indicator of a gap, from numbers on the scale from -1 to 1."""
    places, weight = column.places, column.weight
    rises, falls = np.zeros((2, 1, places.size)), np.zeros((2, 1, places.size))
    rises[1], falls[1] = 1.0, 1.0  # flat beyond the ends
    wide = np.diff(places)
    rises[:, 0, 1:] = 1 / wide, -places[:-1] / wide
    falls[:, 0, :-1] = -1 / wide, places[1:] / wide

    def line(slope: Matrix, base: Matrix) -> str:
        product = graph.add("Mul", [values, graph.constant(slope)])
        return graph.add("Add", [product, graph.constant(base)])

    hats = graph.add("Min", [line(*rises), line(*falls), graph.constant(np.ones((1, 1)))])
    hats = graph.add("Max", [hats, graph.constant(np.zeros((1, 1)))])
    hats = graph.add("Mul", [hats, graph.constant(weight * math.sqrt(1 - LINE))])
    middle, half = column.line
    straight = line(np.array([[1 / half]]), np.array([[-middle / half]]))
    straight = graph.add("Max", [graph.add("Min", [straight, graph.constant(1.0)]), graph.constant(-1.0)])
    straight = graph.add("Mul", [straight, graph.constant(weight * math.sqrt(LINE))])
    gone = graph.add("IsNaN", [values])
    if column.fill != OWN:  # a gap that nothing stands for has no number
        gap = graph.add("Mul", [values, graph.constant(0.0)])
        return graph.add("Concat", [straight, hats, gap], axis=1)
    gap = graph.add("Mul", [graph.add("Cast", [gone], to=graph.kinds.DOUBLE), graph.constant(weight)])
    nothing = graph.constant(np.zeros((1, 1)))
    parts = [graph.add("Where", [gone, nothing, part]) for part in (straight, hats)]
    return graph.add("Concat", [*parts, gap], axis=1)


def _bent(graph: _Graph, values: str) -> str:
    """The inverse hyperbolic sine: the sign times ln(|x| + sqrt(x^2 + 1))."""
    root = graph.add("Sqrt", [graph.add("Add", [graph.add("Mul", [values, values]), graph.constant(1.0)])])
    size = graph.add("Log", [graph.add("Add", [graph.add("Abs", [values]), root])])
    return graph.add("Mul", [graph.add("Sign", [values]), size])


def _category(graph: _Graph, column: Column, missing: tuple[str, ...]) -> str:
    """Return the place of each text, then one column of 0 or 1 for each category."""
    words = graph.input(column.name, graph.kinds.STRING)
    known = known_texts(column, missing)
    other = other_place(column)
    place = graph.add(
        "LabelEncoder",
        [words],
        domain="ai.onnx.ml",
        keys_strings=list(known),
        values_floats=[np.nan if at is None else float(at) for at in known.values()],
        default_float=np.nan if other is None else float(other),
    )
    listed = graph.constant(np.arange(column.width, dtype=np.float32)[None, :])
    hot = graph.add("Cast", [graph.add("Equal", [place, listed])], to=graph.kinds.DOUBLE)
    if column.offsets:
        hot = graph.add("Sub", [hot, graph.constant(np.array([column.offsets]))])
    if column.weight != 1.0:
        hot = graph.add("Mul", [hot, graph.constant(column.weight)])
    wide = graph.add("Cast", [place], to=graph.kinds.DOUBLE)
    return graph.add("Where", [graph.add("IsNaN", [wide]), wide, hot])  # what has no place has no number


def _clip_rows(graph: _Graph, rows: str, bound: float) -> str:
    """Rows over max(1, norm / bound)."""
    squares = graph.add("Mul", [rows, rows])
    total = graph.add("ReduceSum", [squares, graph.constant(np.array([1], dtype=np.int64))], keepdims=1)
    long = graph.add("Div", [graph.add("Sqrt", [total]), graph.constant(bound)])
    return graph.add("Div", [rows, graph.add("Max", [long, graph.constant(1.0)])])


def _outputs(graph: _Graph, linear: Linear, scores: str) -> list[Any]:
    width, double = len(linear.classes), graph.kinds.DOUBLE
    if linear.kind == "survival":
        return _survival(graph, linear, scores)
    if linear.kind == "counts":
        expected = graph.add("Mul", [graph.add("Exp", [scores]), graph.constant(linear.rate * linear.top)])
        scores = graph.add("Min", [expected, graph.constant(linear.top)])
    if not linear.classes:
        graph.add("Identity", [scores], "prediction")
        return [graph.helper.make_tensor_value_info("prediction", double, [None, 1])]
    if linear.weights.shape[1] == 1:
        scores = graph.add("Concat", [graph.add("Neg", [scores]), scores], axis=1)
    decided = scores
    if linear.threshold is not None:  # the second class has to come so much further
        decided = graph.add("Sub", [scores, graph.constant(np.array([[0.0, 2 * score_at(linear.threshold)]]))])
    best = graph.add("ArgMax", [decided], axis=1, keepdims=0)
    graph.add("Gather", [graph.constant(np.array(linear.classes, dtype=object)), best], "label")
    if linear.link == "softmax":
        graph.add("Softmax", [scores], "probabilities", axis=1)
    else:
        graph.add("Sigmoid" if linear.link else "Identity", [scores], "probabilities" if linear.link else "scores")
    name = "probabilities" if linear.link else "scores"
    return [
        graph.helper.make_tensor_value_info("label", graph.kinds.STRING, [None]),
        graph.helper.make_tensor_value_info(name, double, [None, width]),
    ]


def _survival(graph: _Graph, linear: Linear, scores: str) -> list[Any]:
    """The chances to be without the event, as exponentials of sums of logarithms, and one minus the last of them."""
    alive = graph.add("Log", [graph.add("Sigmoid", [graph.add("Neg", [scores])])])
    together = graph.add("CumSum", [alive, graph.constant(np.array(1, dtype=np.int64))])
    graph.add("Exp", [together], "survival")
    last = graph.add("Gather", ["survival", graph.constant(np.array([-1], dtype=np.int64))], axis=1)
    graph.add("Sub", [graph.constant(1.0), last], "prediction")
    double, width = graph.kinds.DOUBLE, linear.weights.shape[1]
    return [
        graph.helper.make_tensor_value_info("prediction", double, [None, 1]),
        graph.helper.make_tensor_value_info("survival", double, [None, width]),
    ]
