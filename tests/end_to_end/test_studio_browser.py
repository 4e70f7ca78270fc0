"""The whole way in a real browser: an engineer designs, an officer approves, an operator runs, watches and predicts."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from chromium_pipe import CHROMIUM, Browser, Page, browser  # noqa: E402

if CHROMIUM is None:
    pytest.skip("chromium is not installed", allow_module_level=True)

EXACT = "document.getElementById('answer').dataset.state === 'exact'"
READY = "document.getElementById('working').textContent === '' && " + EXACT


@contextlib.contextmanager
def studio(folder: Path) -> Iterator[str]:
    """Start the command and yield the address that it prints; it must not write anything else before its first page."""
    command = [sys.executable, "-m", "fedveil", "studio", str(folder), "--no-browser"]
    environment = {**os.environ, "COLUMNS": "300", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    try:
        found = re.search(r"http\S+", process.stdout.readline())
        assert found is not None
        yield found[0]
    finally:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as found:
        yield found


def visits(path: Path, rows: int, labelled: bool) -> Path:
    draw = np.random.default_rng(2)
    lines = ["age,dose,ill" if labelled else "age,dose"]
    for age, dose in draw.normal(size=(rows, 2)).round(3):
        lines.append(f"{age},{dose}" + (f",{'yes' if age + dose > 0 else 'no'}" if labelled else ""))
    path.write_text("\n".join(lines) + "\n")
    return path


def test_from_a_table_to_a_certified_model_and_a_prediction(tmp_path: Path, chromium: Browser) -> None:
    folder, elsewhere = tmp_path / "work", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    with studio(folder) as address:
        page = chromium.page()
        page.size(1280, 900)
        page.go(address)
        assert "token" not in page.run("location.href")
        engineer(page, visits(elsewhere / "visits.csv", 300, labelled=True))
        statistician(page, folder)
        officer(page)
        operator(page, visits(elsewhere / "new.csv", 20, labelled=False), folder)
        assert page.run("document.documentElement.scrollWidth <= innerWidth")
        assert on_a_phone(page) == {}
    refused = "the server responded with a status of 400"  # the mistake that the engineer makes
    assert [one for one in chromium.complaints if refused not in one] == []
    assert (folder / "predictions.csv").read_text().count("\n") == 21
    certificate = json.loads((folder / "results-visits" / "certificate.json").read_text())
    assert certificate["private"]


def on_a_phone(page: Page) -> dict[str, int]:
    """Open every page that the pages link to, and return those that are wider than a phone, with their widths."""
    page.size(390, 844)
    origin, seen, wide = page.run("location.origin"), set[str](), dict[str, int]()
    left = ["/", "/explore", "/sign", "/runs", "/design?study=visits.toml"]
    while left:
        path = left.pop()
        if path in seen or path.startswith("/file"):  # a file of a run is shown, or downloaded, as it is
            continue
        seen.add(path)
        page.go(origin + path)
        page.run("for (const d of document.querySelectorAll('details')) d.open = true")
        width = page.run("document.documentElement.scrollWidth")
        wide |= {path: width} if width > 390 else {}
        left += page.run("[...document.querySelectorAll('a[href^=\"/\"]')].map(e => e.getAttribute('href'))")
    assert {path.partition("?")[0] for path in seen} >= {"/", "/design", "/explore", "/sign", "/runs", "/start", "/run"}
    return wide


def engineer(page: Page, data: Path) -> None:
    """Upload a table, say what is to be predicted, move a slider, make a mistake, put it right, and save."""
    page.attach("#upload", data)
    page.leave("#send")
    assert "no value is shown" in page.text()
    page.choose("#classes", "no, yes")
    page.leave("main form button")
    page.wait(READY)
    assert page.text("#said") == "The study is right."
    before = page.text("#answer")
    page.run("document.getElementById('epsilon').focus()")
    for _ in range(3):
        page.press("ArrowRight", 39)  # the keyboard alone moves it
    page.wait("/epsilon = 1.15/.test(document.getElementById('text').value)")
    page.choose("#epsilon", "0.4")
    page.run("new Promise(r => setTimeout(r, 210))")  # the move is being written: the next one must not be lost
    page.choose("#epsilon", "0.5")
    page.wait("/epsilon = 3.16/.test(document.getElementById('text').value)")
    page.wait(READY)
    assert page.text("#answer") != before
    page.choose("#text", page.run("document.getElementById('text').value.replace('3.16', '316')"), event="input")
    page.wait("/privacy.epsilon must lie in/.test(document.getElementById('said').textContent)")
    page.choose("#text", page.run("document.getElementById('text').value.replace('316', '2.0')"), event="input")
    page.wait("document.getElementById('epsilon-value').textContent === '2'")
    page.choose("#algorithm", "dpsgd")
    page.wait("/DP-SGD/i.test(document.getElementById('answer').textContent)")
    page.wait(READY)
    page.click("#save")
    page.wait("document.getElementById('saved').textContent === 'Saved.'")


def statistician(page: Page, folder: Path) -> None:
    """Ask about two columns: see the precision, move epsilon, approve, and read the answers."""
    page.leave('a[href="/ask"]')
    page.leave('a[href="/ask?data=visits.csv"]')
    page.choose("#q0", "mean")
    page.wait("/half of|range/.test(document.getElementById('answer').textContent)")
    before = page.text("#answer")
    page.choose("#epsilon", "0.9", event="input")
    page.wait("/Epsilon 7.9/.test(document.getElementById('answer').textContent)")
    assert page.text("#answer") != before
    page.choose("#q2", "words")
    page.wait("/each word/.test(document.getElementById('answer').textContent)")
    page.leave("#approve")
    page.wait("document.getElementById('watched').dataset.state === 'done'")
    page.leave("#see")
    assert "age: mean" in page.text()
    answers = json.loads((folder / "answers-visits" / "answers.json").read_text())
    assert [one["question"]["kind"] for one in answers["answers"]] == ["mean", "words"]
    page.go(page.run("location.origin") + "/")


def officer(page: Page) -> None:
    """Make a key, read what will be promised, and approve it."""
    page.leave('a[href="/sign"]')
    page.leave("#keys button")
    page.leave('a[href="/sign?study=visits.toml"]')
    for words in ("The certificate as it will be", "no program can enforce", "What was charged"):
        assert words in page.text()
    page.leave('form[action="/approve"] button')
    assert "exactly this plan" in page.text("#approve")


def operator(page: Page, new: Path, folder: Path) -> None:
    """Start the run, close the page, come back, and use the model."""
    page.leave('a[href="/runs"]')
    page.leave('a[href="/start?study=visits.toml"]')
    page.leave("main form button")
    here = page.run("location.href")
    page.go("about:blank")  # closing the page loses nothing
    page.go(here)
    page.wait("document.getElementById('watched').dataset.state === 'done'")
    page.leave("#see")
    assert "matches its records" in page.text()
    assert "Its plan was approved by" in page.text()
    page.attach("#upload", new)
    page.click("#send")
    page.wait("document.getElementById('keep') !== null")
    assert "20 records were predicted" in page.text("#predicted")
    page.leave('form[action="/card"] button')
    assert page.run("document.title").startswith("Model card")
    page.run("history.back()")
    page.wait("document.querySelector('a[href*=\"report.html\"]') !== null")
    page.leave('a[href*="report.html"]')
    assert page.run("document.title").startswith("Privacy report")
    page.go(page.run("location.origin") + "/runs")
    assert "finished" in page.text()
