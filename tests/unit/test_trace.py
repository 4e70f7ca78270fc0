"""The timeline of a run across sites, and what ``deploy status`` says of it."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedveil.cli.deploy import deploy
from fedveil.core.errors import BadValue
from fedveil.federation.aggregator.trace import (
    TIMELINE,
    RunStatus,
    Trace,
    picture,
    read_status,
    typical_round,
)
from fedveil.report.timeline import FILE, timeline_in, timeline_section
from fedveil.wire.content import Content


def test_spans_add_up_to_rounds() -> None:
    times = iter([10.0, 10.5, 11.0, 11.25, 12.0])
    trace = Trace(lambda: next(times))
    with trace.span("push", site="north", round=0):
        pass
    asked = trace.now()
    trace.add("step", asked, site="north", round=0)
    told = json.loads(trace.text())
    assert [(e["what"], e["start"], e["seconds"]) for e in told["events"]] == [("push", 0.0, 0.5), ("step", 1.0, 0.25)]
    assert told["rounds"] == [
        {"round": 0, "start": 0.0, "spent": {"push": 0.5, "step": 0.25}, "end": 1.25, "seconds": 1.25}
    ]
    lines = picture(trace.text()).splitlines()
    assert lines[0] == "round 0: 1250 ms"
    assert [line.split()[:2] for line in lines[1:]] == [["push", "north"], ["step", "north"]]


def test_without_a_clock_nothing_is_kept() -> None:
    trace = Trace()
    with trace.span("push"), pytest.raises(ZeroDivisionError), trace.span("fails"):
        _ = 1 / 0
    assert json.loads(trace.text()) == {"format": 1, "rounds": [], "events": []}
    assert picture(trace.text()) == "no round was traced\n"


def test_the_report_draws_the_round_of_the_median_time(tmp_path: Path) -> None:
    times = iter([0.0, 5.0, 5.0, 6.0, 6.0, 6.5, 6.5, 6.75, 6.75, 8.75])
    trace = Trace(lambda: next(times))
    for turn, events in enumerate((["step"], ["step"], ["seal", "step"])):
        for what in events:
            with trace.span(what, site="north", round=turn):
                pass
    with trace.span("save"):  # of no round
        pass
    assert FILE == TIMELINE
    assert timeline_section(timeline_in(tmp_path)) is None
    (tmp_path / FILE).write_text(typical_round(trace.text()))
    found = timeline_in(tmp_path)
    assert found is not None
    assert found.length == 1000.0
    page = str(timeline_section(found))
    assert "wait for the sites: 1000.0 ms" in page
    for broken in ("{}", '{"bars": []}', '{"bars": [{"what": "x", "start": -9, "seconds": 1}]}'):
        (tmp_path / FILE).write_text(broken)
        with pytest.raises(BadValue, match=FILE):
            timeline_in(tmp_path)
    assert typical_round(Trace().text()) == ""


def test_the_report_says_nothing_of_who_took_part() -> None:
    """Two exchanges with three sites are three bars each; neither names nor numbers of rounds and sites are told."""
    now = [0.0]
    trace = Trace(lambda: now[0])
    for exchange in (0.0, 10.0):
        for place, site in enumerate(("north", "south", "west")):
            now[0] = exchange + place
            with trace.span("push", site=site, round=7):
                now[0] += 0.5
        now[0] = exchange + 6
        for place, site in enumerate(("north", "south", "west")):
            trace.add("masked", exchange + place + 0.5, site=site, round=7)
    now[0] = 20.0
    with trace.span("save", round=7):
        now[0] = 21.0
    assert json.loads(typical_round(trace.text())) == {
        "format": 1,
        "bars": [
            {"what": "push", "start": 0.0, "seconds": 2.5},
            {"what": "wait for the sites", "start": 0.5, "seconds": 5.5},
            {"what": "push", "start": 10.0, "seconds": 2.5},
            {"what": "wait for the sites", "start": 10.5, "seconds": 5.5},
            {"what": "save", "start": 20.0, "seconds": 1.0},
        ],
    }


def test_the_status_names_who_is_waited_for(tmp_path: Path) -> None:
    assert read_status(tmp_path)["state"] == "not begun"
    private = tmp_path / "private"
    private.mkdir()
    here = {site: Content(values={"version": "0.1.0"}).write() for site in ("north", "south")}
    (private / "members").write_bytes(Content(blocks=here).write())
    status = RunStatus(private / "status.json", lambda: "2026-01-01T00:00:00+00:00")
    status.progress(3, 8)
    for site, state in (("north", "asked"), ("south", "asked"), ("north", "answered")):
        status.site(site, state)
    shown = CliRunner().invoke(deploy, ["status", str(tmp_path)]).stdout
    assert "begun; round 3 of 8" in shown
    assert "north: answered; last answer 2026-01-01T00:00:00+00:00, fedveil 0.1.0" in shown
    assert "waiting for: south" in shown
    told = json.loads(CliRunner().invoke(deploy, ["status", str(tmp_path), "--json"]).stdout)
    assert (told["waiting_for"], told["sites"]["south"]["state"]) == (["south"], "asked")
    assert (private / "status.json").stat().st_mode & 0o777 == 0o600
    (tmp_path / "model.npz").touch()
    assert read_status(tmp_path)["state"] == "released"
