"""The document's torch generator, run as it stands: its data, its study and its commands."""

from pathlib import Path

import pytest
from test_documents import ROOT, blocks_of, commands_of, run_command

pytest.importorskip("torch", reason="PyTorch is not installed: pip install fedveil[torch]")

PAGE = ROOT / "docs" / "synthetic-data.md"


def test_the_document_does_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text(encoding="utf-8")
    section = text[text.index("## Generators of pictures") :]
    data, study, commands, *_ = blocks_of(section)
    assert [data.language, study.language, commands.language] == ["python", "toml", "console"]
    exec(compile(data.text, str(PAGE), "exec"), {})
    (tmp_path / "digits.toml").write_text(study.text, encoding="utf-8")
    for command in commands_of(commands.text):
        run_command(command, f"{PAGE}: torch generators", tmp_path)
    page = (tmp_path / "digits" / "synthetic.html").read_text(encoding="utf-8")
    assert page.count("data:image/png;base64,") == 20  # ten digits, drawn and public
