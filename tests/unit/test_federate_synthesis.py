"""A generator across sites: the bits of one process, one charge, one noise, and no answer that costs more."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedveil.certificate.certify import certify_measured, differences
from fedveil.cli.plan_page import page
from fedveil.cli.show import rounded_up
from fedveil.core.errors import BadValue, TooFewSurvivors
from fedveil.federation.aggregator.consortium import Described, consortium, described_by
from fedveil.federation.aggregator.measured import planned_at_sites
from fedveil.federation.aggregator.turn import SiteRefused
from fedveil.federation.site.data import read_site_data
from fedveil.federation.site.guard import Guard, Terms
from fedveil.jobs.synthesis import open_synthesis, read_synthesis, sample
from fedveil.ledger.books import Ledger
from fedveil.ledger.entry import read_export
from fedveil.noise.entropy import Entropy
from fedveil.planning.study import Study
from fedveil.privacy.trust import CENTRAL
from fedveil.stages.measured.plan import MeasuredPlan
from fedveil.stages.measuring import Measurer
from fedveil.stages.prepare.loading import Unprepared
from fedveil.stages.sums import ALL
from fedveil.stages.synthesise.asking import Question
from fedveil.stages.synthesise.generator import Generator
from fedveil.stages.synthesise.learn import learned_generator
from fedveil.stages.synthesise.request import GeneratorRequest
from fedveil.stages.synthesise.table import table_of
from fedveil.sums.homomorphic.library import has_tenseal
from fedveil.wire.content import Content
from fedveil.wire.envelope import peek, seal, unseal
from unit.federations import SITES, Killed, Trial
from unit.test_site_guard import ask

ONCE = b"once" * 8
TRUST: dict[str, dict[str, Any]] = {
    "open": {"server": "trusted"},
    "masked": {"server": "secure-aggregation"},
    "a third party's key": {"server": "homomorphic", "key_holder": "third-party"},
}
REQUEST = {"whole": ["age"], "groups": 4, "coarse": 3}  # few cells, so that encrypted sums are quick


def wanted(folder: Path, name: str = "open", **more: Any) -> dict[str, Any]:
    """A study of six shops; one column's range is not stated, and one row in nine lacks a number."""
    draw = np.random.default_rng(0)
    age, colour = draw.integers(18, 80, 900), np.where(draw.random(900) < 0.4, "red", "blue")
    debt = np.exp(draw.normal(0.0, 3.0, 900))
    label = (age + 30 * (colour == "red") > 55).astype(int)
    rows = [
        f"{a},{'' if k % 9 == 0 else f'{d:.4g}'},{c},shop {k % 6},{y}"
        for k, (a, d, c, y) in enumerate(zip(age, debt, colour, label, strict=True))
    ]
    (folder / "shops.csv").write_text("\n".join(["age,debt,colour,shop,label", *rows]) + "\n")
    return {
        "study": {"name": "trial"},
        "data": {
            "source": str(folder / "shops.csv"),
            "target": "label",
            "classes": 2,
            "client_column": "shop",
            "scale": {"age": [0.0, 100.0]},
            "categories": {"colour": ["red", "blue"]},
        },
        "clients": {"kind": "column"},
        "privacy": {"epsilon": 5.0, "delta": 1e-5, "neighbours": "zero-out"},
        "trust": {"timeout": 60.0, "together": 2, **TRUST[name]},
        "generator": REQUEST,
        **more,
    }


@dataclass
class Shops:
    """What a test needs: the study as the aggregator has it, all records in one place, and the sites."""

    study: Study
    request: GeneratorRequest
    cells: Unprepared
    trial: Trial

    def plan(self) -> MeasuredPlan:
        return MeasuredPlan.read((self.trial.folder / "out" / "plan.toml").read_text())

    def generate(self, resume: bool = False, watch: Any = None) -> Generator:
        return self.trial.generate(self.study, self.request, resume, watch)

    def stopped(self, rounds: int) -> str:
        """A run that ends after some rounds; its name."""

        def watch(now: Any) -> None:
            if now.round == rounds:
                raise Killed

        with pytest.raises(Killed):
            self.generate(watch=watch)
        (run,) = (self.trial.folder / "north" / "runs").iterdir()
        return run.name

    def noise(self) -> dict[str, Entropy]:
        """The sites' noise, while the run has not ended."""
        found = {}
        for site in SITES:
            guard = self.trial.carrier.guards[site]
            assert isinstance(guard, Guard)
            (run,) = (self.trial.folder / site / "runs").iterdir()
            found[site] = guard._record(run.name).entropy(self.plan(), guard.site.data, None)
        return found


def started(tmp_path: Path, name: str = "open", **more: Any) -> Shops:
    tables = wanted(tmp_path, name, **more)
    _, _, cells = open_synthesis(tables)
    rest = {key: value for key, value in tables.items() if key not in ("data", "clients")}
    study, request = read_synthesis(rest, data_given=True)
    (tmp_path / "trial").mkdir()
    keeper = name == "a third party's key"
    return Shops(study, request, cells, Trial(tmp_path / "trial", cells.train, cells=cells, keeper=keeper))


@dataclass
class ByClient:
    """Noise by the client whose share it is: each site has its own."""

    sites: dict[str, Entropy]

    def stream(self, label: str, index: int = 0) -> Any:
        return self.sites[SITES[int(label.rsplit(" ", 1)[1]) % len(SITES)]].stream(label, index)


def in_one_process(shops: Shops, noise: dict[str, Entropy], lost: dict[str, set[int]] | None = None) -> Generator:
    """The generator of all records in one place, with the noise of the sites.

    ``lost``: by measurement, the clients that do not answer.
    """
    plan, found = shops.plan(), shops.cells
    by = Measurer(
        owner=found.train.owner,
        clients=found.train.clients,
        present=found.present,
        target=plan.target,
        entropy=ByClient(noise),  # type: ignore[arg-type]
        trust=plan.trust,
        fails=lambda turn, client: client in (lost or {}).get(ALL[turn], ()),
    )
    return learned_generator(plan.name, plan.sums, shops.request, table_of(found), plan.units, by)


def assert_recorded(shops: Shops, found: Generator) -> None:
    """Every site has charged once, kept the generator, can certify it, and has no secret left."""
    out = shops.trial.folder / "out"
    whole = certify_measured(out, "0")
    assert (out / "generator.json").read_text() == found.text()
    assert whole.guarantees[0].answer.epsilon <= 5.0
    for site in SITES:
        (own,) = (shops.trial.folder / site / "runs").iterdir()
        assert (own / "generator.json").read_bytes() == (out / "generator.json").read_bytes()
        assert [entry.kind for entry in read_export(own / "ledger.jsonl")] == ["charge", "release"]
        assert certify_measured(own, "0").plan == whole.plan
        assert differences(certify_measured(own, "0"), (own / "certificate.json").read_bytes()) == []
        assert not {path.name for path in (own / "private").iterdir()} & {"key", "proposal", "sums.key"}
    assert not {path.name for path in (out / "private").iterdir()} & {"checkpoint", "questions", "released"}
    assert {plan.hash for plan in shops.trial.plans} == {whole.plan.hash}  # the operators were shown no other


def test_encrypted_for_a_third_party_three_sites_measure_to_the_bits_of_one_process(tmp_path: Path) -> None:
    if not has_tenseal():
        pytest.skip("TenSEAL is not installed (fedveil[he])")
    shops, noise = started(tmp_path, "a third party's key"), dict[str, Entropy]()
    found = shops.generate(watch=lambda now: noise.update(shops.noise()))
    assert found.text() == in_one_process(shops, noise).text()
    assert found.pairs  # the last sum, of chosen pairs, took place
    assert_recorded(shops, found)
    rows = sample(shops.trial.folder / "out", rows=7, seed=1, out=tmp_path / "rows.csv")
    assert rows.read_text().count("\n") == 8


def test_behind_masks_killed_after_every_sum_it_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    shops, noise, done = started(tmp_path, "masked"), dict[str, Entropy](), -1

    def watch(now: Any) -> None:
        nonlocal done
        noise.update(shops.noise())
        if now.round != done and now.round < now.total:
            done = now.round
            raise Killed

    for start in range(10):
        shops.trial.restart_guards()
        try:
            found = shops.generate(resume=start > 0, watch=watch)
            break
        except Killed:
            continue
    assert done == 3  # after ranges, single columns and all pairs
    assert found.text() == in_one_process(shops, noise).text()
    assert_recorded(shops, found)
    assert shops.generate(resume=True).text() == found.text()  # nothing is measured again


def test_a_site_that_drops_is_missed_as_in_one_process(tmp_path: Path) -> None:
    trust = {"timeout": 60.0, "together": 2, "server": "trusted", "dropouts": 2}
    shops, noise = started(tmp_path, trust=trust), dict[str, Entropy]()

    def watch(now: Any) -> None:
        noise.update(shops.noise())
        shops.trial.carrier.down = {"south"} if now.round == 1 else set()

    found = shops.generate(watch=watch)
    assert found.text() == in_one_process(shops, noise, {"ones": {2, 5}}).text()
    assert found.text() != in_one_process(shops, noise).text()


def test_a_site_whose_answers_are_too_large_counts_as_missing(tmp_path: Path) -> None:
    """An honest site's sum stays below the limit; one that lies is left out, and too few answers are refused."""
    shops = started(tmp_path)
    south, lies = shops.trial.carrier.guards["south"], [0]

    class Lying:
        def handle(self, data: bytes) -> bytes:
            opened = unseal(south.handle(data), shops.trial.aggregator, shops.trial.cards["south"])
            said = Content.read(opened.body)
            if opened.head.kind == "update":
                lies[0] += 1
                said = replace(said, rows={"total": said.rows["total"] + 2**45})
            return seal(opened.head, said.write(), shops.trial.identities["south"], shops.trial.aggregator.card, ONCE)

    shops.trial.carrier.guards["south"] = Lying()  # type: ignore[assignment]
    with pytest.raises(TooFewSurvivors, match=r"has the answers of 4 clients and needs 6"):
        shops.generate()
    assert lies[0]


@pytest.fixture(scope="module")
def shops(tmp_path_factory: pytest.TempPathFactory) -> Shops:
    found = started(tmp_path_factory.mktemp("shops"))
    found.stopped(2)  # after the ranges and the single columns
    return found


@pytest.fixture(scope="module")
def question(shops: Shops) -> Question:
    """As the sites were asked for the single columns."""
    sent = [e for site, e in shops.trial.carrier.sent if site == "north" and peek(e).kind == "step"]
    body = unseal(sent[-1], shops.trial.identities["north"], shops.trial.aggregator.card).body
    return Question.read(Content.read(body).blocks["question"])


class TestQuestions:
    """A site answers one question of each sum, and none to which a record would add more than was charged."""

    def asked(self, shops: Shops, turn: int, question: bytes, number: int) -> tuple[str, Any]:
        (run,) = (shops.trial.folder / "north" / "runs").iterdir()
        kind, said = ask(
            shops.trial, run.name, "step", turn, Content(blocks={"question": question}), number=2**50 + number
        )
        return kind, said.values.get("code", said.rows.get("total"))

    def test_a_question_has_one_answer_also_after_a_restart(self, shops: Shops, question: Question) -> None:
        one = self.asked(shops, 1, question.text(), 1)
        shops.trial.restart_guards()
        two = self.asked(shops, 1, question.text(), 2)
        assert one[0] == two[0] == "update"
        assert one[1].tolist() == two[1].tolist()
        other = replace(question, groups=tuple(np.zeros_like(own) for own in question.groups))
        assert self.asked(shops, 1, other.text(), 3) == ("refused", "changed-round")
        assert self.asked(shops, 0, Question(name="ranges").text(), 4) == ("refused", "stale-round")

    def test_no_question_makes_a_record_add_more_than_the_plan_says(self, shops: Shops, question: Question) -> None:
        pairs = replace(question, name="pairs", groups=tuple(np.minimum(own, 1) for own in question.groups))
        one = ((0, 1), 1.0)
        wrongs = [
            replace(pairs, tables=(one,) * 7),  # six pairs are planned
            replace(pairs, tables=(((0, 1), 2.6),)),  # above the norm of the plan, the root of 6
            replace(pairs, tables=(((0, 1), -1.0),)),
            replace(pairs, tables=(((0, 9), 1.0),)),
            replace(pairs, tables=(((0, 0), 1.0),)),
            replace(pairs, tables=()),
            replace(pairs, groups=question.groups[1:], tables=(one,)),
            replace(pairs, groups=(question.groups[0] + 5000, *question.groups[1:]), tables=(one,)),
            replace(pairs, groups=question.groups, tables=(((0, 1, 2, 3), 1.0),)),  # more cells than are planned
            replace(pairs, cells=(replace(question.cells[0], name="shop"), *question.cells[1:]), tables=(one,)),
            replace(pairs, cells=(*question.cells[:-1], question.cells[0]), tables=(one,)),
            replace(pairs, name="cliques", tables=(one,)),
            Question(name="pairs"),
            Question(name="ranges"),
        ]
        for number, wrong in enumerate(wrongs, start=10):
            assert self.asked(shops, 2, wrong.text(), number) == ("refused", "wrong-question"), wrong
        for number, text in enumerate((b"", b"{}", b"[1]", b"\xff", question.text()[:-5]), start=40):
            assert self.asked(shops, 2, text, number) == ("refused", "wrong-question"), text
        assert self.asked(shops, 4, question.text(), 50) == ("refused", "no-such-round")
        assert self.asked(shops, 2, replace(pairs, tables=(one,) * 6).text(), 51)[0] == "update"

    def test_the_operator_reads_what_is_measured_and_what_it_costs(self, shops: Shops) -> None:
        shown = page(shops.plan())
        assert "trial: a generator of synthetic rows, of 4 columns" in shown
        assert "chosen pairs finely (noise " in shown
        assert f"final-model: epsilon {rounded_up(shops.plan().promise('final-model').epsilon)}" in shown
        assert shown.endswith(f"--accept {shops.plan().hash}")

    def test_a_question_reads_back(self, question: Question) -> None:
        assert Question.read(question.text()).text() == question.text()

    def test_a_plan_that_charges_for_less_is_refused_and_not_charged(self, shops: Shops) -> None:
        plan = shops.plan()
        data, two = plan.data, {"plan": b""}
        for number, (lie, code) in enumerate(
            [
                (replace(plan, data=replace(data, records=10, largest_client=2, smallest_client=1)), "other-data"),
                (replace(plan, trust=replace(plan.trust, together=1)), "other-data"),
                (replace(plan, data=replace(data, features=9)), "other-generator"),
                (replace(plan, trust=CENTRAL), "not-by-parts"),
            ]
        ):
            two = {"plan": lie.text().encode()}
            body = Content(values={"plan": lie.hash}, rows={"numbers": np.array([1, 4])}, blocks=two)
            kind, said = ask(shops.trial, f"{number:032x}", "propose", 0, body, number=2**50)
            assert (kind, said.values.get("code")) == ("refused", code), number
        with Ledger.look(shops.trial.folder / "north" / "ledger.sqlite") as ledger:
            assert len([entry for entry in ledger.entries() if entry.kind == "charge"]) == 1


def test_a_cap_of_a_site_holds_and_an_operator_must_accept(tmp_path: Path) -> None:
    shops = started(tmp_path)
    low = Terms(accept=frozenset({"any"}), caps=(("final-model", 4.0, 1e-5),), neighbours="zero-out")
    shops.trial.restart_guards(low)
    with pytest.raises(SiteRefused, match=r"costs more than is left under the site's cap"):
        shops.generate()
    shops.trial.restart_guards(Terms())
    with pytest.raises(SiteRefused, match=r"its operator has not accepted this plan"):
        shops.generate(resume=True)
    named = Terms(accept=frozenset({shops.plan().hash}))
    shops.trial.restart_guards(named)

    def stop(now: Any) -> None:
        raise Killed

    with pytest.raises(Killed):
        shops.generate(resume=True, watch=stop)
    shops.request = replace(shops.request, coarse=4)
    with pytest.raises(BadValue, match=r"The generator must be as it was when it began"):
        shops.generate(resume=True)


def test_what_sites_cannot_do_is_one_sentence(tmp_path: Path) -> None:
    shops = started(tmp_path)
    north = shops.trial.carrier.guards["north"]
    assert isinstance(north, Guard)
    guards = shops.trial.carrier.guards.items()
    members = consortium({site: one.site.data.description() for site, one in guards if isinstance(one, Guard)})

    def described(**more: str) -> Described:
        folder = tmp_path / "-".join(more or ["plain"])
        folder.mkdir()
        rows = "\n".join(f"{k},{'ab'[k % 2]},{k % 2}" for k in range(40))
        (folder / "own.csv").write_text(f"size,ward,label\n{rows}\n")
        stated = "".join(f"{key} = {value}\n" for key, value in more.items())
        text = f'[data]\nsource = "own.csv"\ntarget = "label"\nclasses = 2\n{stated}'
        types = "" if "categories" in more else '\n[prepare]\ntexts = ["ward"]\n'
        (folder / "data.toml").write_text(text + types)
        return described_by({"north": read_site_data(folder / "data.toml").description()})

    words = '{ ward = ["a", "b"] }'
    open_words = r"The sites must state the categories of their columns, got \('ward',\)\. State data\.categories"
    for found, sentence in [
        (described(), open_words),
        (described(categories=words, feature_bound="1.0"), r"leave data\.feature_bound out of their data files"),
    ]:
        with pytest.raises(BadValue, match=sentence):
            planned_at_sites(shops.study, GeneratorRequest(), members, found)
    alone = replace(shops.study, trust=CENTRAL)
    with pytest.raises(BadValue, match=r"The study must say whom the sites trust.*Add a \[trust\] table"):
        planned_at_sites(alone, shops.request, members, described_by({"north": north.site.data.description()}))
    many = replace(shops.study, trust=replace(shops.study.trust, server="secure-aggregation", together=10**5))
    with pytest.raises(BadValue, match=r"A sum must have at most 16777216 numbers across sites"):
        planned_at_sites(many, shops.request, members, described_by({"north": north.site.data.description()}))
    with pytest.raises(BadValue, match=r"study\.seed must be left out for a generator"):
        shops.trial.generate(replace(shops.study, seed=1), shops.request)
