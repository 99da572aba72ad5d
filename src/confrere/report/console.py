"""The console that all output for people goes through."""

from __future__ import annotations

from collections.abc import Iterable

from rich import console as rich
from rich.segment import Segment

from confrere.core.terminal import UNSAFE, harmless


class Console(rich.Console):
    """A rich console that never passes on control characters from the text that it is given."""

    def render(
        self, renderable: rich.RenderableType, options: rich.ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control is None and UNSAFE.search(segment.text):
                yield Segment(harmless(segment.text), segment.style)
            else:
                yield segment
