"""Audit a trainer that is not ours: a command that reads a file of records and writes a model, or scores.

Canaries are put among its records by secret fair coins, the command trains once, and its scores of the canaries are
held to what is claimed of it. With several trainings the distinguishing game is played about a single canary. Nothing
is assumed of the trainer, except that it gets the coins from nowhere else. Page: docs/audit-others.md (the contract).
"""

import csv
import json
import math
import shlex
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from fedveil.audit.claim import Claim
from fedveil.audit.finding import Finding
from fedveil.audit.game import Game, Seen, runs_needed
from fedveil.audit.one_run import Coins, finding_of_scores
from fedveil.core.errors import BadValue, require, why
from fedveil.core.values import Vector
from fedveil.jobs.attack.pace import Pace
from fedveil.privacy.guarantee import Neighbours

Row = tuple[str, ...]
_ACCUSED = 1e-3  # false alarm of a verdict from one training: a single pair allows anything with chance delta
_BLOCK = 10  # trainings on each data set between two looks


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainer:
    """``command``: with {data} and {out}, and {canaries} if it writes scores; ``target``: the column to predict."""

    command: str
    data: Path
    target: str
    neighbours: Neighbours
    timeout: float = 3600.0

    def __post_init__(self) -> None:
        for name in ("{data}", "{out}"):
            require(name in self.command, "--command", f"name {name}", self.command)
        require(self.timeout > 0, "--timeout", "be positive", self.timeout)


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """A file of records as text: the names of its columns and its lines."""

    header: Row
    rows: tuple[Row, ...]

    def column(self, name: str) -> int:
        """Return the place of a column."""
        require(name in self.header, "--target", f"be one of {', '.join(self.header)}", name)
        return self.header.index(name)

    def write(self, path: Path) -> None:
        """Write the file."""
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([self.header, *self.rows])


def read_rows(path: Path) -> Rows:
    """Read a CSV file with a header."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            lines = [tuple(line) for line in csv.reader(file) if line]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadValue(f"--data must be a readable CSV file: {why(error)}.") from error
    require(len(lines) >= 3, "--data", "have a header and at least two records", len(lines))
    same = all(len(line) == len(lines[0]) for line in lines)
    require(same, "--data", "have as many entries in each line as in its header", len(lines[0]))
    return Rows(lines[0], tuple(lines[1:]))


def canaries_of(rows: Rows, target: str, count: int, generator: np.random.Generator) -> Rows:
    """Return records at the corners of what the columns hold: the least or the largest number, or any of the words.

    Corners are as long as records may be and nearly orthogonal if there are many columns; targets are drawn at random,
    so that nothing learned of real records tells them.
    """
    columns = []
    for place, name in enumerate(rows.header):
        values = [row[place] for row in rows.rows]
        numbers = _numbers(values)
        words = sorted(set(values))
        if name != target and numbers is not None and len(words) > 2:
            words = [repr(float(numbers.min())), repr(float(numbers.max()))]
        columns.append([words[k] for k in generator.integers(0, len(words), count)])
    return Rows(rows.header, tuple(zip(*columns, strict=True)))


def _numbers(values: Sequence[str]) -> Vector | None:
    try:
        found = np.array([float(value) for value in values])
    except ValueError:
        return None
    return found if bool(np.isfinite(found).all()) else None


def opposites(rows: Rows, canaries: Rows, target: str) -> Rows:
    """Return the canaries with another target each."""
    place = rows.column(target)
    words = sorted({row[place] for row in rows.rows})
    require(len(words) >= 2, "--target", "have at least two values", words)
    turned = (words[(words.index(row[place]) + 1) % len(words)] for row in canaries.rows)
    changed = ((*row[:place], word, *row[place + 1 :]) for row, word in zip(canaries.rows, turned, strict=True))
    return Rows(rows.header, tuple(changed))


def trained_on(rows: Rows, canaries: Rows, coins: Coins, trainer: Trainer) -> Rows:
    """Return the records with the canaries that the coins put in; where one is replaced, else its opposite."""
    inside = [row for row, coin in zip(canaries.rows, coins, strict=True) if coin]
    if trainer.neighbours == "replace-one":
        others = opposites(rows, canaries, trainer.target)
        inside = [row if coin else other for row, other, coin in zip(canaries.rows, others.rows, coins, strict=True)]
    return Rows(rows.header, (*rows.rows, *inside))


def scores_of(trainer: Trainer, data: Rows, canaries: Rows, folder: Path) -> Vector:
    """Run the command once and return its score of every canary; larger means that it was more likely there."""
    files = {"data": folder / "data.csv", "canaries": folder / "canaries.csv", "out": folder / "out"}
    data.write(files["data"])
    canaries.write(files["canaries"])
    files["out"].unlink(missing_ok=True)
    words = shlex.split(trainer.command)
    for name, path in files.items():
        words = [word.replace("{" + name + "}", str(path)) for word in words]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=trainer.timeout, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BadValue(f"--command must run: {why(error)}.") from error
    said = (done.stderr or done.stdout).strip().splitlines()
    require(done.returncode == 0, "--command", "exit with 0", done.returncode, said[-1] if said else "")
    written = _read_out(files["out"])
    if "{canaries}" in trainer.command:
        scores = np.asarray(written, dtype=np.float64).ravel()
    else:
        scores = _margins(written, canaries, trainer.target)
    require(scores.size == len(canaries.rows), "--command", f"score {len(canaries.rows)} canaries", scores.size)
    require(bool(np.isfinite(scores).all()), "--command", "write finite numbers", "one that is not")
    return scores


def _read_out(path: Path) -> Any:
    """Return what the command wrote: JSON, or numbers separated by spaces, commas or lines."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadValue(f"--command must write {{out}} as text: {why(error)}.") from error
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        return [float(word) for word in text.replace(",", " ").split()]
    except ValueError as error:
        raise BadValue(f"--command must write JSON or numbers to {{out}}: {error}.") from error


def _margins(model: Any, canaries: Rows, target: str) -> Vector:
    """Return how far a linear model of two classes leans to each canary's target."""
    fine = isinstance(model, dict) and "coefficients" in model
    hint = "Or name {canaries} in the command, and write a score for each line of it."
    require(fine, "--command", 'write {"coefficients": [...], "intercept": number}', type(model).__name__, hint)
    place = canaries.column(target)
    features = np.array([[float(v) for k, v in enumerate(row) if k != place] for row in canaries.rows])
    weights = np.asarray(model["coefficients"], dtype=np.float64).ravel()
    require(weights.size == features.shape[1], "coefficients", f"be {features.shape[1]}", weights.size)
    words = sorted({row[place] for row in canaries.rows})
    signs = np.array([1.0 if row[place] == words[-1] else -1.0 for row in canaries.rows])
    return np.asarray(signs * (features @ weights + float(model.get("intercept", 0.0))), dtype=np.float64)


def audit_command(
    trainer: Trainer,
    claim: Claim,
    *,
    delta: float,
    canaries: int = 200,
    trainings: int = 1,
    alarm: float,
    generator: np.random.Generator,
    processes: int = 1,
    watch: Callable[[str], None] = lambda _: None,
) -> Finding:
    """Hold a trainer to a claim, by one training with many canaries or by many trainings with one.

    ``processes``: how many of these trainings run at once.
    """
    require(1 <= processes <= 256, "--processes", "lie between 1 and 256", processes)
    require(20 <= canaries <= 10_000, "--canaries", "lie between 20 and 10000", canaries)
    rows = read_rows(trainer.data)
    rows.column(trainer.target)
    with TemporaryDirectory(prefix="fedveil-audit-") as name:
        folder = Path(name)
        if trainings > 1:
            return _played(trainer, claim, rows, delta, trainings, alarm, generator, folder, processes, watch)
        made = canaries_of(rows, trainer.target, canaries, generator)
        coins = generator.random(canaries) < 0.5
        watch(f"training once with {int(coins.sum())} of {canaries} canaries among {len(rows.rows)} records")
        scores = scores_of(trainer, trained_on(rows, made, coins, trainer), made, folder)
    told = {"command": trainer.command}
    return finding_of_scores(scores, coins, claim, delta=delta, alarm=alarm, broken=_ACCUSED, details=told)


def _played(
    trainer: Trainer,
    claim: Claim,
    rows: Rows,
    delta: float,
    trainings: int,
    alarm: float,
    generator: np.random.Generator,
    folder: Path,
    processes: int,
    watch: Callable[[str], None],
) -> Finding:
    """Play the distinguishing game about one canary, with at most so many trainings on each of two data sets."""
    needed = runs_needed(claim, alarm)
    hint = f"With fewer not even a perfect attack could contradict the claim at false alarm {alarm:g}."
    require(trainings >= needed, "--trainings", f"be at least {needed:.0f}", trainings, hint)
    victim = canaries_of(rows, trainer.target, 1, generator)
    data = [trained_on(rows, victim, np.array([present]), trainer) for present in (True, False)]
    game = Game(claim=claim, adversary="final-model", delta=delta, alarm=alarm, runs=trainings)
    pace, size, made = Pace(2 * trainings), game.choosing, 0

    def score(side: int) -> float:
        with TemporaryDirectory(dir=folder) as own:
            return float(scores_of(trainer, data[side], victim, Path(own))[0])

    with ThreadPoolExecutor(processes) as pool:  # each training is a process of its own
        while not game.decided:
            found: list[float] = []
            for one in pool.map(score, np.repeat([0, 1], size).tolist()):
                found.append(one)
                made += 1
                watch(f"{made} of at most {2 * trainings} trainings{pace.left(made)}")
            sides = np.array(found).reshape(2, size, 1)
            game.add(*(Seen(side[:, :0], side) for side in sides))
            size = max(1, min(_BLOCK, trainings - game.played))
    return game.finding()


def parse_claim(text: str) -> tuple[Claim, float]:
    """Read ``epsilon=3,delta=1e-5``; return the claim and its delta.

    >>> parse_claim("epsilon=3,delta=1e-5")[0].points
    ((3.0, 1e-05),)
    """
    try:
        values = {name.strip(): float(value) for name, value in (part.split("=") for part in text.split(","))}
    except ValueError as error:
        raise BadValue(f"--claim must be like epsilon=3,delta=1e-5, got {text!r}.") from error
    fine = set(values) == {"epsilon", "delta"} and math.isfinite(values["epsilon"]) and values["epsilon"] >= 0
    require(fine and 0 < values["delta"] < 1, "--claim", "be like epsilon=3,delta=1e-5", text)
    return Claim(((values["epsilon"], values["delta"]),)), values["delta"]
