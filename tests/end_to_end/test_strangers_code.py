"""Whoever writes a study, a plan or a bundle does not choose what runs: no code is imported that nobody allowed."""

import hashlib
import io
import json
import sys
import threading
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import called

from fedveil import BadValue, load_model, plan_study, run_study
from fedveil.core import importing
from fedveil.planning.plan import read_plan
from fedveil.studio.asker import WORKER, Asker
from fedveil.studio.sentences import Refused

EVIL = "from pathlib import Path\nPath('ran').touch()\ndef f(*given): return given[0]\n"
OURS = "fedveil.models.torch.generators"
STUDY = """
[data]
source = "data.csv"
feature_bound = 2.0
target = "y"
classes = 2
{data}
[data.held_out]
fraction = 0.2
public = true
[model]
{model}
[privacy]
epsilon = 8.0
delta = 1e-3
[schedule]
step_size = 1.0
batch = 24
passes = 1
"""
TORCH = 'kind = "torch"\nclip = 1.0\nradius = 8.0\nmodule = "{}"\ncriterion = "{}"'
STUDIES = {
    "data.feature_map": STUDY.format(data='feature_map = "evil:f"', model='kind = "logistic"'),
    "model.module": STUDY.format(data="", model=TORCH.format("evil:f", "cross-entropy")),
    "model.criterion": STUDY.format(data="", model=TORCH.format(f"{OURS}:vae_4_2_2_4", "evil:f")),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that a stranger has packed, in which somebody works."""
    rows = np.random.default_rng(0).normal(size=(60, 3)) / 4
    lines = ["a,b,c,y", *(f"{a:.4f},{b:.4f},{c:.4f},{int(a > 0)}" for a, b, c in rows)]
    (tmp_path / "data.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (tmp_path / "evil.py").write_text(EVIL, encoding="utf-8")
    for key, text in STUDIES.items():
        (tmp_path / f"{key}.toml").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def unharmed(folder: Path) -> bool:
    """Return whether nothing of the stranger's was imported."""
    sys.modules.pop("evil", None)
    return not (folder / "ran").exists()


@pytest.mark.parametrize("key", STUDIES)
@pytest.mark.parametrize("words", [("plan",), ("run", "--out", "out"), ("deploy", "local", "--out", "out")])
def test_a_study_chooses_no_code(folder: Path, key: str, words: tuple[str, ...]) -> None:
    if "torch" in STUDIES[key]:
        pytest.importorskip("torch")
    at = 2 if words[0] == "deploy" else 1
    done = called(*words[:at], f"{key}.toml", *words[at:])
    assert unharmed(folder)
    assert done.returncode == 2, done.stderr
    assert "--module evil:f" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (folder / "out" / "plan.toml").exists()


@pytest.mark.parametrize("key", STUDIES)
def test_a_comparison_runs_no_code_and_says_why(folder: Path, key: str) -> None:
    if "torch" in STUDIES[key]:
        pytest.importorskip("torch")
    done = called("compare", f"{key}.toml", "--runs", "1", "--algorithms", "hidden,dpsgd")
    assert unharmed(folder)
    assert "--module evil:f" in " ".join((done.stdout + done.stderr).split())


@pytest.mark.parametrize("key", STUDIES)
def test_a_tuned_study_chooses_no_code(folder: Path, key: str) -> None:
    if "torch" in STUDIES[key]:
        pytest.importorskip("torch")
    (folder / "tuned.toml").write_text(STUDIES[key] + '[tune]\n[tune.space]\n"model.l2" = [0.0, 0.1]\n', "utf-8")
    done = called("tune", "tuned.toml", "--out", "out")
    assert unharmed(folder)
    assert (done.returncode, "--module evil:f" in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize("key", STUDIES)
@pytest.mark.parametrize("question", ["check", "plan", "compare"])
def test_opening_a_study_in_the_studio_runs_nothing(folder: Path, key: str, question: str) -> None:
    pytest.importorskip("starlette")
    asker = Asker(folder, WORKER)
    more = {"view": "algorithms"} if question == "compare" else {}
    try:
        given = {"text": STUDIES[key], "base": str(folder), "root": str(folder), **more}
        with pytest.raises(Refused, match="--module evil:f"):
            asker.ask(question, given)
    finally:
        asker.close()
    assert unharmed(folder)


@pytest.fixture
def stranger(folder: Path) -> Path:
    """A bundle whose module is one of ours, and whose criterion is not."""
    pytest.importorskip("torch")
    name = f"{OURS}:vae_4_2_2_4"
    (folder / "honest.toml").write_text(STUDY.format(data="", model=TORCH.format(name, "own")), encoding="utf-8")
    run_study(folder / "honest.toml", folder / "honest")
    with zipfile.ZipFile(folder / "honest" / "bundle.zip") as archive:
        files = {one: archive.read(one) for one in archive.namelist()}
    before = files["plan.toml"].decode()
    plan = before.replace('criterion = "own"', 'criterion = "evil:f"')
    assert plan != before
    certificate = files["certificate.json"].decode().replace(read_plan(before).hash, read_plan(plan).hash)
    files |= {"plan.toml": plan.encode(), "certificate.json": certificate.encode()}
    with zipfile.ZipFile(folder / "stranger.zip", "w") as archive:
        for one, content in files.items():
            archive.writestr(one, content)
    return folder


def test_a_bundle_chooses_no_code(stranger: Path) -> None:
    for words in (
        ("predict", "stranger.zip", "data.csv", "--out", "p.csv"),
        ("predict", "stranger.zip", "data.csv", "--out", "p.csv", "--probabilities"),
        ("evaluate", "stranger.zip", "data.csv", "--public"),
        ("evaluate", "stranger.zip", "data.csv", "--epsilon", "1"),
        ("export", "stranger.zip", "--to", "onnx"),
        ("export", "stranger.zip", "--to", "sklearn"),
        ("personalise", "stranger.zip", "--client", "A", "--data", "data.csv", "--out", "mine"),
    ):
        done = called(*words)
        assert unharmed(stranger), words
        assert done.returncode == 2, (words, done.stderr)
        assert done.stderr.count("\n") == 1
    rows = {"a": [0.1], "b": [0.1], "c": [0.1]}
    with pytest.raises(BadValue, match="--module evil:f"):
        load_model(stranger / "stranger.zip").predict(rows)
    assert unharmed(stranger)


def test_what_is_allowed_runs_and_nothing_else_does(folder: Path) -> None:
    (folder / "other.py").write_text(EVIL.replace("'ran'", "'also'"), encoding="utf-8")
    done = called("plan", "data.feature_map.toml", "--module", "other:f")
    assert (done.returncode, "--module evil:f" in done.stderr) == (2, True)
    done = called("plan", "data.feature_map.toml", "--module", "evil:g", "--module", "evil")
    assert done.returncode == 2
    assert unharmed(folder)
    assert not (folder / "also").exists()
    done = called("plan", "data.feature_map.toml", "--module", "other:f", "--module", "evil:f")
    assert done.returncode == 0, done.stderr
    assert not unharmed(folder)
    assert not (folder / "also").exists()  # allowed, and named by nobody
    done = called("plan", "data.feature_map.toml")  # the permission ended with its command
    assert (done.returncode, "--module evil:f" in done.stderr) == (2, True)


NAMES = [
    *("os:system", "subprocess:run", "builtins:exec", "http.server:test", "fedveil.cli:main", "fedveil:run_study"),
    *(
        f"{OURS}:Vae",
        f"{OURS}:vae",
        f"{OURS}:vae_1_2_3_4\n",
    ),
    *(f"{OURS}:vae_4_2_2_4.__class__", f"{OURS}.evil:vae_4_2_2_4"),
    *(".evil:f", "..evil:f", "evil.:f", "evil..f:f", "sub/evil:f", "evil.py:f", "evil:f.g", "evil:", ":f", "evil"),
    *("evil :f", "evil:f ", "ＥＶＩＬ:f", "evil:ｆ", "evil\x00:f", "given:f", "given:f_0"),
]


@pytest.mark.parametrize("name", NAMES)
def test_no_other_name_opens_the_gate(folder: Path, name: str) -> None:
    with pytest.raises(BadValue) as refused:
        importing.named(name, "model.criterion")
    assert "\n" not in str(refused.value)
    assert unharmed(folder)


def test_our_own_modules_are_not_looked_for_in_the_current_folder(folder: Path) -> None:
    seen: list[list[str]] = []
    with importing.own_path(f"{OURS}:vae_4_2_2_4"):
        seen.append(list(sys.path))
    with importing.own_path("evil:f"):
        seen.append(list(sys.path))
    assert [str(folder) in path for path in seen] == [False, True]
    assert str(folder) not in sys.path


def test_a_thread_begins_with_nothing_allowed(folder: Path) -> None:
    found: list[bool] = []
    with importing.allowing("evil:f"):
        other = threading.Thread(target=lambda: found.append(importing.allowed_now().permits("evil:f")))
        other.start()
        other.join()
        assert importing.allowed_now().permits("evil:f")
    assert found == [False]
    assert not importing.allowed_now().permits("evil:f")


def test_an_engine_that_was_made_is_not_handed_to_whoever_names_it(folder: Path) -> None:
    """A cache must not carry a permission from one study to the next."""
    pytest.importorskip("torch")
    (folder / "nets.py").write_text("import torch\ndef f():\n    return torch.nn.Linear(4, 2)\n", encoding="utf-8")
    text = STUDIES["model.module"].replace("evil:f", "nets:f")
    (folder / "nets.toml").write_text(text, encoding="utf-8")
    with importing.allowing("nets:f"):
        plan_study(folder / "nets.toml")
    with pytest.raises(BadValue, match="--module nets:f"):
        plan_study(folder / "nets.toml")


def test_a_model_keeps_what_was_allowed_when_it_was_loaded(folder: Path) -> None:
    with importing.allowing("evil:f"):
        result = run_study(folder / "data.feature_map.toml", folder / "out")
        model = load_model(folder / "out")
    sys.modules.pop("evil", None)
    rows: dict[str, Any] = {"a": [0.1, -0.2], "b": [0.1, 0.0], "c": [0.1, 0.3]}
    assert model.predict(rows).tolist() == result.model.predict(rows).tolist()
    with pytest.raises(BadValue, match="--module evil:f"):
        load_model(folder / "out").predict(rows)


def test_nothing_in_a_bundle_is_unpickled(folder: Path) -> None:
    (folder / "plain.toml").write_text(STUDY.format(data="", model='kind = "logistic"').split("[schedule]")[0])
    run_study(folder / "plain.toml", folder / "out")
    with zipfile.ZipFile(folder / "out" / "bundle.zip") as archive:
        files = {one: archive.read(one) for one in archive.namelist()}

    class Running:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (Path("ran"),)

    held = io.BytesIO()
    np.savez(held, parameters=np.array([Running()], dtype=object), kind=np.array("logistic"))
    told = json.loads(files["certificate.json"])
    for row in told["released"]:
        row["sha256"] = hashlib.sha256(held.getvalue()).hexdigest()
    files |= {"model.npz": held.getvalue(), "certificate.json": json.dumps(told).encode()}
    with zipfile.ZipFile(folder / "pickled.zip", "w") as archive:
        for one, content in files.items():
            archive.writestr(one, content)
    done = called("predict", "pickled.zip", "data.csv", "--out", "p.csv")
    assert unharmed(folder)
    assert (done.returncode, "must be an archive of plain arrays" in done.stderr) == (2, True), done.stderr
