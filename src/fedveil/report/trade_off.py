"""The certified trade-off function of an answer as a table or a picture: what any test of the release can achieve."""

import csv
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from fedveil.core.errors import NotAvailable
from fedveil.privacy.guarantee import Answer
from fedveil.report.curves import Axis, Chart, Curve, Panel


def write_trade_off(answer: Answer, path: Path) -> Path:
    """Write the least misses (type II error) at many rates of false alarms (type I error); .svg needs matplotlib."""
    if path.suffix == ".svg" and find_spec("matplotlib") is None:
        raise NotAvailable("A picture needs matplotlib: pip install 'fedveil[figures]'; or write a .csv.")
    alarms = np.unique(np.concatenate([[0.0], np.geomspace(1e-6, 0.01, 41), np.linspace(0.01, 1.0, 100)])).tolist()
    misses = [answer.trade_off(alpha) for alpha in alarms]
    if path.suffix == ".csv":
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(("false_alarms", "misses"))
            writer.writerows(zip(alarms, misses, strict=True))
        return path
    from fedveil.report.figures import save_chart  # imported here because plotting is slow to import

    blind = Curve(name="no release", role="baseline", status="certified", x=(0.0, 1.0), y=(1.0, 0.0))
    proved = Curve(name="certified", role="best", status="certified", x=tuple(alarms), y=tuple(misses))
    chart = Chart(
        name="trade-off",
        title="What a test of the release can achieve",
        caption="No test with this rate of false alarms misses less often than the certified curve says.",
        panels=(Panel(title="", curves=(blind, proved)),),
        x=Axis(label="false alarms (type I error)"),
        y=Axis(label="misses (type II error)"),
    )
    save_chart(chart, [path])
    return path
