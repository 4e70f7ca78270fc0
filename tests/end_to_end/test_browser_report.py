"""The report in a real browser: on a phone, on a desk, in the dark, on paper, by keyboard and to a screen reader."""

import base64
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from report_folder import (
    CLASSIFIED,
    MEASURED,
    some_audit,
    some_finding,
    some_leakage,
    some_plan,
    write_audit_file,
    write_folder,
)

from fedveil.audit.finding import Finding
from fedveil.report.page import write_report

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
from chromium_pipe import CHROMIUM, Page, browser

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not on the PATH (Debian: package chromium)")

OPEN_ALL = "for (const d of document.querySelectorAll('details')) d.open = true"

# Against the width that was asked for: on a phone the window grows with what sticks out.
TOO_WIDE = """
[...document.querySelectorAll('body *')].filter(e => !e.closest('.skip') && !e.closest('thead')
  && (e.getBoundingClientRect().right > WIDTH + 1 || e.getBoundingClientRect().left < -1))
  .map(e => e.tagName + ' ' + (e.textContent || '').slice(0, 40))
"""

FAINT_TEXT = """
(() => {
  const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const parse = text => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = text; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data]; };
  const linear = v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
  const light = c => { const [r, g, b] = c.map(v => linear(v / 255));
    return .2126 * r + .7152 * g + .0722 * b; };
  const back = e => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor);
    if (c[3] == 255) return c; } return [255, 255, 255, 255]; };
  const found = []; let looked = 0;
  for (const e of document.querySelectorAll('body, body *')) {
    if (![...e.childNodes].some(n => n.nodeType == 3 && n.textContent.trim())) continue;
    if (['title', 'desc'].includes(e.tagName)) continue;
    const style = getComputedStyle(e), svg = e instanceof SVGElement;
    const [a, b] = [light(parse(svg ? style.fill : style.color)), light(back(e))].sort((x, y) => y - x);
    looked += 1;
    if ((a + .05) / (b + .05) < 4.5) found.push(e.tagName + ' ' + e.textContent.slice(0, 40));
  }
  return [looked, found];
})()
"""


def _findings() -> list[Finding]:
    """One of each kind: consistent, with a curve, an estimate, nothing promised, broken."""
    rates = [0.001, 0.01, 0.1, 1.0]
    curve = {"false_positives": rates, "true_positives": rates, "allowed": [0.004, 0.04, 0.4, 1.0]}
    return [
        some_finding(),
        some_finding(attack="LiRA", details={"roc": curve}),
        some_finding(attack="canaries", kind="estimate", verdict="not-judged"),
        some_finding(adversary="server", certified=None, measured=12.0),
        some_finding(adversary="every-model", certified=2.0, measured=3.0, verdict="broken"),
    ]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    folder = tmp_path_factory.mktemp("run")
    plan = some_plan()
    clients = {"per_client": CLASSIFIED["test"]["per_client"]}
    write_folder(folder, plan, {**MEASURED, "test": {**MEASURED["test"], **clients}})
    write_audit_file(folder, some_audit(plan, *_findings(), leakage=some_leakage()))
    with browser() as running:
        shown = running.page()
        shown.go(write_report(folder).resolve().as_uri())
        yield shown


def test_it_loads_nothing_and_complains_of_nothing(page: Page) -> None:
    asked = [e["params"]["request"]["url"] for e in page.events if e["method"] == "Network.requestWillBeSent"]
    assert [url.split("/")[-1] for url in asked if not url.startswith("data:")] == ["report.html"]
    loud = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
    assert [e for e in page.events if e["method"] in loud] == []


@pytest.mark.parametrize("width", [320, 360, 768, 1400])
def test_nothing_sticks_out(page: Page, width: int) -> None:
    page.size(width)
    page.run(OPEN_ALL)
    assert page.run(TOO_WIDE.replace("WIDTH", str(width))) == []
    assert page.run("document.scrollingElement.scrollWidth") <= width


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("media", ["screen", "print"])
def test_text_stands_out_from_its_ground(page: Page, scheme: str, media: str) -> None:
    page.size(1000, dark=scheme == "dark", media=media)
    page.run(OPEN_ALL)
    looked, faint = page.run(FAINT_TEXT)
    assert looked > 200
    assert faint == []


@pytest.mark.parametrize("dark", [False, True])
def test_axe_finds_nothing(page: Page, dark: bool) -> None:
    page.size(1000, dark=dark)
    page.run(OPEN_ALL)
    assert page.violations() == []


def test_the_schemes_differ_and_paper_is_white(page: Page) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    found = []
    for scheme, media in (("light", "screen"), ("dark", "screen"), ("dark", "print")):
        page.size(1000, dark=scheme == "dark", media=media)
        found.append(page.run(ground))
    assert found[0] != found[1]
    assert found[0] == found[2] == "rgb(255, 255, 255)"


def test_what_matters_takes_three_screens_and_a_link_unfolds_the_rest(page: Page) -> None:
    page.size(1280)
    page.run("for (const d of document.querySelectorAll('details')) d.open = false")
    assert page.run("document.querySelector('.fold').getBoundingClientRect().top + window.scrollY") <= 3 * 800
    page.run("location.hash = 'assumptions'")
    assert page.run("document.querySelector('.fold:has(#assumptions)').open")


def test_paper_shows_what_is_folded_away(page: Page) -> None:
    shown = "document.querySelector('#hiding details table').getBoundingClientRect().height > 50"
    numbers = "[...document.querySelectorAll('details.numbers')].every(e => e.getBoundingClientRect().height === 0)"
    page.size(1000, media="print")
    page.run("for (const d of document.querySelectorAll('details')) d.open = false")
    assert page.run(shown)
    assert page.run(numbers)  # paper has the pictures
    paper = base64.b64decode(page.send("Page.printToPDF", preferCSSPageSize=True, printBackground=True)["data"])
    assert paper.startswith(b"%PDF")
    assert 4 <= paper.count(b"/Type /Page\n") + paper.count(b"/Type /Page /") + paper.count(b"/Type /Page>") <= 16


def test_pictures_are_drawn_sharp_and_as_wide_as_they_may_be(page: Page) -> None:
    page.size(360)
    sizes = page.run("[...document.querySelectorAll('img.greys')].map(e => [e.naturalWidth, e.naturalHeight, e.width])")
    assert len(sizes) == 8
    assert all(size[:2] == [5, 2] and size[2] > 250 for size in sizes)
    assert page.run("getComputedStyle(document.querySelector('img.greys')).imageRendering") == "pixelated"


def test_the_keyboard_reaches_the_content_first(page: Page) -> None:
    page.size(1000)
    page.send("Emulation.setFocusEmulationEnabled", enabled=True)  # keys go astray while another window has the focus
    page.run("document.body.tabIndex = -1; document.body.focus(); document.body.removeAttribute('tabindex')")
    for kind in ("keyDown", "keyUp"):
        page.send("Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9)
    end = time.monotonic() + 20
    while page.run("document.activeElement === document.body") and time.monotonic() < end:
        time.sleep(0.01)  # the focus moves when the page gets to it
    assert page.run("document.activeElement.className") == "skip"
    assert page.run("document.activeElement.getBoundingClientRect().left >= 0")


def test_a_screen_reader_finds_names_and_tables(page: Page) -> None:
    page.size(360)  # where tables are laid out as blocks, which would take their roles away
    page.run(OPEN_ALL)
    nodes = [n for n in page.send("Accessibility.getFullAXTree")["nodes"] if not n.get("ignored")]
    roles = [(str(n["role"]["value"]), str(n.get("name", {}).get("value", ""))) for n in nodes]
    pictures = [name for role, name in roles if role in ("image", "img", "graphics-document")]
    assert len(pictures) >= 9
    assert all(pictures)
    tables = page.run("document.querySelectorAll('table').length")
    assert sum(role == "table" for role, _ in roles) == tables
    assert {"banner", "main", "navigation", "contentinfo"} <= {role for role, _ in roles}


def test_lines_meet_their_dots(page: Page) -> None:
    """Lines are stretched and dots are not: at any width they must lie on one another."""
    apart = """
    (() => { const chart = document.querySelector('#by-delta'), box = chart.getBoundingClientRect();
      const line = chart.querySelector('.line.best'), dots = [...chart.querySelectorAll('circle.best')];
      const matrix = line.getScreenCTM();
      return Math.max(...dots.map((dot, i) => { const p = line.points[i].matrixTransform(matrix);
        return Math.hypot(p.x - box.left - dot.cx.baseVal.value, p.y - box.top - dot.cy.baseVal.value); })); })()
    """
    for width in (360, 1400):
        page.size(width)
        assert page.run(apart) < 1.0


class TestTheseTests:
    """A checker that never complains is worse than none."""

    def test_faint_and_wide_text_is_seen(self, page: Page) -> None:
        page.size(360)
        page.run("document.querySelector('footer p').style = 'color: #999; width: 500px'")
        page.run("document.querySelector('#by-delta .tick').style = 'fill: #eee'")
        assert len(page.run(FAINT_TEXT)[1]) == 2
        assert len(page.run(TOO_WIDE.replace("WIDTH", "360"))) == 1
        page.run("document.querySelector('footer p').style = ''")
        page.run("document.querySelector('#by-delta .tick').style = ''")

    def test_axe_sees_a_picture_without_words(self, page: Page) -> None:
        page.run("document.querySelector('footer').append(new Image()); true")
        assert [one.partition(":")[0] for one in page.violations()] == ["image-alt"]
        page.run("document.querySelector('footer img').remove()")
