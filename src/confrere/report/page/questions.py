"""The seven questions of the first screen, and how their answers are laid out.

Is it better for us? By how much? What left? How much privacy is left? Who helped? Is our data odd? What should we do next?
Each answer comes from what was measured. Where that cannot tell, it says why, and which command would.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from confrere.report.page.markup import Child, Markup, tag, together


@dataclass(frozen=True)
class Answer:
    """A question, its answer in a few words, and the figures and reasons behind it."""

    question: str
    short: str
    rest: tuple[Child, ...] = ()


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
            tag("p", *map(_unbroken, answer.rest)) if answer.rest else None,
        ),
    )


def _unbroken(part: Child) -> Child:
    """The options of a command in a sentence, such as «--site», are not broken over lines."""
    if part is None or isinstance(part, Markup):
        return part
    pieces = re.split(r"(?<![\w-])(--[a-z][a-z-]*)", part)
    return together(tag("span", p, class_="whole") if p.startswith("--") else p for p in pieces)


def sentences(*parts: str | None) -> str:
    """The parts that there are, as one paragraph."""
    return " ".join(part for part in parts if part)
