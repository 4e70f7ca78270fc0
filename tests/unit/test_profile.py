"""A private profile: what it finds, what it costs, and that both are what the books and the certificate say."""

import json
import math
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedveil.accounting.compare import account_for
from fedveil.certificate.certify import certify_measured, differences
from fedveil.core.errors import FedveilError, Interrupted
from fedveil.data.records import DataShape
from fedveil.engine.system import System
from fedveil.jobs.entry import ProfileResult, Wish, profile_data
from fedveil.jobs.local import plan_study
from fedveil.ledger.costs import Charged, cost_of, together
from fedveil.planning.plan import read_any_plan
from fedveil.planning.promises import ADVERSARIES
from fedveil.planning.study import read_study
from fedveil.privacy.mechanism import Compose, Gaussian
from fedveil.privacy.target import Target
from fedveil.stages.measured.plan import MeasuredPlan
from fedveil.stages.profile.profile import NumberColumn, Profile
from fedveil.stages.profile.request import Sizes, profile_plan
from fedveil.version import __version__

ROWS = 4000
WORDS = ("A", "B", "C")


def drawn(seed: int) -> Callable[[int], bytes]:
    source = random.Random(seed)
    return source.randbytes


def write(path: Path, rows: int = ROWS, seed: int = 1) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(seed)
    age = draw.normal(50, 10, rows)
    columns = {
        "age": age,
        "debt": np.exp(draw.normal(8, 3, rows)),
        "ward": draw.choice(WORDS, size=rows, p=[0.6, 0.3, 0.1]),
        "name": np.array([f"person {index}" for index in range(rows)]),
        "ill": np.where(age + draw.normal(0, 5, rows) > 50, "yes", "no"),
    }
    gone = draw.random(rows) < 0.2
    ages = ["" if away else f"{value:.2f}" for value, away in zip(age, gone, strict=True)]
    cells = zip(ages, (f"{v:.3f}" for v in columns["debt"]), *list(columns.values())[2:], strict=True)
    lines = [",".join(row) for row in cells]
    path.write_text("\n".join([",".join(columns), *lines]) + "\n", encoding="utf-8")
    return columns | {"gone": gone}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[ProfileResult, dict[str, np.ndarray]]:
    folder = tmp_path_factory.mktemp("profile")
    truth = write(folder / "visits.csv")
    wish = Wish(data=str(folder / "visits.csv"), target="ill")
    return profile_data(wish, 2.0, folder / "out", system=System(random=drawn(3))), truth


def shape(records: int = 1000, clients: int | None = None) -> DataShape:
    held = 1 if clients is None else records // clients
    return DataShape(
        records=records,
        features=5,
        classes=0,
        clients=clients or records,
        largest_client=held,
        smallest_client=held,
        bound=1.0,
    )


class TestWhatItFinds:
    def test_ranges_words_and_gaps_are_those_of_the_data(self, made: tuple[ProfileResult, dict]) -> None:
        found, truth = made[0].profile, made[1]
        age, debt = found.number("age"), found.number("debt")
        assert age is not None
        assert debt is not None
        assert age.low <= np.quantile(truth["age"], 0.1)
        assert np.quantile(truth["age"], 0.9) <= age.high
        assert age.centre == pytest.approx(truth["age"].mean(), abs=3)
        assert age.missing == pytest.approx(truth["gone"].mean(), abs=2 * found.errors["ranges"])
        assert debt.bend > 0
        assert debt.spread is None
        ward = found.words_of("ward")
        assert ward is not None
        assert ward.missing == 0
        for word, share in ward.words:
            assert share == pytest.approx(np.mean(truth["ward"] == word), abs=3 * found.errors["categories"])

    def test_correlations_are_those_of_the_data(self, made: tuple[ProfileResult, dict]) -> None:
        found, truth = made[0].profile, made[1]
        assert found.correlated == ("age", "debt", "ill=no") or found.correlated == ("age", "debt", "ill=yes")
        sign = 1 if found.correlated[2] == "ill=yes" else -1
        there = ~truth["gone"]
        expected = sign * np.corrcoef(truth["age"][there], truth["ill"][there] == "yes")[0, 1]
        # Gaps count as the mean and long rows are cut, so the picture is a little paler than the truth.
        assert 0.6 <= found.correlations[0][2] / expected <= 1.1
        assert abs(found.correlations[0][1]) <= 4 * found.errors["correlations"] + 0.05

    def test_a_word_that_one_record_made_up_is_not_shown(self, made: tuple[ProfileResult, dict]) -> None:
        name = made[0].profile.words_of("name")
        assert name is not None
        assert name.words == ()
        assert name.other == 1.0
        assert "person" not in (made[0].folder / "profile.json").read_text()

    def test_it_reads_back(self, made: tuple[ProfileResult, dict]) -> None:
        assert Profile.read(made[0].profile.text()) == made[0].profile
        with pytest.raises(FedveilError, match=r"profile\.json"):
            Profile.read('{"format": 1, "records": 3}')


class TestWhatItCosts:
    def test_its_epsilon_is_that_of_the_composed_gaussians(self) -> None:
        target = Target(epsilon=1.0, delta=1e-5)
        plan = profile_plan("p", shape(), target, Sizes(3, 2, True), None)
        less = {True: math.sqrt(2), False: 1.0}  # counts move by the root of 2 times their norm, and not by twice
        parts = [
            Gaussian(noise_multiplier=one.noise * less[one.name not in ("means", "moments")], neighbours="replace-one")
            for one in plan.sums.measurements
        ]
        whole = account_for(Compose(parts=tuple(parts)), delta=1e-5).epsilon
        assert whole * (1 - 1e-9) <= plan.promise("final-model").epsilon <= 1.0
        assert plan.promise("final-model").epsilon <= 1.02 * whole

    @pytest.mark.parametrize("neighbours", ["replace-one", "zero-out"])
    @pytest.mark.parametrize("unit", ["record", "client"])
    def test_every_observer_has_an_answer_and_more_is_seen_by_no_means_for_less(
        self, unit: str, neighbours: str
    ) -> None:
        given = {"unit": unit, "neighbours": neighbours}
        target = Target(epsilon=0.7, delta=1e-6, **given)  # type: ignore[arg-type]
        plan = profile_plan("p", shape(1000, 50), target, Sizes(4, 3, True), "client column")
        promised = {who: plan.promise(who).epsilon for who in ADVERSARIES}
        assert promised["final-model"] <= 0.7
        assert promised["final-model"] <= promised["curious-client"] <= promised["server"]
        assert all(cost_of(plan, who).epsilon == promised[who] for who in ADVERSARIES)

    def test_a_single_client_adds_all_of_the_noise(self) -> None:
        plan = profile_plan("p", shape(100, 1), Target(epsilon=1.0, delta=1e-4), Sizes(2, 0, False), None)
        assert len({plan.promise(who).epsilon for who in ADVERSARIES}) == 1

    def test_its_text_reads_back_and_is_what_the_books_read(self) -> None:
        plan = profile_plan("p", shape(), Target(epsilon=1.0, delta=1e-5), Sizes(3, 2, True), None)
        assert MeasuredPlan.read(plan.text()) == plan == read_any_plan(plan.text())
        with pytest.raises(FedveilError, match="rounds"):
            MeasuredPlan.read(plan.text().replace("[measured]", "[measured]\nrounds = 3"))

    def test_books_compose_it_exactly_and_not_by_its_epsilon_alone(self) -> None:
        target = Target(epsilon=1.0, delta=1e-5)
        plan = profile_plan("p", shape(), target, Sizes(3, 0, False), None)
        payload = {
            "costs": [cost_of(plan, who).written() for who in ADVERSARIES],
            "plan": plan.hash,
            "mechanism": plan.text(),
            "extra": {},
        }
        runs = [Charged.read(json.loads(json.dumps(payload)))] * 4
        found = together(runs, ("final-model", "record", "replace-one"), 1e-5)
        four = Compose(parts=(plan.sums.mechanism("replace-one"),) * 4)
        exact = account_for(four, delta=1e-5).epsilon
        assert exact <= found <= 1.03 * exact < 4.0


class TestRecords:
    def test_it_is_certified_from_its_records_alone(self, made: tuple[ProfileResult, dict]) -> None:
        folder = made[0].folder
        found = certify_measured(folder, __version__)
        assert differences(found, (folder / "certificate.json").read_bytes()) == []
        assert [one.adversary for one in found.guarantees] == list(ADVERSARIES)
        assert not (folder / "private" / "key").exists()

    @pytest.mark.parametrize("name", ["plan.toml", "profile.json", "ledger.jsonl"])
    def test_a_record_that_was_changed_is_found(
        self, made: tuple[ProfileResult, dict], tmp_path: Path, name: str
    ) -> None:
        for file in ("plan.toml", "profile.json", "ledger.jsonl"):
            (tmp_path / file).write_bytes((made[0].folder / file).read_bytes())
        changed = (tmp_path / name).read_text().replace("2", "3", 1)
        (tmp_path / name).write_text(changed)
        with pytest.raises(FedveilError):
            certify_measured(tmp_path, __version__)

    def test_a_profile_over_the_cap_is_refused_and_leaves_nothing(self, tmp_path: Path) -> None:
        from fedveil.ledger.books import Ledger
        from fedveil.ledger.budget import Cap

        write(tmp_path / "v.csv", rows=200)
        wish = Wish(data=str(tmp_path / "v.csv"), target="ill")
        profile_data(wish, 0.5, tmp_path / "first")
        with Ledger.look(tmp_path / ".fedveil" / "v.csv.sqlite") as books:
            books.set_cap(
                Cap(adversary="final-model", unit="record", neighbours="replace-one", epsilon=0.6, delta=1e-3), "enough"
            )
        with pytest.raises(FedveilError, match="cap"):
            profile_data(wish, 0.5, tmp_path / "second")
        assert not (tmp_path / "second" / "plan.toml").exists()
        assert not (tmp_path / "second" / "profile.json").exists()

    def test_an_interrupted_profile_is_finished_with_the_same_noise(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import fedveil.jobs.entry as acting

        write(tmp_path / "v.csv", rows=200)
        wish = Wish(data=str(tmp_path / "v.csv"), target="ill")
        seen: list[Profile] = []
        whole = acting.profile_of

        def stopped(*given: object) -> Profile:
            seen.append(whole(*given))  # type: ignore[arg-type]
            raise KeyboardInterrupt

        monkeypatch.setattr(acting, "profile_of", stopped)
        with pytest.raises(Interrupted, match="--resume"):
            profile_data(wish, 0.5, tmp_path / "out")
        monkeypatch.setattr(acting, "profile_of", whole)
        assert profile_data(wish, 0.5, tmp_path / "out", resume=True).profile == seen[0]
        assert len((tmp_path / "out" / "ledger.jsonl").read_text().splitlines()) == 2 + 1


class TestTheDraft:
    def test_it_states_what_was_found_and_leaves_out_what_tells_nothing(self, made: tuple[ProfileResult, dict]) -> None:
        study = read_study(made[0].folder / "study.toml")
        source = study.source
        assert source is not None
        assert source.labelling.classes == ("no", "yes")
        assert source.labelling.unlisted == "drop-row"
        assert set(source.features.scale) == {"age", "debt"}
        assert set(source.features.bend) == {"debt"}
        assert set(source.features.categories) == {"ward"}
        assert source.features.categories["ward"][-1] == "(other)"
        assert source.features.ignore == ("name",)

    def test_a_number_to_predict_gets_its_range(self, tmp_path: Path) -> None:
        write(tmp_path / "v.csv", rows=2000)
        result = profile_data(Wish(data=str(tmp_path / "v.csv"), target="age"), 2.0, tmp_path / "out")
        study = read_study(tmp_path / "out" / "study.toml")
        assert study.source is not None
        assert study.source.labelling.target_scale is not None
        assert study.source.labelling.target_scale[0] <= 40
        assert study.source.labelling.target_scale[1] >= 60
        assert study.model.kind == "huber"
        assert result.draft.complete

    def test_the_page_stands_alone(self, made: tuple[ProfileResult, dict]) -> None:
        page = (made[0].folder / "profile.html").read_text()
        assert "<script" not in page
        assert "http://" not in page
        assert "https://" not in page
        assert "Correlations" in page
        assert "age" in page

    def test_long_names_stay_apart_and_a_wide_picture_scrolls(self) -> None:
        """On a phone the squares keep their size, and names that differ at their ends alone can be told apart."""
        from fedveil.report.profile_page import _grid, _round_off

        names = [f"a_long_measurement_name_{k}" for k in range(20)]
        drawn = str(_grid(names, np.eye(20).tolist(), "none"))
        assert drawn.startswith('<div class="scrolls"')
        assert f"width: {52 + 8 * 18 + 24 * 20 + 8}px" in drawn  # as wide as it needs, not as the page
        assert all(f"name_{k}  {k + 1}<" in drawn for k in range(20))
        one = NumberColumn(
            name="flag", low=-(2.0**-30), high=2.0, bend=0.0, centre=0.50083, spread=0.5, missing=0.0, share=1.0
        )
        assert [_round_off(value, one) for value in (one.low, one.high, one.centre)] == ["0", "2", "0.501"]


class TestADraftRunsAsItIs:
    """What a profile drafts is complete only if it can be planned."""

    def test_where_nothing_is_left_to_learn_the_rule_is_stated(self, tmp_path: Path) -> None:
        lines = [f"{'AB'[k % 2]},{'no' if k % 3 else 'yes'}" for k in range(600)]
        (tmp_path / "v.csv").write_text("\n".join(["ward,ill", *lines]) + "\n")
        result = profile_data(Wish(data=str(tmp_path / "v.csv"), target="ill"), 5.0, tmp_path / "out")
        assert result.draft.complete
        study = read_study(tmp_path / "out" / "study.toml")
        assert study.prepare is None
        assert plan_study(tmp_path / "out" / "study.toml").plan.data.records == 480  # a fifth is held out

    def test_where_no_column_is_left_that_is_asked(self, tmp_path: Path) -> None:
        lines = [f"person {k},{'no' if k % 3 else 'yes'}" for k in range(600)]
        (tmp_path / "v.csv").write_text("\n".join(["name,ill", *lines]) + "\n")
        result = profile_data(Wish(data=str(tmp_path / "v.csv"), target="ill"), 5.0, tmp_path / "out")
        assert not result.draft.complete
        assert [one.key for one in result.draft.questions] == ["data.columns"]
