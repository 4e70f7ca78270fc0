"""The candidates that a problem and the user's request leave open, and the best of each kind and number of passes."""

from collections.abc import Sequence
from itertools import product

from fedveil.algorithms.hidden.schedule.drawn import drawn_deal, steepest_round
from fedveil.algorithms.hidden.schedule.families import Frame, Shape, deal, decay, growing, law_risk, shaped
from fedveil.algorithms.hidden.schedule.problem import Problem
from fedveil.algorithms.schedule_request import ScheduleRequest
from fedveil.checks import require
from fedveil.mechanism import Numbers

KINDS = ("constant", "decaying", "growing-batches")
_COUNTS = (1, 2, 3, 5, 8, 12, 20, 30, 50, 80, 120, 200, 300, 500, 800, 1200, 2000)
_MOST_PASSES = 100  # work that a design asks for unless told otherwise
_MOST_ROUNDS = 2000
_MOST_SINGLE = 5000  # rounds of one unit each, with Laplace noise
_STEPS = (2.0, 1.0, 0.5, 0.25)  # over smoothness; at 2 a step is just not expansive
_SHORT = (0.12, 0.06, 0.03)  # also tried for runs of few rounds
_POWERS = {"constant": (0.0,), "decaying": (0.0, 1.0, 2.0), "growing-batches": (0.0,)}
_CLOSE = 1.03  # risks this close are alike: then the cheapest
_PASS = 10  # what a pass over the data costs, in rounds of communication
_TRIED = 2

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
        return ("constant",)
    return KINDS if schedule.batch is None else KINDS[:2]


def search(problem: Problem, schedule: ScheduleRequest) -> dict[str, list[Shape]]:
    """Return for each kind its best shape for each number of passes, fewest passes first."""
    counts = [count for count in _COUNTS if count <= _MOST_PASSES] if problem.noise == "gaussian" else [1]
    counts = [schedule.passes] if schedule.passes is not None else counts
    found: dict[str, list[Shape]] = {}
    for kind in kinds_of(problem, schedule):
        shapes = [best for passes in counts if (best := _best(kind, problem, schedule, passes)) is not None]
        if problem.stopping == "random":  # other bounds for one pass than for several: the best of both is certified
            found |= {f"{kind}, {n}": some for n in ("one", "several") if (some := _passes(shapes, n))}
        elif shapes:
            found[kind] = shapes
    hint = "Growing batches need at least two rounds and a few units in each."
    require(found, "[schedule]", f"leave a schedule for {problem.units} units", schedule, hint)
    return found


def _passes(shapes: Sequence[Shape], number: str) -> list[Shape]:
    return [shape for shape in shapes if (shape.frame.passes == 1) == (number == "one")]


def pick(shapes: Sequence[Shape]) -> Shape:
    """Return the cheapest of those whose expected risk is as good as the best."""
    least = min(shape.risk for shape in shapes)
    close = [shape for shape in shapes if shape.risk <= _CLOSE * least]
    return min(close, key=lambda shape: _PASS * shape.frame.passes + shape.frame.total)


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
        return [(law_risk(problem, frame.steps, rounds, total), frame)]
    if kind == "decaying" and total == 1 and schedule.kind == "auto":
        return []  # a single round is constant
    factors = _STEPS + (_SHORT if total <= 20 else ())
    out, steepest = [], steepest_round(problem, rounds, batch, total)
    for factor, power in product(factors, _POWERS[kind]):
        steps = decay(factor / steepest, total, power)
        out.append((law_risk(problem, steps, rounds, total), Frame(kind, passes, rounds, batch, steps)))
    return out


def _check_length(name: str, values: Numbers | None, rounds: int, total: int) -> None:
    if isinstance(values, tuple):
        rule = f"have one entry per round: {rounds}, or {total} for all passes"
        require(len(values) in (rounds, total), f"schedule.{name}", rule, f"{len(values)} entries")


def _deals(kind: str, problem: Problem, schedule: ScheduleRequest, passes: int) -> list[Deal]:
    """Return ways to deal the units into the rounds of a pass."""
    units, rounds = problem.units, _requested_rounds(schedule)
    if problem.sampled and (schedule.batch is not None or problem.rate is not None):
        return [drawn_deal(problem, rounds, schedule.batch)]
    if schedule.batch is not None:
        return [_wished_deal(units, rounds, schedule.batch)]
    if rounds is not None:
        require(rounds <= units, "schedule.rounds", f"be at most the number of units, {units}", rounds)
    if problem.noise == "laplace":
        return [(rounds if rounds is not None else min(units, _MOST_SINGLE), 1)]
    counts = [rounds] if rounds is not None else [c for c in _COUNTS if c * passes <= _MOST_ROUNDS and c <= units]
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
