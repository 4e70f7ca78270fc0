"""The end of a run: however often it was interrupted, no secret is left after the release.

A release is a sequence of files, each complete or absent, with the run's record last. Then the secrets are removed, and
then the certificate, which says that they are gone, is written. A run that stopped in between is finished by doing
the steps that are left.
"""

from pathlib import Path
from typing import Any, Final

from fedveil.checks import require
from fedveil.errors import BadValue, why
from fedveil.files import read_file, sync_folder
from fedveil.ledger.store import settle
from fedveil.run import answers, trials
from fedveil.strict_json import read_object

LAST: Final = "ledger.jsonl"  # the last file of a release: where it is, all others are
SECRETS: Final = (
    "key",
    "checkpoint",
    answers.NAME,
    answers.OF_PREPARATION,
    answers.OF_EVALUATION,
    trials.NAME,
)  # in the private folder; what tells most goes first


def has_released(folder: Path) -> bool:
    """Return whether the whole release is out.

    Then at most the secrets' removal, the certificate and the report are missing.
    """
    return (folder / LAST).exists()


def ended(folder: Path) -> dict[str, Any]:
    """Finish a release that was interrupted and return the metrics it wrote; refuse a run that is already finished."""
    left = destroy_secrets(folder)
    certified = (folder / "certificate.json").exists() and (folder / "report.html").exists()
    hint = "It has released its model."
    require(left or not certified, "--resume", "name a run that is not finished", str(folder), hint)
    books = folder / "private" / "ledger.sqlite"
    if books.exists():  # books in another place may be in use by others
        settle(books)
    return written_metrics(folder)


def written_metrics(folder: Path) -> dict[str, Any]:
    """Return the metrics that a release wrote."""
    path = folder / "metrics.json"
    try:
        return read_object(read_file(path), f"The run's record {path}")
    except OSError as error:
        raise BadValue(f"The run's record {path} must be as the run wrote it: {why(error)}.") from error


def destroy_secrets(folder: Path, names: tuple[str, ...] = SECRETS) -> bool:
    """Remove the secrets that must not outlive the release; return whether there were any.

    They are gone for good when this returns, even after a power cut, because a certificate will say so.
    """
    found = [path for path in (folder / "private" / name for name in names) if path.exists()]
    for path in found:
        path.unlink(missing_ok=True)
    if found:
        sync_folder(folder / "private")
    return bool(found)
