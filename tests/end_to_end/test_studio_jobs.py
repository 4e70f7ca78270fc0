"""Runs that the studio starts: races, stops and kills lose nothing, charge nothing twice, and say one sentence."""

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("starlette")
from fedveil.engine.files import sole_use
from fedveil.ledger.books import Ledger
from fedveil.ledger.place import find
from fedveil.studio import jobs
from fedveil.studio.app import application
from fedveil.studio.places import Folder
from fedveil.studio.state import Studio
from studio_client import PORT, Client

PATIENCE = 120.0
STUDY = """
[data]
source = "visits.csv"
target = "ill"
classes = ["no", "yes"]
feature_bound = 2.0
default_scale = [-3, 3]

[model]
kind = "logistic"

[privacy]
epsilon = 1.0
delta = 1e-4

[algorithm]
kind = "dpsgd"
"""
CAP = "\n[books.cap]\nfinal-model = [1.3, 1.5e-4]\n"
LONG = STUDY.replace('kind = "dpsgd"', 'kind = "hidden"\norder = "public"') + (
    '\n[schedule]\nkind = "constant"\nrounds = 1\npasses = 10000\nstep_size = 0.5\n'
)


def visits(folder: Path, rows: int = 120) -> None:
    draw = np.random.default_rng(1)
    lines = ["age,dose,ill"]
    for age, dose in draw.normal(size=(rows, 2)).round(3):
        lines.append(f"{age},{dose},{'yes' if age + dose > 0 else 'no'}")
    (folder / "visits.csv").write_text("\n".join(lines) + "\n")


def opened(folder: Path) -> tuple[Studio, Client]:
    studio = Studio(folder=Folder(folder))
    client = Client(application(studio, PORT), studio.known.form)
    assert client.get(f"/open?token={studio.known.token}").status_code == 303
    return studio, client


@pytest.fixture
def work(tmp_path: Path) -> Iterator[tuple[Path, Client]]:
    visits(tmp_path)
    studio, client = opened(tmp_path)
    yield tmp_path, client
    studio.close()
    for job in jobs.jobs(tmp_path):  # none is left behind if a test fails
        if job.alive and job.pid is not None:
            os.kill(job.pid, signal.SIGKILL)
    wait(lambda: not any(job.alive for job in jobs.jobs(tmp_path)))
    jobs.jobs(tmp_path)


def wait(holds: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, "the state that was waited for did not come"
        time.sleep(0.02)


def worked(process: int) -> float:
    """Seconds that a process has had: unlike those of a clock, other work on the machine does not lengthen them."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def started(client: Client, study: str, out: str) -> str:
    answer = client.form("/start", study=study, out=out)
    assert answer.status_code == 303, answer.text
    return answer.headers["location"].removeprefix("/watch?job=")


def charges(place: Path) -> int:
    with Ledger.look(find(place)) as books:
        return sum(entry.kind == "charge" for entry in books.entries())


def test_of_two_tabs_that_race_for_the_last_of_a_budget_one_wins(work: tuple[Path, Client]) -> None:
    folder, client = work
    (folder / "study.toml").write_text(STUDY + CAP)
    names = [started(client, "study.toml", out) for out in ("one", "two")]
    wait(lambda: all(jobs.job_of(folder, name).state != "running" for name in names))
    found = [jobs.job_of(folder, name) for name in names]
    assert sorted(job.state for job in found) == ["done", "refused"]
    lost = next(job for job in found if job.state == "refused")
    assert lost.outcome is not None
    assert "cap" in lost.outcome["sentence"]
    assert charges(folder / "visits.csv") == 1
    page = client.get("/runs").text
    assert page.count("refused") == 1
    winner = next(job for job in found if job.state == "done")
    assert "What is certified" in client.get(f"/run?out={winner.request['shown']}").text
    books = client.get("/sign?study=study.toml").text
    assert "What was charged" in books
    again = client.form("/start", study="study.toml", out=str(winner.request["shown"]))
    assert again.status_code == 400
    assert "Name another, or go on with that run." in again.text


def test_a_run_that_is_stopped_killed_and_resumed_is_charged_once(work: tuple[Path, Client]) -> None:
    folder, client = work
    visits(folder, rows=8000)  # so that ten thousand rounds take seconds
    (folder / "study.toml").write_text(LONG)
    name = started(client, "study.toml", "out")
    wait(lambda: jobs.job_of(folder, name).progress.get("round", 0) > 0)
    assert client.get(f"/api/job?job={name}").json()["state"] == "running"
    client.form("/stop", job=name)
    wait(lambda: jobs.job_of(folder, name).state == "stopped")
    assert "Go on" in client.get(f"/watch?job={name}").text
    assert "interrupted" in client.get("/runs").text

    with sole_use(folder / "out" / "private"):  # another process works there: a second tab, or the command line
        second = client.form("/resume", job=name).headers["location"].removeprefix("/watch?job=")
        wait(lambda: jobs.job_of(folder, second).state == "refused")
    assert "is in use by process" in client.get(f"/watch?job={second}").text

    resumed = client.form("/resume", job=name).headers["location"].removeprefix("/watch?job=")
    wait(lambda: jobs.job_of(folder, resumed).progress.get("round", 0) > 0)
    pid = jobs.job_of(folder, resumed).pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait(lambda: jobs.job_of(folder, resumed).state == "killed")
    text = client.get(f"/watch?job={resumed}").text
    assert "nothing is charged twice" in text

    other_studio, other = opened(folder)  # as if the studio itself had been killed and started again
    try:
        assert "interrupted, can go on" in other.get("/run?out=out").text
        last = other.form("/resume", out="out", study="study.toml").headers["location"].removeprefix("/watch?job=")
        wait(lambda: jobs.job_of(folder, last).state == "done")
        assert "finished" in other.get("/run?out=out").text
    finally:
        other_studio.close()
    assert charges(folder / "visits.csv") == 1


def test_a_record_is_forgotten_by_a_request_that_is_approved_stopped_and_resumed(work: tuple[Path, Client]) -> None:
    folder, client = work
    visits(folder, rows=2000)
    contracting = LONG.replace("passes = 10000", "passes = 30").replace('"logistic"', '"logistic"\nl2 = 0.05')
    (folder / "study.toml").write_text(contracting)  # so that going on from the model is worth it
    first = started(client, "study.toml", "out")
    wait(lambda: jobs.job_of(folder, first).state == "done")
    assert 'href="/forget?out=out"' in client.get("/run?out=out").text
    page = client.get("/forget", params={"out": "out", "rows": "3,5", "epsilon": "0.5"})
    assert page.status_code == 200
    assert page.text.count("chosen") == 1
    for said in ("zeros: training again", "Epsilon after so many rounds without them", "Approve and forget"):
        assert said in page.text
    assert charges(folder / "visits.csv") == 1
    for wrong, sentence in (
        ({"rows": "x"}, "must be numbers of rows"),
        ({"rows": "9999"}, "rows that the run was trained on"),
        ({"rows": "1", "client": "a"}, "name rows or a client"),
        ({"client": "nobody"}, "must be one of"),
        ({"rows": "1", "epsilon": "none"}, "be a number above 0"),
    ):
        answer = client.get("/forget", params={"out": "out", **wrong})
        assert (answer.status_code, sentence in answer.text) == (400, True), (wrong, answer.text)
    began = client.form("/forget", out="out", rows="3,5", client="", epsilon="0.5", into="without", sign="")
    assert began.status_code == 303, began.text
    name = began.headers["location"].removeprefix("/watch?job=")
    wait(lambda: charges(folder / "visits.csv") == 2)
    client.form("/stop", job=name)
    wait(lambda: jobs.job_of(folder, name).state != "running")
    if jobs.job_of(folder, name).state == "stopped":  # on a busy machine it may have ended before it was told to
        again = client.form("/resume", out="without", study="study.toml")  # by its folder: the studio knows what it was
        name = again.headers["location"].removeprefix("/watch?job=")
        wait(lambda name=name: jobs.job_of(folder, name).state != "running")
    assert jobs.job_of(folder, name).state == "done", jobs.job_of(folder, name).outcome
    assert charges(folder / "visits.csv") == 2
    assert "Receipt of who was forgotten" in client.get("/run?out=without").text
    assert "2 records left the study" in client.get("/file?out=without&name=receipt.html").text
    taken = client.form("/forget", out="out", rows="7", client="", epsilon="0.2", into="without", sign="")
    assert (taken.status_code, "must be new" in taken.text) == (400, True)


def test_a_run_outlives_a_studio_that_is_killed_and_the_next_one_shows_it(tmp_path: Path) -> None:
    """The studio itself is killed, not asked; its run goes on and is shown, once, by the next studio."""
    visits(tmp_path)
    (tmp_path / "study.toml").write_text(STUDY)
    command = [sys.executable, "-m", "fedveil", "studio", str(tmp_path), "--no-browser"]
    environment = {**os.environ, "COLUMNS": "300", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    with process.stdout as said:
        found = re.search(r"http\S+", said.readline())
        assert found is not None
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        before = worked(process.pid)
        first = opener.open(found[0]).read().decode()
        assert worked(process.pid) - before < 1.0  # what the first page takes
        word = re.search(r'name="fedveil-word" content="([^"]+)"', first)
        assert word is not None
        origin = found[0].partition("/open")[0]
        body = f"study=study.toml&out=out&word={word[1]}".encode()
        started = opener.open(urllib.request.Request(f"{origin}/start", body, {"origin": origin}))
        assert "/watch?job=" in started.url
        process.kill()
        process.wait()
    studio, client = opened(tmp_path)
    try:
        wait(lambda: "finished" in client.get("/runs").text)
        page = client.get("/runs").text
    finally:
        studio.close()
    assert page.count('href="/run?out=out"') == 1
    assert page.count("/watch?job=") == 1
    assert charges(tmp_path / "visits.csv") == 1
