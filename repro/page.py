"""docs/records/studies.md: what sources report and what was measured here, side by side, from docs/records/studies/*.json."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from confrere.report.growth_chart import draw_growth
from confrere.report.words import listing
from confrere.study import Study, scaled
from repro.experiment import result_file, settings
from repro.figures import (
    draw_curves,
    draw_groups,
    draw_pyramid,
    draw_reached,
    draw_scope,
    draw_settings,
)
from repro.judgement import PROXY, rejudged
from repro.method_style import method_styles
from repro.reported import Experiment, Reported
from repro.table import judged, label, sides

HEAD = """# Record: published experiments

Written by `python -m repro`, which runs the studies and keeps the results in docs/records/studies/*.json; `python -m repro
--page` writes the page again without running anything. repro/reported/NAME.toml states which figure or table a study repeats.
`--scale small` and `--scale smallest` run a smaller version (the tests run the smallest of every study); **the scale that was
run is stated with every result, and a smaller one is not the published experiment**.

*Measured* is the mean over seeds and sites, ± the standard deviation over seeds of the mean over sites; in brackets is the
standard deviation over all sites of all seeds, which is what the papers tend to report. `local` is training alone without
noise, which the papers leave out; `local-dp` and `pooled-dp` are their «Regular» and «Joint».

A claim of the source is judged by the rule of all comparisons ([decision 12](../decisions/0012-one-rule.md)): in pairs over
test patients and seeds, all claims of a source corrected together. Proxies and ε have no predictions for single patients;
claims about them are judged over seeds alone. **The results below were recorded before that rule**, as means and standard
deviations over seeds, without predictions for patients. What patients add to the variance is unknown for them: a difference
that is not clear with any such variance is «not clear»; every other one «cannot be judged: predictions for patients were not
kept», and has to be run again. The p-values are of paired t-tests without a correction, over seeds and over all sites of all
seeds. The second is how the papers count, although the sites of one seed have learned from one another.

Your own studies can do the same:

```toml
[comparison]                       # what `confrere compare` runs unless the command says otherwise
arms = ["local", "fedavg", "mine"] # strategies or [variants.NAME]
seeds = 5
[comparison.settings."p 0.8"]      # every arm in every setting: «fedavg@p 0.8»
data.options.p = 0.8

[scales.small]                     # --scale small: changes in the form of a variant
rounds = 10

```

What a source reports about a study is in repro/reported/NAME.toml:

```toml
source = "Kalra et al. 2023"
shows = "Table 1"
[values."fedavg@p 0.8"]
accuracy = [0.81, 0.02]
[[claims]]
better = "mine@p 0.8"
than = "fedavg@p 0.8"
```
"""


BASELINES = {"local-sgd": "only the site's own records", "global-sgd": "all records alike"}
"""What a user could do without choosing: the two baselines of personalised learning."""


def write_page(experiments: Sequence[Experiment], docs: Path) -> Path:
    """The page, with a section for each study, and its figures."""
    found = [(e.study, e.reported, _result(docs, e.study)) for e in experiments]
    parts = [HEAD, _overview(found)]
    source = ""
    for study, reported, result in found:
        if reported.source != source:
            source = reported.source
            parts.append(f"\n# {source}\n")
        parts.append(_section(study, reported, result, docs))
    path = docs / "studies.md"
    path.write_text("\n".join(parts).rstrip() + "\n", encoding="utf-8")
    return path


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table as the docs have it."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(c).replace("|", "\\|") for c in line) + " |" for line in lines)


def _result(docs: Path, study: Study) -> dict[str, Any] | None:
    path = result_file(docs, study.name)
    if not path.exists():
        return None
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if "claims" in found.get("reported", {}):
        found["reported"]["claims"] = rejudged(found["reported"]["claims"])
    return found


def _overview(found: Sequence[tuple[Study, Reported, dict[str, Any] | None]]) -> str:
    rows = []
    for study, reported, result in found:
        link = f"[{study.name}](#{study.name})"
        rows.append([link, reported.shows, _scale(result), _count(result)])
    return "\n" + markdown(["Study", "Repeats", "Scale that was run", "Claims of the source"], rows) + "\n"


def _scale(result: dict[str, Any] | None) -> str:
    if result is None:
        return "not run here"
    seeds = f", {len(result['seeds'])} seeds" if result["seeds"] else ""
    return f"{result['scale']}{seeds}"


def _count(result: dict[str, Any] | None) -> str:
    claims = (result or {}).get("reported", {}).get("claims", [])
    if not claims:
        return "–"
    told = Counter(str(c["verdict"]) for c in claims)
    return "; ".join(f"{n} × {verdict}" for verdict, n in told.most_common())


def _section(study: Study, reported: Reported, result: dict[str, Any] | None, docs: Path) -> str:
    lines = [f'## <a id="{study.name}"></a>{study.title or study.name}', ""]
    lines += [f"{reported.shows}. [studies/{study.name}.toml](../../studies/{study.name}.toml)", ""]
    if reported.says:
        lines += ["The source:", *(f"- {s}" for s in reported.says), ""]
    if result is None:
        lines += ["**Not run here.**", ""]
    elif result["by"] == "traffic":
        lines += _traffic(study, result, docs)
    elif result["by"] == "epsilon":
        lines += _epsilon(study, reported, result)
    else:
        lines += _compared(study, reported, result, docs)
    if reported.differs:
        lines += ["Not as in the source:", *(f"- {d}" for d in reported.differs), ""]
    if reported.remarks:
        lines += ["**Where they differ, and why:**", *(f"- {r}" for r in reported.remarks), ""]
    return "\n".join(lines)


def _ran(study: Study, result: dict[str, Any]) -> list[str]:
    size = result.get("records") or {}
    told = [f"`{result['command']}`: scale **{result['scale']}**, {result['rounds']} rounds"]
    if result["scale"] != "full":
        told[0] += f" (the source: {study.rounds})"
    if size:
        low, high = min(size.values()), max(size.values())
        told.append(f"{len(size)} sites with {low:,}{f' to {high:,}' if high > low else ''} records")
    if result["seeds"]:
        told.append(f"seeds {result['seeds'][0]} to {result['seeds'][-1]}")
    stale = ""
    if not _still(result["settings"], settings(scaled(study, result["scale"]))):
        stale = " *The study has changed since: run it again.*"
    return [f"{', '.join(told)}.{stale}", ""]


def _still(then: Any, now: Any) -> bool:
    """Whether all that was set then is set so now; what is new since has its default."""
    if isinstance(then, dict) and isinstance(now, dict):
        return all(key in now and _still(value, now[key]) for key, value in then.items())
    return bool(then == now)


def _compared(study: Study, reported: Reported, result: dict[str, Any], docs: Path) -> list[str]:
    document = result["reported"]
    rows = [(s.arm, s.measure, s.reported, s.measured) for s in sides(document)]
    lines = [*_ran(study, result), markdown(["Arm", "Measure", "Reported", "Measured here"], rows), ""]
    claims = [(c.claim, c.reported, c.measured, c.verdict) for c in judged(document)]
    if claims:
        lines += [markdown(["The source says", "There", "Here (difference)", "In a word"], claims), ""]
    if result.get("chosen"):
        told = listing([f"{arm}: {setting}" for arm, setting in result["chosen"].items()], 20)
        lines += [f"Chosen on validation records, each arm by itself: {told}.", ""]
    for figure in reported.figures:
        lines += [f"![{study.title}](figures/{_figure(figure, study, reported, result, docs).name})", ""]
    return lines


def _traffic(study: Study, result: dict[str, Any], docs: Path) -> list[str]:
    path = docs / "figures" / f"{study.name}.svg"
    grown = {name: [(g["sites"], g["seconds"]) for g in rows] for name, rows in result["traffic"].items()}
    speed, delay = result["link"]
    draw_growth(grown, f"One round over links of {speed:g} Mbit/s and {delay:g} ms", path)
    counts = [g["sites"] for g in next(iter(result["traffic"].values()))]
    rows = [[name, *(f"{g['seconds']:.2f}" for g in found)] for name, found in result["traffic"].items()]
    return [
        f"`{result['command']}`. Seconds of exchange in one round, estimated from the bytes of the parcels:", "",
        markdown(["Method", *(f"{c} sites" for c in counts)], rows), "",
        f"![{study.title}](figures/{path.name})", "",
    ]  # fmt: skip


def _epsilon(study: Study, reported: Reported, result: dict[str, Any]) -> list[str]:
    rows = []
    for arm, values in reported.values.items():
        stated, found = values.get("epsilon"), result["epsilon"][arm]
        rows.append(
            [arm, f"{values['records']:,.0f}", f"{stated}", f"{found['rdp']:.3f}", f"{found['pld']:.3f}"]
        )
    p = study.privacy
    assert p is not None
    return [
        f"`{result['command']}`: batch {p.batch_size}, {study.rounds} epochs, noise {p.noise_multiplier}, δ = {p.delta:g},"
        f" per {p.unit}, scale **{result['scale']}**.", "",
        markdown(["Site", "Records", "ε reported", "ε here, RDP as in the source", "ε here, PLD (tight)"], rows), "",
    ]  # fmt: skip


def _figure(kind: str, study: Study, reported: Reported, result: dict[str, Any], docs: Path) -> Path:
    """One picture of the study, drawn from its result, with what its source reports."""
    path = docs / "figures" / f"{study.name}{'' if kind in ('curves', 'settings') else f'-{kind}'}.svg"
    measure = label(result["measure"])
    if kind == "curves":
        published = _published(reported, result["measure"])
        return draw_curves(result["curves"], path, measure=measure, published=published)
    if kind == "settings":
        found, spread = _by_setting(study, result)
        stated = _published(reported, result["measure"])
        by_setting = {s: {a: stated[f"{a}@{s}"] for a in v if f"{a}@{s}" in stated} for s, v in found.items()}
        return draw_settings(found, spread, path, measure=measure, published=by_setting)
    if kind == "weights":
        return _weights(study, result, path, measure)
    if kind == "reached":
        return _reached(study, result, path, measure)
    if kind == "scope":
        return _scope(result, path, measure)
    groups = _by_site_and_setting(study, result)
    if kind == "bars":
        return draw_groups(groups, BASELINES, path, measure=measure)
    methods = [a for a in dict.fromkeys(a for v in groups.values() for a in v) if a not in BASELINES]
    left, right = (*methods, *BASELINES)[:2]
    return draw_pyramid(groups, left, right, path, measure=measure)


def _published(reported: Reported, measure: str) -> dict[str, float]:
    """What the source reports by this measure, by arm."""
    stated = {arm: values[measure] for arm, values in reported.values.items() if measure in values}
    return {arm: float(v[0] if isinstance(v, list) else v) for arm, v in stated.items()}


def _by_site_and_setting(study: Study, result: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Measured means as found["site, setting"][arm]."""
    comparison = scaled(study, result["scale"]).comparison
    out: dict[str, dict[str, float]] = {}
    for site, arms in result["sites"].items():
        for name, value in arms.items():
            arm, setting = comparison.parts(name)
            if setting is not None or not comparison.settings:
                out.setdefault(f"{site}\n{setting or ''}".strip(), {})[arm] = value
    return dict(sorted(out.items(), key=lambda item: item[0].split("\n")[::-1]))


def _chosen_curves(study: Study, result: dict[str, Any]) -> dict[str, Any]:
    """The curve of each arm in the setting that was chosen for it; all of them where nothing was chosen."""
    chosen = result.get("chosen") or {}
    wanted = {f"{arm}@{setting}": f"{arm}, {setting}" for arm, setting in chosen.items()}
    return {wanted[n]: points for n, points in result["curves"].items() if n in wanted} or result["curves"]


def _reached(study: Study, result: dict[str, Any], path: Path, measure: str) -> Path:
    """What each arm reaches within a number of rounds, and within an amount of traffic."""
    rounds, found = result["rounds"], {}
    marks = [max(1, round(rounds * part)) for part in (0.1, 0.25, 0.5, 1.0)]
    dearest = max(result["bytes"].values(), default=0)
    for name, points in _chosen_curves(study, result).items():
        label_of = method_styles([name])[name].label
        found[f"{label_of}\nby rounds"] = [
            (f"{_share(m, rounds)} of rounds or traffic", _best(points, m)) for m in marks
        ]
        arm, _, setting = name.partition(", ")
        cost = result["bytes"].get(f"{arm}@{setting}" if setting else arm, 0) / rounds
        reach = [rounds if not cost else int(dearest * part / cost) for part in (0.1, 0.25, 0.5, 1.0)]
        steps = [
            (f"{_share(m, rounds)} of rounds or traffic", _best(points, r))
            for m, r in zip(marks, reach, strict=True)
        ]
        found[f"{label_of}\nby traffic"] = steps
    return draw_reached(found, path, measure=measure)


def _scope(result: dict[str, Any], path: Path, measure: str) -> Path:
    """What each arm reaches for each user with one, two … sites taking part."""
    found = {
        f"{method_styles([arm])[arm].label}\n{user}": [
            (f"{p['sites']:.0f} site{'s' if p['sites'] > 1 else ''}", p["mean"], p["std"]) for p in points
        ]
        for arm, users in result["scope"].items()
        for user, points in users.items()
    }
    return draw_scope(found, path, measure=measure)


def _share(mark: int, rounds: int) -> str:
    return f"{round(100 * mark / rounds)} %"


def _best(points: Sequence[dict[str, float]], within: int) -> float:
    """The best mean up to a round; 0 before the first evaluation."""
    return max((p["mean"] for p in points if p["round"] <= within), default=0.0)


def _weights(study: Study, result: dict[str, Any], path: Path, measure: str) -> Path:
    """Accuracy solid, the weights of the peers dotted, the majority class dashed."""
    told = result["weights"]
    own = study.strategy_name
    setting = (result.get("chosen") or {}).get(own)
    wanted = f"{own}@{setting}" if setting else own
    dotted: dict[str, Any] = told.get(wanted) or next(iter(told.values()), {})
    curves = _chosen_curves(study, result)
    return draw_curves(curves, path, measure=measure, dotted=dotted, lines=result.get("levels"))


def _by_setting(
    study: Study, result: dict[str, Any]
) -> tuple[dict[str, dict[str, float]], dict[str, dict[str, float]]]:
    """Measured means and spreads as found[setting][arm]."""
    comparison = scaled(study, result["scale"]).comparison
    found: dict[str, dict[str, float]] = {s: {} for s in comparison.settings}
    spread: dict[str, dict[str, float]] = {s: {} for s in comparison.settings}
    for name, measures in result["reported"]["measured"].items():
        proxy = PROXY if name.endswith(PROXY) else ""
        arm, setting = comparison.parts(name.removesuffix(PROXY))
        value = measures.get(result["measure"])
        if setting is not None and value is not None:
            found[setting][arm + proxy] = value["mean"]
            spread[setting][arm + proxy] = value["over_seeds"] or 0.0
    return {s: v for s, v in found.items() if v}, spread
