"""The report's small parts: escaping, rounding to the cautious side, what epsilon means, and where things are drawn."""

import math
import re
from decimal import Decimal

import numpy as np
import pytest
from scipy.stats import norm

from fedveil.report import words
from fedveil.report.charts import Axis, Line, Row, axis, lines_chart, rows_chart, tick_text
from fedveil.report.markup import Markup, concat, tag

EPSILONS = [0.0, 1e-9, 0.01, 0.1, 0.5, 1.0, 2.0, 5.0, 20.0, 600.0, 1e5]
VALUES = np.concatenate([np.random.default_rng(7).uniform(0, 1, 200), np.logspace(-12, 8, 300)])


class TestMarkup:
    def test_text_and_attributes_are_escaped(self) -> None:
        assert tag("p", "<&\"'", title='"><script>') == (
            '<p title="&quot;&gt;&lt;script&gt;">&lt;&amp;&quot;&#x27;</p>'
        )

    def test_adding_a_text_to_markup_is_a_text_again(self) -> None:
        assert concat([tag("b", "x") + "<i>"]) == "&lt;b&gt;x&lt;/b&gt;&lt;i&gt;"

    def test_only_markup_passes(self) -> None:
        assert concat([Markup("<br>"), "<br>", 1.5, None, ["a", ("b",)]]) == "<br>&lt;br&gt;1.5ab"


class TestRounding:
    @pytest.mark.parametrize("digits", [2, 4, 12])
    def test_up_is_never_below_and_down_never_above(self, digits: int) -> None:
        for value in map(float, VALUES):
            assert Decimal(words.up(value, digits)) >= Decimal(repr(value))
            assert Decimal(words.down(value, digits)) <= Decimal(repr(value))
            assert float(words.up(value, digits)) <= value * (1 + 10.0 ** (1 - digits)) + 1e-300

    def test_shares_round_to_the_cautious_side(self) -> None:
        for share in map(float, VALUES[:200]):
            assert float(words.percent(share)[:-1]) >= 100 * share - 1e-12
            assert float(words.percent(share, most=False)[:-1]) <= 100 * share + 1e-12

    def test_a_chance_is_never_shown_too_small(self) -> None:
        for delta in map(float, np.logspace(-12, -0.1, 100)):
            assert 1 / int(words.one_in(delta).removeprefix("1 in ").replace(",", "")) >= delta * (1 - 1e-12)


class TestMeaning:
    @pytest.mark.parametrize("mu", [0.05, 0.3, 1.0, 2.0, 4.0])
    def test_no_attack_on_a_gaussian_beats_the_stated_rates(self, mu: float) -> None:
        """The best attacks on a Gaussian release stay below what its (epsilon, delta) are said to mean."""
        for epsilon in (0.0, 0.1, 0.5, 1.0, 3.0):
            delta = norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
            assert norm.cdf(mu / 2) <= words.right_guesses(epsilon, delta) + 1e-12
            for alarms in (1e-3, 0.01, 0.2):
                assert norm.cdf(norm.ppf(alarms) + mu) <= words.detection_rate(epsilon, delta, alarms) + 1e-12

    @pytest.mark.parametrize("epsilon", EPSILONS)
    def test_randomised_response_reaches_them(self, epsilon: float) -> None:
        """The worst (epsilon, delta): certainty with probability delta, otherwise odds of exactly e^epsilon."""
        delta = 1e-3
        truth = (1 - delta) / (1 + math.exp(-epsilon))
        assert words.right_guesses(epsilon, delta) == pytest.approx(delta + truth, rel=1e-12)

    def test_without_a_bound_nothing_is_kept(self) -> None:
        assert words.right_guesses(None, 1e-5) == words.detection_rate(None, 1e-5, 0.01) == 1.0
        assert words.strength(None, 1e-5) == words.strength(50.0, 1e-5) == "is not kept from telling"

    def test_the_words_weaken_as_epsilon_grows(self) -> None:
        rates = [words.right_guesses(e, 1e-6) for e in EPSILONS]
        assert rates == sorted(rates)
        assert rates[0] == pytest.approx(0.5, abs=1e-6)

    @pytest.mark.parametrize(
        ("rate", "said"),
        [(0.54, "cannot"), (0.59, "hardly"), (0.74, "a little better than by chance"), (0.89, "not reliably")],
    )
    def test_the_words_say_no_less_than_the_rate(self, rate: float, said: str) -> None:
        assert said in words.strength(math.log(rate / (1 - rate)), 0.0)
        assert said not in words.strength(math.log(rate / (1 - rate)) + 0.2, 0.0)

    @pytest.mark.parametrize(("share", "count"), [(0.0, 5), (1.0, 5), (0.5, 1), (0.842, 500)])
    def test_the_interval_solves_its_equation(self, share: float, count: int) -> None:
        for end in words.wilson(share, count):
            assert (share - end) ** 2 == pytest.approx(1.959963984540054**2 * end * (1 - end) / count, abs=1e-12)


class TestCharts:
    def test_a_missing_bound_is_drawn_as_missing(self) -> None:
        drawn = rows_chart("x", "t", "d", [Row("a", None, "no guarantee"), Row("b", 2.0, "2")], scale=axis([2.0]))
        assert 'class="bar none"' in drawn
        assert "no guarantee" in drawn

    def test_bars_start_at_zero_and_dots_stand_on_a_log_axis(self) -> None:
        linear = rows_chart("x", "t", "d", [Row("a", 1.0, "1"), Row("b", 2.0, "2")], scale=axis([1.0, 2.0]))
        assert 'width="50.00%"' in linear
        assert 'width="100.00%"' in linear
        assert "<circle" in rows_chart("x", "t", "d", [Row("a", 1.0, "1")], scale=axis([1.0, 900.0]))

    @pytest.mark.parametrize(
        "values", [[0.0], [0.0, 0.0], [3.0], [-2.0, 1.0], [1e-9, 1e9], [0.3, 0.7], [1e-300, 2e-300]]
    )
    def test_every_value_lies_on_its_axis(self, values: list[float]) -> None:
        found = axis(values)
        assert all(-1e-6 <= found.share(v) <= 100 + 1e-6 for v in values)
        assert 2 <= len(found.ticks()) <= 8
        assert all(-1e-6 <= found.share(t) <= 100 + 1e-6 for t in found.ticks())

    def test_labels_are_escaped(self) -> None:
        drawn = lines_chart(
            "x",
            "<t>",
            "<d>",
            [Line("<n>", [(1.0, 1.0)])],
            x=Axis(1, 2),
            y=Axis(0, 2),
            names=("<a>", "<b>"),
            mark=(1, "<m>"),
        )
        assert not any(f"<{letter}>" in drawn for letter in "tdnabm")

    def test_what_is_counted_has_no_halves(self) -> None:
        assert Axis(1.0, 3.0).ticks() == [1.0, 1.5, 2.0, 2.5, 3.0]
        assert Axis(1.0, 3.0, whole=True).ticks() == [1.0, 2.0, 3.0]

    def test_a_mark_strikes_through_no_label(self) -> None:
        rows = [Row("a", 1.0, "1"), Row("b", 2.0, "2")]
        drawn = rows_chart("x", "t", "d", rows, scale=axis([1.0, 2.0]), mark=(1.5, "asked"))
        spans = [(float(a), float(b)) for a, b in re.findall(r'y1="(\d+)" y2="(\d+)" class="mark"', drawn)]
        labels = [float(y) for y in re.findall(r'y="(\d+)" class="label"', drawn)]
        assert len(spans) == 3
        assert len(labels) == 2
        assert not any(low < y + 3 and y - 12 < high for low, high in spans[1:] for y in labels)

    def test_the_name_of_a_level_lies_above_the_picture(self) -> None:
        lines = [Line("n", [(1.0, 1.0), (2.0, 1.0)])]
        drawn = lines_chart("x", "t", "d", lines, x=Axis(1, 2), y=Axis(0, 2), names=("a", "b"), mark=(1, "level"))
        assert re.search(r'y="-10"[^>]*>dashed: level<', drawn)

    def test_ticks_read_well(self) -> None:
        assert [tick_text(v, True) for v in (1e-9, 0.01, 1.0, 1e6)] == ["10⁻⁹", "0.01", "1", "10⁶"]
