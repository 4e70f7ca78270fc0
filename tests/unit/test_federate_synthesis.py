"""A generator across sites: the bits of one process, one charge, one noise, and no answer that costs more."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedveil.certificate.certify import differences
from fedveil.certificate.synthesis import certify_synthesis
from fedveil.errors import BadValue, TooFewSurvivors
from fedveil.federation.aggregator.described import described_by
from fedveil.federation.aggregator.refusals import SiteRefused
from fedveil.federation.site.data import read_site_data
from fedveil.federation.site.guard import Guard, Terms
from fedveil.jobs.synthesis import open_synthesis, read_synthesis, sample
from fedveil.ledger import read_export
from fedveil.noise.entropy import Entropy
from fedveil.prepare.loading import Unprepared
from fedveil.prepare.measure import Measurer
from fedveil.prepare.synthesis.asking import Question
from fedveil.prepare.synthesis.generator import Generator
from fedveil.prepare.synthesis.learn import learned_generator
from fedveil.prepare.synthesis.plan import SynthesisPlan
from fedveil.prepare.synthesis.request import GeneratorRequest
from fedveil.prepare.synthesis.table import table_of
from fedveil.study import Study
from fedveil.sums.homomorphic.library import has_tenseal
from fedveil.wire.content import Content
from fedveil.wire.envelope import peek, unseal
from unit.federations import SITES, Killed, Trial
from unit.test_site_guard import ask

TRUST: dict[str, dict[str, Any]] = {
    "open": {"server": "trusted"},
    "masked": {"server": "secure-aggregation"},
    "encrypted": {"server": "homomorphic"},
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

    def plan(self) -> SynthesisPlan:
        return SynthesisPlan.read((self.trial.folder / "out" / "plan.toml").read_text())

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

    def stream(self, label: str) -> Any:
        return self.sites[SITES[int(label.rsplit(" ", 1)[1]) % len(SITES)]].stream(label)


def in_one_process(shops: Shops, noise: dict[str, Entropy], lost: tuple[int, ...] = ()) -> Generator:
    """The generator of all records in one place, with the noise of the sites; ``lost``: clients that do not answer."""
    plan, found = shops.plan(), shops.cells
    by = Measurer(
        owner=found.train.owner,
        clients=found.train.clients,
        present=found.present,
        target=plan.target,
        entropy=ByClient(noise),  # type: ignore[arg-type]
        trust=plan.trust,
        fails=lambda turn, client: client in lost,
    )
    return learned_generator(plan.name, plan.preparation, shops.request, table_of(found), plan.units, by)


@pytest.mark.parametrize("name", sorted(TRUST))
def test_three_sites_measure_to_the_bits_of_one_process(tmp_path: Path, name: str) -> None:
    if TRUST[name]["server"] == "homomorphic" and not has_tenseal():
        pytest.skip("TenSEAL is not installed (fedveil[he])")
    shops, noise = started(tmp_path, name), dict[str, Entropy]()

    def watch(now: Any) -> None:
        noise.update(shops.noise())

    found = shops.generate(watch=watch)
    assert found.text() == in_one_process(shops, noise).text()
    assert found.pairs  # the last round, of chosen pairs, took place
    out = shops.trial.folder / "out"
    whole = certify_synthesis(out, "0")
    assert whole.guarantees[0].answer.epsilon <= 5.0
    for site in SITES:
        (own,) = (shops.trial.folder / site / "runs").iterdir()
        assert (own / "generator.json").read_bytes() == (out / "generator.json").read_bytes()
        assert [entry.kind for entry in read_export(own / "ledger.jsonl")] == ["charge", "release"]
        assert certify_synthesis(own, "0").plan == whole.plan
        assert differences(certify_synthesis(own, "0"), (own / "certificate.json").read_bytes()) == []
        assert not {path.name for path in (own / "private").iterdir()} & {"key", "proposal", "sums.key"}
    assert not {path.name for path in (out / "private").iterdir()} & {"checkpoint", "questions", "released"}
    assert sample(out, rows=7, seed=1, out=tmp_path / "rows.csv").read_text().count("\n") == 8
    plans = {plan.hash for plan in shops.trial.plans}
    assert plans == {whole.plan.hash}  # every operator was shown this plan and no other


@pytest.mark.parametrize("name", ["open", "masked"])
def test_killed_after_every_sum_it_goes_on_to_the_same_bits(tmp_path: Path, name: str) -> None:
    shops, noise, done = started(tmp_path, name), dict[str, Entropy](), -1

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
    assert done == 3  # of ranges, single columns, all pairs and chosen pairs
    assert found.text() == in_one_process(shops, noise).text()
    (own,) = (shops.trial.folder / "north" / "runs").iterdir()
    assert [entry.kind for entry in read_export(own / "ledger.jsonl")] == ["charge", "release"]
    assert shops.generate(resume=True).text() == found.text()  # nothing is measured again


def test_a_site_that_drops_is_missed_as_in_one_process_and_too_many_are_refused(tmp_path: Path) -> None:
    trust = {"timeout": 60.0, "together": 2, "server": "trusted", "dropouts": 2}
    shops, noise = started(tmp_path, trust=trust), dict[str, Entropy]()

    def watch(now: Any) -> None:
        noise.update(shops.noise())
        shops.trial.carrier.down = {"south"}  # from the second sum on

    shops.trial.carrier.down = set()
    found = shops.generate(watch=watch)
    plan = shops.plan()
    first = {one.name for one in plan.preparation.measurements[:1]}
    by = in_one_process_from(shops, noise, lost=(2, 5), after=first)
    assert found.text() == by.text()
    other = started(tmp_path / "other" if (tmp_path / "other").mkdir() is None else tmp_path)
    other.trial.carrier.meddle = lambda way, site, sent: None if (way, site) == ("up", "south") and peek(
        sent
    ).kind in ("update",) else sent
    with pytest.raises(TooFewSurvivors, match=r"has the answers of 4 clients and needs 6"):
        other.generate()


def in_one_process_from(shops: Shops, noise: dict[str, Entropy], lost: tuple[int, ...], after: set[str]) -> Generator:
    """The same where clients are lost after the measurements of these names."""
    from fedveil.prepare.statement import ALL

    plan, found = shops.plan(), shops.cells
    by = Measurer(
        owner=found.train.owner,
        clients=found.train.clients,
        present=found.present,
        target=plan.target,
        entropy=ByClient(noise),  # type: ignore[arg-type]
        trust=plan.trust,
        fails=lambda turn, client: client in lost and ALL[turn] not in after,
    )
    return learned_generator(plan.name, plan.preparation, shops.request, table_of(found), plan.units, by)
