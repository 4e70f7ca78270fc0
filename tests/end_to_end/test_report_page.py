"""The report as a file: well-formed, labelled, self-contained, escaped, and with the certificate's own numbers."""

import json
import re
from collections import Counter
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from report_folder import (
    CLASSIFIED,
    CLIENT,
    NAME,
    REGRESSED,
    UNTESTED,
    open_plan,
    some_plan,
    with_target,
    write_folder,
)

from fedveil.accounting.sampling_alone import seen_by_all
from fedveil.core.errors import BadValue
from fedveil.report.page import write_report
from fedveil.report.words import NO_GUARANTEE, epsilon_text, up
from fedveil.stages.train.registry import facts_of

VOID = {"meta", "link", "br", "hr", "col", "img"}


class Reader(HTMLParser):
    """Refuses what is not closed; keeps what there is to check."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.inside: dict[str, list[str]] = {}
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, tag
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append("" if "style" in self.open else data)
        for name in self.open:
            self.inside.setdefault(name, []).append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def all(self, *names: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.tags if tag in names]


CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "usual": (some_plan(), CLASSIFIED),
    "several passes": (some_plan(passes=3, noise=2.0), REGRESSED),
    "seeded": (some_plan(seeded=True), CLASSIFIED),
    "one round": (some_plan(rounds=1, noise=20.0), UNTESTED),
    "full batch": (some_plan(rounds=1, passes=5, noise=20.0), UNTESTED),
    "no bound": (some_plan(rounds=1, noise=1e-9), UNTESTED),
    "strict": (with_target(some_plan(), epsilon=1e-3, delta=1e-7), UNTESTED),
    "server": (with_target(some_plan(), adversary="server"), UNTESTED),
    "open": (open_plan(), CLASSIFIED),
    "open, alike": (open_plan(alike=True), REGRESSED),
    "open, seeded": (open_plan(seeded=True), UNTESTED),
    "open, many clients": (open_plan(clients=100), UNTESTED),
}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, dict[str, Any]]]:
    found = {}
    for name, (plan, metrics) in CASES.items():
        folder = tmp_path_factory.mktemp("run")
        certificate = write_folder(folder, plan, metrics)
        found[name] = (write_report(folder).read_text(encoding="utf-8"), certificate)
    return found


@pytest.fixture(params=list(CASES))
def page(request: pytest.FixtureRequest, pages: dict[str, tuple[str, dict[str, Any]]]) -> tuple[str, dict[str, Any]]:
    return pages[request.param]


Page = tuple[str, dict[str, Any]]
Pages = dict[str, Page]


def test_it_is_well_formed_with_unique_ids(page: Page) -> None:
    reader = Reader(page[0])
    ids = Counter(attributes["id"] for _, attributes in reader.tags if "id" in attributes)
    assert [name for name, count in ids.items() if count > 1] == []
    wanted = [a["href"] for a in reader.all("a")]
    wanted += [f"#{name}" for _, a in reader.tags for name in (a.get("aria-labelledby") or "").split()]
    assert [link for link in wanted if not link or link[0] != "#" or link[1:] not in ids] == []


def test_headings_and_landmarks_are_in_order(page: Page) -> None:
    reader = Reader(page[0])
    levels = [int(tag[1]) for tag, _ in reader.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert [len(reader.all(name)) for name in ("html", "header", "nav", "main", "footer")] == [1, 1, 1, 1, 1]
    assert reader.all("html")[0]["lang"] == "en"


def test_every_picture_and_table_is_labelled(page: Page) -> None:
    reader = Reader(page[0])
    assert reader.all("img", "canvas", "object", "iframe") == []
    drawings = [a for a in reader.all("svg") if a.get("aria-hidden") != "true" and a.get("class") != "over"]
    assert drawings or not any(row["epsilon"] for row in page[1]["guarantees"])
    assert all(a.get("role") == "img" and a.get("aria-labelledby") for a in drawings)
    assert len(reader.all("desc")) == len(drawings)
    assert len(reader.all("caption")) == len(reader.all("table"))
    assert all(a.get("scope") in ("row", "col") for a in reader.all("th"))


def test_it_needs_nothing_from_outside(page: Page) -> None:
    text, _ = page
    reader = Reader(text)
    assert reader.all("script", "base", "form") == []
    assert not re.search(r"https?:|//|@import|url\(|javascript:", re.sub(r"/\*.*?\*/", "", text))
    assert not any(key.startswith("on") for _, attributes in reader.tags for key in attributes)
    assert "default-src 'none'" in str(reader.all("meta")[1]["content"])
    assert len(text.encode()) < 120_000


def test_names_are_shown_as_they_are(pages: Pages) -> None:
    text, _ = pages["usual"]
    reader = Reader(text)
    assert "".join(reader.inside["h1"]) == NAME
    assert f"Privacy report: {NAME}" in "".join(reader.inside["title"])
    for name in (CLIENT, "<other> & more", "metrics <x>", "run-<7>", "no guarantee & no noise"):
        assert name in reader.text


def test_numbers_are_the_certificate_s(page: Page) -> None:
    text, certificate = page
    shown = Reader(text).text
    for row in certificate["guarantees"]:
        assert f"{row['sees']} {epsilon_text(row['epsilon'])} " in shown
        assert all(f"{a['name']} {a['value']} " in shown for a in row["assumptions"])
    for value in (certificate["plan"], certificate["run"], certificate["version"]):
        assert value in shown
    assert f"must print {certificate['released'][0]['sha256']}" in shown
    for bound in certificate["guarantees"][0]["bounds"]:
        assert bound["reason"] in shown
        assert bound["epsilon"] is None or epsilon_text(bound["epsilon"]) in shown


def test_a_private_run_says_what_it_promises(pages: Pages) -> None:
    text, certificate = pages["usual"]
    shown = Reader(text).text
    epsilon = certificate["guarantees"][0]["epsilon"]
    assert "NOT PRIVATE" not in shown
    assert f"Epsilon (ε) {up(epsilon)}" in shown
    assert re.search(r"Whoever sees the released model \w.* whether any one record was used", shown)


def test_what_hiding_bought_is_counted_from_what_sampling_gives_with_every_model_seen(pages: Pages) -> None:
    text, certificate = pages["usual"]
    shown = Reader(text).text
    row = certificate["guarantees"][0]
    unhidden = next(b["epsilon"] for b in row["bounds"] if b["name"] == "unhidden")
    alone = seen_by_all(some_plan().hidden.run, row["delta"])
    assert alone.known == pytest.approx(unhidden, rel=1e-6)
    for value, words in ((alone.known, "as the records were dealt"), (alone.poisson, "had every record joined")):
        assert f"{up(value)} {words}" in shown
    assert f"{up(alone.independent)} had it picked one round" in shown
    assert "every model seen, Poisson draws" in shown
    bought = min(alone.poisson, alone.independent, alone.known) / row["epsilon"]
    if bought < 1.005:
        assert "hiding bought nothing that can be proved beyond" in shown
        assert "times smaller" not in shown
    else:
        assert 1 < float(re.search(r"([\d.]+) times smaller", shown)[1]) <= bought  # type: ignore[index]


def test_a_seeded_run_is_not_private(pages: Pages) -> None:
    shown = Reader(pages["seeded"][0]).text
    assert shown.count("NOT PRIVATE") >= 2  # in the window's title too
    assert shown.index("NOT PRIVATE") < shown.index("The promise in plain words")
    assert f"Epsilon (ε) {NO_GUARANTEE}" in shown
    assert "Nothing is promised" in shown
    assert "they do not hold for this run" in shown
    assert not re.search(r"model\.npz covered", shown)
    assert "generalising" not in sections(
        pages["seeded"][0]
    )  # a promise that does not hold proves nothing of new records


def test_a_private_flag_that_is_missing_or_odd_is_not_private(tmp_path: Path) -> None:
    certificate = write_folder(tmp_path, some_plan(), UNTESTED)
    (tmp_path / "certificate.json").write_text(json.dumps(certificate | {"private": "yes"}))
    assert "NOT PRIVATE" in write_report(tmp_path).read_text()


def test_no_bound_is_no_guarantee(pages: Pages) -> None:
    text, certificate = pages["no bound"]
    assert certificate["private"] is True
    assert {row["epsilon"] for row in certificate["guarantees"]} == {None}
    shown = Reader(text).text
    assert "Nothing is promised: whoever sees the released model may be able to tell" in shown
    assert "not met" in shown
    assert "NOT PRIVATE" not in shown


def test_a_null_epsilon_is_drawn_as_none(tmp_path: Path) -> None:
    certificate = write_folder(tmp_path, some_plan(), UNTESTED)
    certificate["guarantees"][4] |= {"epsilon": None, "certified_by": None}
    (tmp_path / "certificate.json").write_text(json.dumps(certificate))
    text = write_report(tmp_path).read_text()
    assert 'class="bar none"' in text
    assert f"every client's own noised update {NO_GUARANTEE} 1e-5 100% –" in Reader(text).text


def test_the_promise_is_to_the_plan_s_observer(pages: Pages) -> None:
    text, certificate = pages["server"]
    shown = Reader(text).text
    assert f"Epsilon (ε) {epsilon_text(certificate['guarantees'][4]['epsilon'])}" in shown
    assert "Whoever sees every client's own noised update" in shown


@pytest.mark.parametrize("name", ["usual", "open"])
def test_the_curve_passes_through_the_certificate_and_falls(pages: Pages, name: str) -> None:
    text, certificate = pages[name]
    table = text[text.index("Epsilon at each delta") :]
    rows = re.findall(
        r'<th scope="row"[^>]*>([^<]+)</th><td[^>]*><span>([^<]+)</span>', table[: table.index("</table>")]
    )
    assert [float(delta) for delta, _ in rows] == [1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2]
    assert dict(rows)["1e-5"] == up(certificate["guarantees"][0]["epsilon"])
    epsilons = [float(epsilon) for _, epsilon in rows]
    assert epsilons == sorted(epsilons, reverse=True)


def test_scores_have_intervals(pages: Pages) -> None:
    shown = Reader(pages["usual"][0]).text
    assert "84.2% of them (95% interval 80.7% to 87.1%)" in shown
    assert "held-out records that were not declared public" in shown
    assert "plain rounds without noise" in shown
    assert "between 80.0%" in shown


def test_regression_shows_errors(pages: Pages) -> None:
    shown = Reader(pages["several passes"][0]).text
    assert "released model (private) 0.3 -0.25 0.21" in shown
    assert "declared public" in shown


def test_of_private_records_that_were_not_counted_nothing_is_claimed(pages: Pages) -> None:
    told = "500 held-out records were not declared public: nothing is said about them."
    assert told in Reader(pages["one round"][0]).text


def test_declared_assumptions_stand_out(pages: Pages) -> None:
    text, certificate = pages["usual"]
    rows = {(a["name"], a["enforced_by"], a["value"]) for g in certificate["guarantees"] for a in g["assumptions"]}
    declared = [row for row in rows if row[1].startswith("declared") or row[2] == "declared"]
    part = text[text.index('id="assumptions"') : text.index('id="checking"')]
    assert part.count('class="badge warn"') == len(declared) + 1  # and once in the introduction
    assert f"stand on {len(rows)} assumptions" in part


def sections(text: str) -> list[str]:
    return [str(attributes["id"]).removesuffix("-heading") for attributes in Reader(text).all("h2")]


def test_what_is_about_hiding_is_told_of_hidden_runs_only(pages: Pages) -> None:
    text, _ = pages["usual"]
    assert sections(text)[7:11] == ["hiding", "curve", "places", "generalising"]
    assert "only the last is released" in text
    for name in CASES:
        if name.startswith("open"):
            shown = sections(pages[name][0])
            assert not {"hiding", "places"} & set(shown)
            assert {"bounds", "curve", "schedule"} <= set(shown)
            assert "only the last is released" not in pages[name][0]


def test_a_method_s_own_facts_are_shown(pages: Pages) -> None:
    shown, plan = Reader(pages["open"][0]).text, open_plan()
    for label, value in facts_of(plan.method, plan.setup):
        assert f"{label} {value}" in shown


def test_each_client_has_its_own_epsilon(pages: Pages) -> None:
    text, certificate = pages["open"]
    shown, own = Reader(text).text, [row["epsilon"] for row in certificate["clients"]]
    assert [row["client"] for row in certificate["clients"]] == list(range(6))
    assert own == sorted(own, reverse=True)
    assert own[0] == pytest.approx(certificate["guarantees"][0]["epsilon"], rel=1e-6)
    for client, value in enumerate(own, start=1):
        assert f"client {client} {up(value)}" in shown
    assert f"Epsilon lies between {up(own[-1])} (client 6) and {up(own[0])} (client 1)" in shown


def test_clients_that_are_alike_are_not_listed(pages: Pages) -> None:
    for name in ("usual", "open, alike"):
        assert "clients" not in pages[name][1]
        assert "clients" not in sections(pages[name][0])


def test_many_clients_are_listed_in_part(pages: Pages) -> None:
    shown = Reader(pages["open, many clients"][0]).text
    assert "the 30 largest and the 30 smallest" in shown
    assert re.search(r"client 1 [\d.]+ client 2 [\d.]+", shown)
    assert "client 50 " not in shown


def test_a_seeded_run_promises_no_client_anything(pages: Pages) -> None:
    text, certificate = pages["open, seeded"]
    assert {row["epsilon"] for row in certificate["clients"]} == {None}
    assert "No client has a guarantee" in Reader(text).text


def test_a_client_whose_epsilon_is_missing_is_drawn_as_none(tmp_path: Path) -> None:
    certificate = write_folder(tmp_path, open_plan(), UNTESTED)
    certificate["clients"][2]["epsilon"] = None
    (tmp_path / "certificate.json").write_text(json.dumps(certificate))
    shown = Reader(write_report(tmp_path).read_text()).text
    assert "For 1 client there is no guarantee" in shown
    assert f"client 3 {NO_GUARANTEE}" in shown


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("plan.toml", "", "table"),
        ("certificate.json", "{", "JSON"),
        ("certificate.json", "[]", "object"),
        ("certificate.json", '{"format": 1}', "complete"),
        ("certificate.json", '{"format": 2}', "format"),
        ("metrics.json", '{"format": 1, "test": {}}', "complete"),
        ("model.npz", "another", "model.npz"),
    ],
)
def test_records_that_do_not_fit_are_refused(tmp_path: Path, name: str, text: str, told: str) -> None:
    write_folder(tmp_path, some_plan(), CLASSIFIED)
    (tmp_path / name).write_text(text)
    with pytest.raises(BadValue, match=told):
        write_report(tmp_path)
    assert not (tmp_path / "report.html").exists()


def test_a_missing_record_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadValue, match=r"plan\.toml"):
        write_report(tmp_path)


def test_a_plan_of_another_run_is_refused(tmp_path: Path) -> None:
    write_folder(tmp_path, some_plan(), UNTESTED)
    other = tmp_path / "other"
    write_folder(other, some_plan(noise=3.0), UNTESTED)
    (tmp_path / "plan.toml").write_text((other / "plan.toml").read_text())
    with pytest.raises(BadValue, match="the plan that was certified"):
        write_report(tmp_path)


def test_the_same_records_give_the_same_page(tmp_path: Path) -> None:
    write_folder(tmp_path, some_plan(), CLASSIFIED)
    first = write_report(tmp_path).read_bytes()
    assert write_report(tmp_path).read_bytes() == first
