"""What a column's name, or the form of a cell, tells about it: identifiers and dates."""

import re
from typing import Final

DATE: Final = re.compile(
    r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}([T ]\d{1,2}:\d{2}.*)?|\d{1,2}[-/.]\d{1,2}[-/.](\d{4}|\d{2})([T ]\d{1,2}:\d{2}.*)?"
)
_NOUNS: Final = frozenset(
    re.findall(
        r"\w+",
        "account admission animal applicant batch bill booking card case child claim client contact contract customer "
        "device doctor document donor employee encounter episode event family file hospital household insurance "
        "invoice item job license loan medical member message movie object order parent participant passport patient "
        "payment person phone physician player policy post product provider record report request respondent row "
        "sample school serial session shop site staff student study subject tax team ticket token transaction trip "
        "user vendor visit",
    )
)
# Words that make a name an identifier where they end it (patient_id, PatientID, order-key), and those that do so after
# a noun alone: case no is one, but smoker_no is a category.
_LAST: Final = frozenset(re.findall(r"\w+", "id ids uuid uuids guid guids key keys pk oid uid pid mrn ssn nr nummer"))
_AFTER_NOUNS: Final = frozenset({"no", "num", "number"})
# Whole names. Without a border before "id", no rule tells patientid from thyroid.
_WHOLE: Final = frozenset({"index", "rowid", "no", "nhs", "iban", "imei", "isbn", "passport", "barcode", "email"})
_JOINED: Final = frozenset(f"{noun}{end}" for noun in _NOUNS for end in ("id", "ids", "nr", "no", "number"))
_BORDER: Final = re.compile(r"[^A-Za-z0-9]+|(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|(?<=[A-Za-z])(?=[0-9])")
_UNNAMED: Final = re.compile(r"(?i)unnamed: ?\d+|")


def is_identifier(name: str) -> bool:
    """Return whether a column is named like one that tells records or people apart.

    >>> all(map(is_identifier, ("patient_id", "PatientID", "mrn", "case no", "userid", "Unnamed: 0")))
    True
    >>> any(map(is_identifier, ("thyroid", "covid", "steroid", "Medicaid", "paid", "PAID", "valid")))
    False
    """
    if _UNNAMED.fullmatch(name.strip()):
        return True
    words = [word.lower() for word in _BORDER.split(name) if word]
    while len(words) > 1 and words[-1].isdigit():  # patient_id_2
        words.pop()
    if not words:
        return False
    last, before = words[-1], words[-2:-1]
    counted = last in _AFTER_NOUNS and before and before[0] in _NOUNS
    return bool(last in _LAST or last in _JOINED or counted or (not before and last in _WHOLE))
