"""Work in a fresh process: what takes much code and memory once, for a process that then waits for days.

The fresh process is another interpreter of this installation. It is started when it is first asked, is asked over a
pipe, and ends when it may rest, or with the process that started it. What it is given and what it returns is JSON. Its
errors keep their kind and their sentence; if it ends without an answer, that is an error too, and never a result.

``python -m fedveil.federation.carrying.fresh_process`` is that process.
"""

import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, Final, ParamSpec, Protocol, Self, TypeVar, final

from fedveil.core.errors import FedveilError
from fedveil.core.importing import allowed_now, allowing
from fedveil.federation.carrying.processes import PARENT, end_with_parent

TURNS: Final = "FEDVEIL_TURNS"  # in the environment: a folder of locks, where many sites of a trial share a machine
Given = ParamSpec("Given")
Result = TypeVar("Result")


class WorkFailed(FedveilError):
    """A fresh process has ended without an answer."""


class Work(Protocol):
    """Calls a function of a module, which takes and returns what JSON holds, here or elsewhere."""

    def __call__(  # noqa: D102
        self, function: Callable[Given, Result], /, *given: Given.args, **named: Given.kwargs
    ) -> Result: ...


def here(function: Callable[Given, Result], /, *given: Given.args, **named: Given.kwargs) -> Result:
    """Call a function in this process."""
    return function(*given, **named)


@final
@dataclass(slots=True)
class FreshProcess:
    """Calls functions in one fresh process, so that a later call finds what an earlier one has worked out."""

    _process: "subprocess.Popen[str] | None" = None

    def __call__(self, function: Callable[Given, Result], /, *given: Given.args, **named: Given.kwargs) -> Result:
        """Return what the function returns there, or raise the error that it raised there."""
        name = [function.__module__, function.__qualname__]
        asked = {"function": name, "given": given, "named": named, "modules": sorted(allowed_now().names)}
        line = self._exchange(json.dumps(asked) + "\n")
        if not line.endswith("\n"):  # it was killed, or had no memory left
            self.rest()
            raise WorkFailed(f"The process that was to work out {function.__name__} has ended without an answer.")
        answer = json.loads(line)
        if "error" in answer:
            raise _error(*answer["error"])
        result: Result = answer["result"]
        return result

    def rest(self) -> None:
        """End the process, if there is one, and with it all that it holds in memory."""
        if self._process is not None:
            self._process.communicate()  # it ends when it is asked nothing more
            self._process = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.rest()

    def _exchange(self, line: str) -> str:
        process = self._process = self._process or _started()
        assert process.stdin is not None  # noqa: S101  it is a pipe
        assert process.stdout is not None  # noqa: S101  and so is this
        with suppress(BrokenPipeError):
            process.stdin.write(line)
            process.stdin.flush()
        return process.stdout.readline()


def _started() -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "fedveil.federation.carrying.fresh_process"],
        env={**os.environ, PARENT: str(os.getpid())},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )


def _error(module: str, name: str, said: str) -> FedveilError:
    """Return an error of another process: of its kind, which is one of ours, and with its sentence."""
    kind = getattr(import_module(module), name)
    result: FedveilError = kind.__new__(kind)
    Exception.__init__(result, said)  # its own may want more than the sentence that it makes
    return result


def main() -> None:
    """Answer what is asked on standard input, until nothing more is."""
    end_with_parent(signal.SIGKILL)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # whoever started this one decides when it ends
        signal.signal(number, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a user's code prints is no answer
    with ExitStack() as turn:
        for line in sys.stdin:
            _wait_for(turn)
            answers.write(json.dumps(_answered(json.loads(line))) + "\n")
            answers.flush()


def _wait_for(turn: ExitStack) -> None:
    """Wait for a turn and keep it: in a trial as many work at once as there are processors, each in much memory."""
    folder = os.environ.pop(TURNS, None)
    if folder is None:
        return
    places = [turn.enter_context((Path(folder) / f"{place}.turn").open("w")) for place in range(os.cpu_count() or 1)]
    for one in places:
        with suppress(BlockingIOError):
            fcntl.flock(one, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
    fcntl.flock(places[os.getpid() % len(places)], fcntl.LOCK_EX)


def _answered(asked: dict[str, Any]) -> dict[str, Any]:
    module, name = asked["function"]
    try:
        with allowing(*asked["modules"]):
            return {"result": getattr(import_module(module), name)(*asked["given"], **asked["named"])}
    except FedveilError as error:
        return {"error": [type(error).__module__, type(error).__qualname__, str(error)]}
    except Exception as error:  # an error of ours is told as one, and this process can be asked again
        said = f"A fresh process could not work out {name} ({type(error).__name__})."
        return {"error": [FedveilError.__module__, FedveilError.__qualname__, said]}


if __name__ == "__main__":
    main()
