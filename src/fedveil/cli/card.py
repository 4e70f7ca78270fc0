"""The command that writes a run up for those who must approve it: model card and registry entry."""

from pathlib import Path
from typing import Annotated

import typer

from fedveil.certificate.certify import certify_written
from fedveil.cli.show import Json, out, show
from fedveil.core.errors import BadValue, CannotCertify, require
from fedveil.core.files import read_file
from fedveil.data.tables import nearest
from fedveil.version import __version__


def card(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder a run left.")],
    form: Annotated[
        str | None, typer.Option("--format", help="html, markdown or registry (YAML); without: all three.")
    ] = None,
    about: Annotated[
        Path | None, typer.Option("--about", help="TOML file with what only people know: curators, intended_use, ...")
    ] = None,
    file: Annotated[Path | None, typer.Option("--out", help="Folder for the files; without: beside the model.")] = None,
    as_json: Json = False,
) -> None:
    """Write the model card (HTML, Markdown) and the entry of a public registry of deployments (YAML)."""
    from fedveil.report.regulator.about import QUESTIONS, About, read_about  # drawing is slow to import
    from fedveil.report.regulator.document import FILES, write_card
    from fedveil.report.view import view_of

    known = form is None or form in FILES
    require(known, "--format", f"be one of {', '.join(FILES)}", form, nearest(form or "", FILES))
    stated = About() if about is None else read_about(_text(about))
    _, changes = certify_written(folder, __version__)
    if changes:
        raise CannotCertify(f"The certificate in {folder} does not match the run's records: {'; '.join(changes)}.")
    into = folder if file is None else file
    into.mkdir(parents=True, exist_ok=True)
    paths = write_card(view_of(folder), stated, into, tuple(FILES) if form is None else (form,))

    def text() -> None:
        for path in paths:
            out().print(f"written: {path}", soft_wrap=True)
        if stated.open:
            out().print("Not stated, and shown as such (state them in a TOML file, and give it with --about):")
            for name in stated.open:
                out().print(f"  {name}: {QUESTIONS[name]}", soft_wrap=True)

    show({"written": [str(path) for path in paths], "not_stated": list(stated.open)}, as_json, text)


def regulators_answers(folder: Path) -> dict[str, list[dict[str, str]]]:
    """Return the answers to a regulator's questions, and what is unprotected, as the report and the card have them."""
    from fedveil.report.regulator.about import About  # drawing is slow to import
    from fedveil.report.regulator.exposure import gain, unprotected
    from fedveil.report.regulator.questions import answers
    from fedveil.report.view import view_of

    view = view_of(folder)
    asked = answers(view, About(), gain(view, view.target))
    return {
        "answers": [{"question": question, "answer": answer} for question, answer in asked],
        "unprotected": [{"what": what, "why": why} for what, why in unprotected(view)],
    }


def tell_answers(parts: dict[str, list[dict[str, str]]]) -> None:
    """Print the answers, and what is unprotected, one line each."""
    out().print("A regulator's questions (NIST Special Publication 800-226):")
    for row in parts["answers"]:
        out().print(f"  {row['question']}: {row['answer']}", soft_wrap=True)
    out().print("Unprotected:")
    for row in parts["unprotected"]:
        out().print(f"  {row['what']}: {row['why']}", soft_wrap=True)


def _text(path: Path) -> str:
    try:
        return read_file(path).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadValue(f"--about must name a readable text file, got {str(path)!r}.") from error


def register(app: typer.Typer) -> None:
    """Add this command to the application."""
    app.command(epilog="Example: fedveil card results --about about.toml")(card)
