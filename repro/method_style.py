"""How figures show a method: one name and one colour in all of them, so that a reader learns them once.

Variants of a method keep its colour: with noise, or as printed in its source, its line is dashed; the proxy of a pair of
models is dotted. Training alone, ProxyFL and pooled records have the colours of the report.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

PROXY = "/proxy"
"""Ends the name of an arm whose proxy is meant, not its private model."""
SOLID, DASHED, DOTTED = "-", "--", ":"


@dataclass(frozen=True)
class MethodStyle:
    """The name of an arm in words, its colour and its line."""

    label: str
    colour: str
    line: str = SOLID


KNOWN = {
    "local": MethodStyle("Alone", "#6d7684"),
    "local-dp": MethodStyle("Alone, with noise", "#6d7684", DASHED),
    "local-sgd": MethodStyle("Own records only", "#6d7684", DASHED),
    "pooled": MethodStyle("All records pooled", "#18202b"),
    "pooled-dp": MethodStyle("All records pooled, with noise", "#18202b", DASHED),
    "proxyfl": MethodStyle("ProxyFL", "#0b62ad"),
    "fedavg": MethodStyle("FedAvg", "#cf6f05"),
    "fml": MethodStyle("FML", "#8a3fa0"),
    "avgpush": MethodStyle("AvgPush", "#2e7d32"),
    "cwt": MethodStyle("Cyclical weight transfer", "#b3123a"),
    "fedma": MethodStyle("FedMA", "#8a6d00"),
    "fedprox": MethodStyle("FedProx", "#c0408f"),
    "coln": MethodStyle("CoLN", "#0e8a80"),
    "coln-printed": MethodStyle("CoLN, as printed", "#0e8a80", DASHED),
    "normalised": MethodStyle("CoLN", "#0e8a80"),
    "linear": MethodStyle("CoLN as printed, α = 1 + r", "#8a3fa0", DASHED),
    "plus": MethodStyle("CoLN as printed, α = exp(r)", "#2e7d32", DASHED),
    "minus": MethodStyle("CoLN as printed, α = exp(−r)", "#b3123a", DASHED),
    "in-turns": MethodStyle("CoLN as printed, both in turns", "#8a6d00", DASHED),
    "small": MethodStyle("CoLN as printed, α = exp(r/1000)", "#c0408f", DASHED),
    "weight_erosion": MethodStyle("Weight Erosion", "#4a4fc4"),
    "erosion-local": MethodStyle("Weight Erosion, local steps", "#4a4fc4", DASHED),
    "global-sgd": MethodStyle("All records alike", "#7a4a21"),
}
OTHERS = ("#2e7d32", "#b3123a", "#8a6d00", "#c0408f", "#8a3fa0", "#7a4a21")
"""For methods without a colour of their own, in the order in which a figure has them."""


def method_styles(arms: Sequence[str]) -> dict[str, MethodStyle]:
    """The style of each arm, such as «proxyfl», «proxyfl/proxy», «fml@α=0.3» or «cwt, ring»."""
    unknown = list(dict.fromkeys(stem for arm in arms if (stem := _stem(arm)) not in KNOWN))
    return {arm: _style(arm, unknown) for arm in arms}


def _style(arm: str, unknown: Sequence[str]) -> MethodStyle:
    stem = _stem(arm)
    known = KNOWN.get(stem) or MethodStyle(stem, OTHERS[unknown.index(stem) % len(OTHERS)])
    proxy = arm.endswith(PROXY)
    setting = arm.removesuffix(PROXY).removeprefix(stem).lstrip("@, ")
    label = ", ".join(part for part in (known.label, setting, "proxy" if proxy else "") if part)
    return MethodStyle(label, known.colour, DOTTED if proxy else known.line)


def _stem(arm: str) -> str:
    return re.split(r"[@,/]", arm, maxsplit=1)[0]
