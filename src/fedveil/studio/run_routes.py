"""The addresses of runs: start, watch, stop, resume; then report, card, attack and prediction."""

import os
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from fedveil.core.errors import require
from fedveil.engine.files import private_folder
from fedveil.studio import jobs, reading
from fedveil.studio.approval import approval_words
from fedveil.studio.edit import tables_in
from fedveil.studio.layout import address_of
from fedveil.studio.places import TABLES, check_paths
from fedveil.studio.run_page import (
    finished_page,
    predicted_view,
    runs_page,
    start_page,
    unfinished_page,
    watch_page,
    watch_view,
)
from fedveil.studio.sentences import sentence_of
from fedveil.studio.state import Studio, html_response

_FILES = ("report.html", "card.html", "card.md", "registry.yaml", "certificate.json", "certificate.sig", "bundle.zip")
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
        given = await reading.form(request, self._studio.known.form)
        try:
            out = self._studio.folder.inside(given.get("out", ""), "The folder for the results")
            free = not out.exists() or (out.is_dir() and not (out / "plan.toml").exists())
            require(free, "The folder for the results", "be new", given["out"], "Name another, or go on with that run.")
            name = self._begin(given.get("study"), out, resume=False, sign=given.get("sign"), on=given.get("on"))
        except ValueError as error:
            return html_response(self._start_page(given.get("study"), sentence_of(error)), 400)
        return _to("/watch", job=name)

    def _begin(self, study: object, out: Path, *, resume: bool, sign: str | None, on: str | None) -> str:
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
                "kind": "run",
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
        given = await reading.form(request, self._studio.known.form)
        jobs.stop(self._root, given.get("job"))
        return _to("/watch", job=given["job"])

    async def resume(self, request: Request) -> Response:
        """Go on with a run that was stopped or killed: by its job, or by its folder and a study."""
        given = await reading.form(request, self._studio.known.form)
        if "job" in given:
            old = jobs.job_of(self._root, given["job"])
            require(old.request["kind"] == "run", "The job", "be a run to go on with", old.request["kind"])
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
            )
            return _to("/watch", job=name)
        out = self._studio.folder.existing(given.get("out"), "The run")
        name = self._begin(given.get("study"), out, resume=True, sign=None, on=None)
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
        require(made or name in _FILES, "The file", f"be one of {', '.join(_FILES)}", name[:60])
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
        given = await reading.form(request, self._studio.known.form)
        out = given.get("out", "")
        await self._studio.ask("card", {"out": out})
        return _to("/file", out=out, name="card.html")

    async def audit(self, request: Request) -> Response:
        """Attack a run."""
        given = await reading.form(request, self._studio.known.form)
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
            await reading.upload(request, self._studio.known.form, data, self._studio.upload_limit)
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
