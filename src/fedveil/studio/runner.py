"""The process of one job: trains, answers questions or attacks a run, and writes down how far it is and how it ends."""

import json
import math
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from fedveil.core.errors import AlreadyFinished
from fedveil.core.files import write_atomically
from fedveil.core.importing import allowed_now, allowing
from fedveil.core.strict_json import read_object
from fedveil.studio.jobs import OUTCOME, PROGRESS, REQUEST
from fedveil.studio.sentences import sentence_of

_EVERY = 0.25  # seconds between two reports
_MOST_NOTES = 40


@dataclass(slots=True)
class ProgressFile:
    """What is said about the progress; written at most every quarter of a second."""

    path: Path
    clock: Callable[[], float] = time.monotonic
    said: dict[str, Any] = field(default_factory=dict)
    last: float = -math.inf

    def tell(self, now: bool = False, **more: Any) -> None:
        """Say something more."""
        self.said.update(more)
        if now or self.clock() - self.last >= _EVERY:
            self.last = self.clock()
            write_atomically(self.path, json.dumps(self.said).encode())

    def site(self, name: str, state: str) -> None:
        """Say in which state a site is."""
        self.tell(sites={**self.said.get("sites", {}), name: state})

    def note(self, text: str) -> None:
        """Keep a note for the data holder; it is computed without noise, and stays in this private folder."""
        notes = self.said.get("notes", [])
        if len(notes) < _MOST_NOTES:
            self.tell(now=True, notes=[*notes, text])


def run(request: Mapping[str, Any], progress: ProgressFile) -> dict[str, Any]:
    """Run or resume a study, here or on a deployment, with the functions that ``fedveil run`` calls."""
    progress.tell(now=True, stage="starting")
    from fedveil.engine.system import Progress, System
    from fedveil.jobs.local import run_study, tune_study  # after the first report: they take a second to load
    from fedveil.jobs.remote import run_on
    from fedveil.planning.study import tables_of

    def watch(step: Progress) -> None:
        epsilon = step.epsilon if math.isfinite(step.epsilon) else None
        progress.tell(stage="training", round=step.round, total=step.total, rate=step.rate, epsilon=epsilon)

    def stage(words: str) -> None:
        progress.tell(now=True, stage=words)

    study, out, resume = Path(request["study"]), Path(request["out"]), bool(request["resume"])
    sign = None if request.get("sign") is None else Path(request["sign"])
    if request.get("on") is not None:
        run_on(study, out, request["on"], resume=resume, watch=watch, tell=progress.site, sign=sign)
    else:
        job = tune_study if "tune" in tables_of(study) else run_study
        job(study, out, resume=resume, watch=watch, system=System(tell=stage, note=progress.note), sign=sign)
    return {"state": "done"}


def ask(request: Mapping[str, Any], progress: ProgressFile) -> dict[str, Any]:
    """Answer a question file with the function that ``fedveil ask`` calls."""
    progress.tell(now=True, stage="starting")
    from fedveil.engine.system import System
    from fedveil.jobs.ask import ask_study

    system = System(tell=lambda words: progress.tell(now=True, stage=words), note=progress.note)
    ask_study(Path(request["study"]), Path(request["out"]), resume=bool(request["resume"]), system=system)
    return {"state": "done"}


def forget(request: Mapping[str, Any], progress: ProgressFile) -> dict[str, Any]:
    """Forget rows or a client with the function that ``fedveil forget`` calls."""
    progress.tell(now=True, stage="looking for the rounds that forget them")
    from fedveil.engine.system import Progress, System
    from fedveil.jobs import forget as job
    from fedveil.studio.records import to_forget

    def watch(step: Progress) -> None:
        epsilon = step.epsilon if math.isfinite(step.epsilon) else None
        progress.tell(stage="training", round=step.round, total=step.total, rate=step.rate, epsilon=epsilon)

    wish = {name: request[name] for name in ("rows", "client", "epsilon")}
    folder, who = to_forget(request["of"], root=request["root"], **wish)
    sign = None if request.get("sign") is None else Path(request["sign"])
    system = System(tell=lambda words: progress.tell(now=True, stage=words), note=progress.note)
    resume = bool(request["resume"])
    job.forget(folder, out=Path(request["out"]), **who, resume=resume, sign=sign, system=system, watch=watch)
    return {"state": "done"}


def audit(request: Mapping[str, Any], progress: ProgressFile) -> dict[str, Any]:
    """Attack a finished run by the command ``fedveil audit``."""
    progress.tell(now=True, stage="attacking the run; this trains it many times over")
    command = [sys.executable, "-P", "-m", "fedveil", "audit", request["out"], "--runs", str(request["runs"]), "--json"]
    if request.get("study") is not None:
        command += ["--study", request["study"]]
    command += [f"--module={name}" for name in sorted(allowed_now().names)]
    with TemporaryFile() as found:
        with subprocess.Popen(command, stdout=found, stderr=subprocess.PIPE, text=True) as attack:  # noqa: S603
            for line in attack.stderr or ():
                sys.stderr.write(line)
                progress.tell(now=True, stage=line.strip())
        found.seek(0)
        text = found.read()
    try:
        answer = read_object(text, "The audit")
    except ValueError:
        answer = {"error": "the audit ended without an answer; its log is beside the job"}
    if "error" in answer:
        return {"state": "refused", "sentence": answer["error"]}
    return {"state": "done", "verdict": answer["verdict"]}


def main(folder: Path, modules: Sequence[str] = ()) -> int:
    """Do the job that the folder describes; a mistake is one sentence there, never a traceback.

    ``modules``: code that may be run for it. It comes from whoever started the studio, never from a file.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the studio was started in the background
    request = read_object((folder / REQUEST).read_bytes(), REQUEST)
    progress = ProgressFile(folder / PROGRESS)
    try:
        with allowing(*modules):
            outcome = {"run": run, "ask": ask, "forget": forget, "audit": audit}[request["kind"]](request, progress)
    except AlreadyFinished:
        outcome = {"state": "done"}
    except BaseException as error:
        stopped = isinstance(error, KeyboardInterrupt) or type(error).__name__ == "Interrupted"
        outcome = {"state": "stopped" if stopped else "refused", "sentence": sentence_of(error)}
    progress.tell(now=True)
    write_atomically(folder / OUTCOME, json.dumps(outcome).encode())
    return 0 if outcome["state"] == "done" else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
