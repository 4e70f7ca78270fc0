"""A torch module given by the name of a function; refused if per-record gradients would be meaningless for it.

The module runs in evaluation mode, in the stated precision, from starting parameters that are the
same every time (torch's seed is 0 while it is made).
"""

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

from fedveil.checks import require
from fedveil.errors import BadValue
from fedveil.importing import is_own, named, own_path
from fedveil.limits import PARAMETERS
from fedveil.model.torch_library import device, need_torch, torch


def make_module(text: str, precision: str, known: Mapping[str, int]) -> Any:
    """Return the checked module, in evaluation mode. ``known``: numbers that its function may ask for by name."""
    need_torch()
    make = named(text, "model.module")
    if is_own(text):
        _check_size(make)
    with torch.random.fork_rng(devices=[]), own_path(text):
        torch.manual_seed(0)
        try:
            module = make(**_asked(make, known))
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


def _asked(make: Callable[..., Any], known: Mapping[str, int]) -> dict[str, int]:
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
    """Refuse, by trying random rows, what the structure does not show.

    Random, mixing or changing modules, odd shapes.
    """
    own = criterion is None
    call = module if own else lambda rows, _: module(rows)
    found = _outputs(call, rows, targets)
    count = rows.shape[0]
    width = found.numel() // count
    right = found.shape[:1] == (count,) and (outputs is None or width == outputs)
    rule = f"give {outputs if outputs is not None else 'its'} numbers for each of {count} rows"
    require(right, "model.module", rule, tuple(found.shape))
    steady = torch.equal(found, _outputs(call, rows, targets))
    require(steady, "model.module", "be a function of its input", "two results for one input", "Is it random?")
    each = [_outputs(call, rows[i : i + 1], targets[i : i + 1]) for i in range(count)]
    shapes = sorted({tuple(one.shape) for one in each} - {(1, width)})
    require(not shapes, "model.module", f"keep the shape (1, {width}) for one row", shapes)
    alone = torch.cat(each)
    hint = "A record's result must not depend on the others in its batch: normalise by group or layer."
    require(_close(found, alone), "model.module", "treat each record by itself", "a result that mixes records", hint)
    _check_buffers(module, lambda: _outputs(call, rows, targets))
    if own:
        return
    losses = criterion(found, targets)
    right = tuple(losses.shape) == (count,)
    require(right, "model.criterion", "give one number for each record", tuple(losses.shape))
    apart = torch.cat([criterion(found[i : i + 1], targets[i : i + 1]) for i in range(count)])
    require(_close(losses, apart), "model.criterion", "treat each record by itself", "a loss that mixes records")


def _outputs(call: Any, rows: Any, targets: Any) -> Any:
    try:
        with torch.no_grad():
            found = call(rows, targets)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        shape = tuple(rows.shape)
        raise BadValue(f"model.module must take rows of shape {shape}: {str(error).splitlines()[0]}") from error
    right = isinstance(found, torch.Tensor) and found.ndim >= 1
    require(right, "model.module", "return one tensor, a row for each record", type(found).__name__)
    return found.reshape(found.shape[0], -1)


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
