"""How a run ends: whatever was interrupted, and however often, no secret outlives the release.

A release is a row of files, each whole or absent, with the run's record last; then the secrets go; then the
certificate, which says that they are gone, is written.
So a run that was stopped in between is finished by doing what is left.
"""

from pathlib import Path
from typing import Any, Final

from fedveil.checks import require
from fedveil.errors import BadValue
from fedveil.files import sync_folder
from fedveil.ledger.store import settle
from fedveil.run import answers
from fedveil.strict_json import read_object

LAST: Final = "ledger.jsonl"  # the last file of a release: where it is, all others are
SECRETS: Final = (
    "key",
    "checkpoint",
    answers.NAME,
    answers.OF_PREPARATION,
)  # in the private folder; what tells most goes first


def has_released(folder: Path) -> bool:
    """Whether everything is out, and all that may be missing is clearing up, the certificate and the report."""
    return (folder / LAST).exists()


def ended(folder: Path) -> dict[str, Any]:
    """Clear up after a release that was interrupted; the metrics it wrote. A run that is finished is refused."""
    left = destroy_secrets(folder)
    certified = (folder / "certificate.json").exists() and (folder / "report.html").exists()
    hint = "It has released its model."
    require(left or not certified, "--resume", "name a run that is not finished", str(folder), hint)
    books = folder / "private" / "ledger.sqlite"
    if books.exists():  # books elsewhere may be in use by others
        settle(books)
    return written_metrics(folder)


def written_metrics(folder: Path) -> dict[str, Any]:
    """The metrics that a release wrote."""
    path = folder / "metrics.json"
    try:
        return read_object(path.read_bytes(), f"The run's record {path}")
    except OSError as error:
        raise BadValue(f"The run's record {path} must be as the run wrote it: {error}.") from error


def destroy_secrets(folder: Path, names: tuple[str, ...] = SECRETS) -> bool:
    """Remove what must not outlive the release; whether there was any of it.

    It is gone for good when this returns: a certificate says so, and a power cut must not bring it back.
    """
    found = [path for path in (folder / "private" / name for name in names) if path.exists()]
    for path in found:
        path.unlink(missing_ok=True)
    if found:
        sync_folder(folder / "private")
    return bool(found)
