"""A command called in this process; and, with a trial that failed, what its processes wrote."""

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from wards import Command

from fedveil.cli import main

_ENOUGH = 3000  # characters of each log


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    outcome: Any = yield
    report = outcome.get_result()
    network = getattr(item, "funcargs", {}).get("network")
    started = getattr(getattr(network, "processes", None), "started", ())
    if report.failed:
        for one in started:
            state = "alive" if one.alive else f"ended with {one.process.returncode}"
            said = one.tail(_ENOUGH) if one.log.exists() else "its log is gone"
            report.sections.append((f"{one.name}, {state}", said))


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    def call(*arguments: object) -> SimpleNamespace:
        monkeypatch.setattr(sys, "argv", ["fedveil", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return SimpleNamespace(code=ended.value.code, out=out, err=err)

    return call
