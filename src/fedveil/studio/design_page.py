"""The design page: where a study comes from, and the study itself with its choices, its answer and its text."""

import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from fedveil.report.markup import Markup, code, concat, note, paragraph, section, table, tag
from fedveil.studio import choices
from fedveil.studio.layout import Frame, address_of, button, chooser, field, hidden_field, link

_NOT_LOOKED_AT = "Only the names and types of the columns were read; no value is shown, and nothing was charged."

TYPES_ONLY = (
    "Opening a table reads the names and types of its columns. Nothing about its values is shown here without being "
    "charged in its ledger."
)


def start_page(frame: Frame, studies: Sequence[str], tables: Sequence[str], examples: Mapping[str, str]) -> str:
    """Return the first page: open a study, a table, or an example."""
    listed = [tag("li", link(name, "/design", study=name)) for name in studies]
    data = [tag("li", link(name, "/table", data=name)) for name in tables]
    started = [
        tag(
            "li",
            frame.form("/example", hidden_field("name", name), button(title), class_="one"),
        )
        for name, title in examples.items()
    ]
    upload = tag(
        "form",
        field(
            "A table from elsewhere (CSV or Parquet)",
            tag("input", type="file", id="upload", accept=".csv,.tsv,.gz,.parquet,.feather"),
            "upload",
        ),
        button("Copy it into the working folder", id="send"),
        tag("p", "", id="upload-said", role="status"),
        class_="upload",
        id="upload-form",
    )
    return frame.page(
        "Design a study",
        "/",
        tag(
            "div",
            section(
                "studies",
                "Open a study",
                tag("ul", listed) if listed else paragraph("There is none in the working folder yet."),
            ),
            section(
                "tables",
                "Open a table",
                paragraph(TYPES_ONLY),
                tag("ul", data) if data else paragraph("There is none in the working folder yet."),
                upload,
            ),
            section(
                "examples",
                "Start from an example",
                paragraph("A copy is put into the working folder."),
                tag("ul", started, class_="plain"),
            ),
            class_="cards",
        ),
        scripts=("upload.js",),
        lead="A study says which data, which model and which promise. See what it costs before anything is run.",
    )


def table_page(frame: Frame, data: str, columns: Mapping[str, Any], sentence: str | None = None) -> str:
    """Return the columns of a table by type, and the questions that only its owner can answer."""
    names = list(columns["columns"])
    kinds = [(name, kind, columns["left_out"].get(name, "–")) for name, kind in columns["columns"].items()]
    listed = table("Columns", ("Column", "Holds", "Left out because it"), kinds)
    client = [("", "nobody in particular"), *((name, name) for name in names)]
    form = frame.form(
        "/table",
        hidden_field("data", data),
        field("Column to predict", chooser("target", [(name, name) for name in names], columns["target"]), "target"),
        field(
            "Its classes",
            tag("input", id="classes", name="classes", autocomplete="off"),
            "classes",
            "What the column can hold, separated by commas, such as: no, yes. Leave it empty for a number.",
        ),
        field(
            "Or its range",
            tag("input", id="between", name="between", autocomplete="off"),
            "between",
            "For a number to predict: the least and the largest, separated by a comma.",
        ),
        field(
            "Whose record it is",
            chooser("client", client, ""),
            "client",
            "The column that names the data holder, if there is one.",
        ),
        field(
            "Leave out",
            tag("input", id="ignore", name="ignore", autocomplete="off", value=", ".join(columns["doubtful"])),
            "ignore",
            "Separated by commas. Proposed are columns named like identifiers, and columns whose cells leave open what "
            "they hold; take one off the list to use it.",
        ),
        button("Draft the study"),
    )
    return frame.page(
        f"The table {data}",
        "/",
        None if sentence is None else tag("p", sentence, class_="sentence bad", role="alert"),
        note(f"{columns['records']:,} rows. {_NOT_LOOKED_AT}"),
        paragraph(link("Ask about these columns", "/ask", data=data), " before anything is trained."),
        section("questions", "What only you can say", form),
        section("columns", "What was read", listed, _learn(data)),
    )


def _learn(data: str) -> Markup:
    command = f"fedveil profile {shlex.quote(data)} --epsilon 0.5"
    sentence = "What the columns hold can be learned with noise, which is charged in the ledger of the data: "
    return paragraph(sentence, code(command))


def design_page(frame: Frame, study: str, text: str, seen: str) -> str:
    """Return the study with its choices on the left and its text on the right."""
    now = choices.chosen(text)
    controls = [
        slider("epsilon", "Epsilon", now["epsilon"], -1.0, 1.0),
        slider("delta", "Delta", now["delta"], -9.0, -3.0),
        _choice("unit", "Protected", choices.UNITS, now),
        _choice("neighbours", "Neighbours", choices.NEIGHBOURS, now),
        _choice("adversary", "Observer of the target", choices.OBSERVERS, now),
        _choice("algorithm", "Algorithm", choices.algorithms(), now),
        _choice("trust", "Trust", choices.TRUSTS, now),
    ]
    editor = tag(
        "section",
        tag("h2", tag("label", "The study file", for_="text"), id="file-heading"),
        tag(
            "textarea",
            Markup("\n"),
            text,
            id="text",
            spellcheck="false",
            autocapitalize="off",
            rows=28,
            aria_describedby="said",
        ),
        tag("p", "", id="said", role="status", class_="sentence"),
        tag(
            "p", button("Save", type="button", id="save"), " ", tag("span", "", id="saved", role="status"), class_="row"
        ),
        tag(
            "p",
            link("Sign it", "/sign", study=study),
            " · ",
            link("Run it", "/start", study=study),
            " · ",
            link("Compare", "/compare", study=study),
            class_="row",
        ),
        aria_labelledby="file-heading",
        class_="editor",
    )
    left = tag(
        "div",
        section("choices", "Choices", tag("div", controls, class_="choices")),
        section(
            "answer-part",
            "What it takes",
            tag("p", "", id="working", role="status", class_="meaning"),
            tag("div", paragraph("Working it out …"), id="answer", aria_live="off"),
        ),
    )
    return frame.page(
        study,
        "/",
        tag("div", left, editor, class_="split", id="design", data_study=study, data_seen=seen),
        scripts=("design.js",),
    )


def _choice(name: str, label: str, options: Sequence[tuple[str, str]], now: Mapping[str, Any]) -> Markup:
    known = now[name] if any(value == now[name] for value, _ in options) else None
    more = [] if known is not None else [(str(now[name]), str(now[name]))]
    control = chooser(name, [*options, *more], str(now[name]), data_choice=name, aria_describedby=f"{name}-meaning")
    return field(label, control, name, choices.MEANINGS[name])


def slider(name: str, label: str, value: Any, low: float, high: float) -> Markup:
    """Return a slider over powers of ten; what it stands at is beside its label."""
    given = float(value) if isinstance(value, int | float) and value > 0 else 10.0 ** ((low + high) / 2)
    at = math.log10(given)
    control = tag(
        "input",
        type="range",
        id=name,
        name=name,
        min=f"{min(low, at):g}",
        max=f"{max(high, at):g}",
        step="any",
        value=f"{at:.6g}",
        data_slider=name,
        aria_describedby=f"{name}-meaning",
        aria_valuetext=f"{given:.3g}",
    )
    shown = tag("output", f"{given:.3g}", for_=name, id=f"{name}-value")
    return field(label, control, name, choices.MEANINGS[name], concat([" ", shown]))


def compare_page(frame: Frame, study: str) -> str:
    """Return the page that compares algorithms, or degrees of trust, side by side."""
    views = [("algorithms", "algorithms, at this trust"), ("trust", "degrees of trust, with this algorithm")]
    form = tag(
        "form",
        field("Compare", chooser("view", views, "algorithms"), "view"),
        button("Plan them all", id="compare"),
        id="compare-form",
        data_study=study,
    )
    return frame.page(
        f"Compare: {study}",
        "/",
        note(
            "Every row is planned for the same target. Nothing is trained and nothing is charged: the accuracy is the "
            "expected one, by the yardstick that all designs share."
        ),
        form,
        tag("p", "", id="working", role="status"),
        tag("div", "", id="answer"),
        paragraph(tag("a", "Back to the study", href=address_of("/design", study=study))),
        scripts=("compare.js",),
    )
