"""Comparisons: one target for all, refusals with their reason, every model counted and charged."""

import json
import math
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from fedveil.core.errors import BadValue
from fedveil.data.arrays import records_from_arrays
from fedveil.data.records import Records
from fedveil.jobs.compare import TRUST, Comparison, candidates, compare
from fedveil.jobs.entry import Wish, init_study
from fedveil.jobs.local import plan_study
from fedveil.ledger.books import Ledger
from fedveil.ledger.budget import CapExceeded
from fedveil.planning.plan import Plan
from fedveil.planning.promises import ADVERSARIES, promise
from fedveil.planning.study import study_of
from fedveil.report.compare_page import compare_page
from fedveil.report.words import bytes_text
from fedveil.stages.train.hidden.acts import messages
from fedveil.stages.train.registry import KINDS

GENERATOR = np.random.default_rng(8)
TABLES = {
    "study": {"name": "trial <b>", "seed": 4},
    "model": {"kind": "logistic", "radius": 5.0},
    "privacy": {"epsilon": 3.0, "delta": 1e-4},
    "schedule": {"kind": "constant", "rounds": 1, "passes": 4},
    "data": {"public": True},  # so that scores on the second records may be exact
}


def noise_on_average(plan: Plan, records: Records) -> float | None:
    return plan.method.average_noise(records.sizes, plan.setup)


def some(count: int, clients: int = 6) -> Records:
    X = GENERATOR.normal(size=(count, 3))
    return records_from_arrays(X, (X[:, 0] > 0).astype(int), np.arange(count) % clients, bound=2.0, classes=2)


DATA = (some(300), some(100))
WEIGHED = ("hidden", "dpsgd")
VARIANTS = ["hidden", "hidden:order=public", "hidden:stopping=random"]


def tables(**changes: object) -> dict[str, object]:
    return {**TABLES, **changes}


def compared(**changes: object) -> Comparison:
    return compare(tables(), DATA, **({"algorithms": VARIANTS, "runs": 2} | changes))  # type: ignore[arg-type]


def test_every_variant_meets_the_same_target_and_is_measured() -> None:
    found = compared()
    assert [entry.label for entry in found.entries] == VARIANTS
    for entry in found.entries:
        assert entry.refused is None
        assert 2.9 < entry.epsilon <= 3.0
        assert len(entry.scores) == 2
        assert entry.mean == pytest.approx(np.mean(entry.scores))
        assert entry.spread == pytest.approx(np.std(entry.scores, ddof=1))
        assert entry.work.bytes_up == entry.work.bytes_down == 4 * 6 * 4 * 8  # passes, clients, parameters, bytes
        assert entry.noise_on_average > 0
        assert entry.model_spread > 0
    assert found.best is not None
    assert found.best.mean > 0.8
    assert found.trained == 6


def test_a_seed_makes_it_repeatable_and_not_private() -> None:
    first, second = compared(), compared()
    assert [e.scores for e in first.entries] == [e.scores for e in second.entries]
    assert not first.private
    assert "NOT PRIVATE" in first.warning
    assert all(math.isinf(cost.epsilon) for cost in first.costs)


def test_without_a_seed_every_model_is_added_up() -> None:
    found = compare(tables(study={"name": "trial"}), DATA, algorithms=["hidden"], runs=3)
    spent = {cost.adversary: cost for cost in found.costs}
    assert found.private
    assert spent["final-model"].epsilon == pytest.approx(3 * found.entries[0].epsilon)
    assert spent["final-model"].delta == pytest.approx(3e-4)
    assert "3 models were trained" in found.warning
    assert "no ledger was charged" in found.warning


def test_every_registered_algorithm_is_tried_or_says_why_not() -> None:
    found = compare(tables(privacy={"epsilon": 3.0, "delta": 1e-4, "unit": "client"}), DATA, runs=1)
    assert [entry.algorithm for entry in found.entries] == list(KINDS)
    for entry in found.entries:
        assert (entry.refused is None) == (len(entry.scores) == 1)
        assert entry.refused is None or entry.refused.strip()


def test_a_refusal_is_shown_and_costs_nothing() -> None:
    found = compared(algorithms=["hidden", "hidden:noise=laplace"])
    assert found.entries[1].refused is not None
    assert "algorithm.noise" in found.entries[1].refused
    assert found.trained == 2


def test_trust_names_every_observer_and_local_noise_is_the_most() -> None:
    found = compare(tables(), DATA, view="trust", runs=1)
    assert [entry.adversary for entry in found.entries] == [adversary for _, adversary, _ in TRUST]
    noise = [entry.noise_on_average for entry in found.entries]
    assert noise[0] > 5 * noise[1]
    assert noise[1] >= noise[2] * (1 - 1e-3) >= noise[3] * (1 - 2e-3)


def test_the_local_row_takes_the_better_algorithm_and_says_so() -> None:
    """Hiding buys nothing against who sees every update, so dpsgd may do better there; both are weighed."""
    rows = {kind: compare(tables(), DATA, algorithms=[kind], view="trust", runs=1).entries for kind in WEIGHED}
    local = {kind: found[0] for kind, found in rows.items()}
    assert local["hidden"].algorithm == local["dpsgd"].algorithm  # whichever was asked for, the better one is taken
    assert "by expected risk (hidden " in local["hidden"].explained
    assert rows["hidden"][1].algorithm == "hidden"
    exact = compare(tables(), DATA, algorithms=["hidden:order=secret"], view="trust", runs=1).entries[0]
    assert exact.algorithm == "hidden"  # settings were asked for, so nothing else is tried


def test_work_and_dispersal_stand_beside_rounds_and_bytes() -> None:
    found = compare(tables(), DATA, algorithms=["hidden", "dpsgd:rate=0.1:rounds=20", "simfl"], runs=1)
    hidden, dpsgd, simfl = found.entries
    assert hidden.work.gradients == 4 * 300  # four passes
    assert hidden.work.dispersal == 300 / 6  # a pass is one round, and every client answers once
    assert dpsgd.work.gradients == 2 * 300
    assert dpsgd.work.dispersal == pytest.approx(0.1 * 300 / 6)  # m of van Dijk and Nguyen, section 2.6
    assert simfl.work.gradients == simfl.rounds * 300
    assert {"gradients", "dispersal"} <= found.as_json()["entries"][0].keys()
    assert "1,200" in compare_page(found.as_json())


def test_against_the_server_the_clients_add_the_noise() -> None:
    private = {"epsilon": 8.0, "delta": 1e-4, "unit": "client"}
    wanted = tables(privacy=private, schedule={"rounds": 5}, algorithm={"kind": "fedavg"})
    found = compare(wanted, (some(300, 60), DATA[1]), view="trust", runs=1)
    assert all(entry.refused is None for entry in found.entries)
    assert "client" in found.entries[0].noise
    assert "server" in found.entries[3].noise


def test_a_reference_is_trained_only_when_baselines_are_asked_for() -> None:
    found = compare(tables(report={"baselines": True}, data={"public": True}), DATA, algorithms=["hidden"], runs=1)
    assert found.reference is not None
    assert found.reference > 0.9
    assert found.trained == 2
    assert compared(algorithms=["hidden"], runs=1).reference is None


def test_without_held_out_records_nothing_is_measured() -> None:
    found = compare(tables(), DATA[0], algorithms=["hidden"], runs=2)
    assert (found.entries[0].scores, found.entries[0].mean, found.best) == ((), None, None)
    assert "How well each does" not in compare_page(found.as_json())


def test_the_ledger_is_charged_once_for_all_and_a_cap_refuses_before_training(tmp_path: Path) -> None:
    books = {"ledger": str(tmp_path / "books.sqlite"), "cap": {"final-model": [6.5, 1e-3]}}
    wanted = tables(study={"name": "trial"}, books=books)
    found = compare(wanted, DATA, algorithms=["hidden"], runs=2)
    assert found.charged
    with Ledger.look(tmp_path / "books.sqlite") as ledger:
        assert ledger.spent("final-model").epsilon == found.costs[0].epsilon
        last = ledger.entries()[-1]
        assert (last.kind, last.payload["model"]) == ("release", sha256(found.text().encode()).hexdigest())
        before = ledger.verify()
        with pytest.raises(CapExceeded):
            compare(wanted, DATA, algorithms=VARIANTS, runs=1)
        assert ledger.verify() == before


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"algorithms": ["hiden"]}, "algorithm.kind"),
        ({"algorithms": ["hidden", "hidden"]}, "named once"),
        ({"algorithms": ["hidden:order"]}, "key=value"),
        ({"algorithms": ["hidden:colour=red"]}, "colour"),
        ({"runs": 0}, "runs"),
        ({"view": "side"}, "view"),
    ],
)
def test_mistakes_are_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(BadValue, match=words):
        compared(**changes)


def test_a_client_answers_once_a_round_for_all_of_its_units() -> None:
    few, many = (plan_study(tables(), some(120, clients)).plan for clients in (5, 120))
    assert messages(few) == 4 * 5
    assert messages(many) == 4 * 120


def test_the_page_says_it_all_and_escapes_what_it_shows() -> None:
    for found in (
        compared(algorithms=["hidden", "hidden:noise=laplace"]),
        compare(tables(), DATA, view="trust", runs=1),
    ):
        page = compare_page(json.loads(found.text()))
        assert "NOT PRIVATE" in page
        assert "trial &lt;b&gt;" in page
        assert "trial <b>" not in page
        assert all(entry.label in page for entry in found.entries)
        assert "<script" not in page
        assert "http://" not in page
    assert "Not for this study" in compare_page(compared(algorithms=["hidden:noise=laplace"]).as_json())


def test_sizes_have_units() -> None:
    assert [bytes_text(n) for n in (0, 999, 1000, 10**15)] == ["0 B", "999 B", "1 kB", "1e+03 TB"]


def test_noise_is_stated_in_one_currency() -> None:
    wanted = tables(schedule={})
    found = compare(wanted, (some(200, 1), DATA[1]), algorithms=["dpsgd:sampling=poisson:rate=0.25", "hidden"], runs=1)
    first = found.entries[0]
    assert first.refused is None
    plan = plan_study(
        {**wanted, "algorithm": {"kind": "dpsgd", "sampling": "poisson", "rate": 0.25}}, some(200, 1)
    ).plan
    settings = plan.method.client_settings[0]  # type: ignore[attr-defined]
    assert first.noise_on_average == pytest.approx(settings.noise * settings.clip / 50)


def test_mixing_the_noise_of_equal_clients_averages_it() -> None:
    method = {"kind": "dpsgd", "noise_multiplier": 50.0, "rate": 0.5, "rounds": 4}
    one, four = some(200, 1), some(800, 4)  # four clients of 200 records
    central, local = (tables(schedule={}, algorithm=method, **more) for more in ({}, {"trust": {"noise": "local"}}))
    alone = noise_on_average(plan_study(central, one).plan, one)
    assert noise_on_average(plan_study(central, four).plan, four) == pytest.approx(alone / 4)  # one noise for all
    assert noise_on_average(plan_study(local, four).plan, four) == pytest.approx(alone / 2)  # each client its own
    simple = tables(schedule={}, algorithm={"kind": "simfl"})
    plan = plan_study(simple, four).plan
    spread = plan.method.noise_std * 2 / plan.method.divisor(plan.data)  # type: ignore[attr-defined]
    assert noise_on_average(plan, four) == pytest.approx(spread)
    assert noise_on_average(plan_study(tables(), one).plan, one) == pytest.approx(
        plan_study(tables(), one).plan.run.noise_std / math.sqrt(200)
    )


def test_kinds_of_noise_stand_side_by_side_for_every_observer() -> None:
    given = tables(
        privacy={"epsilon": 3.0, "delta": 1e-3, "unit": "client", "neighbours": "zero-out"},
        algorithm={"kind": "fedavg", "cohort": 2},
        schedule={"rounds": 6},
    )
    found = compare(given, DATA, view="noise", runs=1)
    kinds = ("independent", "correlated", "hidden")
    assert [entry.label for entry in found.entries] == [f"{kind}, {who}" for who in ADVERSARIES for kind in kinds]
    for entry in found.entries:
        assert entry.refused is None
        assert 2.9 < (entry.epsilon or 0.0) <= 3.0
        assert len(entry.scores) == 1
    rows = {entry.label: entry for entry in found.entries}
    assert "correlated, 3 bands" in rows["correlated, every-model"].noise
    assert "clients" in rows["correlated, server"].noise  # whom the server sees add it
    assert "Which noise for whom" in compare_page(found.as_json())
    with pytest.raises(BadValue, match="algorithms must be left out when noise is compared"):
        compare(given, DATA, view="noise", algorithms=["hidden"], runs=1)


def test_records_that_draw_in_classes_are_compared_too() -> None:
    labels = [entry.label for entry, _ in candidates(study_of(tables(), data_given=True, base=Path()), "noise", ())]
    assert len(labels) == 4 * len(ADVERSARIES)
    assert "correlated, drawn, server" in labels


class TestDrafted:
    """A study that leaves its columns to be learned: each model learns them anew, and pays for it."""

    def drafted(self, folder: Path, extra: str = "", held: str = "public = true\n") -> Path:
        draw = np.random.default_rng(2)
        lines = ["age,town,ill"]
        for _ in range(400):
            age, town = draw.normal(50, 15), draw.choice(["Ulm", "Bonn", "?"])
            lines.append(f"{age:.0f},{town},{'yes' if age + 10 * (town == 'Ulm') > 55 else 'no'}")
        (folder / "data.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
        out = folder / "study.toml"
        init_study(Wish(data=str(folder / "data.csv"), target="ill", classes=("no", "yes"), epsilon=3.0), out)
        quick = '[algorithm]\nkind = "hidden"\norder = "secret"\n[schedule]\nkind = "constant"\nrounds = 2\n'
        study = out.read_text(encoding="utf-8").replace("[data.held_out]", f"[data.held_out]\n{held}")
        out.write_text(study + quick + extra, encoding="utf-8")
        return out

    def test_it_is_trained_measured_and_charged(self, tmp_path: Path) -> None:
        found = compare(self.drafted(tmp_path), algorithms=["hidden", "hidden:order=public"], runs=2)
        assert [entry.refused for entry in found.entries] == [None, None]
        for entry in found.entries:
            assert 2.9 < entry.epsilon <= 3.0
            assert len(entry.scores) == 2
            assert entry.model_spread is None
        assert found.best is not None
        assert found.best.mean > 0.7
        assert found.charged
        spent = {cost.adversary: cost.epsilon for cost in found.costs}
        assert spent["final-model"] == pytest.approx(2 * sum(entry.epsilon for entry in found.entries))
        assert found.constant in ("always 'yes'", "always 'no'")
        assert "&#x27;" in compare_page(found.as_json())
        assert (tmp_path / ".fedveil" / "data.csv.sqlite").is_file()

    def test_each_plan_holds_the_preparation_it_is_charged_for(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from fedveil.jobs import compare as comparing

        carried: list[Plan] = []
        usual = comparing.run_stages

        def watched(plan: Plan, *given: object) -> object:
            carried.append(plan)
            return usual(plan, *given)  # type: ignore[arg-type]

        monkeypatch.setattr(comparing, "run_stages", watched)
        found = compare(self.drafted(tmp_path), algorithms=["hidden"], runs=2)
        assert len(carried) == 2
        assert all(plan.preparation for plan in carried)
        assert found.entries[0].epsilon == promise(carried[0], "final-model").epsilon

    def test_private_held_out_records_are_counted_with_noise_and_charged(self, tmp_path: Path) -> None:
        found = compare(self.drafted(tmp_path, held=""), algorithms=["hidden"], runs=2)
        (entry,) = found.entries
        assert found.counted
        assert found.private
        assert len(entry.scores) == 2
        assert entry.scores[0] != entry.scores[1]  # models and counts have noise of their own
        exact = found.test_records * np.array(entry.scores)
        assert not np.allclose(exact, np.rint(exact), atol=1e-9)  # no share of whole records
        assert "charged for" in compare_page(found.as_json())
        assert {cost.adversary: cost.epsilon for cost in found.costs}["final-model"] < math.inf

    def test_no_exact_reference_stands_beside_noisy_counts(self, tmp_path: Path) -> None:
        study = self.drafted(tmp_path, "[report]\nbaselines = true\n[evaluation]\nprivate = true\n", held="")
        study.write_text(study.read_text().replace("[data]\n", "[data]\npublic = true\n"))
        study.write_text(study.read_text().replace("[data.held_out]\n", "[data.held_out]\npublic = false\n"))
        found = compare(study, algorithms=["hidden"], runs=1)
        assert found.counted
        assert found.reference is None

    def test_private_held_out_records_that_no_count_can_score_are_refused(self, tmp_path: Path) -> None:
        study = self.drafted(tmp_path, held="")
        study.write_text(study.read_text().replace("[model]", "[model]\ndecision_threshold = 0.4"))
        with pytest.raises(BadValue, match="the study states a decision threshold"):
            compare(study, algorithms=["hidden"], runs=1)
        assert not (tmp_path / ".fedveil").exists()

    def test_a_cap_stops_it_before_anything_is_learned(self, tmp_path: Path) -> None:
        study = self.drafted(tmp_path, "[books]\ncap = {final-model = [4.0, 1e-3]}\n")
        with pytest.raises(CapExceeded):
            compare(study, algorithms=["hidden"], runs=4)

    def test_public_records_have_a_reference(self, tmp_path: Path) -> None:
        study = self.drafted(tmp_path, "[report]\nbaselines = true\n")
        study.write_text(study.read_text().replace("[data]\n", "[data]\npublic = true\n"))
        found = compare(study, algorithms=["hidden"], runs=1)
        assert found.reference is not None
        assert found.reference > 0.8
