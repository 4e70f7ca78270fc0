"""The end of a job: however often it was interrupted, no secret is left after the release.

A release is a sequence of files, each complete or absent, with the job's record last. Then the secrets are removed, and
then the certificate, which says that they are gone, is written. A job that stopped in between is finished by doing
the steps that are left.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from fedveil.core.errors import AlreadyFinished, BadValue, why
from fedveil.core.files import read_file, sync_folder
from fedveil.core.strict_json import read_object
from fedveil.engine import answers
from fedveil.ledger.store import settle

LAST: Final = "ledger.jsonl"  # the last file of a release: where it is, all others are
TRIALS: Final = "trials"  # in the private folder: how many trials are done, and which was the best
SECRETS: Final = (
    "key",
    "checkpoint",
    answers.NAME,
    answers.OF_PREPARATION,
    answers.OF_EVALUATION,
    TRIALS,
)  # in the private folder; what tells most goes first


def has_released(folder: Path) -> bool:
    """Return whether the whole release is out.

    Then at most the secrets' removal, the certificate and the report are missing.
    """
    return (folder / LAST).exists()


def check_unfinished(folder: Path, ends: Sequence[str], *, left: Sequence[str] = ()) -> None:
    """Raise :class:`AlreadyFinished` if nothing of a job is left to do.

    ``ends``: the files that are written after the release. ``left``: private files that are gone in the end, beside the
    secrets.
    """
    gone = not any((folder / "private" / name).exists() for name in (*SECRETS, *left))
    if has_released(folder) and gone and all((folder / name).exists() for name in ends):
        raise AlreadyFinished(str(folder))


def end_release(folder: Path) -> None:
    """Do what a whole release may still lack on the disk: destroy the secrets, and close books of the job's own."""
    destroy_secrets(folder)
    books = folder / "private" / "ledger.sqlite"
    if books.exists():  # books in another place may be in use by others
        settle(books)


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
    result = [path for path in (folder / "private" / name for name in names) if path.exists()]
    for path in result:
        path.unlink(missing_ok=True)
    if result:
        sync_folder(folder / "private")
    return bool(result)
