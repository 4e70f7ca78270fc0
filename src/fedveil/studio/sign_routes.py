"""The officer's addresses: read, approve a plan, sign a certificate, make a key."""

from pathlib import Path

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from fedveil.core.errors import require
from fedveil.studio import reading
from fedveil.studio.approval import approval_words
from fedveil.studio.layout import address_of
from fedveil.studio.sentences import Refused, sentence_of
from fedveil.studio.sign_page import choose_page, plan_page, run_sign_page
from fedveil.studio.state import Studio, html_response


class Signing:
    """The officer's pages of one studio."""

    def __init__(self, studio: Studio) -> None:
        self._studio = studio

    def routes(self) -> list[Route]:
        """Return the addresses."""
        return [
            Route("/sign", self.page),
            Route("/sign", self.sign, methods=["POST"]),
            Route("/approve", self.approve, methods=["POST"]),
            Route("/key", self.key, methods=["POST"]),
        ]

    async def page(self, request: Request) -> Response:
        """Show what can be signed, a plan, or a finished run."""
        study, out = request.query_params.get("study"), request.query_params.get("out")
        if study is not None:
            return html_response(await self._plan_page(study))
        if out is not None:
            return html_response(await self._run_page(out))
        folder = self._studio.folder
        finished = [name for name in folder.runs() if (folder.root / name / "certificate.json").exists()]
        return html_response(choose_page(self._studio.frame, folder.studies(), finished, self._keys()))

    async def _plan_page(self, study: str, sentence: str | None = None) -> str:
        self._studio.study(study)
        certificate = await self._studio.ask("certificate", {"study": study})
        spent = await self._studio.ask("books", {"study": study})
        return plan_page(self._studio.frame, study, certificate, spent, self._keys(), sentence)

    async def _run_page(self, out: str, sentence: str | None = None) -> str:
        folder = self._studio.folder.existing(out, "The run")
        run = await self._studio.ask("run", {"out": out})
        beside = [self._studio.folder.root / name for name in self._studio.folder.studies()]
        approvals = [approval_words(path, folder) for path in beside]
        approval = next(
            (words for words in approvals if words.startswith("Its plan")), "Nobody has approved this plan."
        )
        return run_sign_page(self._studio.frame, out, run, self._keys(), approval, sentence)

    def _keys(self) -> list[str]:
        given = [] if self._studio.key is None else [str(self._studio.key)]
        return [*given, *self._studio.folder.keys()]

    def _key(self, name: str | None) -> str:
        """Return the path of a key: the one that the command line named, or one in the working folder."""
        require(name, "The signing key", "be chosen", name)
        if self._studio.key is not None and name == str(self._studio.key):
            return str(self._studio.key)
        return str(self._studio.folder.existing(name, "The signing key"))

    async def approve(self, request: Request) -> Response:
        """Sign a plan."""
        given = await reading.form(request, self._studio.known.form)
        study = given.get("study", "")
        try:
            asked = {"study": study, "key": self._key(given.get("key")), "plan": given.get("plan", "")}
            await self._studio.ask("approve", asked)
        except (Refused, ValueError) as error:
            return html_response(await self._plan_page(study, sentence_of(error)), 400)
        return RedirectResponse(address_of("/sign", study=study), status_code=303)

    async def sign(self, request: Request) -> Response:
        """Sign the certificate of a finished run."""
        given = await reading.form(request, self._studio.known.form)
        out = given.get("out", "")
        try:
            await self._studio.ask("sign", {"out": out, "key": self._key(given.get("key"))})
        except (Refused, ValueError) as error:
            return html_response(await self._run_page(out, sentence_of(error)), 400)
        return RedirectResponse(address_of("/sign", out=out), status_code=303)

    async def key(self, request: Request) -> Response:
        """Make a key."""
        given = await reading.form(request, self._studio.known.form)
        name = Path(given.get("name", "")).name
        await self._studio.ask("new_key", {"name": name})
        return RedirectResponse("/sign", status_code=303)
