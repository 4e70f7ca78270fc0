"""Kill every kind of job at every step that it takes on the disk, resume it, and look at what is left.

``python tools/kill_jobs.py --kills 300 --seed 1``: so many kills, each of a fresh ``fedveil`` executable, at random
steps of all jobs and of their resumes. Every job is then brought to its end by the same command with ``--resume`` and
looked through: one charge, one release, no key left, the certificate matches, and the released bytes are those that the
key gives without a kill. It prints how many kills hit which job. ``--jobs run,profile`` takes some jobs alone.

A step is a file that is opened for writing, synced, renamed, linked, removed or given a mode, a folder that is made or
removed, or a statement that changes the ledger. The process sends itself SIGKILL before the chosen one. Python's audit
events tell the steps, and wrappers around ``os.fsync`` and SQLite's connection, which ``sitecustomize`` installs in a
started executable; the product has no hooks. Nothing waits for seconds.

``--serve`` is for tests: a process that has loaded everything, and forks for each command that it reads.
"""

import argparse
import csv
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from hashlib import sha256, shake_256
from importlib import import_module
from pathlib import Path
from typing import Any

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
PLACES = {"os.rename": 1, "os.link": 1, "os.symlink": 1, "os.remove": 0, "os.rmdir": 0, "os.mkdir": 0, "os.chmod": 0}
CHANGES = ("BEGIN IMM", "INSERT", "COMMIT", "PRAGMA journal")
ASKED = "FEDVEIL_KILLS"  # of a started executable: where its steps are, at which it dies, and what its randomness is
LOADED = (  # before a process is forked for a command: what the commands below load
    *("cli.entry", "cli.evaluate", "cli.forget", "cli.model", "cli.studies", "cli.synthesis"),
    *("jobs.draft.study", "jobs.entry", "jobs.evaluation", "jobs.forget", "jobs.local", "jobs.private_personal"),
    *("jobs.synthesis", "report.page", "report.profile_page", "report.receipt", "report.synthesis_page"),
    *(f"stages.train.dpsgd.{part}" for part in ("acts", "answering", "design", "words")),
    *(f"stages.train.hidden.{part}" for part in ("acts", "answering", "design", "words")),
)

# ---- in the process that dies ----------------------------------------------------------------------------------------


@dataclass(eq=False)  # so that dataclasses take it as a default, as they take a function
class Drawn:
    """The system's randomness, or that of a seed as soon as there is one: modules that are loaded before keep this."""

    seed: str | None = None
    system: Callable[[int], bytes] = os.urandom

    def __call__(self, count: int) -> bytes:
        """Return so many bytes; of a seed, the same for every draw of a length: a key drawn again tells its process."""
        return self.system(count) if self.seed is None else shake_256(f"{self.seed} {count}".encode()).digest(count)


DRAWN = Drawn()


@dataclass
class Steps:
    """Counts the steps below a folder, and dies before the chosen one; ``log``: where they are written in the end."""

    folder: str
    at: int | None = None
    log: str | None = None
    seen: list[str] = field(default_factory=list)
    own: int = field(default_factory=os.getpid)

    def step(self, name: str) -> None:
        """One step is about to be taken."""
        if os.getpid() != self.own:
            return
        if self.at == len(self.seen):
            os.kill(os.getpid(), signal.SIGKILL)
        self.seen.append(name)

    def audited(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Hear an audit event."""
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITES
        if writes or event in PLACES:
            path = arguments[PLACES.get(event, 0)]
            if isinstance(path, int):
                self.step(f"{event} a handle")
            elif isinstance(path, str | os.PathLike) and os.path.abspath(path).startswith(self.folder):  # noqa: PTH100
                name = Path(path).name
                self.step(f"{event} {name.split('.part')[0][1:-9] + '.part' if name.endswith('.part') else name}")

    def write_log(self) -> None:
        """Write the steps that were taken."""
        if self.log is not None and os.getpid() == self.own:
            Path(self.log).write_text(json.dumps(self.seen), encoding="utf-8")


def install(asked: Mapping[str, Any]) -> Steps:
    """Make this process count its steps, die before one of them, and draw its randomness from a seed."""
    steps = Steps(asked["folder"], asked.get("at"), asked.get("log"))
    real_sync, real_connect = os.fsync, sqlite3.connect

    class Connection(sqlite3.Connection):
        def execute(self, sql: str, *more: Any) -> Any:
            change = sql.startswith(CHANGES)
            if change:
                steps.step(f"before {sql[:9]}")
            found = super().execute(sql, *more)
            if change:
                steps.step(f"after {sql[:9]}")
            return found

    def connect(database: Any, *more: Any, **named: Any) -> Any:
        inside = database != ":memory:"
        return real_connect(database, *more, **{**({"factory": Connection} if inside else {}), **named})

    def sync(handle: Any) -> None:
        steps.step("sync")
        real_sync(handle)

    sqlite3.connect = connect
    os.fsync = sync  # type: ignore[assignment]
    DRAWN.seed, os.urandom = asked.get("seed"), DRAWN
    sys.addaudithook(steps.audited)
    return steps


def install_asked() -> None:
    """Do so in an executable that was started with a wish in its environment; its own children have none."""
    import atexit

    text = os.environ.pop(ASKED, None)
    if text is not None:
        atexit.register(install(json.loads(text)).write_log)


# ---- starting commands -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Done:
    """How a command ended: its exit code (negative: a signal) and what it printed."""

    code: int
    out: str
    err: str


Start = Callable[..., Done]


@contextmanager
def executables() -> Iterator[Start]:
    """Start the real ``fedveil`` of this environment, anew for each command."""
    program = shutil.which("fedveil", path=str(Path(sys.executable).parent)) or "fedveil"
    with tempfile.TemporaryDirectory() as hooks:
        here = str(Path(__file__).parent)
        text = f"import sys\nsys.path.insert(0, {here!r})\nimport kill_jobs\nsys.path.remove({here!r})\n"
        text += "kill_jobs.install_asked()\n"
        (Path(hooks) / "sitecustomize.py").write_text(text, encoding="utf-8")

        def start(words: Sequence[object], where: Path, **wish: Any) -> Done:
            told = {"folder": str(where), **wish}
            paths = os.pathsep.join([hooks, *filter(None, [os.environ.get("PYTHONPATH")])])
            environment = {**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1", ASKED: json.dumps(told)}
            done = subprocess.run(  # noqa: S603
                [program, *map(str, words)], cwd=where, env=environment, capture_output=True, text=True, check=False
            )
            return Done(done.returncode, done.stdout, done.stderr)

        yield start


@contextmanager
def warm() -> Iterator[Start]:
    """Fork each command from one process that has loaded everything: the same code, without the start of a Python."""
    with tempfile.TemporaryDirectory() as name:
        server = subprocess.Popen(  # noqa: S603
            [sys.executable, "-B", __file__, "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert server.stdin is not None  # noqa: S101
        assert server.stdout is not None  # noqa: S101
        told = {"out": str(Path(name) / "out"), "err": str(Path(name) / "err")}

        def start(words: Sequence[object], where: Path, **wish: Any) -> Done:
            line = {"words": [str(word) for word in words], "where": str(where), **told, **wish}
            server.stdin.write(json.dumps(line) + "\n")  # type: ignore[union-attr]
            server.stdin.flush()  # type: ignore[union-attr]
            code = int(server.stdout.readline())  # type: ignore[union-attr]
            return Done(code, *(Path(told[key]).read_text(encoding="utf-8") for key in ("out", "err")))

        try:
            yield start
        finally:
            server.stdin.close()
            server.wait()
            server.stdout.close()


def serve() -> None:
    """Fork for each line of standard input; answer with the exit code."""
    os.urandom = DRAWN  # before fedveil is loaded: much of it takes this function as a default
    for name in LOADED:
        import_module(f"fedveil.{name}")
    for line in sys.stdin:
        asked = json.loads(line)
        child = os.fork()
        if child == 0:
            _in_child(asked)
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


def _in_child(asked: Mapping[str, Any]) -> None:
    import fedveil.cli

    code = 1
    try:
        os.chdir(asked["where"])
        for name, handle in (("out", 1), ("err", 2)):
            file = os.open(asked[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            os.dup2(file, handle)
        steps = install({"folder": asked["where"], **asked})
        sys.argv = ["fedveil", *asked["words"]]
        try:
            fedveil.cli.main()
        except SystemExit as end:
            code = int(end.code or 0)
        steps.write_log()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


# ---- the jobs --------------------------------------------------------------------------------------------------------

DATA = """
[data]
source = "people.csv"
target = "ill"
classes = ["no", "yes"]
ignore = ["clinic"]
"""
STATED = """
feature_bound = 1.5
[data.scale]
age = [0, 100]
days = [0, 30]
[data.categories]
ward = ["A", "B", "C"]
"""
PRIVACY = """
[privacy]
epsilon = 3.0
delta = 1e-4
neighbours = "zero-out"
"""
HELD = "[data.held_out]\nfraction = 0.2\npublic = true\n"
ROUNDS = '[schedule]\nkind = "constant"\npasses = 2\nrounds = 3\nstep_size = 0.05\nnoise_std = 60.0\n'
CLIENTS = '[clients]\nkind = "equal"\ncount = 4\n'
DPSGD = '[algorithm]\nkind = "dpsgd"\nrate = 0.2\nrounds = 4\n'
MODEL = '[model]\nkind = "logistic"\nradius = 5.0\n'
STUDIES = {
    "run": DATA + STATED + HELD + MODEL + PRIVACY + ROUNDS,
    "parts": DATA + STATED + HELD + MODEL + PRIVACY + CLIENTS + DPSGD + "[trust]\nserver = 'trusted'\ndropouts = 1\n",
    "prepared": DATA
    + HELD
    + MODEL
    + PRIVACY
    + CLIENTS
    + DPSGD
    + "[prepare]\nkind = 'private'\n[evaluation]\nprivate = true\nrecords = 'training'\n",
    "columns": DATA
    + MODEL
    + PRIVACY
    + "[prepare]\nkind = 'private'\n[algorithm]\nkind = 'hidden'\norder = 'public'\n"
    + ROUNDS.replace("rounds = 3", "rounds = 1"),
    "personal": DATA + STATED + HELD + MODEL + PRIVACY + CLIENTS + DPSGD + '[personal]\nways = ["threshold"]\n',
    "canaries": DATA + STATED + MODEL + PRIVACY + DPSGD + "[audit]\ncanaries = 20\n",
    "tune": DATA
    + STATED
    + HELD
    + MODEL
    + PRIVACY
    + CLIENTS
    + '[algorithm]\nkind = "dpsgd"\nrate = 0.2\nrounds = 2\n'
    + '[tune]\ntrials = 2\n[tune.space]\n"model.l2" = [0.0, 0.5]\n',  # trials of one mechanism are accounted once
    "synthesise": DATA + STATED.replace("feature_bound = 1.5\n", "") + PRIVACY + '[generator]\nkind = "marginals"\n',
    "torch": DATA
    + STATED.replace("feature_bound = 1.5\n", "")
    + PRIVACY
    + '[generator]\nkind = "torch"\nmodule = "moments"\n',
}
RUN_ENDS = ("certificate.json", "bundle.zip", "report.html", "metrics.json", "plan.toml")


@dataclass(frozen=True)
class Job:
    """The words of a command, the file that it releases (None: it charges nothing), and what is there in the end."""

    words: tuple[str, ...]
    released: str | None
    ends: tuple[str, ...]


def _study(name: str, command: str = "run", more: tuple[str, ...] = (), ends: tuple[str, ...] = ()) -> Job:
    return Job((command, f"{name}.toml", "--out", "out", *more), "model.npz", (*RUN_ENDS, *ends))


def _forget(name: str, epsilon: str, *ends: str) -> Job:
    wish = ("--rows", "3,8", "--study", f"{name}.toml", "--rounds", "4", "--epsilon", epsilon, "--out", "out")
    return Job(("forget", f"{{{name}}}", *wish), "model.npz", (*RUN_ENDS, *ends, "receipt.json", "receipt.html"))


JOBS = {
    "run": _study("run"),
    "parts": _study("parts"),
    "prepared": _study("prepared", ends=("preparation.json",)),
    "personal": _study("personal", ends=("private/personal.json",)),
    "canaries": _study("canaries"),
    "tune": _study("tune", "tune"),
    "profile": Job(
        ("profile", "people.csv", "--epsilon", "2", "--target", "ill", "--ignore", "clinic", "--out", "out"),
        "profile.json",
        ("certificate.json", "study.toml", "profile.html"),
    ),
    "evaluate": Job(
        ("evaluate", "{run}", "people.csv", "--epsilon", "2", "--out", "out"),
        "evaluation.json",
        ("certificate.json",),
    ),
    "synthesise": Job(
        ("synthesise", "synthesise.toml", "--rows", "20", "--out", "out"),
        "generator.json",
        ("certificate.json", "synthetic.csv", "synthetic.html"),
    ),
    "torch": _study("torch", "synthesise", ("--rows", "20"), ("generator.json", "synthetic.csv", "synthetic.html")),
    "personalise": Job(
        ("personalise", "{run}", "--client", "A", "--data", "people.csv", "--way", "threshold", "--out", "out"),
        None,
        ("bundle.zip", "personal.json"),
    ),
    "forget": _forget("run", "1"),
    "columns": _forget("columns", "0.01", "preparation.json"),
}
MODELS = ("run", "columns")  # studies whose released models some jobs need
PRIVATE = {"books", "lock", "study", "canaries.json", "personal", "personal.json", "notes", "notes.txt", "metrics.json"}
SECRETS = {"key", "checkpoint", "answers", "answers_of_preparation", "answers_of_evaluation", "trials"}


def write_inputs(folder: Path) -> None:
    """Write the data and the studies into a new folder."""
    folder.mkdir()
    draw = random.Random(5)  # noqa: S311
    with (folder / "people.csv").open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["age", "ward", "days", "clinic", "ill"])
        for number in range(300):
            age = min(max(round(draw.gauss(50, 15)), 0), 99)
            ill = age + draw.gauss(0, 8) > 55
            ward = draw.choice("AABC" if ill else "BCCC")
            rows.writerow([age, ward, draw.randrange(1, 12 if ill else 5), "ABC"[number % 3], "yes" if ill else "no"])
    for name, text in STUDIES.items():
        (folder / f"{name}.toml").write_text(text, encoding="utf-8")


def stories(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Return what the ledgers below a folder say of each run; looking repairs nothing, since it looks at copies."""
    found: dict[str, list[dict[str, Any]]] = {}
    for books in sorted(folder.rglob("*.sqlite")):
        with tempfile.TemporaryDirectory() as name:
            for path in books.parent.glob(f"{books.name}*"):
                shutil.copy(path, name)
            with closing(sqlite3.connect(Path(name) / books.name)) as connection:
                check(connection.execute("PRAGMA integrity_check").fetchone() == ("ok",), f"{books} is damaged")
                rows = connection.execute("SELECT run, kind, payload FROM entries ORDER BY sequence").fetchall()
        for run, kind, payload in rows:
            found.setdefault(run, []).append({"kind": kind, **json.loads(payload)})
    return found


class Wrong(Exception):
    """A job that was killed did not end as it should."""


def check(holds: bool, words: str) -> None:
    """Raise unless this holds; it must not depend on Python's -O."""
    if not holds:
        raise Wrong(words)


def check_now(job: Job, folder: Path) -> None:
    """At any moment: what was published was recorded before, and was charged before that."""
    told, out = stories(folder), folder / "out"
    kinds = [[entry["kind"] for entry in story] for story in told.values()]
    check(all(story in (["charge"], ["charge", "release"]) for story in kinds), f"the ledger tells {kinds}")
    check(len(kinds) <= 1, f"{len(kinds)} runs were charged")
    if job.released is not None and (out / job.released).exists():
        digest = sha256((out / job.released).read_bytes()).hexdigest()
        recorded = [entry["model"] for story in told.values() for entry in story if entry["kind"] == "release"]
        check(job.released == "generator.json" or digest in recorded, f"{job.released} appeared before its release")
    if (out / "certificate.json").exists():
        left = SECRETS & {path.name for path in (out / "private").iterdir()}
        check(not left, f"{left} are left beside a certificate")


def check_end(job: Job, folder: Path, start: Start) -> None:
    """At the end: everything is there, it certifies, nothing is left over, and a resume says that it has finished."""
    check_now(job, folder)
    out = folder / "out"
    for name in job.ends:
        check((out / name).exists(), f"{name} is missing")
    parts = [str(path) for path in folder.rglob("*.part")]
    check(not parts, f"unfinished files are left: {parts}")
    if job.released is not None:
        kinds = [[entry["kind"] for entry in story] for story in stories(folder).values()]
        check(kinds == [["charge", "release"]], f"the ledger tells {kinds}")
        left = SECRETS & {path.name for path in (out / "private").iterdir()}
        check(not left, f"{left} are left")
        done = start(["certify", "out"], folder)
        check(done.code == 0, f"certify says {done.err}")
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file() and path.name != "lock"}
    done = start([*job.words, "--resume", "--json"], folder)
    check(done.code == 0, f"the resume of a finished job says {done.err}")
    check(json.loads(done.out).get("finished") is True, f"the resume of a finished job prints {done.out}")
    after = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file() and path.name != "lock"}
    check(before == after, "the resume of a finished job wrote something")


@dataclass
class Trials:
    """Kills of jobs in fresh folders. ``start``: how the jobs are started; ``look``: how they are looked at afterwards.

    ``whole``: what each job releases without a kill, by the seed of its randomness.
    """

    start: Start
    look: Start
    home: Path
    steps: dict[str, list[str]] = field(default_factory=dict)
    whole: dict[str, dict[str, str]] = field(default_factory=dict)
    count: int = 0

    def job(self, name: str) -> Job:
        """Return a job with the paths of released models in its words."""
        one, models = JOBS[name], {study: self.home / f"model-{study}" for study in MODELS}
        return Job(tuple(word.format(**models) for word in one.words), one.released, one.ends)

    def begin(self, names: Sequence[str]) -> None:
        """Make the models that these jobs need, and run every job once: its steps, and what its two keys give."""
        for study in MODELS:
            origin, needed = self.home / f"origin-{study}", any(f"{{{study}}}" in JOBS[name].words for name in names)
            if needed and not origin.exists():
                write_inputs(origin)
                done = self.start(["run", f"{study}.toml", "--out", self.home / f"model-{study}", "--quiet"], origin)
                check(done.code == 0, done.err)
        for name in names:
            self.whole[name] = {}
            for seed in (
                "later",
                "first",
            ):  # the steps of the first are kept: how many trials a search has, its key says
                folder, log = self.home / f"whole-{name}-{seed}", self.home / "log"
                write_inputs(folder)
                done = self.start(self.job(name).words, folder, seed=seed, log=str(log))
                check(done.code == 0, f"{name}: {done.err}")
                self.steps[name] = json.loads(log.read_text(encoding="utf-8"))
                self.whole[name][seed] = self._released(name, folder)
                check_end(self.job(name), folder, self.look)
                shutil.rmtree(folder)

    def _released(self, name: str, folder: Path) -> str:
        released = JOBS[name].released or "bundle.zip"
        return sha256((folder / "out" / released).read_bytes()).hexdigest()

    def killed(self, name: str, points: Sequence[int]) -> list[str]:
        """Kill a job, then its resumes, before these steps; bring it to its end; return the steps that were reached."""
        job, folder = self.job(name), self.home / f"{name}-{self.count}"
        self.count += 1
        write_inputs(folder)
        found, words, key = list[str](), list(job.words), "later"
        for place, point in enumerate(points):
            seed = "later" if found else "first"  # a key that is drawn a second time is another one
            done = self.start(words, folder, at=point, seed=seed)
            words = [*job.words, "--resume"]
            if done.code == 0:  # it had fewer steps left
                break
            check(done.code == -signal.SIGKILL, f"{name} at {points}, {place}: {done.err}")
            if not found and _has_key(folder):
                key = "first"
            found.append("in a resume" if found else self.steps[name][point])
            check_now(job, folder)
        done = self.start(words, folder, seed="later")
        check(done.code == 0, f"{name} killed before {found} of {points}: the resume says {done.err}")
        check_end(job, folder, self.look)
        if name != "canaries" or key == "first":  # the coins of canaries are drawn before the key, maybe by another
            same = self._released(name, folder) == self.whole[name][key if found else "first"]
            check(same, f"{name} killed at {points} released other bytes than its key gives")
        shutil.rmtree(folder)
        return found


def _has_key(folder: Path) -> bool:
    """Return whether a key was drawn: it is there, or was destroyed after the release."""
    out = folder / "out"
    return (out / "private" / "key").exists() or (out / "ledger.jsonl").exists()


def campaign(kills: int, seed: int, names: Sequence[str]) -> dict[str, Any]:
    """Kill at random; half of the first kills hit the last third of a job's steps, from its release on."""
    counts, places, wrong = Counter[str](), Counter[str](), list[str]()
    dice = random.Random(seed)  # noqa: S311
    with executables() as start, warm() as look, tempfile.TemporaryDirectory() as name:
        trials = Trials(start, look, Path(name))
        trials.begin(names)
        while sum(counts.values()) < kills:
            job = names[trials.count % len(names)]
            steps = len(trials.steps[job])
            points = [dice.randrange(steps) if dice.random() < 0.5 else dice.randrange(2 * steps // 3, steps)]
            points += [dice.randrange(steps) for _ in range(dice.randrange(3))]
            try:
                found = trials.killed(job, points)
            except Wrong as error:
                wrong.append(str(error))
                sys.stderr.write(f"WRONG: {error}\n")
                found = ["which went wrong"]
            counts[job] += len(found)
            places.update("a resume" if place == "in a resume" else "a job" for place in found)
            sys.stderr.write(f"{sum(counts.values())} kills: {job} {found}\n")
    told = {"kills": sum(counts.values()), "jobs": trials.count, "by job": dict(counts), "in": dict(places)}
    return {**told, "wrong": wrong}


def main() -> None:
    """One of the uses above."""
    parser = argparse.ArgumentParser(description="Kill jobs at every step, and resume them.")
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", default=",".join(JOBS))
    parser.add_argument("--serve", action="store_true")
    asked = parser.parse_args()
    if asked.serve:
        serve()
        return
    sys.stdout.write(json.dumps(campaign(asked.kills, asked.seed, asked.jobs.split(",")), indent=1) + "\n")


if __name__ == "__main__":
    main()
