"""Options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

Attack = Annotated[
    str | None,
    typer.Option(
        help="Let some sites be dishonest: labelflip, signflip, noise, little, innerproduct, nan, scaled."
        " A comparison runs everything with and without them."
    ),
]
Attackers = Annotated[
    str | None,
    typer.Option(
        help="How many sites attack (the last ones in the order of names), or which: a,b.", show_default="1"
    ),
]
