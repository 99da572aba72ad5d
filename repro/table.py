"""What a source reports and what was measured here, in words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from confrere.core.events import Json
from confrere.report import words

LABELS = {"epsilon": "ε"}
MOST = ("accuracy", "macro_accuracy", "rmse")
"""What is shown where the source reports no figure for an arm."""


@dataclass(frozen=True)
class Side:
    """One arm and measure: as the source has it, and as it was measured; «–» where there is none."""

    arm: str
    measure: str
    reported: str
    measured: str


@dataclass(frozen=True)
class Judged:
    """One claim of the source and what became of it here."""

    claim: str
    reported: str
    measured: str
    verdict: str


def sides(document: Mapping[str, Json]) -> list[Side]:
    """Every measure that the source reports; of arms without one, accuracy (or RMSE) as measured."""
    stated, measured = document["values"], document["measured"]
    out = []
    asked = list(dict.fromkeys(m for values in stated.values() for m in values)) or _usual(measured)
    asked += [m for m in dict.fromkeys(c["metric"] for c in document["claims"]) if m not in asked]
    for arm in dict.fromkeys([*stated, *measured]):
        for measure in asked:
            left, right = stated.get(arm, {}).get(measure), measured.get(arm, {}).get(measure)
            if left is None and right is None:
                continue
            out.append(Side(arm, label(measure), _stated(measure, left), _measured(measure, right)))
    return out


def judged(document: Mapping[str, Json]) -> list[Judged]:
    """Every claim of the source, with the difference and the p-values that were measured."""
    out = []
    for claim in document["claims"]:
        verb = "is as good as" if claim["about"] == "as good" else "is better than"
        name = label(claim["metric"]) + {"common": ", external test", "own": ", own test"}.get(
            claim.get("test") or "", ""
        )
        said = "stated" if claim["reported_p"] is None else f"p < {claim['reported_p']:g}"
        out.append(
            Judged(
                f"{claim['better']} {verb} {claim['than']} ({name})",
                said,
                _difference(claim),
                str(claim["verdict"]),
            )
        )
    return out


def label(measure: str) -> str:
    return LABELS.get(measure) or words.metric(measure).label


def _usual(measured: Mapping[str, Json]) -> list[str]:
    found = {m for values in measured.values() for m in values}
    return [m for m in MOST if m in found] or sorted(found)


def _stated(measure: str, value: Mapping[str, Json] | None) -> str:
    if value is None:
        return "–"
    spread = "" if value["spread"] is None else f" ± {_figure(measure, value['spread'])}"
    return _figure(measure, value["mean"]) + spread


def _measured(measure: str, value: Mapping[str, Json] | None) -> str:
    """The mean, ± over seeds, and in brackets over all sites of all seeds, which is what sources tend to state."""
    if value is None:
        return "–"
    text = _figure(measure, value["mean"])
    if measure == "epsilon":
        proven = "" if value.get("proven") else ", as published, not proven"
        delta, unit, accountant = (value.get(k) for k in ("delta", "unit", "accountant"))
        return f"{text} (δ = {words.delta(delta)}, per {unit}, {accountant}{proven})" if delta else text
    if value["over_seeds"] is not None:
        text += f" ± {_figure(measure, value['over_seeds'])}"
    if value["over_all"] is not None and value["sites"] > 1:
        text += f" ({_figure(measure, value['over_all'])})"
    return text


def _difference(claim: Mapping[str, Json]) -> str:
    found = claim["difference"]
    if found is None:
        return "–"
    text = f"{found['mean']:+.3f}"
    if found["over_seeds"] is not None:
        text += f" ± {found['over_seeds']:.3f}"
    ps = [(claim["p_seeds"], "seeds"), (claim["p_sites"], "sites and seeds")]
    said = [f"p {_p(p)} over {of}" for p, of in ps if p is not None]
    return f"{text}; {', '.join(said)}" if said else text


def _p(p: float) -> str:
    return "< 1e-5" if p < 1e-5 else f"= {p:.1g}" if p < 0.001 else f"= {p:.2g}"


def _figure(measure: str, value: float) -> str:
    if measure == "epsilon":  # never less than what was spent
        return f"{math.ceil(round(value * 100, 6)) / 100:.2f}"
    return f"{value:.3f}"
