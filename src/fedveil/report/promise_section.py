"""The first section of the page: the promise in plain words, what it does not say, and what is released."""

import math

from fedveil.report import words
from fedveil.report.charts import hundred, legend
from fedveil.report.markup import Markup, badge, code, concat, figure, note, paragraph, section, table, tag
from fedveil.report.view import Observer, View

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
    if view.plan.origin.told_by_places:
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
    warned = [note(text, kind="warning") for text in view.plan.warnings]
    parts = [_headline(view, seen), _key_numbers(view, seen), *warned]
    if seen.epsilon is not None:
        parts += [_dots(view, seen, seen.epsilon), _meaning(view, seen, seen.epsilon), _limits(view)]
    return section("promise", "The promise in plain words", *parts, _leaves(view))


def _headline(view: View, seen: Observer) -> Markup:
    secret = words.secret(view.plan.target.unit, view.plan.target.neighbours)
    if seen.epsilon is None:
        return tag("p", f"Nothing is promised: whoever sees {seen.sees} may be able to tell {secret}.", class_="lead")
    can = words.strength(seen.epsilon, seen.delta)
    return tag("p", f"Whoever sees {seen.sees} ", tag("strong", can), f" {secret}.", class_="lead")


def _key_numbers(view: View, seen: Observer) -> Markup:
    target, unit = view.plan.target, view.plan.target.unit
    met = seen.epsilon is not None and seen.epsilon <= target.epsilon
    asked = [f"at most {words.nearest(target.epsilon, 12)} ", badge("met", "good") if met else badge("not met", "bad")]
    rows: list[tuple[str, object, str]] = [
        ("Epsilon (ε)", words.epsilon_text(seen.epsilon), "the privacy loss: smaller is better, 0 is perfect"),
        ("Delta (δ)", words.nearest(seen.delta, 12), f"how often it may fail: {words.one_in(seen.delta)}"),
        ("Protected", f"one {unit}", "a client is one data holder" if unit == "client" else "one row of the data"),
        ("Asked for", asked, "the epsilon that the plan set out to meet"),
    ]
    tiles = [tag("div", tag("dt", name), tag("dd", value), tag("dd", why, class_="why")) for name, value, why in rows]
    return tag("dl", tiles, class_="tiles")


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
    return concat([tag("h3", "What that means"), listed, details])


def _limits(view: View) -> Markup:
    items = [
        words.group(view.plan.target.unit),
        "What the records have in common is learned: that is the purpose. If the model shows that a habit makes ill, "
        "this concerns everybody with the habit, whether or not their record was used.",
        "Other releases about the same records (another run, a chart, a statistic) add to the loss. The ledger of the "
        "data set keeps count of the runs that are entered in it, and of nothing else.",
        "It stands on the assumptions listed below; some of them no program can enforce.",
    ]
    return concat([tag("h3", "What it does not say"), tag("ul", [tag("li", item) for item in items])])


def _leaves(view: View) -> Markup:
    def mark(covered: bool) -> Markup:
        if covered and view.private:
            return badge("covered", "good")
        return badge("not covered", "bad")

    rows = [(row.what, code(row.file), mark(row.covered), row.note or "–") for row in view.released]
    caption = "Everything that leaves, and whether the promise is about it"
    return concat([tag("h3", "What is released"), table(caption, ("What", "File", "Promise", "Remark"), rows)])
