"""Synthetic data at the command line: one sentence for what cannot be, what the noise hides, and the attack on it."""

import json
from pathlib import Path

import numpy as np
import pytest
from commands import called

HEAD = '[data]\nsource = "people.csv"\ntarget = "ill"\nclasses = ["n", "y"]\n'
SCALE = "[data.scale]\nsize = [0, 100]\n"
PRIVACY = "[privacy]\nepsilon = 3.0\ndelta = 1e-5\n"
MANY = ", ".join(f'"p{k}"' for k in range(20_000))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six hundred people, each with a name of their own."""
    found, draw = tmp_path_factory.mktemp("people"), np.random.default_rng(0)
    rows = [f"p{k},{size:.1f},{'y' if size > 50 else 'n'}" for k, size in enumerate(draw.normal(50, 10, 600))]
    (found / "people.csv").write_text("\n".join(["name,size,ill", *rows]) + "\n")
    return found


@pytest.mark.parametrize(
    ("study", "words", "sentence"),
    [
        (HEAD + SCALE + PRIVACY, ["--rows", 0], "--rows must lie between 1 and 1000000000, got 0."),
        (
            f"{HEAD}{SCALE}[data.categories]\nname = [{MANY}]\n{PRIVACY}",
            ["--rows", 5],
            "data.categories.name must list at most 10000 words for a generator, got 20000.",
        ),
        (
            HEAD + SCALE + PRIVACY.replace("3.0", "1e-3"),
            ["--rows", 5],
            "[privacy] must leave something to measure: noise of less than 0.25 times the 600 records on a count",
        ),
        (
            f"{HEAD}{SCALE}{PRIVACY}[generator]\nmodel_cells = 1000000000000\n",
            ["--rows", 5],
            "generator.model_cells must lie between 1024 and 4194304, got 1000000000000.",
        ),
        (
            f"{HEAD}{SCALE}{PRIVACY}[clients]\nkind = 'equal'\ncount = 3\n",
            ["--rows", 5, "--sites", 3],
            "The study must say whom the sites trust, got None. Add a [trust] table",
        ),
        (
            f"{HEAD}{SCALE}{PRIVACY}[clients]\nkind = 'equal'\ncount = 3\n[trust]\n",
            ["--rows", 5, "--sites", 3],
            "[prepare] must find every category stated with [trust]",
        ),
        (
            f"{HEAD}{SCALE}{PRIVACY}[generator]\nkind = 'torch'\n",
            ["--rows", 5, "--sites", 3],
            "generator.kind must be marginals here, got 'torch'. A torch generator is trained in one process.",
        ),
        (HEAD + PRIVACY, ["--rows", 5, "--sites", 3, "--on", "x"], "--sites must be left out with --on"),
        (HEAD + PRIVACY, ["--rows", 5, "--on", "x"], "The study must leave [data] and [clients] out"),
    ],
)
def test_what_cannot_be_is_one_sentence(folder: Path, study: str, words: list[object], sentence: str) -> None:
    (folder / "study.toml").write_text(study)
    done = called("synthesise", "study.toml", *words, "--out", "out", cwd=folder)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (folder / "out").exists() or not any((folder / "out").glob("*.*"))


def test_a_column_of_names_shows_none_and_the_output_says_so(folder: Path) -> None:
    """And an audit of the generator, which says that so few games prove nothing."""
    (folder / "study.toml").write_text(HEAD + SCALE + PRIVACY)
    done = called("synthesise", "study.toml", "--rows", 50, "--out", "made", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "The column 'name' shows none of its words: no word is frequent enough for the noise." in done.stdout
    rows = (folder / "made" / "synthetic.csv").read_text().splitlines()
    assert len(rows) == 51
    assert not any(row.startswith("p") for row in rows)
    attacked = called("audit", "made", "--study", "study.toml", "--shadows", 0, "--runs", 40, "--json", cwd=folder)
    assert attacked.returncode == 0, attacked.stderr
    found = json.loads(attacked.stdout)
    assert [one["verdict"] for one in found["findings"]] == ["not-judged"] * 3
    assert [one["attack"] for one in found["private_findings"]] == ["membership in the noisy sums"]
    assert json.loads((folder / "made" / "audit.json").read_text())["plan"] == found["plan"]
