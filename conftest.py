"""What holds for every test and every example in the source.

Modules that load the package of an extra (Flower, the web framework, matplotlib) are looked at for examples only where
it is installed. And what the operating system gives as randomness is the same whenever a test is repeated, so that a
red run is a change and never bad luck: a run without a seed, for the program a private one, repeats itself here.
Processes that a test starts or forks draw as usual, so a test whose verdict depends on what they draw needs a seed of
its own, or a chance of failure below one in a million.
"""

import hashlib
import os
from collections.abc import Callable
from importlib.util import find_spec
from itertools import count

_ROUTES = ("design_routes", "explore_routes", "run_routes", "sign_routes")
_LOADING = {  # by the package of an extra: the folder, and its modules that load the package
    "matplotlib": ("report", ("figures",)),
    "flwr": ("federation/flower", ("apps", "relay")),
    "nvflare": ("federation/nvflare", ("carry",)),
    "starlette": ("studio", ("app", "reading", "serve", "state", *_ROUTES)),
}
collect_ignore = [
    f"src/fedveil/{folder}/{name}.py"
    for package, (folder, names) in _LOADING.items()
    if not find_spec(package)
    for name in names
]


class Repeated:
    """The system's randomness as a function of the test that asks and of how often it has asked."""

    def __init__(self, system: Callable[[int], bytes]) -> None:
        self._system, self._process = system, os.getpid()
        self.begin("no test")

    def begin(self, test: str) -> None:
        """Draw from here on as the test of this name does from its start."""
        self._now = test, count()  # one assignment: a thread never sees half of it

    def __call__(self, size: int) -> bytes:
        """Return so many bytes."""
        if os.getpid() != self._process:
            return self._system(size)  # a forked child must not draw what its parent draws
        test, numbers = self._now
        return hashlib.shake_256(f"{next(numbers)} {test}".encode()).digest(size)


_repeated = Repeated(os.urandom)
os.urandom = _repeated  # before fedveil is loaded: much of it takes this function as a default


def pytest_runtest_logstart(nodeid: str) -> None:
    """Give every test its own randomness, whichever tests ran before it."""
    _repeated.begin(nodeid)
