"""Records that leave a released model: charged, certified with both rows, with a receipt; refused in one sentence."""

import json
import math
import shutil
import threading
import zipfile
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from fedveil import CannotCertify, FedveilError, forget, plan_forgetting, run_study
from fedveil.certificate.certify import certify
from fedveil.core.errors import AlreadyFinished, BadValue
from fedveil.data.load import Loaded
from fedveil.data.records import DataShape, Records
from fedveil.engine.files import _held as lock_is_held
from fedveil.engine.files import sole_use
from fedveil.engine.here import Here
from fedveil.engine.run import run_stages
from fedveil.engine.study import CellsHere, RowsHere
from fedveil.engine.system import System
from fedveil.engine.train import train
from fedveil.jobs.forget import _Named as Named
from fedveil.jobs.forget import _request as request_of
from fedveil.jobs.local import open_any_study
from fedveil.noise.entropy import KEY_BYTES, Entropy
from fedveil.planning.promises import _hop as hop
from fedveil.planning.promises import forgetting_curve, forgotten, mechanism_seen_by, promise
from fedveil.release.bundle import Bundle
from fedveil.report.receipt import receipt_of
from fedveil.stages.prepare.columns import Columns
from fedveil.stages.prepare.loading import Unprepared
from fedveil.stages.train.hidden.steps import begun
from fedveil.theory.concentrated import gaussian_epsilon
from fedveil.version import __version__

STUDY = """
[data]
source = "rows.csv"
target = "y"
classes = 2
feature_bound = 2.0
[model]
kind = "logistic"
[privacy]
epsilon = 1.0
delta = 1e-5
neighbours = "zero-out"
[algorithm]
kind = "{kind}"
{more}
"""


def study_in(folder: Path, kind: str = "hidden", more: str = 'order = "public"') -> Path:
    generator = np.random.default_rng(7)
    rows = generator.normal(size=(400, 3))
    labels = (rows @ [1.0, -1.0, 0.5] + generator.logistic(size=400) > 0).astype(int)
    lines = ["a,b,c,y", *(f"{a:.4f},{b:.4f},{c:.4f},{y}" for (a, b, c), y in zip(rows, labels, strict=True))]
    (folder / "rows.csv").write_text("\n".join(lines) + "\n")
    (folder / "study.toml").write_text(STUDY.format(kind=kind, more=more))
    return folder / "study.toml"


def blank_records(shape: DataShape) -> Records:
    """Return records of a shape that contribute nothing."""
    return Records(
        features=np.zeros((shape.records, shape.features)),
        targets=np.full(shape.records, np.nan),
        owner=np.zeros(shape.records, dtype=np.int64),
        clients=shape.clients,
        bound=shape.bound,
        classes=shape.classes,
    )


def rows_of(records: Records) -> Loaded:
    return Loaded(train=records, test=None, test_public=True, dropped_rows=0, feature_names=())


def changed(columns: Columns, row: int) -> Columns:
    """Return the cells with other numbers in one row."""
    numbers = columns.numbers.copy()
    numbers[row] = 1e6
    return replace(columns, numbers=numbers)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("forget")
    run_study(study_in(base), base / "first")
    forget(base / "first", rows=[3, 17], epsilon=0.4, rounds=8, keep=1.0, out=base / "second")
    return base


def test_who_left_is_promised_the_target_and_the_others_pay_a_part(folder: Path) -> None:
    plan = certify(folder / "second", __version__).plan
    (left,) = forgotten(plan)
    assert left.units == 2
    assert left.new_model.epsilon <= 0.4
    assert left.every_model.epsilon == promise(plan.lineage[0], "final-model").epsilon
    assert promise(plan, "final-model").epsilon <= 0.5
    written = json.loads((folder / "second" / "certificate.json").read_text())["forgotten"]["units"]
    assert written[0]["epsilon_new_model_only"] == left.new_model.epsilon
    model = json.loads((folder / "second" / "certificate.json").read_text())["released"][0]["sha256"]
    assert json.loads((folder / "second" / "receipt.json").read_text()) == receipt_of(plan, left, model)
    assert "epsilon" in (folder / "second" / "receipt.html").read_text()


def test_it_starts_from_the_model_that_was_released(folder: Path) -> None:
    """With next to no noise and a single short step the new model is near the old one; from zeros it would not be."""
    before, plan = Bundle.read(folder / "first").parameters, certify(folder / "second", __version__).plan
    quiet = replace(plan.run, passes=1, step_size=1e-9, noise_std=1.0)
    near = replace(plan, method=replace(plan.hidden, run=quiet), grid=-45)
    records = blank_records(plan.data)
    assert train(near, records, Entropy.from_seed(1), start=before).model == pytest.approx(before, abs=1e-6)
    with pytest.raises(TypeError, match="must be given it"):
        run_stages(plan, RowsHere(rows_of(records), records, Entropy.from_seed(1)), Here(plan, Entropy.from_seed(1)))
    with pytest.raises(BadValue, match="be one that the plan goes on from"):
        train(plan, records, Entropy.from_seed(1), start=before * 1e6)


def fixed(size: int) -> bytes:
    return bytes(place % 251 for place in range(size))


def test_a_request_trains_on_the_records_without_them_from_the_model_before(folder: Path, tmp_path: Path) -> None:
    wish = {"epsilon": 0.9, "rounds": 4, "keep": 1.0}
    result = forget(folder / "second", rows=[5], out=tmp_path / "out", system=System(random=fixed), **wish)  # type: ignore[arg-type]
    request, plan = request_of(folder / "second", None, Named(rows=[5]), System()), result.certificate.plan
    key = fixed(16 + KEY_BYTES)[16:]
    entropy = Entropy.from_key(key, context=plan.hash + request.met(plan, key))
    opened = open_any_study(folder / "study.toml")[1]
    assert isinstance(opened, Loaded)
    without = opened.train.without(np.array([2, 4, 16]))  # and those of the request before
    again = train(plan, without, entropy, start=request.before.parameters).model
    assert again.tobytes() == Bundle.read(tmp_path / "out").parameters.tobytes()


def test_nothing_that_may_be_published_shows_the_model_before(folder: Path) -> None:
    """The promise is about whoever has the new model and not the old one: its files must not give the old one away."""
    before = Bundle.read(folder / "first").parameters
    published = [path for path in (folder / "second").iterdir() if path.is_file()]
    with zipfile.ZipFile(folder / "second" / "bundle.zip") as bundle:
        contents = [*(path.read_bytes() for path in published), *(bundle.read(name) for name in bundle.namelist())]
    assert {"plan.toml", "certificate.json", "report.html", "ledger.jsonl"} <= {path.name for path in published}
    for value in before:
        told = {f"{value!r}", f"{value:.9g}", f"{value:.6f}", f"{value:.4f}"}
        assert not any(one.encode() in content for one in told for content in contents)
        assert not any(value.tobytes() in content for content in contents)


def test_more_rounds_never_tell_more(folder: Path) -> None:
    designs = [plan_forgetting(folder / "first", rows=[5], epsilon=0.9, rounds=count) for count in (1, 4)]
    for one in designs:
        plan = one.chosen.plan
        assert forgotten(plan)[0].new_model.epsilon <= promise(plan.lineage[0], "final-model").epsilon


def test_the_first_round_hides_and_no_further_round_tells_more(folder: Path) -> None:
    plan = certify(folder / "second", __version__).plan
    noise, curve = plan.hidden.noise(), [epsilon for _, epsilon in forgetting_curve(plan)]
    assert noise[0] > 2 * noise[1:].max()
    assert curve[0] == promise(plan.lineage[0], "final-model").epsilon
    assert all(after <= before * (1 + 1e-9) for before, after in pairwise(curve))
    assert curve[-1] == forgotten(plan)[0].new_model.epsilon


def test_rounds_that_begin_anew_leave_nothing_and_need_no_noise_to_hide(folder: Path) -> None:
    result = forget(folder / "first", rows=[3, 17], epsilon=0.4, rounds=8, keep=0.0, out=folder / "anew")
    plan, noise = result.certificate.plan, result.certificate.plan.hidden.noise()
    assert result.forgotten.new_model.epsilon < 1e-6
    first = begun(plan, Bundle.read(folder / "first").parameters)
    assert first.tobytes() == np.zeros(plan.dimension).tobytes()  # no sign of the old model either
    assert noise[0] < 1.5 * noise[1]
    assert result.forgotten.every_model.epsilon == promise(plan.lineage[0], "final-model").epsilon
    again = forget(folder / "anew", rows=[5], epsilon=0.4, rounds=2, out=folder / "later")
    assert forgotten(again.certificate.plan)[0].new_model.epsilon < 1e-6  # nothing left stays nothing left


def test_only_rounds_that_begin_with_zeros_may_be_of_any_kind(folder: Path, tmp_path: Path) -> None:
    """Nothing is left to contract there, so they are designed as any run is; other rounds must not expand a gap."""
    more = 'order = "independent"\n[schedule]\nrounds = 20\npasses = 3\nstep_size = 3.0'
    run_study(study_in(tmp_path, more=more), tmp_path / "first")
    chosen = plan_forgetting(tmp_path / "first", rows=[5], epsilon=0.1).chosen
    run = chosen.plan.run
    assert (chosen.keep, run.order, run.total <= 20, int(np.max(run.batch)) < chosen.plan.units) == (
        0.0,
        "independent",
        True,
        True,
    )
    assert chosen.others <= promise(chosen.plan.lineage[0], "final-model").epsilon / 2
    plan = certify(folder / "second", __version__).plan
    for changes in ({"step_size": 9.0}, {"order": "secret"}, {"batch": 50}):
        with pytest.raises(BadValue, match=r"forget(\.step_size)? must be"):
            replace(plan, method=replace(plan.hidden, run=replace(plan.run, **changes)))
    named = replace(chosen.plan.hidden, start=(0.0,) * chosen.plan.dimension)
    with pytest.raises(BadValue, match="forget must go on from the model of the plan before, without naming it"):
        replace(chosen.plan, method=named)


def test_what_a_preparation_released_stays_when_rounds_begin_anew(tmp_path: Path) -> None:
    study = study_in(tmp_path)
    study.write_text(study.read_text().replace("feature_bound = 2.0\n", "") + "[prepare]\n")
    run_study(study, tmp_path / "first")
    chosen = plan_forgetting(tmp_path / "first", rows=[5], epsilon=0.9, keep=0.0).chosen
    released = mechanism_seen_by(chosen.plan.lineage[0], "final-model")
    assert released is not None
    assert chosen.epsilon == pytest.approx(gaussian_epsilon(released.mu, 1e-5), rel=1e-2)
    assert chosen.epsilon >= gaussian_epsilon(released.mu, 1e-5)
    with pytest.raises(CannotCertify, match="what the run released about its columns stays"):
        plan_forgetting(tmp_path / "first", rows=[5], epsilon=0.1, keep=1.0)
    # Rows are made when they are read; those of who left are as blank as if they were made and then blanked.
    request, key = request_of(tmp_path / "first", None, Named(rows=[5]), System()), Entropy.from_seed(2)
    lazy = request.remaining(chosen.plan, key).train({})
    made = request.opened.train.without(np.array([4]))
    assert lazy.blank.tolist() == made.blank.tolist()
    assert train(chosen.plan, lazy, key).model.tobytes() == train(chosen.plan, made, key).model.tobytes()


def test_what_an_evaluation_counted_is_withdrawn_with_its_model(tmp_path: Path) -> None:
    study = study_in(tmp_path)
    study.write_text(study.read_text() + '[evaluation]\nrecords = "training"\n')
    run_study(study, tmp_path / "first")
    chosen = plan_forgetting(tmp_path / "first", rows=[5], epsilon=0.1, keep=0.0).chosen
    counted = mechanism_seen_by(chosen.plan.lineage[0], "final-model")
    assert counted is not None
    assert chosen.epsilon < 1e-3 < gaussian_epsilon(counted.mu, 1e-5)
    assert forgotten(chosen.plan)[0].every_model.epsilon == promise(chosen.plan.lineage[0], "final-model").epsilon


def test_columns_are_learned_again_where_what_was_learned_of_them_tells_too_much(tmp_path: Path) -> None:
    study = study_in(tmp_path)
    text = study.read_text().replace("feature_bound = 2.0\n", "").replace("epsilon = 1.0", "epsilon = 8.0")
    study.write_text(text + "[prepare]\n")
    first = run_study(study, tmp_path / "first")
    lines = (tmp_path / "rows.csv").read_text().splitlines()
    result = forget(tmp_path / "first", rows=[5], epsilon=0.01, rounds=8, out=tmp_path / "second")
    plan = certify(tmp_path / "second", __version__).plan
    assert (plan.hidden.keep, plan.preparation.share < plan.lineage[0].preparation.share) == (0.0, True)
    assert forgotten(plan)[0].new_model.epsilon < 1e-3
    beside = mechanism_seen_by(plan, "final-model")
    assert beside is not None
    assert gaussian_epsilon(beside.mu, 1e-5) < promise(plan, "final-model").epsilon <= 4.0
    with pytest.raises(BadValue, match=r"forget\.keep must be 0 where columns are learned again"):
        replace(plan, method=replace(plan.hidden, keep=0.5, reach=plan.lineage[0].radius))
    learned = [(tmp_path / name / "preparation.json").read_bytes() for name in ("first", "second")]
    assert learned[0] != learned[1]
    assert "learned about the columns" in (tmp_path / "second" / "receipt.html").read_text()
    frame = {name: [float(line.split(",")[at]) for line in lines[1:9]] for at, name in enumerate("abc")}
    assert len(result.model.predict(frame)) == len(first.model.predict(frame)) == 8
    # A later request goes on with the columns as they were learned last; both units' promises hold.
    forget(tmp_path / "second", rows=[9], epsilon=3.0, rounds=4, keep=0.0, out=tmp_path / "third")
    third = certify(tmp_path / "third", __version__).plan
    earlier, now = forgotten(third)
    assert earlier.new_model.epsilon < 1e-3
    assert gaussian_epsilon(beside.mu, 1e-5) <= now.new_model.epsilon <= 3.0
    assert not third.preparation
    assert (tmp_path / "third" / "private" / "origin").read_text().strip() == str((tmp_path / "second").absolute())


def test_nothing_of_who_left_is_in_what_is_learned_again(tmp_path: Path) -> None:
    """The noise repeats itself in tests: if the sums without the record are the same, so is all that is released."""
    study = study_in(tmp_path)
    study.write_text(study.read_text().replace("feature_bound = 2.0\n", "") + "[prepare]\n")
    run_study(study, tmp_path / "first")
    opened = open_any_study(study)[1]
    assert isinstance(opened, Unprepared)
    other = replace(opened, columns=changed(opened.columns, row=4))
    plan, key = plan_forgetting(tmp_path / "first", rows=[5], epsilon=0.1).chosen.plan, Entropy.from_seed(3)
    request = request_of(tmp_path / "first", None, Named(rows=[5]), System())
    asked = [replace(request, cells=one).remaining(plan, key) for one in (opened, other)]
    released = [run_stages(plan, one, Here(plan, key)) for one in asked]
    assert released[0]["preparation"].text() == released[1]["preparation"].text()
    assert released[0]["training"].tobytes() == released[1]["training"].tobytes()
    kept = [run_stages(plan, CellsHere(one, key), Here(plan, key)) for one in (opened, other)]
    assert kept[0]["preparation"].text() != kept[1]["preparation"].text()


@pytest.mark.parametrize("keep", [0.5, 0.0625, 0.0])
def test_the_smaller_the_part_they_begin_with_the_less_noise_hides_them(folder: Path, keep: float) -> None:
    whole, part = (plan_forgetting(folder / "first", rows=[5], rounds=4, keep=k).chosen for k in (1.0, keep))
    assert part.plan.hidden.noise()[0] < whole.plan.hidden.noise()[0]
    assert part.plan.hidden.keep == keep


def test_long_steps_of_drawn_records_are_forgotten_by_beginning_anew(tmp_path: Path) -> None:
    run_study(
        study_in(tmp_path, more='order = "poisson"\nrate = 0.2\n[schedule]\nrounds = 20\nstep_size = 3.0'),
        tmp_path / "first",
    )
    chosen = plan_forgetting(tmp_path / "first", rows=[5], epsilon=0.1).chosen
    assert float(np.max(chosen.plan.lineage[0].run.step_size)) * (chosen.plan.run.smoothness or 0.0) > 2
    assert (chosen.keep, chosen.epsilon < 1e-3) == (0.0, True)


def test_a_later_request_keeps_the_earlier_promise(folder: Path) -> None:
    lines = (folder / "rows.csv").read_text().splitlines()
    (folder / "leaving.csv").write_text("\n".join([lines[0], lines[30]]) + "\n")
    second = certify(folder / "second", __version__).plan
    result = forget(folder / "second", records=folder / "leaving.csv", epsilon=0.6, rounds=4, out=folder / "third")
    earlier, now = forgotten(result.certificate.plan)
    assert earlier.new_model.epsilon <= forgotten(second)[0].new_model.epsilon * (1 + 1e-6)
    assert now.new_model.epsilon <= 0.6
    kept = json.loads((folder / "third" / "private" / "forgotten.json").read_text())["records"]
    assert kept == [2, 16, 29]


def test_hops_of_a_later_request_add_up_in_both_directions(folder: Path) -> None:
    """Each hop must hold at a delta that the epsilon of all hops cannot lift above the promised one."""
    lineage = certify(folder / "third", __version__).plan.lineage
    promised = forgotten(lineage[-1])[1].new_model
    each = promised.delta / 2 * math.exp(-promised.epsilon)
    assert math.fsum(hop(lineage, place, each).epsilon for place in (0, 1)) <= promised.epsilon * (1 + 1e-9)


def test_a_request_that_was_stopped_is_finished_once(folder: Path) -> None:
    wish = {"rows": [9], "epsilon": 0.9, "rounds": 2}
    forget(folder / "first", out=folder / "stopped", **wish)  # type: ignore[arg-type]
    model = (folder / "stopped" / "model.npz").read_bytes()
    charged = (folder / "stopped" / "ledger.jsonl").read_bytes()
    for name in ("receipt.html", "receipt.json", "certificate.json", "private/forgotten.json"):
        (folder / "stopped" / name).unlink()
    forget(folder / "first", out=folder / "stopped", resume=True, **wish)  # type: ignore[arg-type]
    assert (folder / "stopped" / "model.npz").read_bytes() == model
    assert (folder / "stopped" / "ledger.jsonl").read_bytes() == charged
    assert (folder / "stopped" / "receipt.html").exists()
    with pytest.raises(AlreadyFinished):
        forget(folder / "first", out=folder / "stopped", resume=True, **wish)  # type: ignore[arg-type]


def study_of_persons(folder: Path, names: list[str], largest: int) -> Path:
    study = study_in(folder)
    lines = (folder / "rows.csv").read_text().splitlines()
    rows = [f"{line},{name}" for line, name in zip(lines[1:], names, strict=True)]
    (folder / "rows.csv").write_text("\n".join([f"{lines[0]},patient", *rows]) + "\n")
    named = f'target = "y"\nperson_column = "patient"\nlargest_person = {largest}'
    text = study.read_text().replace('target = "y"', named).replace("epsilon = 1.0", 'unit = "person"\nepsilon = 3.0')
    study.write_text(text + "[schedule]\nrounds = 1\npasses = 5\n")  # groups take a while to account for
    return study


def test_a_person_leaves_with_all_its_rows(tmp_path: Path) -> None:
    names = [f"P{number % 130}" for number in range(400)]
    run_study(study_of_persons(tmp_path, names, largest=3), tmp_path / "first")
    result = forget(tmp_path / "first", persons=["P7", "P20"], epsilon=0.5, rounds=4, out=tmp_path / "second")
    plan = certify(tmp_path / "second", __version__).plan
    (left,) = forgotten(plan)
    assert (left.units, plan.target.unit, result.forgotten.units) == (2, "person", 2)
    assert left.new_model.epsilon <= 0.5
    assert promise(plan, "final-model").epsilon <= promise(plan.lineage[0], "final-model").epsilon / 2
    request = request_of(tmp_path / "first", None, Named(persons=["P7", "P20"]), System())
    gone = [place for place, name in enumerate(names) if name in ("P7", "P20")]
    assert np.flatnonzero(request.remaining(plan, Entropy.from_seed(1)).train({}).blank).tolist() == sorted(
        {*gone, *range(390, 400)}  # the fourth rows of persons, of whom three are used
    )
    going_on = plan_forgetting(tmp_path / "first", persons=["P7"], epsilon=2.0, rounds=4, keep=1.0).chosen
    assert going_on.epsilon <= 2.0 < promise(plan.lineage[0], "final-model").epsilon
    for wish, sentence in (
        ({"persons": ["P20"]}, "forgotten already"),
        ({"persons": ["nobody"]}, "name persons whose records train, got 'nobody'"),
        ({"rows": [1]}, r"leave a run that protected records, got 'person'\. Name persons: --person"),
    ):
        with pytest.raises(BadValue, match=sentence):
            plan_forgetting(tmp_path / "second", **wish)


def test_persons_leave_columns_as_they_are_where_these_tell_little(tmp_path: Path) -> None:
    study = study_of_persons(tmp_path, [f"P{number % 200}" for number in range(400)], largest=2)
    study.write_text(study.read_text().replace("feature_bound = 2.0\n", "") + "[prepare]\n")
    run_study(study, tmp_path / "first")
    kept, again = (
        plan_forgetting(tmp_path / "first", persons=["P7"], epsilon=epsilon, rounds=2, keep=0.0).chosen
        for epsilon in (2.9, 0.5)
    )
    assert (kept.columns_again, again.columns_again) == (False, True)
    assert again.epsilon <= 0.5 < kept.epsilon <= 2.9


def test_a_person_of_a_run_that_protected_records_is_unknown(folder: Path) -> None:
    with pytest.raises(BadValue, match="--person must leave a run that protected persons, got 'record'"):
        plan_forgetting(folder / "first", persons=["P7"])


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="only Linux lists who holds a lock")
def test_a_request_during_a_run_waits_for_its_end(folder: Path, tmp_path: Path) -> None:
    run, told, asked = tmp_path / "run", list[str](), threading.Event()
    shutil.copytree(folder / "first", run)
    (run / "bundle.zip").rename(tmp_path / "bundle.zip")

    def end() -> None:
        with sole_use(run / "private"):
            asked.wait(60)
        with sole_use(run / "private"):  # a run lets go of its lock between two parts of its work
            (tmp_path / "bundle.zip").rename(run / "bundle.zip")

    def tell(words: str) -> None:
        told.append(words)
        asked.set()

    with pytest.raises(BadValue, match="must hold a finished run, got 'one that was interrupted'"):
        plan_forgetting(run, rows=[5], epsilon=0.9, rounds=2, study=folder / "study.toml")
    ending = threading.Thread(target=end)
    ending.start()
    while not lock_is_held(run / "private" / "lock"):
        assert ending.is_alive()
    design = plan_forgetting(
        run, rows=[5], epsilon=0.9, rounds=2, study=folder / "study.toml", system=System(tell=tell)
    )
    ending.join()
    assert design.chosen.rounds == 2
    assert told == [f"waiting for the run in {run} to end"]


@pytest.mark.parametrize(
    ("wish", "sentence"),
    [
        ({"rows": [3]}, "forgotten already"),
        ({"rows": [401]}, "rows that the run was trained on"),
        ({"client": "A"}, "be one of client 1"),
        ({}, "told who leaves"),
        ({"rows": [5], "epsilon": 1e-9, "keep": 1.0}, "further rounds bring whoever leaves down to"),
        ({"rows": [5], "others": 0.0}, "--others must be positive"),
        ({"rows": [5], "keep": 0.3}, "plan.keep must be 1, a half, a quarter, and so on, or 0"),
    ],
)
def test_mistakes_get_one_sentence_and_charge_nothing(folder: Path, wish: dict[str, object], sentence: str) -> None:
    with pytest.raises(FedveilError, match=sentence):
        forget(folder / "second", out=folder / "never", **wish)  # type: ignore[arg-type]
    assert not (folder / "never").exists()


def test_what_does_not_contract_by_proof_is_refused(tmp_path: Path) -> None:
    run_study(study_in(tmp_path, "dpsgd", ""), tmp_path / "first")
    with pytest.raises(CannotCertify, match=r"Train again without it .* costs epsilon [0-9.]+ once more"):
        forget(tmp_path / "first", rows=[1], out=tmp_path / "second")
