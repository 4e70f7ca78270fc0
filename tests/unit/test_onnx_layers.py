"""The layers of a torch model in an ONNX graph: the numbers that torch gives, and a sentence for any other layer."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

from fedveil.core.errors import BadValue  # noqa: E402
from fedveil.release.to_onnx import (  # noqa: E402  after the packages that it needs
    IR,
    OPSET,
    _Graph,
    _layer,
)

nn = torch.nn


def test_every_layer_gives_torchs_numbers() -> None:
    torch.manual_seed(0)
    layers = [nn.Flatten(), nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 8, bias=False), nn.LeakyReLU(0.2), nn.Identity()]
    layers += [nn.Linear(8, 8), nn.ELU(0.7), nn.Linear(8, 8), nn.SiLU(), nn.Sequential(nn.Linear(8, 8), nn.Tanh())]
    module = nn.Sequential(*layers, nn.Linear(8, 2), nn.Sigmoid()).double()
    graph = _Graph(onnx)
    graph.inputs.append(onnx.helper.make_tensor_value_info("x", onnx.TensorProto.DOUBLE, [None, 3]))
    graph.add("Identity", [_layer(graph, "x", module)], "y")
    out = [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.DOUBLE, [None, 2])]
    made = onnx.helper.make_graph(graph.nodes, "g", graph.inputs, out, graph.constants)
    model = onnx.helper.make_model(made, opset_imports=[onnx.helper.make_opsetid("", OPSET)], ir_version=IR)
    rows = np.random.default_rng(0).normal(size=(50, 3)) * 3
    found = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": rows})[0]
    assert np.abs(found - module(torch.from_numpy(rows)).detach().numpy()).max() < 1e-9


def test_another_layer_is_refused_by_name() -> None:
    for part in (nn.Conv2d(1, 1, 3), nn.Sequential(nn.Linear(3, 3), nn.GELU()), nn.LayerNorm(3)):
        with pytest.raises(BadValue, match=r"must be a stack of Linear, ReLU, .*, got a (Conv2d|GELU|LayerNorm)"):
            _layer(_Graph(onnx), "x", part)
