"""A run whose certificate is signed, and what happens to forgers: each change is refused in one sentence."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedveil import cli, run_study
from fedveil.core.errors import BadValue
from fedveil.engine.system import System
from fedveil.signing import FILE, Signature, SigningKey, read_signer, write_key
from fedveil.version import __version__

STUDY = """
[data]
source = "data.npz"
feature_bound = 1.0
classes = 2
target = "y"

[model]
kind = "logistic"
radius = 5.0

[privacy]
epsilon = 2.0
delta = 1e-4

[schedule]
passes = 1
rounds = 4
"""


def fedveil(*arguments: object) -> tuple[int, str]:
    """The command, in this process: its exit code and what it said on standard error."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["fedveil", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
    return int(ended.value.code or 0), ""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study, two keys, and a run that was signed with the first."""
    folder = tmp_path_factory.mktemp("signed")
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(80, 3)) / 3
    np.savez(folder / "data.npz", X=rows, y=(rows[:, 0] > 0).astype(np.int64))
    (folder / "study.toml").write_text(STUDY)
    for name in ("me", "other"):
        assert fedveil("keys", "new", folder / name)[0] == 0
    assert fedveil("run", folder / "study.toml", "--out", folder / "run", "--sign", folder / "me", "--quiet")[0] == 0
    return folder


@pytest.fixture
def run(place: Path, tmp_path: Path) -> Path:
    """A copy of the signed run, to be changed."""
    return Path(shutil.copytree(place / "run", tmp_path / "run"))


def certified(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, dict[str, Any], str]:
    code, _ = fedveil("certify", *arguments, "--json")
    said = capsys.readouterr()
    return code, json.loads(said.out or "{}"), said.err


def test_a_signed_run_certifies(place: Path, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    signer = read_signer(place / "me.pub").fingerprint
    code, found, _ = certified(capsys, run, "--signer", place / "me.pub")
    assert (code, found["matches"], found["signature"]) == (0, True, {"signer": signer, "checked": True})
    code, found, _ = certified(capsys, run)
    assert (code, found["matches"], found["signature"]) == (0, True, {"signer": signer, "checked": False})
    assert fedveil("certify", run)[0] == 0
    assert "was not checked" in " ".join(capsys.readouterr().out.split())
    page = (run / "report.html").read_text()
    assert signer.replace("+", "&#43;") in page or signer in page
    assert "The signature is valid" in page


def test_the_certificate_binds_plan_model_and_books(run: Path) -> None:
    stated = json.loads((run / "certificate.json").read_text())
    last = json.loads((run / "ledger.jsonl").read_text().splitlines()[-1])
    assert stated["ledger"] == last["hash"]
    assert {"plan", "run", "released"} <= set(stated)


def test_another_signer_is_refused(place: Path, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found, said = certified(capsys, run, "--signer", place / "other.pub")
    assert (code, set(found)) == (2, {"error", "code"})
    assert "its signature names" in found["error"]
    assert "its signature names" in said
    assert said.count("\n") == 1


def test_a_missing_signature_is_refused_where_one_is_asked_for(
    place: Path, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / FILE).unlink()
    code, _, said = certified(capsys, run, "--signer", place / "me.pub")
    assert code == 2
    assert "it is not signed" in said
    code, found, _ = certified(capsys, run)
    assert (code, found["matches"], found["signature"]) == (0, True, None)


def test_the_signature_of_another_run_is_refused(place: Path, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Plan, books, model and certificate of another run, all right in themselves, with this run's signature."""
    other = run_study(place / "study.toml", out=run.parent / "again").folder
    shutil.copy(run / FILE, other / FILE)
    for signer in ([], ["--signer", place / "me.pub"]):
        code, _, said = certified(capsys, other, *signer)
        assert code == 2
        assert "does not fit certificate.json" in said
    assert fedveil("report", other)[0] == 2


def test_a_public_key_cannot_sign_and_nothing_is_run(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fedveil("run", place / "study.toml", "--out", tmp_path / "x", "--sign", place / "me.pub")[0] == 2
    assert "must be a private key" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()
    assert fedveil("keys", "new", place / "me")[0] == 2
    assert "be new" in capsys.readouterr().err


def test_signed_in_python_after_an_interruption(place: Path, tmp_path: Path) -> None:
    key = SigningKey(b"k" * 32)
    found = run_study(place / "study.toml", tmp_path / "run", sign=key, system=System())
    assert found.signature is not None
    assert found.signature.signer == key.signer
    (tmp_path / "run" / FILE).unlink()
    (tmp_path / "run" / "report.html").unlink()  # as if it was stopped between certificate and signature
    again = run_study(place / "study.toml", tmp_path / "run", resume=True, sign=key)
    assert again.signature == found.signature == Signature.read((tmp_path / "run" / FILE).read_bytes())
    write_key(tmp_path / "key", key)
    (tmp_path / "key").chmod(0o644)
    with pytest.raises(BadValue, match="closed to others"):
        run_study(place / "study.toml", tmp_path / "other", sign=tmp_path / "key")
    assert not (tmp_path / "other").exists()


FORGED = {
    "a first guarantee that a person reads": lambda text: text.replace(
        '"guarantees": [', '"guarantees": [{"adversary": "final-model", "epsilon": 0.01}],\n "guarantees": [', 1
    ),
    "a number twice": lambda text: text.replace('"delta": ', '"delta": 1e-09,\n   "delta": ', 1),
    "another version": lambda text: text.replace(f'"version": "{__version__}"', '"version": "9.9.9"'),
    "no version": lambda text: text.replace(f' "version": "{__version__}",\n', ""),
    "a version that is no text": lambda text: text.replace(f'"version": "{__version__}"', '"version": {"x": 1}'),
    "other white space": lambda text: json.dumps(json.loads(text)),
    "another order": lambda text: json.dumps(json.loads(text), indent=1, sort_keys=True) + "\n",
    "a number spelt differently": lambda text: text.replace('"delta": 0.0001', '"delta": 1e-4', 1),
    "true as one": lambda text: text.replace('"format": 1', '"format": true', 1),
    "one more key, which is null": lambda text: text.replace('"format": 1', '"format": 1,\n "note": null', 1),
    "a line more": lambda text: text + "\n",
    "a mark before it": lambda text: "\ufeff" + text,
}


@pytest.mark.parametrize("change", FORGED.values(), ids=list(FORGED))
def test_no_byte_of_a_certificate_may_differ(change: Any, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run / "certificate.json"
    before = path.read_text(encoding="utf-8")
    path.write_text(change(before), encoding="utf-8")
    assert path.read_text(encoding="utf-8") != before
    (run / FILE).unlink()
    code, found, said = certified(capsys, run)
    assert code == 2
    assert found["matches"] is False
    assert found["differences"]
    assert "does not match" in said
    assert fedveil("report", run)[0] == 2


def test_metrics_that_name_a_key_twice_are_not_shown(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run / "metrics.json"
    path.write_text(path.read_text().replace('"format": 1', '"format": 1,\n "format": 1', 1))
    assert fedveil("report", run)[0] == 2
    assert "'format' twice" in capsys.readouterr().err
