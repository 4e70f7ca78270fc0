"""A floor on the number of collected tests, so that a file that pytest stops finding does not go unnoticed.

And who runs what: a file stays with one worker, and those that take longest come first. What ``slow.txt`` names, by
the beginning of its name, is marked as slow: ``make quick`` leaves it out, nothing else does.

Files of tests go to memory where there is room: ours are flushed to the disk thousands of times, at ten milliseconds
each. What is killed in a test is a process, never the machine, so nothing is tested less.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from fedveil.core.importing import allowing

settings.register_profile("fixed", derandomize=True, deadline=None, print_blob=False)
settings.load_profile("fixed")  # the same examples every time: a red run is a change, not bad luck

FLOOR = 5600
ROOT = Path(__file__).parents[1]
MEMORY, ROOM = Path("/dev/shm"), 4 << 30  # a run of all tests leaves about 0.2 GB, and removes it if all of them pass
_LISTED = (Path(__file__).parent / "slow.txt").read_text(encoding="utf-8").splitlines()
SLOW = tuple(line for line in _LISTED if line and not line.startswith("#"))
FIRST = (  # by the beginning of their names; two workers that end at the same time need small files last
    "tests/end_to_end/test_flower_methods.py",
    "tests/end_to_end/test_flower.py",
    "tests/end_to_end/test_flower",
    "tests/end_to_end/",
    "tests/oracle/",
    "tests/contract/",
    "tests/unit/",
    "tests/",
    "",
)


def pytest_configure() -> None:
    if "TMPDIR" not in os.environ and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= ROOM:
        os.environ["TMPDIR"] = str(MEMORY)  # also of the processes that tests start
        tempfile.tempdir = None  # pytest has already looked for a place


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even load a file of which nothing is wanted: loading them all takes longer than many of the tests."""
    daily = config.option.markexpr == "not slow"
    name = collection_path.relative_to(ROOT).as_posix() + "/" * collection_path.is_dir()
    return True if daily and name.startswith(SLOW) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith(SLOW):
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: next(place for place, name in enumerate(FIRST) if item.nodeid.startswith(name)))


def pytest_collection_finish(session: pytest.Session) -> None:
    whole = not session.config.option.keyword and not session.config.option.markexpr
    paths = {Path(argument).resolve() for argument in session.config.args}
    everything = {session.config.rootpath / name for name in ("tests", "src")}
    if whole and everything <= paths and len(session.items) < FLOOR:
        pytest.exit(f"only {len(session.items)} tests were collected, fewer than {FLOOR}: has a file been lost?", 3)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores: the worker with Flower's trials mostly waits for other processes."""
    return (os.cpu_count() or 1) + 1


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A file stays with one worker, which makes its fixtures once and remembers its plans; files in the order above.

    All of Flower's trials stay with one, one network after the other.
    """
    if config.getvalue("dist") != "load":
        return None
    from xdist.scheduler import LoadFileScheduling

    class ByFile(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return "flower" if Path(file).name.startswith("test_flower") else file

    config.option.loadscopereorder = False
    return ByFile(config, log)


@pytest.fixture(scope="module", autouse=True)
def own_code(request: pytest.FixtureRequest) -> Iterator[None]:
    """Allow a file of tests to name its own functions; whatever else it names is refused, as for a user."""
    file = request.module
    with allowing(*(f"{file.__name__}:{name}" for name, value in vars(file).items() if callable(value))):
        yield
