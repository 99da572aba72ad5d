"""Show the doctests of docstrings as code in the documentation site (a Griffe extension, see mkdocs.yml)."""

from __future__ import annotations

import re
from typing import Any

import griffe

DOCTEST = re.compile(r"(?:^[ \t]*>>>.*\n?(?:^(?![ \t]*$).*\n?)*)+", re.MULTILINE)


class Doctests(griffe.Extension):
    """Put each block that begins with >>> into a fence."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None and ">>>" in obj.docstring.value:
            obj.docstring.value = DOCTEST.sub(
                lambda m: f"```pycon\n{m[0].rstrip()}\n```\n", obj.docstring.value
            )
