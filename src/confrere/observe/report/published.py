"""What the source of a study reports beside what was measured here."""

from __future__ import annotations

from collections.abc import Mapping

from confrere.core.events import Json
from confrere.observe.published import judged, sides
from confrere.observe.report.markup import Markup, section, table, tag


def published_section(document: Mapping[str, Json]) -> Markup:
    """By arm and measure, then claim by claim."""
    rows = [(s.arm, s.measure, s.reported, s.measured) for s in sides(document)]
    claims = [(c.claim, c.reported, c.measured, c.verdict) for c in judged(document)]
    return section(
        "Reported and measured",
        tag("div", table(["Arm", "Measure", "Reported", "Measured here"], rows, text=2), class_="scroll"),
        tag("div", table(["The source says", "There", "Here", "In a word"], claims, text=1), class_="scroll")
        if claims
        else None,
        tag("ul", *(tag("li", "Not as in the source: ", d) for d in document["differs"]), class_="plain")
        if document["differs"]
        else None,
        lead=f"{document['source']}, {document['shows']}.",
    )
