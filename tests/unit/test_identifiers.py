"""Columns named like identifiers: told by whole words, asked about, and never dropped in silence."""

import re
from pathlib import Path

import pytest

from fedveil.jobs.draft.columns import is_identifier
from fedveil.jobs.entry import Wish, draft_study

IDENTIFIERS = (
    "id ID Id ids patient_id patientId PatientID PATIENT_ID patient.id patient-id uuid row_guid mrn MRN ssn nr no "
    "patient_no case_nr CaseNumber patientid userid key order_key index Unnamed:0 patient_id_2 account-number"
)
OTHERS = (
    "thyroid covid COVID19 covid_19 steroid Medicaid MEDICAID paid PAID amountPaid hybrid acid valid bid lipid kidney "
    "dysthyroid onThyroid smoker_no education-num number_of_children width idle monkey ward age"
)


@pytest.mark.parametrize("name", re.findall(r"\S+", IDENTIFIERS))
def test_identifiers_are_recognised(name: str) -> None:
    assert is_identifier(name)


@pytest.mark.parametrize("name", re.findall(r"\S+", OTHERS))
def test_words_that_end_alike_are_no_identifiers(name: str) -> None:
    assert not is_identifier(name)


def written(folder: Path) -> str:
    lines = ["mrn,covid,paid,ill", *(f"M{k},{k % 2},{k},{k % 2}" for k in range(20))]
    path = folder / "visits.csv"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_an_identifier_is_left_out_and_asked_about(tmp_path: Path) -> None:
    given = {"data": written(tmp_path), "target": "ill", "classes": ("0", "1")}
    draft, _ = draft_study(Wish(**given))  # type: ignore[arg-type]
    assert set(draft.columns.unused) == {"mrn"}
    assert [one.key for one in draft.questions] == ["data.ignore"]
    assert "# OPEN data.ignore" in draft.text()
    assert draft.complete  # a name can be right
    for answer in ({"ignore": ("mrn",)}, {"keep": ("mrn",)}):
        answered, _ = draft_study(Wish(**given, **answer))  # type: ignore[arg-type]
        assert answered.questions == ()
        assert ("mrn" in answered.columns.texts) == ("keep" in answer)
