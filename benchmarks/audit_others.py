"""Real trainings by Opacus held to their claims: four faults are caught, the right training is not accused.

It needs an environment with opacus: ``python -m venv opacus && opacus/bin/pip install opacus``, and its interpreter in
the variable OPACUS_PYTHON.
"""

import os
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import Row
from fedveil.audit.claim import Claim
from fedveil.audit.training_log import check_log, read_log
from fedveil.privacy.guarantee import Neighbours

DELTA = 1e-5
CASES: dict[str, tuple[str, Neighbours, list[str]]] = {  # a fault, the neighbours that are claimed, who must object
    "right": ("none", "zero-out", []),
    "a shuffled loader accounted as Poisson": ("shuffled", "zero-out", ["draws of the sampler"]),
    "an average by the realised batch": ("realised", "zero-out", ["averaging"]),
    "a clip that a NaN switches off": ("nan", "zero-out", ["clipping"]),
    "replace-one with the reach of add-remove": ("none", "replace-one", ["accounting"]),
}


def objections(fault: str, neighbours: Neighbours) -> list[str]:
    """Return the checks that a training by Opacus with this fault fails."""
    with TemporaryDirectory() as folder:
        log = Path(folder) / "log.jsonl"
        words = [
            os.environ["OPACUS_PYTHON"],
            "-P",
            str(Path(__file__).with_name("_opacus_trainer.py")),
            str(log),
            fault,
        ]
        claimed = float(subprocess.run(words, check=True, capture_output=True, text=True).stdout.split()[-1])
        statement, rounds = read_log(log.read_text(), neighbours)
    findings = check_log(statement, rounds, Claim(((claimed, DELTA),)), delta=DELTA)
    return [finding.attack for finding in findings if finding.verdict == "broken"]


def run() -> list[Row]:
    """One row a case: 0 where exactly the right checks object."""
    if "OPACUS_PYTHON" not in os.environ:
        return []
    return [
        Row(name=f"audit of Opacus: {name}", bar=0, measured=float(objections(fault, neighbours) != expected))
        for name, (fault, neighbours, expected) in CASES.items()
    ]
