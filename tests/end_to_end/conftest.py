"""What the processes of a trial wrote is shown with a test that failed: without it nobody can tell what went wrong."""

from collections.abc import Iterator
from typing import Any

import pytest

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
