"""The layers of a module with a ``forward`` of its own, if that is a plain stack in other words.

``torch.fx`` records what the forward does. If it is one chain of steps from a fixed list, none of which lets one record
see another, the chain is returned as layers, and per-record gradients take one pass over the batch. Anything else (a
branch, a sum of two ways, a step that is not listed) is left to torch_records.
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedveil.model.torch_library import torch

_SAME = ("relu", "tanh", "sigmoid", "gelu", "silu", "softplus", "elu", "selu", "mish", "leaky_relu")
_LAYERS = ("ReLU", "Tanh", "Sigmoid", "GELU", "SiLU", "Softplus", "ELU", "SELU", "Mish", "LeakyReLU")
_POOLS = {"max_pool2d": "MaxPool2d", "avg_pool2d": "AvgPool2d"}


@dataclass(frozen=True, slots=True)
class Changed:
    """Every number multiplied by one constant, or moved by one."""

    by: Callable[[Any, float], Any]
    number: float

    def __call__(self, rows: Any) -> Any:
        """Return the changed numbers."""
        return self.by(rows, self.number)

    def parameters(self) -> tuple[()]:
        """Return nothing: it learns nothing."""
        return ()


def traced(module: Any) -> list[Any] | None:
    """Return the steps of the module's forward in their order, or None if they are no chain of known ones."""
    try:
        graph = torch.fx.symbolic_trace(module).graph
    except Exception:  # a forward that cannot be recorded may fail in any way
        return None
    here, sizes, steps = None, set[Any](), list[Any]()
    for node in graph.nodes:
        if node.op == "placeholder" and here is None:
            here = node
        elif node.op == "output":
            return steps if node.args == (here,) else None
        elif _asks_size(node, here, sizes):
            sizes.add(node)
        else:
            step = _step(module, node, sizes) if node.args[:1] == (here,) else None
            if step is None:
                return None
            steps.append(step)
            here = node
    return None


def _asks_size(node: Any, here: Any, sizes: set[Any]) -> bool:
    """Return whether the node is about shapes alone: ``x.shape``, ``x.size(0)``, or an entry of such a one."""
    if node.op == "call_function" and node.target is operator.getitem:
        return node.args[0] in sizes
    named = node.op == "call_function" and node.target is getattr and node.args[1] == "shape"
    return (named or (node.op == "call_method" and node.target == "size")) and node.args[0] is here


def _step(module: Any, node: Any, sizes: set[Any]) -> Any:
    """Return what a node does as a layer; None if it is not on the list, or depends on another node."""
    more, options = node.args[1:], dict(node.kwargs)
    if node.op == "call_module":
        return module.get_submodule(node.target) if not more and not options else None
    name = node.target if node.op == "call_method" else getattr(node.target, "__name__", "").rstrip("_")
    if node.op not in ("call_function", "call_method"):
        return None
    if name in ("view", "reshape", "flatten", "unflatten"):
        return _reshaped(name, more, options, sizes)
    if any(isinstance(value, torch.fx.Node) for value in (*more, *options.values())):
        return None
    if node.op == "call_function" and node.target in (operator.mul, operator.add, operator.sub, operator.truediv):
        plain = len(more) == 1 and isinstance(more[0], int | float)
        return Changed(node.target, float(more[0])) if plain else None
    if name in _SAME and not more and options.get("inplace", False) in (False, True):
        options.pop("inplace", None)
        layer = getattr(torch.nn, _LAYERS[_SAME.index(name)])
        return layer() if not options else None
    return getattr(torch.nn, _POOLS[name])(*more, **options) if name in _POOLS else None


def _reshaped(name: str, more: tuple[Any, ...], options: dict[str, Any], sizes: set[Any]) -> Any:
    """Return a flattening or unflattening of each record; a wrong guess is found by comparing with the module."""
    nn = torch.nn
    if options:
        return None
    if name == "flatten":
        return nn.Flatten() if more == (1,) else None
    if name == "unflatten":
        return nn.Unflatten(1, tuple(more[1])) if len(more) == 2 and more[0] == 1 else None
    more = tuple(more[0]) if len(more) == 1 and isinstance(more[0], tuple | list) else more
    if len(more) < 2 or not (more[0] == -1 or more[0] in sizes):
        return None
    if len(more) == 2:
        return nn.Flatten() if isinstance(more[1], int) else None
    return nn.Unflatten(1, more[1:]) if all(isinstance(value, int) and value > 0 for value in more[1:]) else None
