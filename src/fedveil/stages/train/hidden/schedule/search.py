"""The candidates that a problem and the user's request leave open, and the best of each kind and number of passes."""

import math
from collections.abc import Callable, Sequence
from itertools import product

from fedveil.core.errors import require
from fedveil.privacy.mechanism import Numbers
from fedveil.stages.train.hidden.schedule.families import (
    Frame,
    Shape,
    deal,
    decay,
    drawn_deal,
    growing,
    law_parts,
    law_risk,
    shaped,
    steepest_direction,
    steepest_round,
    surcharge,
)
from fedveil.stages.train.hidden.schedule.problem import Problem
from fedveil.stages.train.request import ScheduleRequest

KINDS = ("constant", "decaying", "growing-batches")
_COUNTS = (1, 2, 3, 5, 8, 12, 20, 30, 50, 80, 120, 200, 300, 500, 800, 1200, 2000)
_MOST_PASSES = 100  # work that a design asks for unless told otherwise
_MOST_DRAWN = 10  # the same where units draw their rounds: further passes bring little there
_MOST_ROUNDS = 2000
_MOST_SINGLE = 5000  # rounds of one unit each, with Laplace noise
_STEPS = (2.0, 1.0, 0.5, 0.25)  # over smoothness; at 2 a step is just not expansive
_SHORT = (0.12, 0.06, 0.03)  # also tried for runs of few rounds
_LONGER = (1.0, 0.5)  # over the largest curvature of the model problem, where units draw their rounds
_FALLING = (1.9, 1.0, 0.5)  # the same for first steps that fall linearly; from 2 on they would run away
_POWERS = {"constant": (0.0,), "decaying": (0.0, 1.0, 2.0), "growing-batches": (0.0,)}
_CLOSE = 1.03  # frames whose risk is this close are alike before their noise is worked out: then the fewest rounds
_WORK = 0.003  # the share of the risk that twice the passes, or twice the rounds, must save
_UNSEEN = 0.001  # of what there is to learn: savings that no test set would show
_TRIED = 2
_WORTH = 0.98  # a kind is certified too if it is expected to do better than this

Deal = tuple[int, int | tuple[int, ...]]  # rounds of a pass, and their batch


def kinds_of(problem: Problem, schedule: ScheduleRequest) -> tuple[str, ...]:
    """Return the kinds to consider; only one if the bounds know rounds of one kind only."""
    lists = [v for v in (schedule.batch, schedule.step_size, schedule.noise_std) if isinstance(v, tuple)]
    varied = any(len(set(values)) > 1 for values in lists)
    if problem.sampled:
        alike = schedule.kind in ("auto", "constant", "decaying")
        hint = "Units draw their own rounds: there is one planned batch for all of them."
        require(
            alike, "schedule.kind", f"be constant or decaying when the order is {problem.order}", schedule.kind, hint
        )
    if problem.noise == "laplace" or problem.stopping == "random":
        why = "Laplace noise" if problem.noise == "laplace" else "random stopping"
        fits = schedule.kind in ("auto", "constant") and not varied
        require(fits, "schedule.kind", f"be constant (one number for all rounds) with {why}", schedule.kind)
        return ("constant",)
    if schedule.kind != "auto":
        return (schedule.kind,)
    if varied:
        return ("decaying",)
    if problem.sampled:
        return KINDS[:2]
    return KINDS if schedule.batch is None else KINDS[:2]


def search(problem: Problem, schedule: ScheduleRequest) -> dict[str, list[Shape]]:
    """Return for each kind its best shape for each number of passes, fewest first; a kind without any is left out."""
    counts = [count for count in _COUNTS if count <= _MOST_PASSES] if problem.noise == "gaussian" else [1]
    if problem.sampled:
        counts = [*(count for count in counts if count < _MOST_DRAWN), _MOST_DRAWN]
    counts = [schedule.passes] if schedule.passes is not None else counts
    result: dict[str, list[Shape]] = {}
    for kind in kinds_of(problem, schedule):
        shapes = [best for passes in counts if (best := _best(kind, problem, schedule, passes)) is not None]
        if problem.stopping == "random":  # other bounds for one pass than for several: the best of both is certified
            result |= {f"{kind}, {n}": some for n in ("one", "several") if (some := _passes(shapes, n))}
        elif shapes:
            result[kind] = shapes
    return result


def _passes(shapes: Sequence[Shape], number: str) -> list[Shape]:
    return [shape for shape in shapes if (shape.frame.passes == 1) == (number == "one")]


def pick(shapes: Sequence[Shape]) -> Shape:
    """The best for its work: twice the passes, or twice the rounds, must save three thousandths of the risk.

    What is saved must also be worth seeing: a thousandth of what there is to learn.
    """
    least = min(shapes, key=lambda shape: shape.risk)
    price = max(_WORK * least.risk, _UNSEEN * least.learnable)
    return min(shapes, key=lambda shape: shape.risk + price * work_of(shape.frame))


def hopeful(shape: Shape, best: Shape) -> bool:
    """Whether a shape is worth certifying: it is expected to do visibly better than one that is certified."""
    return shape.risk < min(_WORTH * best.risk, best.risk - _UNSEEN * best.learnable)


def expected_from(shape: Shape) -> float:
    """Return the risk of a certified shape from which on this one is worth certifying after it."""
    return max(shape.risk / _WORTH, shape.risk + _UNSEEN * shape.learnable)


def taken_up_to(shape: Shape, rival: Shape) -> float:
    """Return the risk above which a shape is picked neither before its rival nor in place of it."""
    price = max(_WORK * rival.risk, _UNSEEN * rival.learnable)
    return rival.risk + max(0.0, price * (work_of(rival.frame) - work_of(shape.frame)))


def work_of(frame: Frame) -> float:
    """How often gradients and communication are doubled: every round is a message, every pass a gradient a record."""
    return math.log2(frame.passes) + math.log2(frame.total)


def _best(kind: str, problem: Problem, schedule: ScheduleRequest, passes: int) -> Shape | None:
    """Return the best of the few frames that look best before their noise is computed."""
    options = [
        o for dealt in _deals(kind, problem, schedule, passes) for o in _options(kind, problem, schedule, passes, dealt)
    ]
    if not options:
        return None
    options.sort(key=lambda option: option[0])
    near = [frame for risk, frame in options if risk <= _CLOSE * options[0][0]]
    few = dict.fromkeys([*(frame for _, frame in options[:_TRIED]), min(near, key=lambda frame: frame.total)])
    if problem.sampled:  # the law of least noise cannot tell falling steps from steady ones; their noise can
        by_fall = [[o for o in options if isinstance(o[1].steps, tuple) is falls] for falls in (False, True)]
        few |= dict.fromkeys(frame for some in by_fall for _, frame in some[:_TRIED])
    for frame in few:
        _check_length("noise_std", schedule.noise_std, frame.rounds, frame.total)
    return pick([shaped(problem, frame, schedule.noise_std) for frame in few])


def _options(
    kind: str, problem: Problem, schedule: ScheduleRequest, passes: int, dealt: Deal
) -> list[tuple[float, Frame]]:
    """Return frames of one way to deal, with a risk that no noise can beat, over all open steps."""
    rounds, batch = dealt
    total = rounds * passes
    if schedule.step_size is not None:
        _check_length("step_size", schedule.step_size, rounds, total)
        frame = Frame(kind, passes, rounds, batch, schedule.step_size)
        return [(_hoped(problem, frame.steps, rounds, total, batch), frame)]
    if kind == "decaying" and total == 1 and schedule.kind == "auto":
        return []  # a single round is constant
    out = []
    for first, power in _step_rules(kind, problem, dealt, total):
        steps = decay(first, total, power)
        out.append((_hoped(problem, steps, rounds, total, batch), Frame(kind, passes, rounds, batch, steps)))
    return out


def _step_rules(kind: str, problem: Problem, dealt: Deal, total: int) -> list[tuple[float, float]]:
    """First steps to try, each with the power of the rounds left by which it falls.

    Where units draw their rounds, a full one is steeper: steps that contract even then come too. And such draws are
    secret whether or not steps contract, so longer ones may be taken: as long as the model problem bears them.
    """
    factors = _STEPS + (_SHORT if total <= 20 else ())
    usual = [factor / problem.smoothness for factor in factors]
    if not problem.sampled:
        return list(product(usual, _POWERS[kind]))
    steepest, longest = steepest_round(problem, *dealt, total), 1 / steepest_direction(problem)
    falling = [(factor * longest, 1.0) for factor in _FALLING] if kind == "decaying" and total > 1 else []
    if kind == "decaying" and problem.order == "poisson":
        return falling
    fuller = [factor / steepest for factor in factors] if steepest > problem.smoothness else []
    longer = [factor * longest for factor in _LONGER if factor * longest > max(usual) * (1 + 1e-9)]
    return [*((first, 0.0) for first in (*usual, *fuller, *longer)), *falling]


def _hoped(problem: Problem, steps: Numbers, rounds: int, total: int, batch: int | tuple[int, ...]) -> float:
    """The risk by the law of least noise, with what secret draws are expected to need above it."""
    if not problem.sampled or isinstance(batch, tuple):
        return law_risk(problem, steps, rounds, total)
    bias, noise = law_parts(problem.dealt, steps, rounds, total)
    largest = max(steps) if isinstance(steps, tuple) else steps
    contracts = largest * steepest_round(problem, rounds, batch, total) <= 2 * (1 + 1e-9)
    rate = problem.rate if problem.rate is not None else 1 / rounds
    return bias + noise * surcharge(problem, rate * total, 1 / rate, contracts=contracts)


def _check_length(name: str, values: Numbers | None, rounds: int, total: int) -> None:
    if isinstance(values, tuple):
        rule = f"have one entry per round: {rounds}, or {total} for all passes"
        require(len(values) in (rounds, total), f"schedule.{name}", rule, f"{len(values)} entries")


def _deals(kind: str, problem: Problem, schedule: ScheduleRequest, passes: int) -> list[Deal]:
    """Return ways to deal the units into the rounds of a pass."""
    units, rounds = problem.units, _requested_rounds(schedule)
    if problem.sampled and (schedule.batch is not None or problem.rate is not None):
        return [drawn_deal(problem.units, problem.order, problem.rate, rounds, schedule.batch)]
    if schedule.batch is not None:
        return [_wished_deal(units, rounds, schedule.batch)]
    if rounds is not None:
        require(rounds <= units, "schedule.rounds", f"be at most the number of units, {units}", rounds)
    if problem.noise == "laplace":
        return [(rounds if rounds is not None else min(units, _MOST_SINGLE), 1)]
    counts = [rounds] if rounds is not None else [c for c in _COUNTS if c * passes <= _MOST_ROUNDS and c <= units]
    if problem.sampled and rounds is None:
        counts = [count for count in counts if count > 1]  # with one round of a pass nothing is drawn
    counts = counts or [1]
    if kind == "growing-batches":
        return [(c, sizes) for c in counts if c >= 2 and (sizes := growing(units, c)) is not None]
    if rounds is not None:
        return [(rounds, units // rounds)]
    dealt = dict.fromkeys(deal(units, c) for c in counts)
    return [(count, batch) for count, batch in dealt if count == 1 or count * passes <= _MOST_ROUNDS]


def _wished_deal(units: int, rounds: int | None, batch: int | tuple[int, ...]) -> Deal:
    if isinstance(batch, tuple):
        require(sum(batch) <= units, "schedule.batch", f"hold at most {units} units in all", sum(batch))
        return len(batch), batch
    require(batch <= units, "schedule.batch", f"be at most the number of units, {units}", batch)
    rounds = rounds if rounds is not None else units // batch
    hint = f"{rounds} rounds of {units} units leave room for {units // rounds} each; more uses are more passes."
    require(rounds * batch <= units, "schedule.batch", "leave every unit in one batch of a pass", batch, hint)
    return rounds, batch


def _requested_rounds(schedule: ScheduleRequest) -> int | None:
    if isinstance(schedule.rounds, int):
        return schedule.rounds
    if isinstance(schedule.batch, tuple):
        return len(schedule.batch)
    lists = [v for v in (schedule.step_size, schedule.noise_std) if isinstance(v, tuple)]
    if not lists or schedule.batch is not None:
        return None
    hint = "So that it is clear which number belongs to which round."
    require(
        schedule.passes == 1, "schedule.rounds", "be given with a list of steps or noise (or passes = 1)", None, hint
    )
    return len(lists[0])


# Whether a schedule can be dismissed before its noise is certified, because another one is certified to do better.
#
# What units that draw their own rounds need takes seconds to work out for one amount of noise, and calibrating asks for
# many. One question is enough to dismiss such a schedule: does it miss the target even with the noise at which it
# would be as good as its rival? With less noise it misses it all the more, so it needs more, and its risk is higher.
# Nothing that is chosen depends on this, only how soon.


Misses = Callable[[Shape, float], bool]  # whether a shape with its noise times a factor surely misses the target
_MARGIN = 1e-3  # of the noise: far more than the bounds waver
_MORE = (2.0, 1.0)  # if it misses the target with more noise, it does with less, and more noise is sooner worked out


def outdone(shape: Shape, rival: Shape, hoped: Shape, misses: Misses) -> bool:
    """Return whether ``shape`` would neither be chosen nor change what else is certified, once it were certified.

    ``rival``: another shape with certified noise; ``hoped``: the same before. True only if the certified risk of
    ``shape`` is so high that the rival would still have been worth certifying after it, and would be taken before it.
    """
    most = max(expected_from(hoped), taken_up_to(shape, rival)) * (1 + 1e-6)
    noise = most - shape.bias - shape.sampling
    if noise <= 0:
        return True  # no noise at all makes it that good
    least = math.sqrt(noise / shape.injected) * (1 + _MARGIN)
    return any(misses(shape, least * more) for more in _MORE)
