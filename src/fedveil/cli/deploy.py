"""Commands about deployments: write one, check one, try one on this machine."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, cast, get_args

import typer

from fedveil.cli.parsing import App
from fedveil.cli.progress import Quiet, progress, report_sites
from fedveil.cli.serving import interrupt_on_signals
from fedveil.cli.show import Json, Module, out, show
from fedveil.cli.studies import StudyFile, show_result
from fedveil.core.errors import BadValue, require
from fedveil.core.files import PUBLIC, write_atomically
from fedveil.federation.aggregator.trace import picture, read_status
from fedveil.federation.deploy.check import check_place
from fedveil.federation.deploy.files import Engine, Wanted, rekey, write_deployment
from fedveil.jobs.remote import run_local
from fedveil.report.markup import prose_page

EngineName = Annotated[str, typer.Option("--engine", help="What carries the messages: flower or nvflare.")]
deploy = App(help="Many machines: write a deployment, check it, try it on this machine.")


@deploy.command(
    short_help="Write keys, certificates, unit files and instructions.",
    epilog="Example: fedveil deploy init consortium --sites north,south,east --host link.example.org",
)
def init(
    folder: Annotated[Path, typer.Argument(help="A new folder.")],
    sites: Annotated[str, typer.Option("--sites", help="The sites' names, with commas between.")],
    host: Annotated[str, typer.Option("--host", help="The name or address by which sites reach the link.")],
    holder: Annotated[
        str | None, typer.Option("--key-holder", help="A third party that can open encrypted sums; its name.")
    ] = None,
    port: Annotated[int, typer.Option("--port", help="The port that is open to sites: the proxy's.")] = 9092,
    inside: Annotated[int, typer.Option("--inside-port", help="The link's own, on its machine alone.")] = 9093,
    days: Annotated[int, typer.Option("--days", help="How long the certificates are valid.")] = 365,
    engine: EngineName = "flower",
    as_json: Json = False,
) -> None:
    """Write keys, certificates, unit files, a proxy's configuration and a page of instructions."""
    names = tuple(name.strip() for name in sites.split(","))
    wanted = Wanted(sites=names, host=host, port=port, inside=inside, days=days, holder=holder, engine=_engine(engine))
    write_deployment(folder, wanted, datetime.now(UTC))
    page = folder / "README.html"
    text = (folder / "README.md").read_text(encoding="utf-8")
    write_atomically(page, prose_page(text, "Deployment").encode(), mode=PUBLIC)
    result = {"folder": str(folder), "sites": list(names), "key_holder": holder, "page": str(folder / "README.md")}
    show(result, as_json, lambda: out().print(f"written: {folder}; read {folder / 'README.md'} next (or open {page})"))


@deploy.command(
    short_help="Check reachability, versions, TLS and authentication.",
    epilog="Example: fedveil deploy check consortium/aggregator",
)
def check(
    folder: Annotated[Path, typer.Argument(help="The aggregator's folder, a site's, or the key holder's.")],
    superlink: Annotated[str | None, typer.Option("--superlink", help="HOST:PORT of the link, from a site.")] = None,
    as_json: Json = False,
) -> None:
    """Reachability, versions, TLS and authentication; says what is wrong."""
    checks = check_place(folder, superlink, datetime.now(UTC))

    def text() -> None:
        for row in checks:
            out().print(f"{'ok  ' if row.fine else 'WRONG'} {row.what}: {row.detail}")

    rows = [{"what": row.what, "ok": row.fine, "detail": row.detail} for row in checks]
    show({"ok": all(row.fine for row in checks), "checks": rows}, as_json, text)
    wrong = [row for row in checks if not row.fine]
    if wrong:
        raise BadValue(f"{wrong[0].what}: {wrong[0].detail}")


@deploy.command(
    "rekey",
    short_help="Make new keys for a site; only public halves leave it.",
    epilog="Example: fedveil deploy rekey sites/north",
)
def new_keys(
    folder: Annotated[Path, typer.Argument(help="A site's folder, or the key holder's.")], as_json: Json = False
) -> None:
    """New keys for a site, made where they are used: only the public halves leave it."""
    rekey(folder)
    public = [str(path) for path in (folder / "identity.pub", folder / "node.pub") if path.exists()]
    show({"send": public}, as_json, lambda: out().print(f"send these to the aggregator: {', '.join(public)}"))


@deploy.command(
    short_help="Try a study on real processes of this machine.",
    epilog="Example: fedveil deploy local study.toml --sites 3 --out results",
)
def local(
    study: StudyFile,
    folder: Annotated[Path, typer.Option("--out", help="Folder for the results; new, or with --resume.")],
    sites: Annotated[int, typer.Option("--sites", help="How many sites share the study's clients.")] = 3,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted run.")] = False,
    trace: Annotated[Path | None, typer.Option("--trace", help="A file for a timeline of all rounds.")] = None,
    engine: EngineName = "flower",
    module: Module = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Try a study on real processes of this machine: TLS, registered nodes, guards; nothing is left running."""
    interrupt_on_signals()
    with progress(quiet) as watch:
        tell = report_sites(quiet)
        result = run_local(
            study, folder, sites, resume=resume, watch=watch, tell=tell, trace=trace, engine=_engine(engine)
        )
    if trace is not None and not (quiet or as_json):
        out().print(picture(trace.read_text(encoding="utf-8")), highlight=False, soft_wrap=True)
    show_result(result, quiet, as_json)


@deploy.command(
    short_help="Show where a run stands: rounds, sites, who is awaited.",
    epilog="Example: fedveil deploy status results",
)
def status(
    folder: Annotated[Path, typer.Argument(help="The folder of a run across sites.")], as_json: Json = False
) -> None:
    """Where a run across sites stands: rounds, each site's version and last answer, and who is waited for."""
    require(folder.is_dir(), "The folder", "be that of a run across sites", str(folder))
    told = read_status(folder)

    def text() -> None:
        out().print(f"{told['state']}; round {told['round']} of {told['rounds']}", highlight=False)
        for name, one in sorted(told["sites"].items()):
            last = f"last answer {one['answered']}" if "answered" in one else "no answer yet"
            version = f", fedveil {one['version']}" if "version" in one else ""
            out().print(f"{name}: {one.get('state', 'not asked')}; {last}{version}", highlight=False, soft_wrap=True)
        if told["waiting_for"] and told["state"] == "begun":
            out().print(f"waiting for: {', '.join(told['waiting_for'])}", highlight=False)

    show(told, as_json, text)


def _engine(name: str) -> Engine:
    require(name in get_args(Engine), "--engine", f"be one of {', '.join(get_args(Engine))}", name)
    return cast(Engine, name)


def register(app: typer.Typer) -> None:
    """Add these commands to the application."""
    app.add_typer(deploy, name="deploy")
