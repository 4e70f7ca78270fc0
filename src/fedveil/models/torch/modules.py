"""A torch module given by the name of a function: made, checked and read as a stack of layers where it is one.

A module is refused if per-record gradients would be meaningless for it. It runs in evaluation mode, in the stated
precision, from starting parameters that are the same every time (torch's seed is 0 while it is made).

The loss of a record is a criterion: a function of (outputs, targets) that returns one number for each row. A module may
give the loss itself, as a generator does: it is called with rows and targets, and there are no outputs.

``torch.fx`` records what a ``forward`` of the user's own does. If it is one chain of steps from a fixed list, none of
which lets one record see another, the chain is returned as layers, and per-record gradients take one pass over the
batch. Any other module (a branch, a sum of two ways, a step that is not listed) is differentiated record by record.
"""

import hashlib
import inspect
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from fedveil.core.errors import BadValue, require
from fedveil.core.importing import is_own, named, own_path
from fedveil.core.limits import PARAMETERS
from fedveil.core.values import Matrix
from fedveil.models.torch.criteria import OWN, PRECISIONS
from fedveil.models.torch.library import device, need_torch, torch

_ACTIVATIONS = ("ReLU", "LeakyReLU", "ELU", "CELU", "GELU", "SELU", "SiLU", "Mish", "Tanh", "Sigmoid", "Softplus")
_PLAIN = (*_ACTIVATIONS, "Identity", "MaxPool2d", "AvgPool2d")
_SAME = ("relu", "tanh", "sigmoid", "gelu", "silu", "softplus", "elu", "selu", "mish", "leaky_relu")
_LAYERS = ("ReLU", "Tanh", "Sigmoid", "GELU", "SiLU", "Softplus", "ELU", "SELU", "Mish", "LeakyReLU")
_POOLS = {"max_pool2d": "MaxPool2d", "avg_pool2d": "AvgPool2d"}


def make_module(text: str, precision: str, known: Mapping[str, int]) -> Any:
    """Return the checked module, in evaluation mode. ``known``: numbers that its function may ask for by name."""
    need_torch()
    make = named(text, "model.module")
    if is_own(text):
        _check_size(make)
    with torch.random.fork_rng(devices=[]), own_path(text):
        torch.manual_seed(0)
        try:
            module = make(**_arguments(make, known))
        except Exception as error:  # a user's function may fail in any way
            reason = f"{type(error).__name__}: {error}"
            rule = f"be made without arguments, or from {' and '.join(known)} alone"
            raise BadValue(f"model.module must {rule}, and that failed: {reason}.") from error
    right = isinstance(module, torch.nn.Module)
    require(right, "model.module", "be a function that returns a torch.nn.Module", type(module).__name__)
    _check_parts(module)
    _check_parameters(module)
    for part in module.modules():
        if getattr(part, "inplace", False) is True:
            part.inplace = False  # the same function, but gradients need the unchanged input
    return module.to(device=device(), dtype=getattr(torch, precision)).eval()


def _check_size(make: Callable[[], Any]) -> None:
    """Refuse a module of ours whose name asks for more parameters than a model may have; nothing is allocated."""
    with torch.device("meta"):
        count = sum(value.numel() for value in make().parameters())
    require(count <= PARAMETERS, "model.module", f"have at most {PARAMETERS:g} parameters", count)


def _arguments(make: Callable[..., Any], known: Mapping[str, int]) -> dict[str, int]:
    """Return the known numbers that the function cannot do without; arguments that have a value already keep it."""
    try:
        wanted = inspect.signature(make).parameters.values()
    except (TypeError, ValueError):  # a class or object that does not tell its arguments
        return {}
    return {one.name: known[one.name] for one in wanted if one.name in known and one.default is one.empty}


def _check_parts(module: Any) -> None:
    nn = torch.nn
    for name, part in module.named_modules():
        where = f"{type(part).__name__} ({name or 'the module itself'})"
        mixes = isinstance(part, nn.modules.batchnorm._BatchNorm)
        hint = "It mixes the records of a batch, so no record has a gradient of its own: use GroupNorm or LayerNorm."
        require(not mixes, "model.module", "do without batch normalisation", where, hint)
        drops = isinstance(part, nn.modules.dropout._DropoutNd) and part.p > 0
        hint = "Training runs without it, so leave it out: clipping and noise regularise already."
        require(not drops, "model.module", "do without dropout", where, hint)
        tracks = getattr(part, "track_running_stats", False)
        hint = "They carry data past the accounting: set track_running_stats=False."
        require(not tracks, "model.module", "keep no running statistics", where, hint)


def _check_parameters(module: Any) -> None:
    given = list(module.named_parameters())
    lazy = [name for name, value in given if isinstance(value, torch.nn.parameter.UninitializedParameter)]
    require(not lazy, "model.module", "give every parameter its shape", lazy, "Replace lazy layers by sized ones.")
    odd = [f"{name}: {value.dtype}" for name, value in given if not value.is_floating_point()]
    require(not odd, "model.module", "have parameters that are real floating-point numbers", odd)
    free = [name for name, value in given if value.requires_grad]
    require(free, "model.module", "have parameters to learn", f"{len(given)} parameters, none of them trainable")
    wild = [name for name, value in given if not bool(torch.isfinite(value).all())]
    require(not wild, "model.module", "start from finite parameters", wild)


def probe(module: Any, criterion: Any, rows: Any, targets: Any, outputs: int | None) -> None:
    """Try the module on random rows, and refuse what its structure does not show.

    Refused are modules that are random, mix records, change their buffers or give odd shapes.
    """
    own = criterion is None
    call = module if own else lambda rows, _: module(rows)
    together = _outputs(call, rows, targets)
    count = rows.shape[0]
    width = together.numel() // count
    right = together.shape[:1] == (count,) and (outputs is None or width == outputs)
    rule = f"give {outputs if outputs is not None else 'its'} numbers for each of {count} rows"
    require(right, "model.module", rule, tuple(together.shape))
    steady = torch.equal(together, _outputs(call, rows, targets))
    require(steady, "model.module", "be a function of its input", "two results for one input", "Is it random?")
    each = [_outputs(call, rows[i : i + 1], targets[i : i + 1]) for i in range(count)]
    shapes = sorted({tuple(one.shape) for one in each} - {(1, width)})
    require(not shapes, "model.module", f"keep the shape (1, {width}) for one row", shapes)
    alone = torch.cat(each)
    hint = "A record's result must not depend on the others in its batch: normalise by group or layer."
    require(_close(together, alone), "model.module", "treat each record by itself", "a result that mixes records", hint)
    _check_buffers(module, lambda: _outputs(call, rows, targets))
    if own:
        return
    losses = criterion(together, targets)
    right = tuple(losses.shape) == (count,)
    require(right, "model.criterion", "give one number for each record", tuple(losses.shape))
    apart = torch.cat([criterion(together[i : i + 1], targets[i : i + 1]) for i in range(count)])
    require(_close(losses, apart), "model.criterion", "treat each record by itself", "a loss that mixes records")


def _outputs(call: Any, rows: Any, targets: Any) -> Any:
    try:
        with torch.no_grad():
            outputs = call(rows, targets)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        shape = tuple(rows.shape)
        raise BadValue(f"model.module must take rows of shape {shape}: {str(error).splitlines()[0]}") from error
    right = isinstance(outputs, torch.Tensor) and outputs.ndim >= 1
    require(right, "model.module", "return one tensor, a row for each record", type(outputs).__name__)
    return outputs.reshape(outputs.shape[0], -1)


def _close(one: Any, other: Any) -> bool:
    """Return whether two results agree up to rounding, which depends on how many rows are computed at once."""
    error = math.sqrt(torch.finfo(one.dtype).eps) / 10
    size = 1.0 + float(one.detach().abs().max())
    return one.shape == other.shape and float((one - other).detach().abs().max()) <= error * size


def _check_buffers(module: Any, run: Callable[[], Any]) -> None:
    before = {name: value.clone() for name, value in module.named_buffers()}
    module.train()
    try:
        run()
    finally:
        module.eval()
    after = dict(module.named_buffers())
    changed = [name for name, value in before.items() if not torch.equal(value, after[name])]
    changed += [name for name in after if name not in before]
    hint = "They carry data past the accounting."
    require(not changed, "model.module", "have no buffers that change in training", changed, hint)


def outputs_of(criterion: str, classes: int) -> int | None:
    """Return how many outputs the module must have; None if the user's own criterion decides."""
    if ":" in criterion:
        return None
    if criterion == OWN:
        return 1
    return classes if criterion == "cross-entropy" else 1


def criterion_of(name: str) -> Any:
    """Return the function of this name; None where the module gives the loss itself."""
    if name == OWN:
        return None
    functional = torch.nn.functional

    def cross_entropy(outputs: Any, targets: Any) -> Any:
        return functional.cross_entropy(outputs, targets.long(), reduction="none")

    def logistic(outputs: Any, targets: Any) -> Any:
        return functional.softplus((1 - 2 * targets) * outputs[:, 0])

    def mse(outputs: Any, targets: Any) -> Any:
        return (outputs[:, 0] - targets).square()

    def huber(outputs: Any, targets: Any) -> Any:
        return functional.huber_loss(outputs[:, 0], targets, reduction="none")

    known = {"cross-entropy": cross_entropy, "logistic": logistic, "mse": mse, "huber": huber}
    return known[name] if name in known else named(name, "model.criterion")


def losses_of(module: Any, values: dict[str, Any], criterion: Any, rows: Any, targets: Any) -> Any:
    """Return the loss of each record, with these parameters in place of the module's own."""
    if criterion is None:
        return torch.func.functional_call(module, values, (rows, targets))
    outputs = torch.func.functional_call(module, values, (rows,))
    return criterion(outputs.reshape(outputs.shape[0], -1), targets)


def layers_of(module: Any) -> list[Any] | None:
    """Return the layers in order, if the module is such a stack and nothing else; otherwise None.

    A module with a ``forward`` of its own is one if what torch.fx records of it is (:func:`trace`).
    """
    if any(_is_patched(part) for part in module.modules()):
        return None
    sequence = _in_order(module)
    leaves = sequence if all(_is_listed(leaf) for leaf in sequence) else trace(module)
    if leaves is None or not all(isinstance(leaf, Arithmetic) or _is_listed(leaf) for leaf in leaves):
        return None
    given = [value for leaf in leaves for value in leaf.parameters()]
    once = len({id(value) for value in given}) == len(given)
    same = [id(value) for value in given] == [id(value) for value in module.parameters()]
    return leaves if once and same and given and all(value.requires_grad for value in given) else None


def _is_patched(part: Any) -> bool:
    """Return whether someone has put another forward or a hook on a layer."""
    return "forward" in vars(part) or any(vars(part)[name] for name in vars(part) if name.endswith("_hooks"))


def _in_order(module: Any) -> list[Any]:
    """Return the layers of nested sequences, in order."""
    return [leaf for part in module for leaf in _in_order(part)] if type(module) is torch.nn.Sequential else [module]


def _is_listed(leaf: Any) -> bool:
    nn = torch.nn
    if type(leaf) is nn.Conv2d:
        return bool(leaf.groups == 1 and leaf.padding_mode == "zeros" and not isinstance(leaf.padding, str))
    if type(leaf) is nn.Flatten:
        return bool(leaf.start_dim == 1)
    if type(leaf) is nn.Unflatten:
        return isinstance(leaf.dim, int) and leaf.dim >= 1
    return type(leaf) is nn.Linear or type(leaf) in [getattr(nn, name) for name in _PLAIN]


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """Every number multiplied by one constant, or moved by one."""

    by: Callable[[Any, float], Any]
    number: float

    def __call__(self, rows: Any) -> Any:
        """Return the changed numbers."""
        return self.by(rows, self.number)

    def parameters(self) -> tuple[()]:
        """Return nothing: it learns nothing."""
        return ()


def trace(module: Any) -> list[Any] | None:
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
        return _reshape(name, more, options, sizes)
    if any(isinstance(value, torch.fx.Node) for value in (*more, *options.values())):
        return None
    if node.op == "call_function" and node.target in (operator.mul, operator.add, operator.sub, operator.truediv):
        constant = len(more) == 1 and isinstance(more[0], int | float)
        return Arithmetic(node.target, float(more[0])) if constant else None
    if name in _SAME and not more and options.get("inplace", False) in (False, True):
        options.pop("inplace", None)
        layer = getattr(torch.nn, _LAYERS[_SAME.index(name)])
        return layer() if not options else None
    return getattr(torch.nn, _POOLS[name])(*more, **options) if name in _POOLS else None


def _reshape(name: str, more: tuple[Any, ...], options: dict[str, Any], sizes: set[Any]) -> Any:
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


@final
class FrozenFeatures:
    """A module as a frozen feature map: a public function of rows that is never trained (docs/feature-maps.md).

    It runs in evaluation mode, on the processor, without gradients; a linear model on top of it keeps its guarantees.

    ``shape``: of one record as the module takes it, for example (1, 28, 28); without it a record is a flat row.
    ``fingerprint``: of structure and parameters, so that a plan that names the map names these very numbers.

    Example::

        features = fedveil.FrozenFeatures(torchvision.models.resnet18().eval(), shape=(3, 224, 224))
    """

    def __init__(self, module: Any, *, shape: tuple[int, ...] | None = None, precision: str = "float64") -> None:
        need_torch()
        right = isinstance(module, torch.nn.Module)
        require(right, "A frozen module", "be a torch.nn.Module", type(module).__name__)
        require(precision in PRECISIONS, "precision", f"be one of {', '.join(PRECISIONS)}", precision)
        self._type, self._shape = getattr(torch, precision), shape
        self._module = module.to(device="cpu", dtype=self._type).eval().requires_grad_(False)
        self.fingerprint = _fingerprint(self._module, shape, precision)

    def __call__(self, rows: Matrix) -> Matrix:
        """Return one row of numbers for each given row."""
        given = torch.from_numpy(np.ascontiguousarray(rows)).to(self._type)
        if self._shape is not None:
            given = given.reshape(-1, *self._shape)
        with torch.no_grad():
            outputs = self._module(given)
        return np.asarray(outputs.reshape(len(rows), -1).double().numpy())


def _fingerprint(module: Any, shape: tuple[int, ...] | None, precision: str) -> str:
    digest = hashlib.sha256(repr((str(module), shape, precision)).encode())
    for name, value in module.state_dict().items():
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(value.double().numpy()).tobytes())
    return digest.hexdigest()
