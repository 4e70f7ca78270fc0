"""The page on which people look at a study and sign it, and the addresses behind it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from fedveil.core.errors import require
from fedveil.report import words
from fedveil.report.markup import Markup, badge, code, concat, note, paragraph, section, table, tag
from fedveil.studio import gate
from fedveil.studio.approval import approval_words
from fedveil.studio.layout import Frame, address_of, button, chooser, failure, field, hidden_field, link
from fedveil.studio.sentences import Refused, sentence_of
from fedveil.studio.state import Studio, html_response

# The officer's pages: what is to be signed, on which assumptions, and what the ledger says.


def choose_page(frame: Frame, studies: Sequence[str], runs: Sequence[str], keys: Sequence[str]) -> str:
    """Return what can be signed, and the keys that can sign."""
    none = paragraph("There is none in the working folder yet.")
    plans = [tag("li", link(name, "/sign", study=name)) for name in studies]
    done = [tag("li", link(name, "/sign", out=name)) for name in runs]
    make = frame.form(
        "/key",
        field(
            "A new key",
            tag("input", id="name", name="name", value="officer.key", autocomplete="off"),
            "name",
            "For you alone; a public key for those who check is put beside it.",
        ),
        button("Make it"),
    )
    return frame.page(
        "Sign",
        "/sign",
        tag(
            "div",
            section("plans", "Plans to approve", tag("ul", plans) if plans else none),
            section("certificates", "Finished runs to sign", tag("ul", done) if done else none),
            section("keys", "Keys", tag("ul", [tag("li", code(key)) for key in keys]) if keys else none, make),
            class_="cards",
        ),
        lead="Read what will be promised, on what it rests and what it costs; then put your name to it.",
    )


def plan_page(
    frame: Frame,
    study: str,
    certificate: Mapping[str, Any],
    spent: Mapping[str, Any],
    keys: Sequence[str],
    sentence: str | None = None,
) -> str:
    """Return the certificate as it will be, with its assumptions and the ledger."""
    target, data = certificate["target"], certificate["data"]
    lead = (
        f"{certificate['algorithm']}: {data['records']:,} records of {data['clients']:,} clients. "
        f"One {target['unit']}, {target['neighbours']}; epsilon {target['epsilon']:g} at delta {target['delta']:g} "
        f"against {target['adversary']}."
    )
    return frame.page(
        certificate["name"],
        "/sign",
        None if sentence is None else failure(sentence),
        None if certificate["exposed"] is None else note(f"NOT PRIVATE: {certificate['exposed']}.", kind="warning"),
        [note(text, kind="warning") for text in certificate["warnings"]],
        section(
            "promise",
            "The certificate as it will be",
            observers_table(certificate),
            paragraph("Plan ", code(certificate["plan"])),
        ),
        section("assumptions", "What it rests on, and who must keep it", *_assumptions(certificate["assumptions"])),
        section("books", "The ledger", _books(spent)),
        section(
            "approve",
            "Approve it",
            _approval_state(certificate["approved"]),
            _approving(frame, study, certificate["plan"], keys),
        ),
        lead=lead,
    )


def observers_table(certificate: Mapping[str, Any]) -> Markup:
    """Return the five observers of a plan or a run."""
    rows = [
        (one["adversary"], words.epsilon_text(one["epsilon"]), one["sees"], one["by"] or "–")
        for one in certificate["observers"]
    ]
    caption = f"At delta {certificate['target']['delta']:g}"
    return table(caption, ("Observer", "Epsilon", "Sees", "Proved by"), rows, numbers=(1,))


def _assumptions(rows: Sequence[Mapping[str, Any]]) -> list[Markup]:
    """Return the assumptions that people must keep first, then those that the program keeps."""
    people = [row for row in rows if row["by"].startswith("declared") or row["value"] == "declared"]
    kept = [row for row in rows if row not in people]

    def cells(row: Mapping[str, Any], by: object) -> tuple[object, ...]:
        needed = "everyone" if len(row["needed"]) == 5 else ", ".join(row["needed"])
        return row["name"], row["value"], by, needed

    heads = ("Assumption", "Here", "Kept by", "Needed against")
    first = [
        cells(row, concat([badge("people", "warn"), " ", row["by"].removeprefix("declared").lstrip(": ")]))
        for row in people
    ]
    sentence = (
        f"{len(people)} of {len(rows)} assumptions no program can enforce: you, and those who run it, answer for them."
    )
    rest = tag(
        "details",
        tag("summary", f"The {len(kept)} assumptions that the program keeps"),
        table(None, heads, [cells(row, row["by"]) for row in kept]),
    )
    return [paragraph(sentence), table(None, heads, first) if first else paragraph("None."), rest]


def _books(spent: Mapping[str, Any]) -> Markup:
    if spent["where"] is None:
        return paragraph("These data lie nowhere that several runs could share: each run keeps a ledger of its own.")
    if not spent["runs"]:
        caps = [f"{cap['adversary']}: epsilon {cap['epsilon']:g}, delta {cap['delta']:g}" for cap in spent["caps"]]
        cap = f" The study sets caps: {'; '.join(caps)}." if caps else " There is no cap."
        return paragraph("Nothing was spent on these data yet.", cap)
    runs = table(
        "What was charged",
        ("Study", "When", "Ended", "Epsilon, final model"),
        [(run["study"], run["at"], run["ended"], words.epsilon_text(run["cost"])) for run in spent["runs"]],
        numbers=(3,),
    )
    rows = [
        (
            row["adversary"],
            f"{row['unit']}, {row['neighbours']}",
            words.epsilon_text(row["spent"]),
            "no cap" if row["cap"] is None else f"{row['cap']:g}",
            "–" if row["share"] is None else f"{row['share']:.0%}",
            "–" if row["more"] is None else f"{row['more']:,}",
        )
        for row in spent["observers"]
    ]
    heads = ("Observer", "For one", "Spent", "Cap", "Left", "More runs like the last")
    return concat([runs, table("All runs together, epsilons added up", heads, rows, numbers=(2, 3, 4, 5))])


def _approval_state(given: Mapping[str, Any] | None) -> Markup:
    if given is None:
        return paragraph(badge("not approved", "warn"), " Nobody has approved this plan.")
    if given["fits"]:
        return paragraph(badge("approved", "good"), " by ", code(given["signer"]), ": exactly this plan.")
    return paragraph(
        badge("not approved", "bad"), " ", code(given["signer"]), " approved another plan; this one is not it."
    )


def _approving(frame: Frame, study: str, plan: str, keys: Sequence[str]) -> Markup:
    if not keys:
        return paragraph("There is no key to sign with: ", link("make one", "/sign"), ".")
    return frame.form(
        "/approve",
        hidden_field("study", study),
        hidden_field("plan", plan),
        field("Sign with", chooser("key", [(key, key) for key in keys], keys[0]), "key"),
        paragraph(
            "Your signature is over the bytes of this plan. A run writes the same bytes into its folder, so that "
            "anybody can check that what ran is what you approved."
        ),
        button("Approve this plan", class_="main"),
    )


def run_sign_page(
    frame: Frame, out: str, run: Mapping[str, Any], keys: Sequence[str], approval: str, sentence: str | None = None
) -> str:
    """Return a finished run's certificate, to be signed."""
    matches = not run["changes"]
    state = badge("matches its records", "good") if matches else badge("does NOT match its records", "bad")
    signer = "Nobody has signed it." if run["signer"] is None else f"It is signed by {run['signer']}."
    form = frame.form(
        "/sign",
        hidden_field("out", out),
        field("Sign with", chooser("key", [(key, key) for key in keys], keys[0] if keys else None), "key"),
        button("Sign the certificate", class_="main"),
    )
    return frame.page(
        run["name"],
        "/sign",
        None if sentence is None else failure(sentence),
        tag("p", state, class_="state"),
        section("promise", "The certificate", observers_table(run), paragraph("Plan ", code(run["plan"]))),
        section(
            "signature",
            "Sign it",
            paragraph(signer, " ", approval),
            form if keys and matches else paragraph("There is no key to sign with: ", link("make one", "/sign"), "."),
        ),
        paragraph(link("Back to the run", "/run", out=out)),
    )


# The officer's addresses: read, approve a plan, sign a certificate, make a key.


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
        given = await gate.form(request, self._studio.known.form)
        study = given.get("study", "")
        try:
            asked = {"study": study, "key": self._key(given.get("key")), "plan": given.get("plan", "")}
            await self._studio.ask("approve", asked)
        except (Refused, ValueError) as error:
            return html_response(await self._plan_page(study, sentence_of(error)), 400)
        return RedirectResponse(address_of("/sign", study=study), status_code=303)

    async def sign(self, request: Request) -> Response:
        """Sign the certificate of a finished run."""
        given = await gate.form(request, self._studio.known.form)
        out = given.get("out", "")
        try:
            await self._studio.ask("sign", {"out": out, "key": self._key(given.get("key"))})
        except (Refused, ValueError) as error:
            return html_response(await self._run_page(out, sentence_of(error)), 400)
        return RedirectResponse(address_of("/sign", out=out), status_code=303)

    async def key(self, request: Request) -> Response:
        """Make a key."""
        given = await gate.form(request, self._studio.known.form)
        name = Path(given.get("name", "")).name
        await self._studio.ask("new_key", {"name": name})
        return RedirectResponse("/sign", status_code=303)
