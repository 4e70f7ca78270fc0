"""How tight the certificates are: the best certified epsilon over the exact one, on 200 random one-dimensional runs.

``python -m benchmarks oracle`` measures and holds the bars; ``python -m benchmarks.oracle`` also rewrites the table
between the marks in docs/audit-oracle.md.
"""

import math
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks import Row
from fedveil import LastIterate
from fedveil.audit.oracle import check, worst_case

COUNT, SEED, DELTA = 200, 20_260, 1e-5
PAGE = Path("docs") / "audit-oracle.md"
MARKS = ("<!-- table: begin -->", "<!-- table: end -->")
NOTHING = 1e-3  # exact epsilons below this are told apart: a ratio to almost nothing says little


@dataclass(frozen=True, slots=True)
class Case:
    number: int
    run: LastIterate
    kind: str
    certified: float
    by: str
    any_dimension: float
    one_dimension: float
    verdict: str
    design: str

    @property
    def ratio(self) -> float:
        return self.certified / self.any_dimension if self.any_dimension > 0 else math.inf

    @property
    def line_ratio(self) -> float:
        return self.certified / self.one_dimension if self.one_dimension > 0 else math.inf


def random_run(rng: np.random.Generator) -> LastIterate:
    """Spread over rounds, passes, width, smoothness, strong convexity, place, order, stopping, noise and batch."""

    def log_uniform(low: float, high: float) -> float:
        return float(math.exp(rng.uniform(math.log(low), math.log(high))))

    rounds, passes = int(rng.integers(1, 9)), int(rng.choice([1, 1, 1, 2, 3]))
    order = "secret" if rng.random() < 0.2 else "public"
    place = int(rng.integers(1, rounds + 1)) if order == "public" and rng.random() < 0.85 else None
    laplace = rng.random() < 0.1
    batch = 1 if laplace or rng.random() < 0.6 else int(rng.integers(2, 9))
    smoothness = log_uniform(0.2, 2.0)
    lam = float(rng.uniform(0.05, 0.8)) * smoothness if rng.random() < 0.35 else 0.0
    top = 2 / (smoothness + lam)
    steps = (
        tuple((rng.uniform(0.1, 1.0, rounds) * top).tolist())
        if rng.random() < 0.4
        else float(rng.uniform(0.1, 1.0) * top)
    )
    noise = log_uniform(0.6, 5.0) / math.sqrt(batch)  # the gap is 2 / (noise sqrt(batch)) deviations
    width = log_uniform(0.5, 12.0) * float(np.mean(steps)) * noise / math.sqrt(batch)
    kind = rng.random()
    return LastIterate(
        rounds=rounds,
        passes=passes,
        order=order,  # type: ignore[arg-type]
        place=place,
        batch=batch,
        stopping="random" if rng.random() < 0.12 else "end",
        step_size=steps,
        lipschitz=1.0,
        smoothness=None if kind < 0.06 else smoothness,
        strong_convexity=0.0 if kind < 0.12 else lam,
        convex=not 0.06 <= kind < 0.12,
        diameter=None if rng.random() < 0.1 else width,
        noise="laplace" if laplace else "gaussian",
        noise_std=noise,
        neighbours="zero-out" if rng.random() < 0.3 else "replace-one",
    )


def kind_of(run: LastIterate) -> str:
    """The first of the things that make a run harder to bound."""
    kinds = (
        (run.noise == "laplace", "Laplace noise"),
        (run.stopping == "random", "random stopping"),
        (run.order == "secret", "secret order"),
        (run.smoothness is None or not run.convex, "not smooth, or not convex"),
        (run.passes > 1, "several passes"),
        (run.rounds == run.place or run.place is None, "the last round's record"),
        (run.diameter is None, "one pass, no projection"),
        (True, "one pass, rounds follow"),
    )
    return next(name for holds, name in kinds if holds)


def measure(number: int, run: LastIterate) -> Case:
    found = check(run, DELTA)
    line = worst_case(run, DELTA, dimension="one") if run.diameter is not None else found.worst
    return Case(
        number=number,
        run=run,
        kind=kind_of(run),
        certified=found.epsilon,
        by=found.certified_by or "nothing",
        any_dimension=found.worst.epsilon_lower,
        one_dimension=line.epsilon_lower,
        verdict=found.verdict,
        design=str(found.worst.design),
    )


def cases(count: int = COUNT) -> list[Case]:
    rng = np.random.default_rng(SEED)
    runs = [random_run(rng) for _ in range(count)]
    return [measure(number, run) for number, run in enumerate(runs, 1)]


def _numbers(ratios: list[float]) -> str:
    if not ratios:
        return "| 0 | | | | |"
    q = np.quantile(ratios, [0.25, 0.5, 0.9])
    return f"| {len(ratios)} | {q[0]:.2f} | {q[1]:.2f} | {q[2]:.2f} | {max(ratios):.3g} |"


def table(found: list[Case]) -> str:
    """The page's measured part."""
    told = [case for case in found if case.any_dimension >= NOTHING]
    lines = ["| certified over exact | runs | quarter | median | 90% | worst |", "|---|---|---|---|---|---|"]
    lines.append("| **any dimension** " + _numbers([case.ratio for case in told]))
    kinds = dict.fromkeys(case.kind for case in sorted(told, key=lambda case: case.kind))
    lines += [f"| {kind} " + _numbers([case.ratio for case in told if case.kind == kind]) for kind in kinds]
    line = [case for case in found if case.one_dimension >= NOTHING]
    lines.append("| **one dimension only** " + _numbers([case.line_ratio for case in line]))
    lines += ["", f"Left out above, because the exact epsilon is below {NOTHING:g}: {len(found) - len(told)} runs."]
    tiny = [case for case in found if case.any_dimension < NOTHING]
    if tiny:
        worst = max(tiny, key=lambda case: case.certified)
        lines[-1] += f" Their certified epsilon is at most {worst.certified:.3g} (run {worst.number}, by {worst.by})."
    lines += ["", "The ten loosest:", "", "| run | ratio | certified | by | exact | one dimension | kind | constants |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    for case in sorted(told, key=lambda case: -case.ratio)[:10]:
        lines.append(
            f"| {case.number} | {case.ratio:.3g} | {case.certified:.4g} | {case.by} | {case.any_dimension:.4g} "
            f"| {case.one_dimension:.4g} | {case.kind} | {constants(case.run)} |"
        )
    return "\n".join(lines)


def constants(run: LastIterate) -> str:
    step = float(np.mean(run.step_size))
    batch = run.batch if isinstance(run.batch, int) else run.batch[0]
    noise = step * float(np.mean(run.noise_std)) / math.sqrt(batch)
    width = "none" if run.diameter is None else f"{run.diameter / noise:.2g}"
    gap = (2 if run.neighbours == "replace-one" else 1) * step / batch / noise
    bend = "none" if run.smoothness is None else f"{step * run.smoothness:.2g}"
    return (
        f"{run.passes} x {run.rounds} rounds, place {run.place or '-'}, width {width}, gap {gap:.2g}, "
        f"eta beta {bend}, eta lambda {step * run.strong_convexity:.2g}"
    )


def run() -> list[Row]:
    start = time.perf_counter()
    found = cases()
    spent = time.perf_counter() - start
    told = [case.ratio for case in found if case.any_dimension >= NOTHING]
    broken = [case.number for case in found if case.verdict != "consistent"]
    return [
        Row("oracle: certificates below the truth", 0, len(broken), f"of {len(found)}; {broken[:5]}"),
        Row("oracle: certified over exact, median", 1.6, float(np.median(told)), f"worst {max(told):.3g}"),
        Row("oracle: seconds", 900, spent, f"{len(found)} runs, one and any dimension"),
    ]


def write() -> None:
    found = cases()
    text = PAGE.read_text(encoding="utf-8")
    before, after = text.split(MARKS[0])[0], text.split(MARKS[1])[1]
    PAGE.write_text(f"{before}{MARKS[0]}\n\n{table(found)}\n\n{MARKS[1]}{after}", encoding="utf-8")
    print(table(found))
    print("broken:", [case for case in found if case.verdict != "consistent"])


if __name__ == "__main__":
    write()
