"""The top of the page: the promise in plain words, what to know about it, and what is released."""

import math

from fedveil.privacy.target import Target
from fedveil.report import words
from fedveil.report.charts import hundred, legend
from fedveil.report.markup import Markup, badge, code, concat, figure, folded, note, paragraph, section, table, tag
from fedveil.report.view import Observer, ReleasedItem, View

_RELEASED = ("What", "File", "Promise", "Remark")
_POWER = Markup("e<sup>ε</sup>")
_EXACT = concat(
    [
        "With (ε, δ), a test with false-positive rate a has a true-positive rate of at most the smaller of ",
        [
            _POWER,
            "·a + δ and 1 − (1 − δ − a)/",
            _POWER,
            ". So a guess from even odds is right with probability at most (",
        ],
        [
            _POWER,
            " + δ)/(",
            _POWER,
            " + 1). The release is within δ/(1 + ",
            _POWER,
            ") in total variation of one whose odds ",
        ],
        ["never change by more than the factor ", _POWER, ": this is what “may fail with probability δ” stands for. "],
        "A group of k has kε, and δ times (e",
        tag("sup", "kε"),
        " − 1)/(",
        _POWER,
        " − 1). Epsilon and all percentages here are ",
        "rounded to the cautious side.",
    ]
)


def alarm(view: View) -> Markup | None:
    """Return the warning on top of the page if nothing is promised; otherwise None."""
    if view.private:
        return None
    advice = "Treat the model as if it had been trained without protection: do not give it to anyone who may not see "
    return section("not-private", "NOT PRIVATE", paragraph(f"{_why(view)} {advice}the records."))


def _why(view: View) -> str:
    if view.plan.origin.revealed_by_places:
        return (
            "The records were split among the clients by their labels, and nobody declared them public. Changing one "
            "label moves many other records from client to client, and no noise covers that."
        )
    return (
        "The noise of this run came from a seed that its study file names, so that the run can be repeated. Whoever "
        "knows the seed can take the noise off again."
    )


def plain_words(view: View) -> Markup:
    """Return the certificate in plain words."""
    seen = view.target
    parts = [_headline(view, seen), _key_numbers(view, seen)]
    if seen.epsilon is not None:
        parts.append(_dots(view, seen, seen.epsilon))
    return section("promise", "The promise in plain words", *parts)


def to_know(view: View) -> Markup:
    """Return what a reader must know before relying on the promise, and what is released."""
    seen = view.target
    warned = [note(text, kind="warning") for text in view.plan.warnings]
    return section("know", "What to know", *warned, None if seen.epsilon is None else _limits(view))


def released(view: View) -> Markup:
    """Return everything that is released, and whether the promise covers it, to unfold."""
    return folded("released", "What is released", _leaves(view))


def meaning(view: View) -> Markup | None:
    """Return what the promise means in other words, to unfold; None where nothing is promised."""
    seen = view.target
    if seen.epsilon is None:
        return None
    return folded("meaning", "What the promise means", _meaning(view, seen, seen.epsilon))


def _headline(view: View, seen: Observer) -> Markup:
    secret = words.secret(view.plan.target.unit, view.plan.target.neighbours)
    if seen.epsilon is None:
        return tag("p", f"Nothing is promised: whoever sees {seen.sees} may be able to tell {secret}.", class_="lead")
    can = words.strength(seen.epsilon, seen.delta)
    return tag("p", f"Whoever sees {seen.sees} ", tag("strong", can), f" {secret}.", class_="lead")


def _key_numbers(view: View, seen: Observer) -> Markup:
    target, unit = view.plan.target, view.plan.target.unit
    met = seen.epsilon is not None and seen.epsilon <= target.epsilon
    asked = f"the privacy loss, smaller is better; asked for: at most {words.nearest(target.epsilon, 12)} "
    state = badge("met", "good") if met else badge("not met", "bad")
    rows: list[tuple[str, object, object]] = [
        ("Epsilon (ε)", words.epsilon_text(seen.epsilon), [asked, state]),
        ("Delta (δ)", words.nearest(seen.delta, 12), f"how often it may fail: {words.one_in(seen.delta)}"),
        ("Protected", f"one {unit}", _protected(target)),
        _all_runs(view, seen),
    ]
    tiles = [tag("div", tag("dt", name), tag("dd", value), tag("dd", why, class_="why")) for name, value, why in rows]
    return tag("dl", tiles, class_="tiles")


def _protected(target: Target) -> str:
    if target.unit == "person":
        return f"with up to {target.largest_person} rows of the data"
    return "a client is one data holder" if target.unit == "client" else "one row of the data"


def _all_runs(view: View, seen: Observer) -> tuple[str, object, str]:
    """The total of the data set beside the run's own epsilon."""
    runs, totals = view.data_set
    total = next((epsilon for adversary, epsilon, _ in totals if adversary == seen.adversary), seen.epsilon)
    together = "both runs" if runs == 2 else f"all {runs:,} runs"
    why = "the only run on these data so far" if runs == 1 else f"{together} on these data together"
    return "Data set so far", words.epsilon_text(total), why


def _dots(view: View, seen: Observer, epsilon: float) -> Markup:
    rate = words.right_guesses(epsilon, seen.delta)
    right = math.ceil(100 * rate - 1e-12)
    title = f"Of 100 guesses at most {right} are right"
    text = (
        f"50 dots stand for guesses that are right by chance, {right - 50} for those that may be right because of what "
    )
    text += f"was released, {100 - right} for wrong ones."
    entries = [
        ("chance", "right by chance alone"),
        ("best", "right because of the release, at most"),
        ("wrong", "wrong"),
    ]
    caption = (
        f"Someone guesses {words.secret(view.plan.target.unit, view.plan.target.neighbours)}, where both are equally "
    )
    caption += (
        f"likely. However clever the method, at most {words.percent(rate)} of such guesses are right; a coin gets 50%."
    )
    return figure(hundred("guesses", title, text, 50, right - 50), caption, legend=legend(entries, shape="dot"))


def _meaning(view: View, seen: Observer, epsilon: float) -> Markup:
    delta, unit = words.nearest(seen.delta, 12), view.plan.target.unit
    power = words.percent(words.detection_rate(epsilon, seen.delta, 0.01))
    top, floor = words.percent(words.belief(epsilon)), words.percent(1 - words.belief(epsilon), most=False)
    odds = words.up(math.exp(epsilon)) if epsilon < 20 else f"e to the power of {words.up(epsilon)}"
    items = {
        "Detection.": f"A test that raises a false alarm for 1 in 100 {unit}s that were not used finds at most {power} "
        "of those that were.",
        "Belief.": f"Whoever thought the chances even beforehand will be between {floor} and {top} sure: what they see "
        f"multiplies the odds by {odds} at most. Delta, {delta}, is how likely this is to fail (exactly: see below).",
        "No expiry.": "It holds whatever else the observer knows, however long and however fast they compute, and "
        "whatever is done with the model later.",
    }
    listed = tag("ul", [tag("li", tag("strong", name), " ", text) for name, text in items.items()])
    details = tag("details", tag("summary", "The exact statements"), paragraph(_EXACT))
    return concat([listed, details])


def _limits(view: View) -> Markup:
    items = [
        words.group(view.plan.target.unit),
        "The model learns what the records have in common: that is its purpose. If it shows that a habit makes ill, "
        "this concerns everybody with the habit, whether or not their record was used.",
        "Every other release about the same records (another run, a chart, a statistic) adds to the loss. The ledger "
        "counts the runs that are entered in it, and nothing else.",
        "The promise rests on assumptions, listed below. A person answers for those that no program can enforce.",
        *(f"Not covered: {row.what} ({row.file}){f': {row.note}' if row.note else ''}." for row in _uncovered(view)),
    ]
    return tag("ul", [tag("li", item) for item in items])


def _uncovered(view: View) -> list[ReleasedItem]:
    return [row for row in view.released if not (row.covered and view.private)]


def _leaves(view: View) -> Markup:
    def mark(covered: bool) -> Markup:
        if covered and view.private:
            return badge("covered", "good")
        return badge("not covered", "bad")

    rows = [(row.what, code(row.file), mark(row.covered), row.note or "–") for row in view.released]
    return table("Everything that is released, and whether the promise covers it", _RELEASED, rows)
