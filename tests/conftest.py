"""A floor on the number of collected tests, so that a file that pytest stops finding does not go unnoticed.

And who runs what: a file whose tests share processes stays with one worker, the rest goes to whoever is free. What
``slow.txt`` names, by the beginning of its name, is marked as slow: ``make quick`` leaves it out, nothing else does.
"""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

settings.register_profile("fixed", derandomize=True, deadline=None, print_blob=False)
settings.load_profile("fixed")  # the same examples every time: a red run is a change, not bad luck

FLOOR = 5600
_LISTED = (Path(__file__).parent / "slow.txt").read_text(encoding="utf-8").splitlines()
SLOW = tuple(line for line in _LISTED if line and not line.startswith("#"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith(SLOW):
            item.add_marker(pytest.mark.slow)


def pytest_collection_finish(session: pytest.Session) -> None:
    whole = not session.config.option.keyword and not session.config.option.markexpr
    paths = {Path(argument).resolve() for argument in session.config.args}
    everything = {session.config.rootpath / name for name in ("tests", "src")}
    if whole and everything <= paths and len(session.items) < FLOOR:
        pytest.exit(f"only {len(session.items)} tests were collected, fewer than {FLOOR}: has a file been lost?", 3)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Files of Flower's trials come first: each starts a network of its own, once."""
    if config.getvalue("dist") != "load":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class ByNetwork(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return file if Path(file).name.startswith("test_flower") else nodeid

    return ByNetwork(config, log)
