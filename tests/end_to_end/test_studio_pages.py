"""The studio's pages with its real workers: the command line's numbers and sentences, and no script from any name."""

import itertools
import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("starlette")
from fedveil.jobs.local import plan_study
from fedveil.planning.plan import write_plan
from fedveil.planning.promises import ADVERSARIES, promise
from fedveil.planning.study import read_study
from fedveil.signing import Signature
from fedveil.studio import jobs
from fedveil.studio.app import application
from fedveil.studio.places import Folder
from fedveil.studio.runner import ProgressFile
from fedveil.studio.state import Studio, frame_of
from studio_client import PORT, Client

EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"
STUDY = """
[study]
name = "thousand"

[data]
source = "sklearn:breast_cancer"
feature_bound = 2.0

[model]
kind = "logistic"

[privacy]
epsilon = 1.0
delta = 1e-5

[algorithm]
kind = "hidden"

[schedule]
rounds = 1
passes = 1000
"""


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Client, Studio]]:
    folder = tmp_path_factory.mktemp("work")
    (folder / "thousand.toml").write_text(STUDY)
    studio = Studio(folder=Folder(folder))
    client = Client(application(studio, PORT), studio.known.form)
    client.get(f"/open?token={studio.known.token}")
    yield folder, client, studio
    studio.close()


def harmless(text: str) -> bool:
    """No tag, and no attribute, is made of what was given."""
    return "<script>alert" not in text and "<img src=x" not in text and "\"'><" not in text


def test_script_in_every_name_and_cell_stays_text(work: tuple[Path, Client, Studio]) -> None:
    folder, client, _ = work
    evil = EVIL.replace("/", "")  # a file's name has no slash
    columns = f'"{EVIL.replace(chr(34), chr(34) * 2)}",plain,ill\n'
    (folder / f"{evil}.csv").write_text(columns + "".join(f"{k},{EVIL[:8]}{k % 3},{k % 2}\n" for k in range(40)))
    (folder / f"{evil}.toml").write_text(STUDY.replace('"thousand"', json.dumps(EVIL)))
    (folder / f"{evil} run").mkdir()
    (folder / f"{evil} run" / "plan.toml").write_text("")
    pages = [client.get(path) for path in ("/", "/runs", "/sign")]
    pages.append(client.get("/table", params={"data": f"{evil}.csv"}))
    pages.append(client.get("/design", params={"study": f"{evil}.toml"}))
    pages.append(client.get("/sign", params={"study": f"{evil}.toml"}))
    pages.append(client.get("/start", params={"study": f"{evil}.toml"}))
    pages.append(client.get("/run", params={"out": f"{evil} run"}))
    pages.append(client.form("/table", data=f"{evil}.csv", target=EVIL, classes=f"{EVIL},b", ignore=EVIL))
    assert [page.status_code for page in pages] == [200] * 8 + [303]
    pages[-1] = client.get(pages[-1].headers["location"])  # the study that was drafted
    for path in ("/design", "/table", "/run", "/watch", "/file", "/sign", "/start"):
        pages.append(client.get(path, params=dict.fromkeys(("study", "data", "out", "job", "name"), EVIL)))
        assert pages[-1].status_code == 400
    for page in pages:
        assert harmless(page.text)
        assert "&lt;script&gt;" in page.text or page.status_code == 400
    answer = client.script("/api/plan", study="thousand.toml", text=STUDY.replace('"thousand"', json.dumps(EVIL)))
    assert harmless(answer.json()["html"])
    bad = client.script("/api/check", study="thousand.toml", text=f"[{json.dumps(EVIL)}]")
    assert "must" in bad.json()["error"] or "unknown" in bad.json()["error"].lower() or bad.status_code == 400


def test_the_plan_is_the_command_line_s(work: tuple[Path, Client, Studio]) -> None:
    folder, client, studio = work
    answer = client.script("/api/plan", study="thousand.toml", text=STUDY, tab="a").json()
    plan = plan_study(folder / "thousand.toml").plan
    assert answer["hash"] == plan.hash
    kept = studio.sliders.exact(frame_of(STUDY, str(folder), ()), (1.0, 1e-5))
    assert kept is not None
    found = [row["epsilon"] for row in kept["observers"]]
    assert found == [promise(plan, who).epsilon for who in ADVERSARIES]
    assert kept["rounds"] == 1000


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("epsilon = 1.0", "epsilon = 99"),
        ("delta = 1e-5", "delta = 0.5"),
        ('kind = "logistic"', 'kind = "logitsic"'),
        ("[privacy]", "[privcy]"),
        ("feature_bound = 2.0", 'feature_bound = "two"'),
        ("[study]", "[study"),
    ],
)
def test_mistakes_get_the_sentence_of_the_command_line(work: tuple[Path, Client, Studio], old: str, new: str) -> None:
    folder, client, _ = work
    text = STUDY.replace(old, new)
    (folder / "wrong.toml").write_text(text)
    with pytest.raises(ValueError, match=r".") as refused:
        read_study(folder / "wrong.toml").planned(plan_study(folder / "thousand.toml").plan.data)
    (folder / "wrong.toml").unlink()
    way = "/api/plan" if "0.5" in new else "/api/check"
    answer = client.script(way, study="thousand.toml", text=text, tab="b")
    assert answer.status_code == 400
    assert answer.json()["error"] == " ".join(str(refused.value).split())


def test_paths_in_a_text_that_is_being_typed_are_confined(work: tuple[Path, Client, Studio]) -> None:
    _, client, _ = work
    for source in ("/etc/passwd", "../x.csv", "postgresql://a@b/c"):
        text = STUDY.replace("sklearn:breast_cancer", source)
        for way in ("/api/check", "/api/plan"):
            answer = client.script(way, study="thousand.toml", text=text, tab="c")
            assert answer.status_code == 400
            assert "working folder" in answer.json()["error"]


def test_sliders_answer_from_curves_that_are_worked_out_first(work: tuple[Path, Client, Studio]) -> None:
    """A plan of a thousand rounds takes seconds; between the curves each answer is there at once, and approximate."""
    folder, client, studio = work
    client.script("/api/plan", study="thousand.toml", text=STUDY, tab="d")
    frame, end = frame_of(STUDY, str(folder), ()), time.monotonic() + 400
    while not all(studio.sliders.exact(frame, (epsilon, 1e-5)) for epsilon in (0.5, 1.0, 2.0)):
        assert time.monotonic() < end
        time.sleep(0.05)
    for step in range(20):
        epsilon = float(f"{0.5 * 4 ** (step / 19):.3g}")
        found = client.script("/api/about", study="thousand.toml", text=STUDY, epsilon=epsilon, delta=1e-5).json()
        assert found["state"] in ("about", "exact")
        assert (">about<" in found["html"]) == (found["state"] == "about")
    below = client.script("/api/about", study="thousand.toml", text=STUDY, epsilon=20.0, delta=1e-5).json()
    assert below == {"state": "working", "html": None}


def test_a_plan_is_worked_out_anew_when_its_data_change(work: tuple[Path, Client, Studio]) -> None:
    folder, client, _ = work
    rows = "".join(f"{k % 7},{k % 2}\n" for k in range(60))
    (folder / "grows.csv").write_text("age,ill\n" + rows)
    text = STUDY.replace("sklearn:breast_cancer", "grows.csv").replace(
        "[model]", 'target = "ill"\nclasses = 2\n\n[model]'
    )
    text = text.replace("[model]", "default_scale = [0, 7]\n\n[model]").replace("passes = 1000", "passes = 3")
    first = client.script("/api/plan", study="grows.toml", text=text, tab="g").json()
    (folder / "grows.csv").write_text("age,ill\n" + rows + rows)
    second = client.script("/api/plan", study="grows.toml", text=text, tab="g").json()
    assert "60 records" in first["html"]
    assert "120 records" in second["html"]


def test_a_study_changed_elsewhere_is_not_overwritten(work: tuple[Path, Client, Studio]) -> None:
    folder, client, _ = work
    (folder / "shared.toml").write_text(STUDY)
    page = client.get("/design?study=shared.toml").text
    seen = re.search(r'data-seen="(\w+)"', page)
    assert seen is not None
    first = client.script("/api/save", study="shared.toml", text=STUDY + "# one\n", seen=seen[1])
    assert first.status_code == 200
    second = client.script("/api/save", study="shared.toml", text=STUDY + "# two\n", seen=seen[1])
    assert "changed elsewhere" in second.json()["error"]
    assert (folder / "shared.toml").read_text().endswith("# one\n")
    assert client.script("/api/save", study="../x.toml", text="", seen=None).status_code == 400
    assert client.script("/api/save", study="x.py", text="", seen=None).status_code == 400


def test_an_approval_is_of_exactly_one_plan(work: tuple[Path, Client, Studio]) -> None:
    folder, client, _ = work
    (folder / "signed.toml").write_text(STUDY)
    assert client.form("/key", name="officer.key").status_code == 303
    plan = plan_study(folder / "signed.toml").plan
    before = client.get("/sign?study=signed.toml").text
    assert "Nobody has approved this plan" in before
    assert "no program can enforce" in before
    stale = client.form("/approve", study="signed.toml", key="officer.key", plan="0" * 64)
    assert stale.status_code == 400
    assert "read it again" in stale.text
    assert client.form("/approve", study="signed.toml", key="officer.key", plan=plan.hash).status_code == 303
    signature = Signature.read((folder / "signed.toml.approval").read_bytes())
    assert signature.fits(write_plan(plan).encode())
    assert "exactly this plan" in client.get("/sign?study=signed.toml").text
    (folder / "signed.toml").write_text(STUDY.replace("epsilon = 1.0", "epsilon = 2.0"))
    assert "approved another plan" in client.get("/sign?study=signed.toml").text
    outside = client.form("/approve", study="signed.toml", key="/etc/passwd", plan=plan.hash)
    assert outside.status_code == 400


def test_the_game_tells_nothing_before_the_guess(work: tuple[Path, Client, Studio]) -> None:
    _, client, _ = work
    shown = client.script("/api/game", epsilon=1.0, delta=1e-5).json()
    assert set(shown) == {"game", "number"}
    assert client.script("/api/game", game=shown["game"]).status_code == 400
    told = client.script("/api/game", game=shown["game"], guess=True).json()
    assert told["played"] == 1
    assert told["right"] == int(told["used"])
    assert client.script("/api/game", game=shown["game"], guess=True).status_code == 400
    assert client.script("/api/game", game="x", guess=True).status_code == 400
    assert client.script("/api/game", epsilon=1e9, delta=1e-5).status_code == 400


def test_comparing_plans_every_algorithm_and_trains_none(work: tuple[Path, Client, Studio]) -> None:
    folder, client, _ = work
    before = sorted(path.name for path in folder.iterdir())
    html = client.script("/api/compare", study="thousand.toml", view="algorithms").json()["html"]
    assert all(name in html for name in ("hidden", "dpsgd", "fedavg", "simfl"))
    assert sorted(path.name for path in folder.iterdir()) == before


def test_a_deployment_s_sites_are_shown_with_what_the_newest_run_says(
    work: tuple[Path, Client, Studio],
) -> None:
    folder, client, _ = work
    place = folder / "deploy" / "aggregator"
    place.mkdir(parents=True)
    (place / "deployment.toml").write_text('[deployment]\nsites = ["north", "south <b>", "west"]\n')
    for name, states in (("0" * 16, {"north": "failed"}), ("1" * 16, {"north": "answered", "south <b>": "asked"})):
        job = folder / jobs.FOLDER / "jobs" / name
        job.mkdir(parents=True)
        request = {"kind": "run", "out": str(folder / "far"), "shown": "far", "on": str(place), "study": "s"}
        (job / jobs.REQUEST).write_text(json.dumps(request))
        ProgressFile(job / jobs.PROGRESS).tell(stage="training")
        told = ProgressFile(job / jobs.PROGRESS, clock=itertools.count().__next__)
        for site, state in states.items():
            told.site(site, state)
        os.utime(job, (int(name[0]), int(name[0])))
    page = client.get("/runs").text
    assert "The sites of deploy/aggregator" in page
    rows = re.findall(r"<th[^>]*>(north|south &lt;b&gt;|west)</th><td[^>]*><span>([^<]*)</span>", page)
    assert rows == [("north", "answered"), ("south &lt;b&gt;", "asked"), ("west", "not asked yet")]
    watched = client.get(f"/watch?job={'1' * 16}").text
    assert "killed, can go on" in watched
    assert "south &lt;b&gt;" in watched
    for name in ("../x", "2" * 16, "g" * 16, ""):
        assert client.get("/watch", params={"job": name}).status_code == 400
