"""What the report says about how good a model is: beside the best constant answer, by class, and how sure."""

import copy
import re
from pathlib import Path
from typing import Any

import pytest
from report_folder import CLASSIFIED, MEASURED, some_plan, write_folder

from fedveil.core.errors import BadValue
from fedveil.report.page import write_report


def page(folder: Path, metrics: dict[str, Any]) -> str:
    write_folder(folder, some_plan(), metrics)
    return write_report(folder).read_text(encoding="utf-8")


def plain(text: str) -> str:
    return " ".join(re.sub(r"<[^>]*>", " ", text).split())


def test_the_best_constant_answer_stands_beside_the_model(tmp_path: Path) -> None:
    poor = copy.deepcopy(MEASURED)
    poor["test"] |= {"auc": 0.53}
    poor["test"]["intervals"]["auc"] = [0.46, 0.6]
    text = plain(page(tmp_path, poor))
    assert "does no better" not in plain(page(tmp_path / "ranks", MEASURED))  # its AUC is above one half for sure
    assert "Always “well &lt;i&gt;” is right on 86.0%." in text
    assert "This model does no better than always answering &#x27;well &lt;i&gt;&#x27;: it is right on 84.2%" in text
    assert "It never finds &#x27;ill &amp; old&#x27;." in text


def test_ranking_probabilities_and_classes_have_their_numbers_and_intervals(tmp_path: Path) -> None:
    text = plain(page(tmp_path, MEASURED))
    for told in ("0.71 (0.64 to 0.78)", "84.2% (80.7 to 87.1)", "97.9% (96.1 to 98.9)", "0.0% (0.0 to 5.2)"):
        assert told in text, told
    assert "The second class is taken where its probability is above 0.5." in text
    assert "off by 4.3 points" in text
    assert "taken for ill &amp; old" in text


def test_names_of_classes_cannot_break_out(tmp_path: Path) -> None:
    assert "<i>" not in page(tmp_path, MEASURED)


def test_a_better_model_is_not_warned_of(tmp_path: Path) -> None:
    better = copy.deepcopy(MEASURED)
    better["test"]["accuracy"] = 0.9
    assert "no better than" not in page(tmp_path, better)


def test_metrics_of_earlier_versions_are_shown_as_before(tmp_path: Path) -> None:
    text = plain(page(tmp_path, CLASSIFIED))
    assert "The released model is right on 84.2% of them" in text
    assert "Class by class" not in text
    assert "always" not in text.lower().split("how well the model does")[1].split("how it was trained")[0]


@pytest.mark.parametrize(
    ("key", "value"),
    [("confusion", [[1]]), ("recall", []), ("baseline", {"kind": "majority"}), ("intervals", {"auc": [0.1]})],
)
def test_damaged_metrics_are_refused_in_one_sentence(tmp_path: Path, key: str, value: Any) -> None:
    damaged = copy.deepcopy(MEASURED)
    damaged["test"][key] = value
    with pytest.raises(BadValue):
        page(tmp_path, damaged)
