"""From a problem and the user's request to the schedule that will run: searched by expected risk, noise certified."""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol

from fedveil.accounting.calibrate import calibrate as calibrate_final_model
from fedveil.accounting.calibrate import scaled
from fedveil.core.errors import BadValue, CannotCertify, require
from fedveil.privacy.mechanism import LastIterate, Mechanism, Numbers, Repeat, SampledGaussian, sensitivity
from fedveil.stages.train.hidden.schedule.families import (
    Frame,
    Shape,
    injected,
    noise_on_average,
    planned,
    rate_of,
    shaped,
    stopping_words,
)
from fedveil.stages.train.hidden.schedule.problem import Order, Problem
from fedveil.stages.train.hidden.schedule.search import hopeful, outdone, pick, search
from fedveil.stages.train.request import ScheduleRequest

_FORGOTTEN = 1e-3  # a converged run has forgotten its start, and its guarantee has stopped growing, up to this
_MOST_PASSES = 10_000
SOON = 50  # rounds of units that draw their own, up to which their noise is soon certified
_MOST_TRIES = 6  # schedules of a known order whose noise is certified
_WORTH_TRYING = 0.97  # of the best certified risk: what is expected to save less is not worth the work


class Calibrator(Protocol):
    """The least factor on a mechanism's noise that meets a target, and the mechanism with that noise."""

    def __call__(self, mechanism: Mechanism, /, *, epsilon: float, delta: float) -> tuple[float, Mechanism]:
        """Return a factor and a mechanism that certainly meet the target."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One schedule that was looked at.

    ``step_size`` is the first round's; ``noise_on_average`` the noise on the averaged gradient of a round, root mean
    square (rounds count by their squared step); ``arriving`` the part of the expected risk that the noise brings;
    ``certified`` whether the noise was calibrated, or is the amount expected.
    """

    kind: str
    order: str
    passes: int
    rounds: int
    batch: int | tuple[int, ...]
    step_size: float
    noise_on_average: float
    arriving: float
    risk: float
    certified: bool

    def shown(self) -> dict[str, str | float]:
        """Return the row as a table for people shows it; a star marks what was calibrated."""
        batch = str(self.batch) if isinstance(self.batch, int) else f"{min(self.batch)} to {max(self.batch)}"
        return {
            "kind": self.kind + (" *" if self.certified else ""),
            "order": self.order,
            "passes x rounds": f"{self.passes} x {self.rounds}",
            "batch": batch,
            "step": self.step_size,
            "noise": self.noise_on_average,
            "risk": self.risk,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Designed:
    """The schedule that will run, why it was chosen, what else was looked at, and what DP-SGD would need.

    ``poisson`` has the same steps, rounds and mean batch, every model seen; None if it cannot be worked out.
    """

    mechanism: LastIterate
    kind: str
    reason: str
    considered: tuple[Row, ...]
    poisson: Row | None

    @property
    def chosen(self) -> Row:
        """The row of the schedule that will run."""
        return self.considered[0]


def design(
    problem: Problem,
    schedule: ScheduleRequest | None = None,
    *,
    calibrate: Calibrator = calibrate_final_model,
    orders: Sequence[Order] = (),
    misses: Callable[[LastIterate], bool] | None = None,
) -> Designed:
    """Return the schedule of least expected risk among those the wishes allow, with the least noise that is certified.

    ``orders``: those that may be taken instead of the problem's own, if they promise as little risk for less work.
    ``misses``: whether a run misses the target, for fewer questions than calibrating asks; it changes no choice.

    >>> problem = Problem(units=1000, dimension=10, lipschitz=1.0, smoothness=0.25, epsilon=1.0, delta=1e-4)
    >>> designed = design(problem, ScheduleRequest(kind="constant", rounds=1, passes=20, step_size=4.0))
    >>> designed.kind, designed.mechanism.total, round(designed.mechanism.noise_std, 3)
    ('constant', 20, 0.901)
    """
    schedule = schedule if schedule is not None else ScheduleRequest()
    converged = schedule.rounds == "converged"
    result = [list(shapes) for shapes in _found(problem, schedule, tuple(orders))]
    finals = _finals(problem, schedule, result, calibrate, weigh=bool(orders), misses=misses)
    best, mechanism = finals[0]
    rows = [_row(shape, certified=True) for shape, _ in finals]
    taken = {(row.order, row.kind, row.passes, row.rounds) for row in rows}
    others = [_row(shape, certified=False) for shapes in result for shape in shapes]
    rows += [row for row in others if (row.order, row.kind, row.passes, row.rounds) not in taken]
    poisson = _poisson(problem, best.frame)
    reason = _reason(problem, schedule, best, poisson)
    return Designed(
        mechanism=mechanism,
        kind=best.frame.kind,
        reason=f"{reason} {_why_this_order(best, result)}" if orders and not converged else reason,
        considered=tuple(rows),
        poisson=poisson,
    )


def least_risk(problem: Problem, schedule: ScheduleRequest, orders: Sequence[Order]) -> float:
    """Return a risk that the design does not undercut, however little noise would do: that without any noise."""
    shapes = [shape for some in _found(problem, schedule, tuple(orders)) for shape in some]
    return min(shape.bias + shape.sampling for shape in shapes)


@lru_cache(maxsize=4)
def _found(problem: Problem, schedule: ScheduleRequest, orders: tuple[Order, ...]) -> tuple[tuple[Shape, ...], ...]:
    """Return the shapes that were searched, for each order and kind, before any noise is certified."""
    converged = schedule.rounds == "converged"
    result = [[_converged(problem, schedule)]] if converged else list(search(problem, schedule).values())
    for order in () if converged else orders:
        with suppress(BadValue):  # numbers that are stated may not fit an order that nobody asked for: others may
            result += search(replace(problem, order=order), schedule).values()
    hint = "Growing batches need at least two rounds and a few units in each."
    require(result, "[schedule]", f"leave a schedule for {problem.units} units", schedule, hint)
    return tuple(tuple(shapes) for shapes in result)


def _finals(
    problem: Problem,
    schedule: ScheduleRequest,
    found: list[list[Shape]],
    calibrate: Calibrator,
    *,
    weigh: bool,
    misses: Callable[[LastIterate], bool] | None = None,
) -> list[tuple[Shape, LastIterate]]:
    """The schedules whose noise was certified, the chosen one first.

    ``weigh``: several orders are open. What full batches and secret draws need is known well before it is certified,
    so the best of these comes first; a partition is certified too if it is hoped to do better.
    """
    candidates = [pick(shapes) for shapes in found]
    settle = _Settling(problem, schedule, calibrate)
    if weigh:
        known = [s for shapes in found for s in shapes if s.order in ("poisson", "independent") or s.frame.rounds == 1]
        candidates.sort(key=lambda shape: shape.risk)
        candidates = [*([pick(known)] if known else []), *candidates]
        if misses is not None and schedule.noise_std is None:
            candidates = _without_outdone(candidates, settle, misses)
    else:  # Noise that is spread first: what the others are expected to need is more often too little.
        candidates.sort(key=lambda shape: (shape.frame.kind != "decaying", shape.risk))
    finals: list[tuple[Shape, LastIterate]] = []
    for shape in candidates:
        if finals and not hopeful(shape, finals[0][0]):
            continue
        finals.append(settle(shape))
        finals.sort(key=lambda pair: pair[0].risk)
    if not weigh:
        _try_again(found, finals, settle)
    if weigh:
        chosen = pick([shape for shape, _ in finals])
        finals.sort(key=lambda pair: pair[0] is not chosen)
    return finals


def _try_again(found: list[list[Shape]], finals: list[tuple[Shape, LastIterate]], settle: "_Settling") -> None:
    """Certify schedules that are expected to do better than the best certified one, which needed more noise than hoped.

    Those with other numbers of passes come first: neighbours of a disappointment disappoint alike.
    """
    tried = {shape.frame.passes for shape, _ in finals}
    others = [s for shapes in found for s in shapes if s.frame.passes not in tried]
    for shape in sorted(others, key=lambda shape: abs(math.log(shape.frame.passes / finals[0][0].frame.passes)))[::-1]:
        if len(finals) >= _MOST_TRIES:
            return
        if shape.risk < finals[0][0].risk * _WORTH_TRYING:
            finals.append(settle(shape))
            finals.sort(key=lambda pair: pair[0].risk)


class _Settling:
    """Certifies the noise of shapes, of each once."""

    def __init__(self, problem: Problem, schedule: ScheduleRequest, calibrate: Calibrator) -> None:
        self._problem, self._schedule, self._calibrate = problem, schedule, calibrate
        self._known: list[tuple[Shape, tuple[Shape, LastIterate]]] = []

    def own(self, shape: Shape) -> Problem:
        """Return the problem in the order of a shape."""
        return replace(self._problem, order=shape.order)  # type: ignore[arg-type]

    def __call__(self, shape: Shape) -> tuple[Shape, LastIterate]:
        for known, result in self._known:
            if known is shape:
                return result
        result = _settled(self.own(shape), self._schedule, shape, self._calibrate)
        self._known.append((shape, result))
        return result


def _without_outdone(candidates: list[Shape], settle: _Settling, misses: Callable[[LastIterate], bool]) -> list[Shape]:
    """Return the candidates without the first, if its noise takes long to certify and the next one outdoes it."""
    if len(candidates) < 2:
        return candidates
    first, hoped = candidates[:2]
    drawn = ("poisson", "independent")
    if first.order not in drawn or hoped.order in drawn or first.frame.total <= SOON:
        return candidates
    if not hopeful(hoped, first):  # it would hardly be picked, and to certify it takes as long
        return candidates
    try:
        rival, _ = settle(hoped)
    except CannotCertify:
        return candidates

    def missed(shape: Shape, factor: float) -> bool:
        run = scaled(mechanism_of(settle.own(shape), shape.frame, shape.noise_std), factor)
        return isinstance(run, LastIterate) and misses(run)

    if not outdone(first, rival, hoped, missed):
        return candidates
    return [shape for shape in candidates[1:] if shape != first]


def mechanism_of(problem: Problem, frame: Frame, noise_std: Numbers) -> LastIterate:
    """Return the hidden run of this frame."""
    run = LastIterate(
        rounds=frame.rounds,
        passes=frame.passes,
        batch=frame.batch,
        records=problem.units,
        order=problem.order,
        stopping=problem.stopping,
        step_size=frame.steps,
        lipschitz=problem.lipschitz,
        smoothness=problem.smoothness,
        strong_convexity=problem.strong_convexity,
        diameter=problem.diameter,
        noise=problem.noise,
        noise_std=noise_std,
        neighbours=problem.neighbours,
        rate=rate_of(problem, frame.batch) if isinstance(frame.batch, int) else None,
    )
    return planned(problem, run)


def _settled(
    problem: Problem, schedule: ScheduleRequest, shape: Shape, calibrate: Calibrator
) -> tuple[Shape, LastIterate]:
    """Return the shape with certified noise; noise that the user gave is kept, and must be enough."""
    run = mechanism_of(problem, shape.frame, shape.noise_std)
    factor, calibrated = calibrate(run, epsilon=problem.epsilon, delta=problem.delta)
    if schedule.noise_std is not None:
        hint = f"It takes {factor:.4g} times this noise; leave noise_std out to have it calibrated."
        rule = f"meet epsilon {problem.epsilon:g} at delta {problem.delta:g}"
        require(factor <= 1, "schedule.noise_std", rule, schedule.noise_std, hint)
        return shape, run
    if not isinstance(calibrated, LastIterate):
        raise CannotCertify("the calibrator returned something else than the hidden run it was given")
    noise = calibrated.noise_std
    return replace(shape, noise_std=noise, injected=injected(problem, shape.frame, noise)), calibrated


def _converged(problem: Problem, schedule: ScheduleRequest) -> Shape:
    """Return full passes until the start is forgotten, when further rounds change neither model nor guarantee."""
    step = schedule.step_size if schedule.step_size is not None else 1 / problem.smoothness
    if isinstance(step, tuple):
        raise BadValue('schedule.step_size must be one number with rounds = "converged", got a list.')
    shrink = max(abs(1 - step * problem.strong_convexity), abs(1 - step * problem.smoothness))
    if problem.strong_convexity > 0:
        require(shrink < 1, "schedule.step_size", f"be below 2/smoothness, {2 / problem.smoothness:.4g}", step)
        passes = math.ceil(math.log(1 / _FORGOTTEN) / -math.log(shrink))
    else:
        hint = 'Without strong convexity nothing is forgotten: add an l2 term, or give "passes".'
        require(problem.diameter is not None, "schedule.rounds", "be a number here", "converged", hint)
        gap = sensitivity(problem.neighbours) * problem.lipschitz * step / problem.units
        passes = math.ceil(4 * (problem.diameter or 0.0) / gap)  # from there on it is cheaper to forget
    hint = "Raise the l2 term or the step size, or give the number of passes."
    require(
        passes <= _MOST_PASSES, 'schedule.rounds = "converged"', f"take at most {_MOST_PASSES} passes", passes, hint
    )
    return shaped(problem, Frame("constant", passes, 1, problem.units, step))


def _row(shape: Shape, *, certified: bool) -> Row:
    frame = shape.frame
    return Row(
        kind=frame.kind,
        order=shape.order if frame.rounds > 1 else "full batches",
        passes=frame.passes,
        rounds=frame.rounds,
        batch=frame.batch,
        step_size=float(frame.step_sizes[0]),
        noise_on_average=noise_on_average(frame, shape.noise_std),
        arriving=shape.injected,
        risk=shape.risk,
        certified=certified,
    )


def _poisson(problem: Problem, frame: Frame) -> Row | None:
    """Return DP-SGD with Poisson batches of the same mean size, as many rounds, every model seen, the same target."""
    if problem.noise != "gaussian":
        return None
    mean = float(frame.batches.mean())
    once = SampledGaussian(
        sampling="poisson",
        rate=min(1.0, mean / problem.units),
        noise_multiplier=1.0,
        neighbours=problem.neighbours,
    )
    try:
        factor, _ = calibrate_final_model(
            Repeat(of=once, times=frame.total), epsilon=problem.epsilon, delta=problem.delta, tolerance=1e-3
        )
    except CannotCertify:
        return None
    on_average = factor * problem.lipschitz / mean
    same = Frame("poisson", frame.passes, frame.rounds, frame.batch, frame.steps)
    noise = tuple(float(on_average * math.sqrt(m)) for m in frame.batches)
    return _row(shaped(problem, same, noise), certified=True)


def _reason(problem: Problem, schedule: ScheduleRequest, best: Shape, poisson: Row | None) -> str:
    frame = best.frame
    passes = f"{frame.passes} {'pass' if frame.passes == 1 else 'passes'}"
    how = "as the study states"
    if schedule.rounds == "converged":
        how = f"until the start is forgotten to one part in {1 / _FORGOTTEN:g}"
    elif schedule.kind == "auto":
        how = "since twice the passes or rounds would lower the expected risk by less than 0.3%"
    rest = "" if best.sampling < 0.01 * best.risk else f", {best.sampling:.2g} from dealing records to rounds"
    text = (
        f"Schedule: {frame.kind}, {passes} of {frame.rounds} rounds, {how}. Expected excess risk {best.risk:.3g}: "
        f"{best.bias:.2g} from stopping here, {best.injected:.2g} from noise{rest}."
    )
    if poisson is not None:
        ratio = math.sqrt(best.injected / max(poisson.arriving, 1e-300))
        text += f" The model carries {ratio:.2f} times the noise of DP-SGD with as many Poisson batches."
    return text + stopping_words(problem, frame.passes)


_NAMES = {
    "secret": "a secret partition",
    "public": "a partition in a known order",
    "independent": "random allocation",
    "poisson": "Poisson sampling",
}


def _why_this_order(best: Shape, found: list[list[Shape]]) -> str:
    """Return one sentence that says what the other orders would take."""
    by_order: dict[str, list[Shape]] = {}
    for shape in (shape for shapes in found for shape in shapes):
        by_order.setdefault(_order_name(shape), []).append(shape)
    chosen = _order_name(best)
    others = [f"{name}: {_costs(pick(shapes))}" for name, shapes in by_order.items() if name != chosen]
    return f"Order: {chosen}, the lowest expected risk for the work: {_costs(best)} ({'; '.join(others)})."


def _order_name(shape: Shape) -> str:
    return "full batches" if shape.frame.rounds == 1 else _NAMES[shape.order]


def _costs(shape: Shape) -> str:
    passes = shape.frame.passes
    return f"risk {shape.risk:.3g} in {passes} {'pass' if passes == 1 else 'passes'}"
