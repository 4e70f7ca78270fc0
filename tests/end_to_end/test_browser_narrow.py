"""Every page that a command writes, on a phone: hashes and long names break, and nothing makes the page wider."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from report_folder import MEASURED, some_plan, write_folder
from test_browser_report import CHROMIUM, OPEN_ALL, TOO_WIDE, Page, browser

from fedveil import ask
from fedveil.jobs.compare import compare
from fedveil.jobs.entry import Wish, profile_data
from fedveil.jobs.synthesis import synthesise
from fedveil.report.compare_page import compare_page
from fedveil.report.page import write_report
from fedveil.report.regulator.about import About
from fedveil.report.regulator.document import card, html
from fedveil.report.view import view_of

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not on the PATH (Debian: package chromium)")
LONG = "age_of_the_patient_in_completed_years_at_the_first_visit"
STUDY = f"""
[study]
name = "{LONG * 3}"

[data]
source = "visits.csv"
target = "ill"
classes = ["no", "yes"]
[data.scale]
{LONG} = [0, 100]
[data.categories]
ward = ["A", "{LONG}"]
[data.held_out]
fraction = 0.25
public = true
[privacy]
epsilon = 4.0
delta = 1e-4
[prepare]
kind = "private"
"""
QUICK = """
[model]
kind = "logistic"
[algorithm]
kind = "hidden"
order = "secret"
[schedule]
kind = "constant"
rounds = 2
"""
PAGES = ["report", "card", "profile", "synthetic", "compare", "answers"]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder, run = tmp_path_factory.mktemp("work"), tmp_path_factory.mktemp("run")
    draw = np.random.default_rng(1)
    ages = draw.integers(20, 90, 400)
    rows = [f"{age},{draw.choice(['A', LONG])},{'yes' if age > 55 else 'no'}" for age in ages]
    (folder / "visits.csv").write_text("\n".join([f"{LONG},ward,ill", *rows]) + "\n")
    (folder / "study.toml").write_text(STUDY + QUICK)
    (folder / "tables.toml").write_text(STUDY.partition("[data.held_out]")[0] + STUDY[STUDY.index("[privacy]") :])
    write_folder(run, some_plan(), MEASURED)
    found = {"report": write_report(run), "card": folder / "card.html", "compare": folder / "compare.html"}
    view = view_of(run)
    found["card"].write_text(html(LONG * 2, card(view, About())), encoding="utf-8")
    compared = compare(folder / "study.toml", algorithms=["hidden", "hidden:order=public"], runs=2)
    found["compare"].write_text(compare_page(compared.as_json()), encoding="utf-8")
    profile_data(Wish(data=str(folder / "visits.csv"), target="ill"), 4.0, folder / "profile")
    synthesise(folder / "tables.toml", folder / "generator", rows=20)
    numbers = {"age": ages.tolist(), LONG: [f"{age > 55}" for age in ages]}
    asked = [
        {"name": LONG, "kind": "histogram", "column": "age", "range": [20, 90]},
        {"name": "by", "kind": "count", "by": LONG, "values": ["True", "False"]},
    ]
    ask(numbers, asked, epsilon=4.0, delta=1e-4, out=folder / "asked")
    return found | {
        "answers": folder / "asked" / "report.html",
        "profile": folder / "profile" / "profile.html",
        "synthetic": folder / "generator" / "synthetic.html",
    }


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with browser() as running:
        yield running.page()


@pytest.mark.parametrize("width", [320, 390])
@pytest.mark.parametrize("name", PAGES)
def test_nothing_sticks_out(page: Page, pages: dict[str, Path], name: str, width: int) -> None:
    page.size(width)
    page.go(pages[name].resolve().as_uri())
    page.run(OPEN_ALL)
    assert page.run("document.documentElement.scrollWidth") <= width
    assert page.run(TOO_WIDE.replace("WIDTH", str(width))) == []


@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_nothing(page: Page, pages: dict[str, Path], name: str) -> None:
    page.size(1000, dark=name in {"card", "answers"})
    page.go(pages[name].resolve().as_uri())
    page.run(OPEN_ALL)
    assert page.violations() == []


@pytest.mark.parametrize("name", PAGES)
def test_numbers_stay_whole(page: Page, pages: dict[str, Path], name: str) -> None:
    """A number that goes on in the next line would be read as two."""
    page.size(390)
    page.go(pages[name].resolve().as_uri())
    page.run(OPEN_ALL)
    broken = page.run(
        """[...document.querySelectorAll('td.number > span')].filter(e => /^[0-9.e+-]+$/.test(e.textContent)
        && e.getClientRects().length > 1).map(e => e.textContent)"""
    )
    assert broken == []
