"""A private preparation across sites: the bits of one process, one charge, one noise, and notes that stay there."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedveil.certificate.certify import certify
from fedveil.core.errors import BadValue
from fedveil.federation.aggregator.consortium import described_by, kept_rule
from fedveil.federation.aggregator.turn import SiteRefused
from fedveil.federation.site.data import read_site_data
from fedveil.federation.site.guard import Terms
from fedveil.jobs.local import open_any_study, plan_study, run_study
from fedveil.ledger.entry import read_export
from fedveil.models.spec import Curves
from fedveil.planning.plan import read_plan, write_plan
from fedveil.planning.promises import promise
from fedveil.planning.study import Study, study_of
from fedveil.release.bundle import Bundle
from fedveil.stages.prepare.learned import LearnedRule
from fedveil.stages.prepare.loading import Unprepared
from fedveil.stages.sums import NO_SUMS
from fedveil.sums.homomorphic.library import has_tenseal
from fedveil.wire.content import Content
from fedveil.wire.envelope import peek, unseal
from unit.federations import SITES, Killed, Trial
from unit.test_site_guard import ask

TRUSTED = {"server": "trusted", "timeout": 60.0}
HIDDEN = {"rounds": 3, "passes": 1, "batch": 30, "step_size": 0.5, "noise_std": 8.0}
PARTS: dict[str, dict[str, Any]] = {
    "hidden": {"schedule": HIDDEN, "algorithm": {"order": "public"}},
    "hidden, masked": {
        "schedule": HIDDEN,
        "algorithm": {"order": "public"},
        "trust": {**TRUSTED, "server": "secure-aggregation"},
    },
    "hidden, encrypted": {
        "schedule": HIDDEN,
        "algorithm": {"order": "public"},
        "trust": {**TRUSTED, "server": "homomorphic"},
    },
    "dpsgd": {"algorithm": {"kind": "dpsgd", "rounds": 4, "network": {"window": 2.0}, "noise_multiplier": 4.0}},
    "fedavg": {
        "privacy": {"epsilon": 30.0, "delta": 1e-4, "unit": "client", "neighbours": "zero-out"},
        "algorithm": {"kind": "fedavg", "noise": "shared", "local": {"epochs": 1, "batch": 20}},
        "schedule": {"rounds": 2},
    },
    "simfl": {"algorithm": {"kind": "simfl"}, "schedule": {"rounds": 3, "noise_std": 2.0}, "trust": {}},
    "components": {
        "algorithm": {"kind": "dpsgd", "rounds": 4, "noise_multiplier": 4.0},
        "prepare": {"components": 2},
        "trust": {**TRUSTED, "server": "secure-aggregation"},
    },
    "additive": {
        "algorithm": {"kind": "dpsgd", "rounds": 4, "noise_multiplier": 4.0},
        "model": {"kind": "logistic", "shape": "additive", "knots": 4, "monotone": {"size": "increasing"}},
        "trust": {**TRUSTED, "server": "secure-aggregation"},
    },
    "additive, without a server": {
        "algorithm": {"kind": "simfl"},
        "model": {"kind": "logistic", "shape": "additive", "knots_at": {"size": [200, 300, 400]}, "radius": 10.0},
        "schedule": {"rounds": 3, "noise_std": 2.0},
        "trust": {},
    },
    "whitened": {"algorithm": {"kind": "dpsgd", "rounds": 4, "noise_multiplier": 4.0}, "prepare": {"whiten": True}},
}


def wanted(folder: Path, name: str = "hidden", **more: Any) -> dict[str, Any]:
    """A study of three shops that states nothing about its columns but the categories of one."""
    generator = np.random.default_rng(0)
    size, weight = generator.normal(300.0, 40.0, 90), np.exp(generator.normal(0.0, 3.0, 90))
    colour = np.where(generator.random(90) < 0.4, "red", "blue")
    label = (size + 60 * (colour == "red") > 320).astype(int)
    cells = zip(size, weight, colour, label, strict=True)
    rows = [f"{a:.3f},{'' if k % 9 == 0 else f'{w:.4g}'},{b},{c}" for k, (a, w, b, c) in enumerate(cells)]
    (folder / "shops.csv").write_text("\n".join(["size,weight,colour,label", *rows]) + "\n")
    found: dict[str, Any] = {
        "study": {"name": "trial", "seed": 3},
        "data": {
            "source": str(folder / "shops.csv"),
            "target": "label",
            "classes": 2,
            "categories": {"colour": ["red", "blue"]},
        },
        "clients": {"kind": "equal", "count": 3},
        "model": {"kind": "logistic", "radius": 10.0},
        "privacy": {"epsilon": 30.0, "delta": 1e-4, "neighbours": "zero-out", "adversary": "every-model"},
        "trust": TRUSTED,
        **PARTS[name],
        **more,
    }
    return {key: value for key, value in found.items() if value}


def opened(tables: dict[str, Any]) -> tuple[Study, Unprepared]:
    """The study as the aggregator has it, and the cells of all sites."""
    _, cells = open_any_study(tables)
    assert isinstance(cells, Unprepared)
    rest = {key: value for key, value in tables.items() if key not in ("data", "clients")}
    return study_of(rest, base=Path(), name="trial", data_given=True), cells


def started(tmp_path: Path, name: str, **more: Any) -> tuple[dict[str, Any], Study, Trial]:
    tables = wanted(tmp_path, name, **more)
    study, cells = opened(tables)
    (tmp_path / "trial").mkdir()
    return tables, study, Trial(tmp_path / "trial", cells.train, cells=cells)


@pytest.mark.parametrize("name", sorted(PARTS))
def test_three_sites_learn_and_train_to_the_bits_of_one_process(tmp_path: Path, name: str) -> None:
    if "encrypted" in name and not has_tenseal():
        pytest.skip("TenSEAL is not installed (fedveil[he])")
    tables, study, trial = started(tmp_path, name)
    there = trial.run(study)
    here = run_study(tables, tmp_path / "here").folder
    for file in ("plan.toml", "preparation.json", "model.npz"):
        assert (there / file).read_bytes() == (here / file).read_bytes(), file
    assert kept_rule(there) == Bundle.read(here).preparation  # what the bundle of a deployment gets
    for site in SITES:
        (own,) = (trial.folder / site / "runs").iterdir()
        found = certify(own, "0")
        assert (own / "preparation.json").read_bytes() == (there / "preparation.json").read_bytes()
        assert [entry.kind for entry in read_export(own / "ledger.jsonl")] == ["charge", "release"]
        assert read_export(own / "ledger.jsonl")[0].payload["plan"] == found.plan.hash
        left = {path.name for path in (own / "private").iterdir()}
        assert not left & {"key", "memory", "preparation.sums"}


def stopped(trial: Trial, study: Study, rounds: int) -> str:
    """A run that ends after some rounds; its name."""

    def watch(now: Any) -> None:
        if now.round == rounds:
            raise Killed

    with pytest.raises(Killed):
        trial.run(study, watch=watch)
    (run,) = (trial.folder / "north" / "runs").iterdir()
    return run.name


@pytest.mark.parametrize("name", ["hidden, masked", "simfl"])
def test_killed_after_every_round_it_goes_on_to_the_same_bits(tmp_path: Path, name: str) -> None:
    """Guards are restarted too, so nothing but what is on the disk is known of the preparation."""
    tables, study, trial = started(tmp_path, name)
    there, done = trial.run_killed(study)
    assert done > 1
    here = run_study(tables, tmp_path / "here").folder
    for file in ("preparation.json", "model.npz"):
        assert (there / file).read_bytes() == (here / file).read_bytes(), file


def test_no_measurement_is_answered_with_a_second_noise_or_on_another_scale(tmp_path: Path) -> None:
    """A site without a seed: the same question gets the same answer for ever, and any other question none."""
    _, study, trial = started(tmp_path, "dpsgd", study={"name": "trial"})
    run = stopped(trial, study, 2)  # ranges and means are measured, spreads are not
    plan = read_plan((trial.folder / "out" / "plan.toml").read_text())
    assert plan.preparation
    sent = [e for site, e in trial.carrier.sent if site == "north" and peek(e).kind == "step"]
    asked = Content.read(unseal(sent[-1], trial.identities["north"], trial.aggregator.card).body)
    first = ask(trial, run, "step", 1, asked, number=2**50)
    trial.restart_guards()
    again = ask(trial, run, "step", 1, asked, number=2**50 + 1)
    assert first[0] == again[0] == "update"
    assert first[1].write() == again[1].write()
    other = Content(rows={"sums": asked.rows["sums"] + 1.0})
    for number, (turn, content, code) in enumerate(
        [(1, other, "changed-round"), (0, Content(rows={"sums": np.zeros(0)}), "stale-round")], start=2
    ):
        assert ask(trial, run, "step", turn, content, number=2**50 + number)[1].values["code"] == code


def test_training_waits_for_one_rule_and_takes_no_second(tmp_path: Path) -> None:
    _, study, trial = started(tmp_path, "dpsgd")
    run = stopped(trial, study, 2)
    plan = read_plan((trial.folder / "out" / "plan.toml").read_text())
    assert plan.preparation
    rounds, size = len(plan.preparation.measurements), sum(one.size for one in plan.preparation.measurements)
    codes = []
    for number, (kind, turn, rows) in enumerate(
        [
            ("step", rounds, {"model": np.zeros(plan.dimension)}),
            ("learned", 0, {"sums": np.zeros(size + 1)}),
            ("learned", 0, {"sums": np.full(size, np.nan)}),
            ("learned", 0, {"sums": np.zeros(size)}),
            ("learned", 0, {"sums": np.ones(size)}),
        ]
    ):
        kind, content = ask(trial, run, kind, turn, Content(rows=rows), number=2**50 + number)
        codes.append(content.values.get("code", kind))
    assert codes == ["not-prepared", "wrong-sums", "wrong-sums", "prepared", "other-preparation"]


def test_a_plan_that_states_too_small_a_contribution_is_refused_and_not_charged(tmp_path: Path) -> None:
    """Half the bound at twice the noise would be charged a quarter of what it costs."""
    _, study, trial = started(tmp_path, "dpsgd")
    run = stopped(trial, study, 1)
    plan = read_plan((trial.folder / "out" / "plan.toml").read_text())
    assert plan.preparation
    ranges, *others = plan.preparation.measurements
    wrongs = (
        replace(plan.preparation, measurements=(replace(ranges, bound=ranges.bound / 2), *others)),
        replace(plan.preparation, measurements=(replace(ranges, size=ranges.size - 1), *others)),
        replace(plan.preparation, measurements=tuple(others)),
        NO_SUMS,
    )
    for number, wrong in enumerate(wrongs):
        lie = replace(plan, preparation=wrong)
        body = Content(
            values={"plan": lie.hash, "seed": 3, "components": None, "whiten": False},
            rows={"numbers": np.array([1])},
            blocks={"plan": write_plan(lie).encode()},
        )
        kind, said = ask(trial, "0" * len(run), "propose", 0, body, number=2**50 + number)
        assert (kind, said.values["code"]) == ("refused", "other-preparation")


def test_one_charge_for_preparation_and_training_within_the_sites_own_cap(tmp_path: Path) -> None:
    tables, study, trial = started(tmp_path, "dpsgd", study={"name": "trial"})
    plan = plan_study(tables).plan
    whole = promise(plan, "every-model").epsilon
    alone = promise(replace(plan, preparation=NO_SUMS), "every-model").epsilon
    assert alone < 0.999 * whole
    low = Terms(accept=frozenset({"any"}), caps=(("every-model", (alone + whole) / 2, 1e-4),), neighbours="zero-out")
    trial.restart_guards(low)
    with pytest.raises(SiteRefused, match="cap"):
        trial.run(study)
    trial.restart_guards(replace(low, caps=(("every-model", 1.001 * whole, 1e-4),)))
    trial.run(study, resume=True)
    (own,) = (trial.folder / "north" / "runs").iterdir()
    (charge, _) = read_export(own / "ledger.jsonl")
    assert {c["adversary"]: c["epsilon"] for c in charge.payload["costs"]}["every-model"] == pytest.approx(whole)


def test_notes_are_for_the_operator_alone(tmp_path: Path) -> None:
    _, study, trial = started(tmp_path, "dpsgd")
    study = replace(study, model=replace(study.model, curves=Curves(shape="linear")))  # rows of curves are never cut
    there = trial.run(study)
    assert sum("longer than the bound" in note for note in trial.notes) == 3
    told = [note.encode() for note in trial.notes]
    for site, envelope in trial.carrier.back:
        body = unseal(envelope, trial.aggregator, trial.cards[site]).body
        assert not any(note in body for note in told)
    published = [path for path in trial.folder.rglob("*") if path.is_file() and "private" not in path.parts]
    assert not [path for path in published if any(note in path.read_bytes() for note in told)]
    assert not (there / "private" / "preparation_notes.json").exists()  # the aggregator has none
    (own,) = (trial.folder / "north" / "runs").iterdir()
    assert json.loads((own / "private" / "preparation_notes.json").read_text())["notes"]


class TestSitesOfTheirOwn:
    """Sites that describe their own files."""

    def files(self, folder: Path, more: str = "") -> Path:
        folder.mkdir()
        rows = [f"{k},{17 if k % 2 else k},{k % 2}" for k in range(20)]
        (folder / "own.csv").write_text("\n".join(["size,code,label", *rows]) + "\n")
        text = f'[data]\nsource = "own.csv"\ntarget = "label"\nclasses = 2\n{more}\n'
        (folder / "data.toml").write_text(text)
        return folder / "data.toml"

    def said(self, path: Path) -> Content:
        return Content(blocks=read_site_data(path).described())

    def test_what_they_say_alike_is_what_the_model_is_used_with(self, tmp_path: Path) -> None:
        one, two = (self.said(self.files(tmp_path / name)) for name in ("a", "b"))
        found = described_by({"a": one, "b": two})
        assert found.outline is not None
        assert found.outline.numbers == ("size", "code")
        assert found.reading is not None
        stated = [self.said(self.files(tmp_path / name, "feature_bound = 2.0")) for name in ("c", "d")]
        rule = described_by(dict(zip("cd", stated, strict=True))).rule
        assert rule is not None
        assert rule.bound == 2.0

    def test_they_learn_one_rule_for_files_of_their_own(self, tmp_path: Path) -> None:
        """The bundle of a deployment says how a new record becomes a row, though the aggregator has no data."""
        tables = wanted(tmp_path, "dpsgd")
        study, cells = opened(tables)
        (tmp_path / "trial").mkdir()
        head, *lines = (tmp_path / "shops.csv").read_text().splitlines()
        for place, site in enumerate(SITES):
            (tmp_path / "trial" / f"{site}.csv").write_text("\n".join([head, *lines[place::3]]) + "\n")
            rest = 'target = "label"\nclasses = 2\ncategories = { colour = ["red", "blue"] }\n'
            (tmp_path / "trial" / f"{site}.toml").write_text(f'[data]\nsource = "{site}.csv"\n{rest}')
        trial = Trial(tmp_path / "trial", cells.train, cells=cells)
        there = trial.run(study)
        learned = LearnedRule.read((there / "preparation.json").read_text())
        rule = kept_rule(there)
        assert rule is not None
        names = head.split(",")[:3]
        found = {name: [line.split(",")[place] for line in lines] for place, name in enumerate(names)}
        rows, _ = rule.rows(found, str)
        assert rows == pytest.approx(learned.rows(cells.columns), abs=1e-12)

    def test_columns_of_different_types_are_named(self, tmp_path: Path) -> None:
        one = self.said(self.files(tmp_path / "a"))
        more = '[prepare]\ntexts = ["code"]'
        with pytest.raises(BadValue, match=r"numbers at a and b must be the same, got .'code'.*State types"):
            described_by({"a": one, "b": self.said(self.files(tmp_path / "c", more))})
        with pytest.raises(BadValue, match=r"leave the rule for their rows open, or none, got .stated by .'b'"):
            described_by({"a": one, "b": self.said(self.files(tmp_path / "d", "feature_bound = 1.0"))})
