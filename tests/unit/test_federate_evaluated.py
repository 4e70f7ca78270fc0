"""A private evaluation across sites: the bits of one process, one charge, and nothing of a held-out record but it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedveil.certificate.certify import certify
from fedveil.core.errors import BadValue
from fedveil.data.load import Loaded
from fedveil.data.records import Records
from fedveil.federation.aggregator.turn import SiteRefused
from fedveil.federation.agreements import spans
from fedveil.federation.site.data import read_site_data
from fedveil.federation.site.guard import Terms
from fedveil.jobs.local import open_any_study, plan_study, run_study
from fedveil.ledger.entry import read_export
from fedveil.planning.plan import HeldOutRecords, Origin, Plan, read_plan, write_plan
from fedveil.planning.promises import promise
from fedveil.planning.study import Study, study_of
from fedveil.stages.evaluate.statement import NO_EVALUATION
from fedveil.stages.prepare.loading import Unprepared
from fedveil.sums.homomorphic.library import has_tenseal
from fedveil.wire.content import Content
from fedveil.wire.envelope import peek, unseal
from unit.federations import SITES, Killed, Trial
from unit.test_site_guard import ask

TRUSTED = {"server": "trusted", "timeout": 60.0, "together": 2}  # two shops at each site
DPSGD = {"kind": "dpsgd", "rounds": 4, "noise_multiplier": 4.0}
PARTS: dict[str, dict[str, Any]] = {
    "dpsgd": {"algorithm": DPSGD},
    "on training records": {"algorithm": DPSGD, "evaluation": {"records": "training", "share": 0.2}},
    "hidden, masked, prepared, a random stop": {
        "data": {},
        "schedule": {"rounds": 6, "passes": 1, "batch": 10, "step_size": 0.5, "noise_std": 8.0},
        "algorithm": {"order": "public", "stopping": "random"},
        "trust": {**TRUSTED, "server": "secure-aggregation"},
    },
    "dpsgd, masked, prepared": {
        "data": {},
        "algorithm": DPSGD,
        "trust": {**TRUSTED, "server": "secure-aggregation"},
    },
    "dpsgd, encrypted": {"algorithm": DPSGD, "trust": {**TRUSTED, "server": "homomorphic"}},
    "numbers": {
        "algorithm": DPSGD,
        "model": {"kind": "huber"},
        "data": {"target": "price", "target_scale": [0.0, 50.0], "ignore": ["label"], "feature_bound": 2.0},
    },
}
COLUMNS = {"scale": {"size": [200.0, 400.0]}, "categories": {"colour": ["red", "blue"]}}


def wanted(folder: Path, name: str = "dpsgd", **more: Any) -> dict[str, Any]:
    """A study of six shops, named by a column, that hold out a third of their rows."""
    generator = np.random.default_rng(0)
    size, colour = generator.normal(300.0, 40.0, 120), np.where(generator.random(120) < 0.4, "red", "blue")
    label = (size + 60 * (colour == "red") > 320).astype(int)
    rows = [
        f"{a:.3f},{b},shop {k % 6},{a / 10 + 5 * c:.2f},{'' if k % 17 == 0 else c}"
        for k, (a, b, c) in enumerate(zip(size, colour, label, strict=True))
    ]
    (folder / "shops.csv").write_text("\n".join(["size,colour,shop,price,label", *rows]) + "\n")
    found: dict[str, Any] = {
        "study": {"name": "trial", "seed": 3},
        "clients": {"kind": "column"},
        "model": {"kind": "logistic", "radius": 10.0},
        "privacy": {"epsilon": 30.0, "delta": 1e-4, "neighbours": "zero-out", "adversary": "every-model"},
        "trust": TRUSTED,
        "evaluation": {"private": True},
        **PARTS[name],
        **more,
    }
    own = {"target": "label", "classes": 2, "ignore": ["price"], "fill": {"label": "drop-row"}}
    data = PARTS[name].get("data", {**own, "feature_bound": 2.0})
    rest: dict[str, Any] = {**COLUMNS, **data} if data else {**own, "categories": COLUMNS["categories"]}
    source = {"source": str(folder / "shops.csv"), "client_column": "shop", "missing": ["", "?"]}
    return {**found, "data": {**source, **rest, "held_out": {"fraction": 0.33, "seed": 1}}}


def started(tmp_path: Path, name: str, **more: Any) -> tuple[dict[str, Any], Study, Trial]:
    tables = wanted(tmp_path, name, **more)
    _, loaded = open_any_study(tables)
    rest = {key: value for key, value in tables.items() if key not in ("data", "clients")}
    study = study_of(rest, base=Path(), name="trial", data_given=True)
    (tmp_path / "trial").mkdir()
    cells = loaded if isinstance(loaded, Unprepared) else None
    assert loaded.test is not None
    return tables, study, Trial(tmp_path / "trial", loaded.train, cells=cells, held=loaded.test)


def metrics(folder: Path) -> Any:
    return json.loads((folder / "metrics.json").read_text())


@pytest.mark.parametrize("name", [name for name in PARTS if "stop" not in name])
def test_three_sites_train_and_count_to_the_bits_of_one_process(tmp_path: Path, name: str) -> None:
    if "encrypted" in name and not has_tenseal():
        pytest.skip("TenSEAL is not installed (fedveil[he])")
    tables, study, trial = started(tmp_path, name)
    there, here = trial.run(study), run_study(tables, tmp_path / "here").folder
    plan, other = (read_plan((folder / "plan.toml").read_text()) for folder in (there, here))
    # what only the reader of a file knows, and records that the aggregator of a trial does not have
    told: Any = {"origin": Origin(), "held_out": plan.held_out}
    assert plan.held_out.apart is None  # nobody compares the rows of several sites
    assert replace(other, **told) == plan
    with np.load(there / "model.npz") as one, np.load(here / "model.npz") as two:
        assert one["parameters"].tobytes() == two["parameters"].tobytes()
    found_there, found_here = metrics(there)["evaluation"], metrics(here)["evaluation"]
    key = "sums" if name == "numbers" else "counts"
    assert found_there[key] == found_here[key]
    assert found_there["units"] == found_here["units"] == (80 if name == "on training records" else 40)
    found = certify(there, "0")
    apart = [row.enforced_by for row in found.guarantees[0].assumptions if row.name == "held-out records are apart"]
    assert all(how.startswith("declared:") for how in apart)
    assert len(apart) == (name != "on training records")
    assert any("private evaluation" in row["what"] for row in found.released)
    for site in SITES:
        (run,) = (trial.folder / site / "runs").iterdir()
        assert [entry.kind for entry in read_export(run / "ledger.jsonl")] == ["charge", "release"]
        assert certify(run, "0").plan.hash == found.plan.hash


@pytest.mark.parametrize("server", ["trusted", "secure-aggregation"])
def test_a_run_takes_one_exchange_for_each_sum_and_few_others(tmp_path: Path, server: str) -> None:
    """Who is there, the plan, what was learned, the end; behind masks also the lists of keys."""
    _, study, trial = started(tmp_path, "dpsgd, masked, prepared", trust={**TRUSTED, "server": server})
    trial.run(study)
    asked = [(peek(e).kind, peek(e).round) for site, e in trial.carrier.sent if site == "north"]
    kind, lists = ("step", []) if server == "trusted" else ("masked", [("roster", 0)])
    first, trained, counted = spans(trial.plans[0])
    assert [span.stage.turns for span in (first, trained, counted)] == [len(first.stage.sums.measurements), 4, 2]
    learned = [(kind, turn) for turn in range(first.end)]
    rest = [(kind, turn) for turn in range(first.end, counted.end)]
    assert asked == [("hello", 0), ("propose", 0), *lists, *learned, ("learned", 0), *rest, ("finish", 0)]


def test_whole_clients_that_train_and_are_counted_pay_for_both(tmp_path: Path) -> None:
    """Their own records are held out across sites, so the two costs are composed, at the sites too."""
    tables = wanted(tmp_path)
    _, loaded = open_any_study(tables)
    assert isinstance(loaded, Loaded)
    assert loaded.test is not None
    study = study_of(
        {
            "study": {"name": "trial", "seed": 3},
            "model": {"kind": "logistic", "radius": 10.0},
            "privacy": {"epsilon": 30.0, "delta": 1e-4, "unit": "client", "neighbours": "zero-out"},
            "algorithm": {"kind": "fedavg", "noise": "shared", "local": {"epochs": 1, "batch": 20}},
            "schedule": {"rounds": 2},
            "trust": TRUSTED,
            "evaluation": {"private": True},
        },
        base=Path(),
        name="trial",
        data_given=True,
    )
    (tmp_path / "trial").mkdir()
    trial = Trial(tmp_path / "trial", loaded.train, held=loaded.test)
    there = trial.run(study)
    here = run_study(study, tmp_path / "here", data=(loaded.train, loaded.test)).folder
    for file in ("plan.toml", "model.npz"):
        assert (there / file).read_bytes() == (here / file).read_bytes(), file
    assert metrics(there)["evaluation"]["counts"] == metrics(here)["evaluation"]["counts"]
    plan = read_plan((there / "plan.toml").read_text())
    assert plan.evaluation
    assert plan.evaluation.joint
    assert promise(replace(plan, evaluation=NO_EVALUATION, held_out=HeldOutRecords()), "final-model").epsilon < (
        0.999 * promise(plan, "final-model").epsilon
    )


def test_killed_after_every_round_it_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    tables, study, trial = started(tmp_path, "hidden, masked, prepared, a random stop")
    there, _ = trial.run_killed(study)
    here = run_study(tables, tmp_path / "here").folder
    assert (there / "model.npz").read_bytes() == (here / "model.npz").read_bytes()
    assert metrics(there)["evaluation"]["counts"] == metrics(here)["evaluation"]["counts"]


def stopped(trial: Trial, study: Study, rounds: int) -> tuple[str, Plan]:
    """A run that ends after some rounds; its name and its plan."""

    def watch(now: Any) -> None:
        if now.round == rounds:
            raise Killed

    with pytest.raises(Killed):
        trial.run(study, watch=watch)
    (run,) = (trial.folder / "north" / "runs").iterdir()
    return run.name, read_plan((trial.folder / "out" / "plan.toml").read_text())


def test_no_model_is_counted_twice_with_the_same_noise(tmp_path: Path) -> None:
    """The first count of a round is its only one: another model, or other sums, get no answer, also after a restart."""
    _, study, trial = started(tmp_path, "dpsgd", study={"name": "trial"})
    run, plan = stopped(trial, study, 5)  # training and the rough count
    first = spans(plan)[-1].first
    assert first == 4
    sent = [e for site, e in trial.carrier.sent if site == "north" and peek(e).kind == "step"]
    asked = Content.read(unseal(sent[-1], trial.identities["north"], trial.aggregator.card).body)
    one = ask(trial, run, "step", first, asked, number=2**50)
    trial.restart_guards()
    two = ask(trial, run, "step", first, asked, number=2**50 + 1)
    assert one[0] == two[0] == "update"
    assert one[1].write() == two[1].write()
    other = Content(rows={"model": asked.rows["model"] + 1.0, "sums": asked.rows["sums"]})
    places = plan.evaluation.places if plan.evaluation else 0
    model, none = asked.rows["model"], np.zeros(0)
    for number, (turn, rows, code) in enumerate(
        [
            (first, other.rows, "changed-round"),
            (first - 1, {"model": model}, "stale-round"),
            (first + 1, {"model": model, "sums": np.zeros(places + 1)}, "wrong-sums"),
            (first + 1, {"model": model, "sums": np.full(places, np.nan)}, "wrong-sums"),
            (first + 1, {"model": np.full(model.size, np.inf), "sums": np.zeros(places)}, "wrong-shape"),
            (first + 1, {"sums": np.zeros(places)}, "no-model"),
            (first + 2, {"model": model, "sums": none}, "no-such-round"),
        ],
        start=2,
    ):
        said = ask(trial, run, "step", turn, Content(rows=rows), number=2**50 + number)
        assert said[1].values["code"] == code, number


def test_a_plan_that_charges_too_little_is_refused_and_not_charged(tmp_path: Path) -> None:
    _, study, trial = started(tmp_path, "dpsgd")
    run, plan = stopped(trial, study, 1)
    assert plan.evaluation
    records, clients, largest, smallest = plan.evaluation.held or (0, 0, 0, 0)
    wrongs = [
        replace(plan, evaluation=replace(plan.evaluation, held=(records, 1, largest, smallest))),
        replace(plan, evaluation=replace(plan.evaluation, held=(records, clients, 1, 1))),
        # what the site's certificate would claim, and nobody has checked
        replace(plan, held_out=replace(plan.held_out, apart="compared")),
        replace(
            plan,
            held_out=HeldOutRecords(records=5, public=False),
            evaluation=replace(plan.evaluation, held=(5, clients, largest, smallest)),
        ),
    ]
    for number, lie in enumerate(wrongs):
        body = Content(
            values={"plan": lie.hash, "seed": 3},
            rows={"numbers": np.array([1, 4])},
            blocks={"plan": write_plan(lie).encode()},
        )
        kind, said = ask(trial, "0" * len(run), "propose", 0, body, number=2**50 + number)
        assert (kind, said.values.get("code")) == ("refused", "other-evaluation"), number


def test_whole_clients_are_never_charged_as_if_others_were_held_out(tmp_path: Path) -> None:
    """A plan that says so to a site, where every client owns both kinds, would charge half of what it costs."""
    _, _, trial = started(tmp_path, "dpsgd")
    held = trial.held
    assert held is not None
    tables = {
        "study": {"seed": 3},
        "model": {"kind": "logistic", "radius": 10.0},
        "privacy": {"epsilon": 30.0, "delta": 1e-4, "unit": "client", "neighbours": "zero-out"},
        "algorithm": {"kind": "fedavg", "noise": "shared"},
        "schedule": {"rounds": 2},
        "trust": TRUSTED,
        "evaluation": {},
    }
    study = study_of(tables, base=Path(), data_given=True)
    lie = study.planned(trial.records.shape, len(held), False, held=held.shape, joint=False).plan
    body = Content(
        values={"plan": lie.hash, "seed": 3},
        rows={"numbers": np.array([1, 4])},
        blocks={"plan": write_plan(lie).encode()},
    )
    kind, said = ask(trial, "0" * 32, "propose", 0, body, number=2**50)
    assert (kind, said.values["code"]) == ("refused", "other-evaluation")


def test_one_charge_within_the_sites_own_cap(tmp_path: Path) -> None:
    tables, study, trial = started(tmp_path, "on training records", study={"name": "trial"})
    plan = replace(plan_study(tables).plan, origin=Origin())
    whole = promise(plan, "every-model").epsilon
    alone = promise(replace(plan, evaluation=NO_EVALUATION), "every-model").epsilon
    assert alone < 0.999 * whole
    low = Terms(accept=frozenset({"any"}), caps=(("every-model", (alone + whole) / 2, 1e-4),), neighbours="zero-out")
    trial.restart_guards(low)
    with pytest.raises(SiteRefused, match="cap"):
        trial.run(study)
    trial.restart_guards(replace(low, caps=(("every-model", 1.001 * whole, 1e-4),)))
    trial.run(study, resume=True)


def test_a_held_out_record_is_in_no_training_round(tmp_path: Path) -> None:
    """The model is the same, bit for bit, whatever the held-out records are."""
    _, study, trial = started(tmp_path, "dpsgd")
    first = trial.run(study)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "trial").mkdir()
    held = trial.held
    assert held is not None
    other = replace(held, features=np.zeros_like(held.features), targets=np.where(held.blank, np.nan, 1.0))
    second = Trial(tmp_path / "other" / "trial", trial.records, held=other).run(study)
    assert (first / "model.npz").read_bytes() == (second / "model.npz").read_bytes()
    assert metrics(first)["evaluation"]["counts"] != metrics(second)["evaluation"]["counts"]


class TestSitesOfTheirOwn:
    def files(self, folder: Path, more: str = "", clients: str = "") -> Path:
        folder.mkdir()
        rows = [f"{k},{k % 3},{k % 2}" for k in range(30)]
        (folder / "own.csv").write_text("\n".join(["size,ward,label", *rows]) + "\n")
        text = (
            '[data]\nsource = "own.csv"\ntarget = "label"\nclasses = 2\nfeature_bound = 2.0\nclient_column = "ward"\n'
        )
        (folder / "data.toml").write_text(f"{text}{more}\n{clients}\n")
        return folder / "data.toml"

    def test_a_site_states_its_part_and_tells_only_sizes(self, tmp_path: Path) -> None:
        held = "[data.held_out]\nfraction = 0.3\nseed = 2"
        one = read_site_data(self.files(tmp_path / "a", held))
        assert one.held is not None
        assert (len(one.records), len(one.held)) == (21, 9)
        assert one.description().rows["held"].tolist() == [9]
        many = read_site_data(self.files(tmp_path / "b", held, '[clients]\nkind = "column"'))
        assert many.held is not None
        assert many.held.clients == many.records.clients == 3
        assert many.held.owner.size == 9
        bare = read_site_data(self.files(tmp_path / "c"))
        assert bare.held is None
        assert "held" not in bare.description().rows
        key = b"k" * 32
        assert one.fingerprint(key) == bare.fingerprint(key)  # the same rows: one ledger
        assert one.records_fingerprint(key) != bare.records_fingerprint(key)

    @pytest.mark.parametrize(
        ("more", "clients", "sentence"),
        [
            ('source = "own.csv"', "", r"\[data\.held_out\] must state a fraction at a site"),
            ("fraction = 0.3\npublic = true", "", r"data\.held_out\.public must be left out at a site"),
            ("fraction = 0.3", '[clients]\nkind = "equal"\ncount = 2', r"leave every client records on both sides"),
            ("fraction = 0.04", '[clients]\nkind = "column"', r"leave every client records on both sides"),
        ],
    )
    def test_a_part_that_cannot_be_counted_is_refused(
        self, tmp_path: Path, more: str, clients: str, sentence: str
    ) -> None:
        with pytest.raises(BadValue, match=sentence):
            read_site_data(self.files(tmp_path / "a", f"[data.held_out]\n{more}", clients))

    def test_all_sites_hold_records_out_or_none(self, tmp_path: Path) -> None:
        _, _, trial = started(tmp_path, "dpsgd")
        from fedveil.federation.aggregator.consortium import consortium

        said = {site: trial.carrier.guards[site].site.data.description() for site in SITES}  # type: ignore[union-attr]
        del said["east"].rows["held"]  # type: ignore[attr-defined]
        with pytest.raises(BadValue, match=r"The sites must all hold records out, or none, got .none at .*east"):
            consortium(said)


def test_an_algorithm_without_a_server_has_no_round_for_it(tmp_path: Path) -> None:
    from fedveil.federation.aggregator.federate import check_carried

    def records(count: int) -> Records:
        rows = np.random.default_rng(count).uniform(-0.5, 0.5, (count, 2))
        return Records(
            features=rows,
            targets=(rows[:, 0] > 0).astype(np.float64),
            owner=np.arange(count) % 3,
            clients=3,
            bound=1.0,
            classes=2,
        )

    tables = {"algorithm": {"kind": "simfl"}, "schedule": {"rounds": 3, "noise_std": 2.0}, "evaluation": {}}
    tables |= {"privacy": {"epsilon": 30.0, "delta": 1e-4}, "model": {"kind": "logistic", "radius": 5.0}}
    plan = plan_study(tables, (records(60), records(30))).plan
    with pytest.raises(BadValue, match=r"\[evaluation\] must be left out with sites and no server, .* with a server"):
        check_carried(plan)
