"""HTML and SVG as values: whatever is not already markup is escaped, so no name can become code."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape, unescape


class Markup(str):
    """Text that is already HTML. Everything else is escaped when it enters a tag."""

    __slots__ = ()


Child = str | Markup | None

_UNBROKEN = re.compile(r"(?<=\d) (?=[%±])|(?<=±) (?=[\d<&])|(?<=\d) (?=[KMGT]?B\b)")

VOID = frozenset({"meta", "br", "input", "line", "circle", "rect", "path", "polyline", "polygon", "col"})


def tag(name: str, *children: Child, **attributes: object) -> Markup:
    """An element. `class_` and `data_round` spell `class` and `data-round`; None and False are left out.

    >>> tag("p", "a < b", class_="note")
    '<p class="note">a &lt; b</p>'
    """
    words = [name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        word = key.rstrip("_").replace("_", "-")
        words.append(word if value is True else f'{word}="{escape(_plain(value))}"')
    if name in VOID and not children:
        return Markup(
            f"<{' '.join(words)}/>" if name not in ("meta", "br", "input", "col") else f"<{' '.join(words)}>"
        )
    return Markup(f"<{' '.join(words)}>{together(children)}</{name}>")


def together(children: Iterable[Child]) -> Markup:
    """Children one after the other; plain text is escaped, and no line breaks within «95 %» or «± 0.01»."""
    return Markup(
        "".join(
            c if isinstance(c, Markup) else _UNBROKEN.sub("\u00a0", escape(c))
            for c in children
            if c is not None
        )
    )


def table(
    head: Iterable[Child],
    rows: Iterable[Iterable[Child]],
    *,
    text: int = 1,
    caption: str | None = None,
    kind: str | None = None,
) -> Markup:
    """A table whose first `text` columns are words and whose others are figures, aligned at the right.

    On narrow screens each row becomes a block in which every cell states its heading.
    """
    head = list(head)

    def line(cells: Iterable[Child], name: str) -> Markup:
        made = []
        for index, cell in enumerate(cells):
            heads = name == "th" or index == 0
            role = ("text" if index else None) if index < text else "figure"
            made.append(
                tag(
                    "th" if heads else "td",
                    cell,
                    class_=role,
                    scope=("col" if name == "th" else "row") if heads else None,
                    data_label=None if heads or index >= len(head) else _label(head[index]),
                )
            )
        return tag("tr", *made)

    return tag(
        "div",
        tag(
            "table",
            tag("caption", caption) if caption else None,
            tag("thead", line(head, "th")),
            tag("tbody", *(line(row, "td") for row in rows)),
            class_=f"stacked {kind or ''}".strip(),
        ),
        class_="scroll",
        tabindex="0",
    )


def breakable(name: str) -> Markup:
    """A name of a column, which may be broken after its underscores and the like."""
    return Markup(re.sub(r"(?<=[_/=.:])(?=\w)", "<wbr>", escape(name)))


def _label(head: Child) -> str | None:
    """The words of a heading, without the axis that it may hold."""
    if head is None:
        return None
    words = re.sub(r"<svg.*?</svg>|<[^>]+>", "", head) if isinstance(head, Markup) else escape(head)
    return unescape(words).strip() or None


def section(title: str, *children: Child, lead: Child = None, id_: str | None = None) -> Markup:
    return tag(
        "section", tag("h2", title), tag("p", lead, class_="lead") if lead else None, *children, id_=id_
    )


def folded(title: str, *paragraphs: Child) -> Markup:
    """Details that a reader may open; in print they are shown."""
    return tag("details", tag("summary", title), *(tag("p", p) for p in paragraphs))


def _plain(value: object) -> str:
    return f"{value:.3f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
