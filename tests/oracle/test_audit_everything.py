"""Answers, forgotten units and one-holder runs under attack: right ones pass, planted errors are caught at 1e-6.

Seeds are fixed; each verdict "broken" against right code has a chance of at most 1e-6.
"""

import csv
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from fedveil import plan_forgetting, run_study
from fedveil.audit.claim import Claim, claim_of_alone
from fedveil.certificate.certify import read_records
from fedveil.core.values import Indices, Vector
from fedveil.engine.measured import own_program
from fedveil.jobs.ask import open_questions
from fedveil.jobs.attack.forgotten import forgotten_game
from fedveil.jobs.attack.game import game
from fedveil.jobs.attack.measured import sums_game, sums_membership
from fedveil.noise.entropy import Entropy
from fedveil.planning import forget_design
from fedveil.stages.measuring import Measures
from fedveil.stages.sums import Measurement, Sums
from fedveil.stages.synthesise.table import table_of

QUESTIONS = """
[data]
source = "table.csv"
[data.scale]
size = [-1, 1]
[data.categories]
ill = ["no", "yes"]
[privacy]
epsilon = {epsilon}
delta = 1e-5
neighbours = "{neighbours}"
[[question]]
kind = "count"
by = "ill"
[[question]]
kind = "mean"
column = "size"
range = [-1, 1]
"""

STUDY = """
[data]
source = "table.csv"
target = "ill"
classes = ["no", "yes"]
feature_bound = 1.5
[data.scale]
size = [-1, 1]
[model]
kind = "logistic"
radius = 10.0
l2 = 0.05
[privacy]
epsilon = 4.0
delta = 1e-4
neighbours = "zero-out"
[algorithm]
kind = "hidden"
order = "public"
[schedule]
passes = 4
rounds = 2
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = ((np.arange(60) + 0.5) / 30 - 1).round(4).tolist()  # one in each of sixty bins
    with (tmp_path / "table.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("size", "ill"), *((size, "yes" if size > 0 else "no") for size in rows)])
    return tmp_path


@dataclass
class Quieter:
    """Measures with a part of the noise that is planned."""

    by: Measures
    part: float

    @property
    def present(self) -> Indices:
        return self.by.present

    def noisy_sum(self, planned: Measurement, contributions: Sums, size: int) -> Vector:
        return self.by.noisy_sum(replace(planned, noise=planned.noise * self.part), contributions, size)


@pytest.mark.parametrize("neighbours", ["zero-out", "replace-one"])
def test_answers_with_too_little_noise_are_caught_and_right_ones_are_not(folder: Path, neighbours: str) -> None:
    (folder / "ask.toml").write_text(QUESTIONS.format(epsilon=2.0, neighbours=neighbours))
    plan = open_questions(folder / "ask.toml").plan()
    right = sums_game(plan, 4000, Entropy.from_seed(1))
    wrong = sums_game(plan, 4000, Entropy.from_seed(1), by=lambda inner: Quieter(inner, 0.6))
    assert (right.verdict, wrong.verdict) == ("consistent", "broken")
    assert 0.6 * (right.certified or 0) < right.measured <= (right.certified or 0) < wrong.measured


def test_records_are_seen_in_answers_with_hardly_any_noise(folder: Path) -> None:
    """The same records, sums and coins: a large epsilon is held to its own claim, and to one that it breaks."""
    bins = f'[[question]]\nkind = "histogram"\ncolumn = "size"\nedges = {np.linspace(-1, 1, 61).tolist()}\n'
    head = QUESTIONS.format(epsilon=40.0, neighbours="zero-out").split("[[question]]")[0]
    (folder / "ask.toml").write_text(head + bins)
    asked = open_questions(folder / "ask.toml")
    plan, found = asked.plan(), asked.here
    program = own_program(plan, table_of(found))

    def verdict(claim: Claim) -> str:
        return sums_membership(plan, program, found, Entropy.from_seed(2), claim, alarm=0.05).verdict

    assert verdict(claim_of_alone(plan, "final-model")) == "consistent"
    assert verdict(Claim(((0.05, 1e-9),))) == "broken"


def test_a_forgotten_record_that_was_kept_is_caught_and_one_holder_is_never_accused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "study.toml").write_text(STUDY)
    run_study(folder / "study.toml", out=folder / "run")
    before, _ = read_records(folder / "run")
    assert {one.verdict for one in game(before, 1000, Entropy.from_seed(3))} == {"consistent"}
    # Even noise over the rounds: noise that is largest in the first ones would hide a record that was kept as well.
    monkeypatch.setattr(forget_design, "_EVENNESS", (1.0,))
    design = plan_forgetting(folder / "run", rows=[17], epsilon=0.1, others=4.0, rounds=100, keep=0.125)
    plan = design.chosen.plan
    right = forgotten_game(plan, 2000, Entropy.from_seed(4))
    kept = forgotten_game(plan, 2000, Entropy.from_seed(4), leaves=lambda records, victim: records)
    assert (right.verdict, kept.verdict) == ("consistent", "broken")
    assert right.certified == pytest.approx(design.chosen.epsilon)
