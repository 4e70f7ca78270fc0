"""Compare several algorithms, or several degrees of trust, on one study and one target.

Every model that is trained here saw the private data, so each is a release and all of them are paid for. Comparisons
are for public data, or for a rehearsal with a seed on data that stay where they are.

>>> from fedveil.jobs.compare import compare
>>> comparison = compare("study.toml", runs=3)  # doctest: +SKIP
>>> comparison.best.label  # doctest: +SKIP
'hidden'
"""

from fedveil.jobs.compare.candidates import TRUST
from fedveil.jobs.compare.result import Comparison, Entry, View
from fedveil.jobs.compare.work import compare

__all__ = ["TRUST", "Comparison", "Entry", "View", "compare"]
