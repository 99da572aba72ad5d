"""Text from peers and files, made safe for terminals and logs.

Escape sequences can rewrite what a terminal shows, and bidirectional overrides reorder it, so neither is ever written as it
came. There are three sinks: `report.console.Console` (all output for people), `json_text` (journal, log, `--json`), and
`printable` for text of a peer that becomes part of a one-line message.
"""

from __future__ import annotations

import json
import re
from typing import Any

UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters, except tab and newline
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # bidirectional marks, overrides and isolates
    "\u2028\u2029\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"  # line separators and invisible characters
)
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def harmless(text: str) -> str:
    """The same text with a replacement character for each that could control a terminal.

    >>> harmless("Nord\\x1b[2J")
    'Nord�[2J'
    """
    return UNSAFE.sub(REPLACEMENT, text)


def printable(text: str, most: int = 300) -> str:
    """What another site wrote, as part of a one-line message."""
    return " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * most]).split())[:most]


def json_text(value: Any, **options: Any) -> str:
    """JSON that is readable where it is safe; what could control a terminal is written as an escape.

    >>> print(json_text("é\\x9b2J"))
    "é\\u009b2J"
    """
    text = json.dumps(value, ensure_ascii=False, **options)
    return UNSAFE.sub(lambda found: json.dumps(found.group())[1:-1], text) if UNSAFE.search(text) else text
