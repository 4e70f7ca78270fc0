"""A floor on the number of collected tests: a file that pytest stops finding must not go unnoticed."""

from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("fixed", derandomize=True, deadline=None, print_blob=False)
settings.load_profile("fixed")  # the same examples every time: a red run is a change, not bad luck

FLOOR = 5600


def pytest_collection_finish(session: pytest.Session) -> None:
    whole = not session.config.option.keyword and not session.config.option.markexpr
    paths = {Path(argument).resolve() for argument in session.config.args}
    everything = {session.config.rootpath / name for name in ("tests", "src")}
    if whole and everything <= paths and len(session.items) < FLOOR:
        pytest.exit(f"only {len(session.items)} tests were collected, fewer than {FLOOR}: has a file been lost?", 3)
