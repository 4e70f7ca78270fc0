"""Notice that an estimator is fitted many times by scikit-learn, as a grid search or a cross-validation does."""

import sys

from fedveil.jobs.estimators.budget import Budget

_FITS_MANY = ("sklearn.model_selection._validation", "_fit_and_score")  # what fits each copy on each fold
_DEEPEST = 60  # frames above a fit that are looked at; a pipeline adds a few


def unbudgeted_search(budget: Budget | None) -> str | None:
    """Return a warning if this fit is one of many that nobody adds up; None otherwise."""
    if budget is not None or not _searched():
        return None
    return (
        "This fit is one of many, by a search or a cross-validation, and no budget adds them up: each fold and each "
        "setting is a release of its own. Give budget=Budget(...), or search with: fedveil tune."
    )


def _searched() -> bool:
    frame, depth = sys._getframe(1), 0  # scikit-learn tells an estimator nothing about who fits it
    while frame is not None and depth < _DEEPEST:
        if (frame.f_globals.get("__name__"), frame.f_code.co_name) == _FITS_MANY:
            return True
        frame, depth = frame.f_back, depth + 1  # type: ignore[assignment]
    return False
