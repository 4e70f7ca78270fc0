"""The pages of runs: all of them, one to be started, one that is being watched, and one that is finished."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedveil.report import words
from fedveil.report.markup import Markup, badge, code, concat, note, paragraph, section, table, tag
from fedveil.studio.jobs import Job
from fedveil.studio.layout import Frame, address_of, button, chooser, failure, field, hidden_field, link

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
    return f"{ {'audit': 'attack', 'ask': 'answers'}.get(job.request['kind'], 'run') }: {out}"


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
