"""A split that looks at labels: stamped not private everywhere, unless the records are declared public."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from fedveil.certificate.certify import certify
from fedveil.cli import main
from fedveil.core.errors import BadValue
from fedveil.federation.site.data import read_site_data
from fedveil.jobs.compare import compare
from fedveil.jobs.local import open_study, plan_study, run_study
from fedveil.ledger.entry import read_export
from fedveil.planning.plan import read_plan, write_plan
from fedveil.planning.study import parse_study
from fedveil.version import __version__

ROWS = 4000


def study(folder: Path, data: str = "", kind: str = "dirichlet", more: str = "", rows: int = ROWS) -> Path:
    """Two clients, one full shuffled batch of DP-SGD against the server: every client's noised sum is seen."""
    coins = np.random.default_rng(1)
    y = coins.integers(0, 2, rows)
    X = coins.normal(size=(rows, 2)) + y[:, None]
    np.savez(folder / "a.npz", X=X, y=y)
    y[17] = 1 - y[17]
    np.savez(folder / "b.npz", X=X, y=y)
    split = "kind = 'dirichlet'\ncount = 2\nalpha = 100.0" if kind == "dirichlet" else f"kind = '{kind}'\ncount = 2"
    path = folder / "study.toml"
    path.write_text(
        f"""
[data]
source = "a.npz"
target = "y"
classes = 2
feature_bound = 1.0
{data}
[clients]
{split}
[model]
kind = "logistic"
[privacy]
epsilon = 1.0
delta = 1e-5
adversary = "server"
[algorithm]
kind = "dpsgd"
sampling = "shuffled"
rate = 1.0
rounds = 1
{more}
"""
    )
    return path


def both(path: Path) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]
    """The owners in two files that differ in one label."""
    text = path.read_text()
    found = [open_study(parse_study(text.replace("a.npz", f"{name}.npz"), base=path.parent))[1] for name in "ab"]
    return found[0].train.owner, found[1].train.owner


def test_one_label_moves_many_records_and_the_run_says_so_everywhere(tmp_path: Path) -> None:
    path = study(tmp_path)
    one, other = both(path)
    assert np.count_nonzero(one != other) > 1000  # the accountants count one
    result = run_study(path, tmp_path / "out")
    folder, certificate = result.folder, result.certificate
    assert not certificate.private
    stated = json.loads((folder / "certificate.json").read_text())
    assert stated["private"] is False
    assert {row["epsilon"] for row in stated["guarantees"]} == {None}
    assert stated["released"][0]["covered"] is False
    assert all(any("NOT MET" in a["enforced_by"] for a in row["assumptions"]) for row in stated["guarantees"])
    charge = read_export(folder / "ledger.jsonl")[0]
    assert {cost["epsilon"] for cost in charge.payload["costs"]} == {None}  # infinite
    page = (folder / "report.html").read_text()
    assert "<title>NOT PRIVATE" in page
    assert "split among the clients by their labels" in page
    assert certify(folder, __version__).text() == (folder / "certificate.json").read_text()


def test_the_commands_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = study(tmp_path, rows=200)

    def said(*arguments: str | Path) -> str:
        monkeypatch.setattr(sys, "argv", ["fedveil", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        assert end.value.code in (0, None)
        return capsys.readouterr().out

    assert "NOT PRIVATE: the split among clients depends on labels" in " ".join(said("plan", path).split())
    seen = json.loads(said("run", path, "--out", tmp_path / "out", "--quiet", "--json"))
    assert (seen["private"], seen["guarantees"][0]["epsilon"]) == (False, None)


def test_public_records_may_be_split_by_label(tmp_path: Path) -> None:
    result = run_study(study(tmp_path, "public = true", rows=200), tmp_path / "out")
    assert result.certificate.private
    rows = {row.name: row for row in result.certificate.guarantees[0].assumptions}
    assert rows["who holds which record is public"].enforced_by.startswith("declared: labels decide it")


def test_a_split_by_row_number_moves_nobody_and_keeps_its_promise(tmp_path: Path) -> None:
    path = study(tmp_path, kind="equal")
    one, other = both(path)
    assert one.tolist() == other.tolist()
    plan = plan_study(path).plan
    assert plan.private
    assert "places" not in write_plan(plan)


def test_the_stamp_cannot_be_lost_on_the_way(tmp_path: Path) -> None:
    plan = plan_study(study(tmp_path, rows=200)).plan
    assert read_plan(write_plan(plan)) == plan
    assert not plan.private
    assert plan.unprotected
    text = write_plan(plan).replace('places = "labels"\n', "")
    assert read_plan(text).hash != plan.hash
    with pytest.raises(BadValue, match=r"origin\.places must be one of"):
        read_plan(write_plan(plan).replace('"labels"', '"fate"'))


def test_a_comparison_is_stamped(tmp_path: Path) -> None:
    found = compare(study(tmp_path, rows=200), algorithms=["dpsgd"], runs=1)
    assert not found.private
    assert "NOT PRIVATE: the split depends on labels" in found.warning
    assert found.as_json()["entries"][0]["epsilon"] is None


def test_a_site_does_not_split_by_label(tmp_path: Path) -> None:
    text = re.split(r"\[model\]", study(tmp_path, rows=200).read_text())[0]
    (tmp_path / "site.toml").write_text(text)
    with pytest.raises(BadValue, match=r"clients\.kind must be a split that does not depend on labels"):
        read_site_data(tmp_path / "site.toml")
    (tmp_path / "site.toml").write_text(text.replace("classes = 2", "classes = 2\npublic = true"))
    assert read_site_data(tmp_path / "site.toml").records.clients == 2
    (tmp_path / "site.toml").write_text(text.split("[clients]")[0])  # without a word: one client
    assert read_site_data(tmp_path / "site.toml").records.clients == 1


@pytest.mark.parametrize(("data", "public"), [("", False), ("public = true", True)])
def test_one_place_declares_records_public(tmp_path: Path, data: str, public: bool) -> None:
    path = study(tmp_path, f"{data}\n[data.held_out]\nfraction = 0.5", "equal", rows=200)
    found, loaded = open_study(path)
    assert (found.data.public, loaded.test_public) == (public, public)
