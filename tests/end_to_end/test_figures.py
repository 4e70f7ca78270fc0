"""Figures are files and numbers: all written, and the numbers are the theory's."""

import csv
import math
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest
from scipy.stats import norm

from fedveil.core.errors import BadValue
from fedveil.report.catalogue import FIGURES
from fedveil.report.curves import spread

pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install fedveil[figures]")

from fedveil.report.figures import write_figures

Curves = dict[tuple[str, str], list[tuple[float, float]]]
PROFILES = ("hidden-updates", "random-stopping", "places-convex", "places-strongly-convex")
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("figures") / "made" / "on the way"
    lines: list[str] = []
    written = write_figures(out, progress=lines.append)
    assert sorted(written) == sorted(out.iterdir())
    assert len(lines) == len(FIGURES)
    assert all(name in line for name, line in zip(FIGURES, lines, strict=True))
    return out


def curves_of(folder: Path, name: str) -> Curves:
    found: Curves = defaultdict(list)
    with (folder / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            assert row["figure"] == name
            found[row["panel"], row["curve"]].append((float(row["x"]), float(row["y"])))
    return found


def one(curves: Curves, panel: str, curve: str) -> list[tuple[float, float]]:
    return next(points for (p, c), points in curves.items() if panel in p and c == curve)


def epsilon_at(points: list[tuple[float, float]], delta: float = 1e-5) -> float:
    """By straight lines in log delta: the table is fine enough for two digits."""
    for (x0, y0), (x1, y1) in pairwise(points):
        if y0 > delta >= y1:
            return x0 + (x1 - x0) * math.log(y0 / delta) / math.log(y0 / y1)
    raise AssertionError("the curve does not cross")


def theta(epsilon: float, r: float) -> float:
    return float(norm.sf(epsilon / r - r / 2) - math.exp(epsilon) * norm.sf(epsilon / r + r / 2))


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_three_files(folder: Path, name: str) -> None:
    root = ElementTree.fromstring((folder / f"{name}.svg").read_text(encoding="utf-8"))
    assert root.tag.endswith("svg")
    texts = " ".join("".join(node.itertext()) for node in root.iter() if node.tag.endswith("text"))
    assert "privacy loss ε (nats)" in texts
    image = (folder / f"{name}.png").read_bytes()
    assert image.startswith(PNG)
    assert len(image) > 20_000
    assert len(curves_of(folder, name)) >= 3


@pytest.mark.parametrize("name", PROFILES)
def test_delta_falls_with_epsilon_down_to_the_floor(folder: Path, name: str) -> None:
    for points in curves_of(folder, name).values():
        x, y = zip(*points, strict=True)
        assert list(x) == sorted(set(x))
        assert list(y) == sorted(y, reverse=True)
        assert x[0] == 0
        assert y[-1] == 1e-12
        assert y[0] <= 1


@pytest.mark.parametrize("name", ["renyi-conversion", "moments-accountant"])
def test_epsilon_grows_with_what_is_spent(folder: Path, name: str) -> None:
    for points in curves_of(folder, name).values():
        y = [value for _, value in points]
        assert y == sorted(y)


@pytest.mark.parametrize(
    ("name", "paper"),
    [
        ("hidden-updates", "Theorem 2, Asoodeh and Calmon"),
        ("random-stopping", "contraction, Asoodeh et al."),
        ("places-convex", "Theorem 4, Asoodeh et al."),
        ("places-strongly-convex", "Theorem 4, Asoodeh et al."),
        ("hiding-gain", "papers' contraction"),
    ],
)
def test_ours_is_never_above_the_papers(folder: Path, name: str, paper: str) -> None:
    curves = curves_of(folder, name)
    compared = 0
    for (panel, curve), points in curves.items():
        if curve.startswith(("block", "transport", "position")):
            theirs = dict(one(curves, panel, paper))
            for x, y in points:
                assert y <= max(theirs.get(x, 1.0), 1e-12) * (1 + 1e-6)
                compared += x in theirs
    assert compared >= 20


@pytest.mark.parametrize(
    ("name", "panel", "curve", "expected"),
    [
        ("places-convex", "i = 39", "Theorem 4, Asoodeh et al.", 2.754),
        ("places-convex", "i = 39", "block", 1.361),
        ("places-convex", "i = 39", "transport", 1.323),
        ("places-strongly-convex", "i = 39", "Theorem 4, Asoodeh et al.", 4.788),
        ("places-strongly-convex", "i = 39", "block", 3.209),
        ("random-stopping", "σ = 5", "block", 1.0376),
        ("hidden-updates", "q = 0.1", "every model seen", 1.649),
        ("hidden-updates", "q = 0.1", "block, averaged", 1.3979),
        ("hidden-updates", "q = 0.2", "block, averaged", 1.0007),
    ],
)
def test_epsilon_at_the_usual_delta(folder: Path, name: str, panel: str, curve: str, expected: float) -> None:
    assert epsilon_at(one(curves_of(folder, name), panel, curve)) == pytest.approx(expected, abs=0.02)


def test_theorem_4_is_its_formula(folder: Path) -> None:
    shrink = math.sqrt(1 - 2 * 0.7 * 0.5 * 0.2 / 0.7)
    for place in (20, 30, 39):
        points = one(curves_of(folder, "places-strongly-convex"), f"i = {place}", "Theorem 4, Asoodeh et al.")
        for epsilon, delta in points[:10]:
            expected = theta(epsilon, 2.0) * theta(epsilon, shrink / 0.7) ** (40 - place)
            assert delta == pytest.approx(max(expected, 1e-12), rel=1e-6)


def test_theorem_2_with_a_rate_that_does_not_divide(folder: Path) -> None:
    """Batches of 30 out of 100: three rounds, each holding the user with probability .3."""
    points = one(curves_of(folder, "hidden-updates"), "q = 0.3", "Theorem 2, Asoodeh and Calmon")
    for epsilon, delta in points[:12]:
        first, later = theta(epsilon, 2 / (math.sqrt(30) * 1.5)), theta(epsilon, 2 * math.sqrt(30) / 0.75)
        assert delta == pytest.approx(0.3 * first * (1 + later + later**2), rel=1e-6)


def test_conversions_are_ordered_and_meet_the_known_values(folder: Path) -> None:
    curves = curves_of(folder, "renyi-conversion")
    for alpha in (2, 5, 10):
        names = ("lossless", "closed (Asoodeh et al.)", "Mironov")
        lossless, closed, old = (one(curves, f"α = {alpha}", name) for name in names)
        for (zeta, a), (_, b), (_, c) in zip(lossless, closed, old, strict=True):
            assert a <= b * (1 + 1e-9) <= c * (1 + 1e-8)
            assert c == pytest.approx(zeta + math.log(1e5) / (alpha - 1))


def test_exact_composition_is_below_what_moments_claim_and_alone_certified(folder: Path) -> None:
    curves = curves_of(folder, "moments-accountant")
    rho = 0.04**2 / (0.96 * 16)
    for rounds, epsilon in one(curves, "", "moments accountant"):
        assert epsilon == pytest.approx(rho * rounds + math.sqrt(4 * rho * rounds * math.log(1e5)))
    exact, lossless = one(curves, "", "exact composition"), one(curves, "", "lossless conversion")
    assert all(a[1] < b[1] for a, b in zip(exact, lossless, strict=True))
    with (folder / "moments-accountant.csv").open(encoding="utf-8", newline="") as file:
        assert {row["curve"] for row in csv.DictReader(file) if row["status"] == "certified"} == {"exact composition"}


def test_longer_runs_hide_more_and_secret_draws_are_shown_beside(folder: Path) -> None:
    curves = curves_of(folder, "hiding-gain")
    seen = [epsilon for _, epsilon in one(curves, "", "every model seen")]
    block = [epsilon for _, epsilon in one(curves, "", "block, averaged")]
    position = dict(one(curves, "", "position"))
    assert max(seen) - min(seen) < 1e-6
    assert 2.9 < seen[0] < 3.1
    assert block == sorted(block, reverse=True)
    assert all(p <= b for p, b in zip(position.values(), block, strict=True))
    assert position[50] < 1.05
    assert position[500] < position[50] / 2
    poisson, free, last = (
        dict(one(curves, "", f"{name} draws, {what}"))
        for name, what in (
            ("Poisson", "every model seen"),
            ("independent", "every model seen"),
            ("independent", "last model"),
        )
    )
    assert all(last[at] <= free[at] < position[at] for at in free)
    assert free[50] == pytest.approx(poisson[50], rel=0.02)
    assert 0.3 < free[50] < 0.36


def test_hiding_pays_beside_sampling_where_noise_is_small(folder: Path) -> None:
    curves = curves_of(folder, "hiding-sampled")
    seen, hidden = (dict(one(curves, "", name)) for name in ("every model seen", "last model alone"))
    ratios = [seen[at] / hidden[at] for at in sorted(seen)]
    assert ratios == sorted(ratios, reverse=True)
    assert seen[0.5] / hidden[0.5] == pytest.approx(3.0, rel=0.01)
    assert 1 <= ratios[-1] < 1.07
    attained = dict(one(curves, "", "some run attains"))
    assert all(attained[at] <= hidden[at] * 1.001 for at in hidden)
    assert attained[0.5] == pytest.approx(3.607, rel=0.01)


def test_only_some_in_the_usual_order_and_the_same_each_time(folder: Path, tmp_path: Path) -> None:
    written = write_figures(tmp_path, only=["moments-accountant", "renyi-conversion"])
    names = [f"{name}{end}" for name in ("renyi-conversion", "moments-accountant") for end in (".svg", ".png", ".csv")]
    assert [path.name for path in written] == names
    assert all(path.read_bytes() == (folder / path.name).read_bytes() for path in written)


def test_an_unknown_name_is_refused_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(BadValue, match=r"hiding-gains.*Did you mean hiding-gain\?"):
        write_figures(tmp_path / "new", only=["hiding-gains"])
    with pytest.raises(BadValue, match="list of names"):
        write_figures(tmp_path / "new", only="hiding-gain")
    assert not (tmp_path / "new").exists()


def test_a_file_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("", encoding="utf-8")
    with pytest.raises(BadValue, match="out must be a folder"):
        write_figures(tmp_path / "taken")


@pytest.mark.parametrize("wanted", [[0.0, 0.0, 0.0], [1.0, 0.99, 0.98], [0.5, 0.1, 0.52], [0.3]])
def test_labels_keep_their_order_and_never_overlap(wanted: list[float]) -> None:
    sizes = [0.1, 0.2, 0.1][: len(wanted)]
    centres = spread(wanted, sizes, 0.0, 1.0)
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    for low, high in pairwise(order):
        assert centres[high] - centres[low] >= (sizes[low] + sizes[high]) / 2 - 1e-8
    assert all(s / 2 - 1e-8 <= c <= 1 - s / 2 + 1e-8 for c, s in zip(centres, sizes, strict=True))
