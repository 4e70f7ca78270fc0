"""The pages of runs: started, watched and finished; and the addresses behind them."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from fedveil.core.errors import require
from fedveil.engine.files import private_folder
from fedveil.report import words
from fedveil.report.markup import Markup, badge, code, concat, note, paragraph, section, table, tag
from fedveil.studio import gate, jobs
from fedveil.studio.approval import approval_words
from fedveil.studio.edit import tables_in
from fedveil.studio.forget_routes import begin_again
from fedveil.studio.jobs import Job
from fedveil.studio.layout import Frame, address_of, button, chooser, failure, field, hidden_field, link
from fedveil.studio.places import TABLES, check_paths
from fedveil.studio.sentences import sentence_of
from fedveil.studio.state import Studio, html_response

# The pages of runs: all of them, one to be started, one that is being watched, and one that is finished.

_STATES = {
    "running": ("running", "warn"),
    "finished": ("finished", "good"),
    "interrupted": ("interrupted, can go on", "bad"),
    "done": ("done", "good"),
    "refused": ("refused", "bad"),
    "stopped": ("stopped, can go on", "warn"),
    "killed": ("killed, can go on", "bad"),
}
_FILES = (
    ("report.html", "Report"),
    ("receipt.html", "Receipt of who was forgotten"),
    ("card.html", "Card"),
    ("certificate.json", "Certificate"),
    ("bundle.zip", "Model"),
)


def state_badge(state: str) -> Markup:
    """Return a state as one word or two."""
    return badge(*_STATES[state])


def runs_page(
    frame: Frame,
    runs: Sequence[tuple[str, str]],
    work: Sequence[Job],
    studies: Sequence[str],
    deployments: Mapping[str, Mapping[str, str]],
) -> str:
    """Return all runs of the working folder, and the jobs of the studio."""
    rows = [(link(name, "/run", out=name), state_badge(state)) for name, state in runs]
    done = [
        (link(_what(job), "/watch", job=job.name), state_badge(job.state), (job.outcome or {}).get("sentence", ""))
        for job in work[:30]
    ]
    starts = [tag("li", link(name, "/start", study=name)) for name in studies]
    none = paragraph("There is none in the working folder yet.")
    return frame.page(
        "Run and watch",
        "/runs",
        section("runs", "Runs", table(None, ("Folder", "State"), rows) if rows else none),
        section("start", "Start one", tag("ul", starts) if starts else none),
        [
            section(f"sites-{at}", f"The sites of {name}", table(None, ("Site", "State"), list(sites.items())))
            for at, (name, sites) in enumerate(deployments.items())
        ],
        section("jobs", "What was done here", table(None, ("Job", "State", "Said"), done) if done else none),
        lead="A run is a process of its own: it goes on when this page, or the studio, is closed.",
    )


def _what(job: Job) -> str:
    out = str(job.request.get("shown", job.request["out"]))
    return f"{ {'audit': 'attack', 'ask': 'answers', 'forget': 'forgetting'}.get(job.request['kind'], 'run') }: {out}"


def start_page(
    frame: Frame,
    study: str,
    out: str,
    keys: Sequence[str],
    deployments: Sequence[str],
    approval: str,
    sentence: str | None = None,
) -> str:
    """Return the form that starts a run."""
    signers = [("", "nobody"), *((key, key) for key in keys)]
    places = [("", "this machine"), *((one, f"the sites of {one}") for one in deployments)]
    form = frame.form(
        "/start",
        hidden_field("study", study),
        field(
            "Folder for the results",
            tag("input", id="out", name="out", value=out, autocomplete="off", required=True),
            "out",
            "A new folder in the working folder.",
        ),
        field("Signed at its end by", chooser("sign", signers, ""), "sign"),
        field("Where the data are", chooser("on", places, ""), "on") if deployments else None,
        paragraph("The whole cost is charged in the data's ledger before the first record is used."),
        button("Start the run", class_="main"),
        class_="narrow",
    )
    return frame.page(
        f"Run {study}",
        "/runs",
        None if sentence is None else failure(sentence),
        note(approval),
        form,
        paragraph(link("Back to the study", "/design", study=study)),
    )


def watch_page(frame: Frame, job: Job) -> str:
    """Return a job while it works; its script asks how far it is."""
    return frame.page(
        _what(job),
        "/runs",
        tag("div", watch_view(frame, job), id="watched", data_job=job.name, data_state=job.state, aria_live="off"),
        tag("p", "", id="announced", role="status", class_="spoken"),
        paragraph(link("All runs", "/runs")),
        scripts=("watch.js",),
    )


def watch_view(frame: Frame, job: Job) -> Markup:
    """Return how far a job is, and what can be done with it."""
    said, outcome = job.progress, job.outcome or {}
    out = str(job.request.get("shown", ""))
    name = hidden_field("job", job.name)
    again = frame.form("/resume", name, button("Go on", class_="main"))
    sentence = outcome.get("sentence")
    stage = said.get("stage") if job.state == "running" else None
    parts: list[object] = [tag("p", state_badge(job.state), " ", stage, class_="state")]
    if sentence is not None:
        parts.append(failure(sentence) if job.state == "refused" else note(sentence))
    if job.state == "killed":
        parts.append(note("Its process was killed. What was charged stays charged, and nothing is charged twice."))
    parts += [_rounds(said), _sites(said), _notes(said)]
    match job.state:
        case "running":
            parts.append(frame.form("/stop", name, button("Stop")))
        case "stopped" | "killed":
            parts.append(again)
        case "done":
            parts.append(paragraph(tag("a", "See the run", href=address_of("/run", out=out), id="see")))
    if "verdict" in outcome:
        parts.append(paragraph("The verdict of all attacks: ", tag("strong", outcome["verdict"])))
    return concat(parts)


def _rounds(said: Mapping[str, Any]) -> Markup | None:
    if "total" not in said:
        return None
    epsilon = said.get("epsilon")
    charged = "not private" if epsilon is None else f"epsilon {words.up(epsilon)}"
    rate = f"{said['rate']:.3g} a second" if said.get("rate") else ""
    sentence = f"Round {said['round']:,} of {said['total']:,}"
    bar = tag("progress", value=said["round"], max=said["total"], aria_label=sentence)
    rows = [("round", sentence), ("speed", rate or "–"), ("charged for the whole run", charged)]
    return concat([bar, table(None, ("what", "value"), rows)])


def _sites(said: Mapping[str, Any]) -> Markup | None:
    sites = said.get("sites")
    return None if not sites else table("Sites", ("Site", "State"), sorted(sites.items()))


def _notes(said: Mapping[str, Any]) -> Markup | None:
    notes = said.get("notes")
    if not notes:
        return None
    summary = "For the data holder alone: computed without noise, so none of it may be published"
    return tag("details", tag("summary", summary), tag("ul", [tag("li", text) for text in notes]))


def unfinished_page(frame: Frame, out: str, state: str, study: str | None, studies: Sequence[str]) -> str:
    """Return a run that is not finished, with the way to go on."""
    names = [(name, name) for name in ([study] if study is not None else studies)]
    form = frame.form(
        "/resume",
        hidden_field("out", out),
        field("With the study", chooser("study", names, study), "study", "It must be as it was when the run began."),
        button("Go on", class_="main"),
    )
    running = note("It is being worked on by another process. Load this page again to see its end.")
    return frame.page(
        out, "/runs", tag("p", state_badge(state), class_="state"), running if state == "running" else form
    )


def finished_page(
    frame: Frame, out: str, run: Mapping[str, Any], approval: str, study: str | None, there: Sequence[str]
) -> str:
    """Return a finished run: its certificate, what it is good for, and what can be done with it."""
    name = hidden_field("out", out)
    rows = [
        (one["adversary"], words.epsilon_text(one["epsilon"]), one["sees"], one["by"] or "–")
        for one in run["observers"]
    ]
    delta = run["target"]["delta"]
    broken = run["changes"]
    right = badge("matches its records", "good") if not broken else badge("does NOT match its records", "bad")
    signer = ["Not signed"] if run["signer"] is None else ["Signed by ", code(run["signer"])]
    shown = [(file, title) for file, title in _FILES if file in there]
    files = [tag("li", tag("a", title, href=address_of("/file", out=out, name=file))) for file, title in shown]
    predict = tag(
        "form",
        field(
            "Records to predict",
            tag("input", type="file", id="upload", accept=".csv,.tsv,.gz,.parquet,.feather"),
            "upload",
        ),
        button("Predict", id="send"),
        tag("p", "", id="upload-said", role="status"),
        tag("div", "", id="predicted"),
        id="upload-form",
        data_to="/predict",
        data_more=f"&{address_of('', out=out)[1:]}",
    )
    attack = frame.form("/audit", name, hidden_field("study", study or ""), button("Attack it"))
    return frame.page(
        run["name"],
        "/runs",
        tag("p", state_badge("finished"), " ", right, class_="state"),
        None if not broken else failure("; ".join(broken)),
        None if run["exposed"] is None else note(f"NOT PRIVATE: {run['exposed']}.", kind="warning"),
        [note(text, kind="warning") for text in run["warnings"]],
        section(
            "certificate",
            "What is certified",
            table(f"At delta {delta:g}", ("Observer", "Epsilon", "Sees", "Proved by"), rows, numbers=(1,)),
            paragraph(*signer, ". ", approval, " ", link("Sign it", "/sign", out=out)),
        ),
        _quality(run),
        section("files", "Read and keep", tag("ul", files), frame.form("/card", name, button("Write the card"))),
        section(
            "predict",
            "Use the model",
            paragraph("A file of records, labelled or not; their labels are not looked at."),
            predict,
        ),
        section(
            "forget",
            "Forget somebody",
            paragraph(
                run["unforgettable"]
                or ["A record or a client leaves the model: ", link("say who", "/forget", out=out), "."]
            ),
        ),
        section(
            "attack",
            "Attack it",
            paragraph("Attacks train the run many times over, and are held against the certificate."),
            attack,
        ),
        scripts=("upload.js",),
    )


def _quality(run: Mapping[str, Any]) -> Markup:
    if not run["quality"]:
        return section(
            "quality", "How well it does", paragraph("The study holds no records out, so this was not measured.")
        )
    rows = [(name, f"{value:.3g}") for name, value in run["quality"]]
    worse = None if run["useless"] is None else note(run["useless"], kind="warning")
    return section(
        "quality",
        "How well it does",
        table(f"On {run['records']:,} held-out records", ("Measure", "Value"), rows, numbers=(1,)),
        worse,
    )


def predicted_view(predictions: Mapping[str, Any], address: str) -> Markup:
    """Return what was predicted, and the file with it."""
    counts = predictions.get("counts")
    rows = list(counts.items())[:20] if counts else []
    without = predictions["without_prediction"]
    return concat(
        [
            paragraph(
                f"{predictions['rows']:,} records were predicted. ", tag("a", "Keep the file", href=address, id="keep")
            ),
            paragraph(f"{without:,} of them have a missing value that nothing stands for.") if without else None,
            table("How often each class", ("Class", "Records"), [(k, f"{v:,}") for k, v in rows], numbers=(1,))
            if rows
            else None,
        ]
    )


# The addresses of runs: start, watch, stop, resume; then report, card, attack and prediction.

_SERVED = (
    "report.html",
    "receipt.html",
    "receipt.json",
    "receipt.sig",
    "card.html",
    "card.md",
    "registry.yaml",
    "certificate.json",
    "certificate.sig",
    "bundle.zip",
)
_PREDICTIONS = "predictions"
_ALONE = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; sandbox"
)
_RUNS_OF_GAME = 400  # of an attack that is started here: minutes, not hours


class Runs:
    """The pages of runs of one studio."""

    def __init__(self, studio: Studio) -> None:
        self._studio = studio
        self._root = studio.folder.root

    def routes(self) -> list[Route]:
        """Return the addresses."""
        return [
            Route("/runs", self.runs),
            Route("/start", self.start_page),
            Route("/start", self.start, methods=["POST"]),
            Route("/watch", self.watch),
            Route("/api/job", self.job),
            Route("/stop", self.stop, methods=["POST"]),
            Route("/resume", self.resume, methods=["POST"]),
            Route("/run", self.run),
            Route("/file", self.file),
            Route("/card", self.card, methods=["POST"]),
            Route("/audit", self.audit, methods=["POST"]),
            Route("/predict", self.predict, methods=["POST"]),
        ]

    def runs(self, request: Request) -> Response:
        """Show all runs."""
        work, folder, root = jobs.jobs(self._root), self._studio.folder, self._root
        states = [(name, jobs.run_state(self._root / name, work)) for name in folder.runs()]
        sites = {name: _states(work, root / name, folder.sites(name)) for name in folder.deployments()}
        return html_response(runs_page(self._studio.frame, states, work, folder.studies(), sites))

    def start_page(self, request: Request) -> Response:
        """Show the form that starts a run."""
        return html_response(self._start_page(request.query_params.get("study")))

    def _start_page(self, study: object, sentence: str | None = None) -> str:
        path, _, _ = self._studio.study(study)
        folder = self._studio.folder
        out = folder.name(folder.free(f"results-{path.stem}", ""))
        return start_page(
            self._studio.frame,
            str(study),
            out,
            self._keys(),
            folder.deployments(),
            approval_words(path, None),
            sentence,
        )

    def _keys(self) -> list[str]:
        given = [] if self._studio.key is None else [str(self._studio.key)]
        return [*given, *self._studio.folder.keys()]

    async def start(self, request: Request) -> Response:
        """Start a run."""
        given = await gate.form(request, self._studio.known.form)
        try:
            out = self._studio.folder.inside(given.get("out", ""), "The folder for the results")
            free = not out.exists() or (out.is_dir() and not (out / "plan.toml").exists())
            require(free, "The folder for the results", "be new", given["out"], "Name another, or go on with that run.")
            name = self._begin(given.get("study"), out, resume=False, sign=given.get("sign"), on=given.get("on"))
        except ValueError as error:
            return html_response(self._start_page(given.get("study"), sentence_of(error)), 400)
        return _to("/watch", job=name)

    def _begin(
        self, study: object, out: Path, *, resume: bool, sign: str | None, on: str | None, kind: str = "run"
    ) -> str:
        path, text, _ = self._studio.study(study)
        check_paths(tables_in(text), path.parent, self._studio.folder)
        key = None
        if sign:
            own = self._studio.key is not None and sign == str(self._studio.key)
            key = sign if own else str(self._studio.folder.existing(sign, "The signing key"))
        place = str(self._studio.folder.existing(on, "The deployment")) if on else None
        return jobs.begin(
            self._root,
            {
                "kind": kind,
                "study": str(path),
                "out": str(out),
                "shown": self._studio.folder.name(out),
                "resume": resume,
                "sign": key,
                "on": place,
            },
            self._studio.folder.modules,
        )

    def watch(self, request: Request) -> Response:
        """Show a job."""
        return html_response(watch_page(self._studio.frame, jobs.job_of(self._root, request.query_params.get("job"))))

    def job(self, request: Request) -> Response:
        """Return how far a job is."""
        job = jobs.job_of(self._root, request.query_params.get("job"))
        progress = f"Round {job.progress['round']} of {job.progress['total']}" if "total" in job.progress else ""
        return JSONResponse({"state": job.state, "told": progress, "html": watch_view(self._studio.frame, job)})

    async def stop(self, request: Request) -> Response:
        """Stop a job."""
        given = await gate.form(request, self._studio.known.form)
        jobs.stop(self._root, given.get("job"))
        return _to("/watch", job=given["job"])

    async def resume(self, request: Request) -> Response:
        """Go on with a run that was stopped or killed: by its job, or by its folder and a study."""
        given = await gate.form(request, self._studio.known.form)
        if "job" in given:
            old = jobs.job_of(self._root, given["job"])
            kind = old.request["kind"]
            if kind == "forget":
                return _to("/watch", job=begin_again(self._studio, old.request))
            require(kind in ("run", "ask"), "The job", "be a run or answers to go on with", kind)
            # Named and checked anew: the request is a file of the working folder, which others may have made.
            name_of = self._studio.folder.name
            out = self._studio.folder.inside(name_of(Path(old.request["out"])), "The run")
            key, place = old.request.get("sign"), old.request.get("on")
            own = key is None or key == str(self._studio.key)
            name = self._begin(
                name_of(Path(old.request["study"])),
                out,
                resume=(out / "plan.toml").exists(),
                sign=key if own else name_of(Path(str(key))),
                on=None if place is None else name_of(Path(place)),
                kind=kind,
            )
            return _to("/watch", job=name)
        out = self._studio.folder.existing(given.get("out"), "The run")
        mine = (job for job in jobs.jobs(self._root) if job.request.get("out") == str(out))
        forgetting = next((job for job in mine if job.request["kind"] == "forget"), None)
        if forgetting is not None:
            return _to("/watch", job=begin_again(self._studio, forgetting.request))
        kind = "ask" if "question" in tables_in(self._studio.study(given.get("study"))[1]) else "run"
        name = self._begin(given.get("study"), out, resume=True, sign=None, on=None, kind=kind)
        return _to("/watch", job=name)

    async def run(self, request: Request) -> Response:
        """Show the run in a folder."""
        out = request.query_params.get("out", "")
        folder = self._studio.folder.existing(out, "The run")
        work = jobs.jobs(self._root)
        state, study = jobs.run_state(folder, work), self._study_of(folder, work)
        if state != "finished":
            page = unfinished_page(self._studio.frame, out, state, study, self._studio.folder.studies())
            return html_response(page)
        if (folder / "answers.json").exists():
            return _to("/file", out=out, name="report.html")
        run = await self._studio.ask("run", {"out": out})
        words = approval_words(None if study is None else self._root / study, folder)
        there = [one.name for one in folder.iterdir()]
        return html_response(finished_page(self._studio.frame, out, run, words, study, there))

    def _study_of(self, out: Path, work: list[jobs.Job]) -> str | None:
        """Return the study that the studio ran in a folder, if it did and the study is still there."""
        for job in work:
            path = Path(str(job.request.get("study", "")))
            if job.request.get("out") == str(out) and self._studio.folder.holds(path) and path.is_file():
                return self._studio.folder.name(path)
        return None

    def file(self, request: Request) -> Response:
        """Return a file that a run published, or predictions; pages among them can neither load nor send anything."""
        name, out = request.query_params.get("name", ""), request.query_params.get("out", "")
        made = name.startswith(_PREDICTIONS) and name.endswith(".csv") and "/" not in name and not out
        require(made or name in _SERVED, "The file", f"be one of {', '.join(_SERVED)}", name[:60])
        path = self._studio.folder.existing(name if made else f"{out}/{name}", "The file")
        page = name.endswith(".html")
        return FileResponse(
            path,
            filename=None if page else name,
            media_type="text/html; charset=utf-8" if page else "application/octet-stream",
            headers={"content-security-policy": _ALONE, "cache-control": "no-store"},
        )

    async def card(self, request: Request) -> Response:
        """Write the card of a run."""
        given = await gate.form(request, self._studio.known.form)
        out = given.get("out", "")
        await self._studio.ask("card", {"out": out})
        return _to("/file", out=out, name="card.html")

    async def audit(self, request: Request) -> Response:
        """Attack a run."""
        given = await gate.form(request, self._studio.known.form)
        out = self._studio.folder.existing(given.get("out"), "The run")
        path = self._attackable(given.get("study"))
        asked: dict[str, Any] = {"kind": "audit", "out": str(out), "shown": given["out"], "runs": _RUNS_OF_GAME}
        return _to("/watch", job=jobs.begin(self._root, {**asked, "study": path}, self._studio.folder.modules))

    def _attackable(self, study: str | None) -> str | None:
        """Return the study for attacks that need its records; None where its rows are learned, which they cannot do."""
        if not study:
            return None
        path, text, _ = self._studio.study(study)
        tables = tables_in(text)
        check_paths(tables, path.parent, self._studio.folder)
        stated = "feature_bound" in tables.get("data", {}) and not {"prepare", "evaluation"} & set(tables)
        return str(path) if stated else None

    async def predict(self, request: Request) -> Response:
        """Predict the records of an uploaded file; the upload itself is not kept."""
        name, out = request.query_params.get("name", ""), request.query_params.get("out", "")
        suffix = next((one for one in TABLES if name.lower().endswith(one)), None)
        require(suffix is not None, "The file", f"be a table: {', '.join(TABLES)}", name[:60])
        self._studio.folder.existing(out, "The run")
        place = private_folder(private_folder(self._root / jobs.FOLDER) / "uploads")
        data = place / f"{os.urandom(8).hex()}{suffix}"
        try:
            await gate.upload(request, self._studio.known.form, data, self._studio.upload_limit)
            file = self._studio.folder.name(self._studio.folder.free(_PREDICTIONS, ".csv"))
            asked = {"out": out, "data": str(data), "file": file, "probabilities": True}
            predictions = await self._studio.ask("predict", asked)
        finally:
            data.unlink(missing_ok=True)
        return JSONResponse({"html": predicted_view(predictions, address_of("/file", name=file))})


def _states(work: list[jobs.Job], deployment: Path, sites: list[str]) -> dict[str, str]:
    """Return in which state each site of a deployment is, as the newest run on it says."""
    known: dict[str, Any] = next(
        (job.progress.get("sites", {}) for job in work if job.request.get("on") == str(deployment)), {}
    )
    return {site: str(known.get(site, "not asked yet")) for site in sites}


def _to(address: str, **query: str) -> Response:
    return RedirectResponse(address_of(address, **query), status_code=303)
