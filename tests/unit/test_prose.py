"""Our own Markdown as a page: every form that the texts use, and names that look like markup."""

from fedveil.report.markup import prose_page

TEXT = """# A `title` <b>

Text with `a < b`
and a second line, and <script>.

## Steps

1. one `code`
   goes on
2. two

- a
- b

| machine | port |
|---|---|
| x | `1` |

## Right above
its text
"""


def test_every_form_is_drawn_and_escaped() -> None:
    page = prose_page(TEXT, "Kicker")
    assert "<script>" not in page
    assert "<b>" not in page
    assert "<code>a &lt; b</code>" in page
    assert "<ol><li>one <code>code</code>\ngoes on</li><li>two</li></ol>" in page
    assert "<ul><li>a</li><li>b</li></ul>" in page
    assert page.count("<td") == 1


def test_an_odd_backquote_marks_nothing() -> None:
    assert "<p>a ` b</p>" in prose_page("# t\n\na ` b", "k")
