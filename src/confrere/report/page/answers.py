"""A question with its answer, and how the answers are laid out on the first screen.

Is it better for us? By how much? What left? How much privacy is left? Who helped? Is our data odd? What should we do next?
Each answer comes from what was measured. Where that cannot tell, it says why. Commands are listed at the end of the page, for
the person who runs the study.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from confrere.report.page.markup import Child, Markup, folded, section, tag


@dataclass(frozen=True)
class Answer:
    """A question, its answer in a few words, and the figures and reasons behind it."""

    question: str
    short: str
    rest: tuple[Child, ...] = ()
    more: tuple[Child, ...] = ()
    """Paragraphs that a reader may open; in print they are shown."""
    commands: tuple[tuple[str, str], ...] = ()
    """What would tell more or come next, and the command: for the person who runs the study, not for this answer."""


def laid_out(answers: Iterable[Answer]) -> Markup:
    """Questions and answers side by side, as many columns as fit."""
    return tag("dl", *map(_row, answers), class_="questions")


def _row(answer: Answer) -> Markup:
    return tag(
        "div",
        tag("dt", answer.question),
        tag(
            "dd",
            tag("p", answer.short, class_="big"),
            tag("p", *answer.rest) if answer.rest else None,
            folded("More", *more) if (more := [part for part in answer.more if part]) else None,
        ),
    )


def for_the_researcher(answers: Iterable[Answer]) -> Markup | None:
    """The commands that the answers lead to."""
    found = dict.fromkeys(pair for answer in answers for pair in answer.commands)
    if not found:
        return None
    rows = (tag("li", f"{what}: ", tag("code", command)) for what, command in found)
    return section("For the person who runs the study", tag("ul", *rows, class_="plain"), id_="commands")


def sentences(*parts: str | None) -> str:
    """The parts that there are, as one paragraph."""
    return " ".join(part for part in parts if part)
