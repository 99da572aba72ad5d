"""Small studies, run in every runtime, and a compact description of what a user gets from each.

A recording holds what the simulation in memory gives: final models, the `--json` document, the events of every site, the
keys of their data, and the files of the run folder. Of the other runtimes it holds what differs from that; models never do.
"""

from __future__ import annotations

import json
import math
import re
import shutil
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

import confrere
from confrere.core.events import Event
from confrere.core.metrics import METRICS
from tests.conformance.table import ONLY_IN
from tests.nodes import nodes_in_process

HERE = Path(__file__).parent
STUDIES = sorted(path.stem for path in (HERE / "studies").glob("*.toml"))
RUNTIMES = ("memory", "workers", "nodes")
"""Those that are recorded. A Ray cluster must give what memory gives."""
PARTS = ("events", "data", "files", "journals")
"""What may differ between runtimes, beside single values of the JSON document."""
RELATIVE, ABSOLUTE = 2e-5, 2e-6
"""Sites that are trained together and one at a time differ by rounding, and so do processors."""
DIGITS = 7
LINE = 110


def recording(study: str) -> Path:
    return HERE / "recorded" / f"{study}.json"


def write_study(name: str, folder: Path) -> Path:
    """The study and the records of its sites; `ill`, `grade` and `days` follow one rule with some noise."""
    rng = np.random.default_rng(0)
    for shift, (site, count) in enumerate({"north": 60, "south": 80, "west": 100}.items()):
        inputs = rng.normal(0.2 * (shift - 1), 1, (count, 4)).clip(-3, 3).round(3)
        score = inputs @ np.array([1.5, -1.0, 0.5, 0.0]) + 0.3 * rng.normal(size=count)
        frame = pd.DataFrame(inputs, columns=list("abcd"))
        frame["ill"] = np.where(score > 0, "yes", "no")
        frame["grade"] = np.select([score < -1, score < 1], ["low", "middle"], "high")
        frame["days"] = (20 + 4 * score).clip(0, 40).round(2)
        frame.to_csv(folder / f"{site}.csv", index=False)
    return Path(shutil.copy(HERE / "studies" / f"{name}.toml", folder / "study.toml"))


def run_study(name: str, runtime: str, folder: Path) -> confrere.Run:
    study, out = confrere.load(write_study(name, folder)), folder / "run"
    if runtime == "nodes":
        return nodes_in_process(study, out)
    workers = None if runtime == "memory" else 2
    return confrere.simulate(study, out=out, workers=workers, engine="ray" if runtime == "ray" else "memory")


def described(run: confrere.Run) -> dict[str, Any]:
    """What is compared: models, the JSON document, events and files."""
    assert run.folder is not None
    return {
        "models": {site: _models(models) for site, models in sorted(run.models.items())},
        "json": document(run.result.as_json()),
        "events": _events(run.events),
        "data": _keys(run.events),
        "files": _files(run.folder),
        "journals": {p.parent.name: _journal(p) for p in sorted(run.folder.glob("sites/*/journal.jsonl"))},
    }


def document(result: dict[str, Any]) -> Any:
    """What `--json` prints, without the name of the folder."""
    return rounded(json.loads(json.dumps({k: v for k, v in result.items() if k != "run"})))


def _models(models: dict[str, Any]) -> dict[str, Any]:
    return {
        role: {name: _numbers(tensor) for name, tensor in model.params.items()}
        for role, model in models.items()
    }


def _numbers(tensor: torch.Tensor) -> list[float]:
    """A small tensor itself; of a large one its length, its sum and a sum in which every place counts differently."""
    flat = tensor.double().flatten()
    if len(flat) > 6:
        places = torch.cos(torch.arange(1.0, len(flat) + 1, dtype=torch.float64))
        flat = torch.stack([flat.norm(), flat.sum(), flat @ places])
    return [rounded(x) for x in flat.tolist()]


def comparable(events: Sequence[Event]) -> list[Event]:
    """Without notices that depend on how quickly peers start, and how quickly parcels of a former epoch arrive."""
    of_time = [row for row in ONLY_IN if row.notice in ("waiting", "cancelled")]
    return [e for e in events if not any(row.covers(e) for row in of_time)]


def _events(events: Sequence[Event]) -> dict[str, list[str]]:
    """Of every site, and of the run as a whole, the kinds of its events in order: a line for each round."""
    found: dict[str, list[tuple[str, str]]] = defaultdict(list)
    ordered = comparable(
        events
    )  # a node that joins late may begin its first round before the others begin theirs
    whole = iter(
        sorted(
            (e for e in ordered if e.kind == "round-started" and e.site is None), key=lambda e: e.round or 0
        )
    )
    for event in (next(whole) if e.kind == "round-started" and e.site is None else e for e in ordered):
        number = "-" if event.round is None else str(event.round)
        found[event.site or "run"].append((number, event.kind))
    return {
        who: [
            f"{number}: {' '.join(kind for _, kind in group)}"
            for number, group in groupby(kinds, lambda k: k[0])
        ]
        for who, kinds in sorted(found.items())
    }


def _journal(path: Path) -> list[str]:
    """The kinds of events in a node's own journal."""
    events = [Event.of_json(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
    return [line for lines in _events([replace(e, site=None) for e in events]).values() for line in lines]


def _keys(events: Sequence[Event]) -> dict[str, list[str]]:
    """The keys of the data of every kind of event; a kind may come with several sets of keys."""
    found: dict[str, set[str]] = defaultdict(set)
    for event in comparable(events):
        found[event.kind].add(" ".join(sorted(event.data)))
    return {kind: sorted(keys) for kind, keys in sorted(found.items())}


def _files(folder: Path) -> dict[str, str]:
    """The files of each folder; the part of a name that is a hash is left out, and of the checkpoints all but the newest.

    Which older checkpoints are still needed depends on the runtime: one that may lose a worker writes all sites each time.
    """
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        found[str(path.parent.relative_to(folder))].append(re.sub(r"-[0-9a-f]{8}\b", "-HASH", path.name))
    if "checkpoints" in found:
        found["checkpoints"] = found["checkpoints"][-1:]
    return {where: " ".join(names) for where, names in sorted(found.items())}


def rounded(value: Any) -> Any:
    """The same with so few digits that the recording stays readable."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {k: rounded(v) for k, v in value.items()}
    if isinstance(value, list):
        return [rounded(v) for v in value]
    return value


def record(found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """A recording of one study, from what was described in each runtime."""
    memory = found["memory"]
    recorded = dict(memory)
    for runtime in RUNTIMES[1:]:
        own = {part: found[runtime][part] for part in PARTS if found[runtime][part] != memory[part]}
        values = changed(memory["json"], found[runtime]["json"])
        recorded[runtime] = {**({"json": values} if values else {}), **own}
    return recorded


def changed(base: Any, other: Any) -> dict[str, Any]:
    """The leaves of a document that another one has differently."""
    ours, theirs = dict(leaves(base)), dict(leaves(other))
    return {
        k: theirs.get(k) for k in {**ours, **theirs} if k not in ours or not alike(ours[k], theirs.get(k))
    }


def expected(recorded: dict[str, Any], runtime: str) -> dict[str, Any]:
    """What a recording says about a runtime, as leaves by their path."""
    own = recorded.get(runtime, {})
    parts = {part: own.get(part, recorded[part]) for part in PARTS}
    found = dict(leaves({"models": recorded["models"], "json": recorded["json"], **parts}))
    return found | {f"json.{path}": value for path, value in own.get("json", {}).items()}


@cache
def recorded_names() -> frozenset[str]:
    """Every key of every recorded document."""
    texts = (recording(study).read_text(encoding="utf-8") for study in STUDIES)
    return frozenset(
        part for text in texts for path, _ in leaves(json.loads(text)) for part in path.split(".")
    )


def of_new_metric(path: str) -> bool:
    """Whether a value is that of a metric that no recording has: adding one needs no new recording."""
    name = path.rpartition(".")[2]
    return name in METRICS and name not in recorded_names()


def differences(recorded: dict[str, Any], runtime: str, found: dict[str, Any]) -> list[str]:
    """A line for each difference between what is recorded and what was found; a metric added since is no difference."""
    before, now = expected(recorded, runtime), dict(leaves(found))
    lines = []
    for path in sorted(before.keys() | now.keys()):
        if of_new_metric(path):
            continue
        was, is_now = before.get(path, "nothing"), now.get(path, "nothing")
        if not alike(was, is_now):
            lines.append(f"{path}: recorded {was!r}, found {is_now!r}")
    return lines


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of a JSON document that is neither a table nor a list, by its path."""
    inside: Any = ()
    if isinstance(value, dict):
        inside = value.items()
    elif isinstance(value, list):
        inside = enumerate(value)
    for key, item in inside:
        yield from leaves(item, f"{path}.{key}" if path else str(key))
    if not isinstance(value, dict | list) or not value:
        yield path, value


def alike(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=RELATIVE, abs_tol=ABSOLUTE)
    return type(one) is type(other) and bool(one == other)


def spelled(value: Any, indent: int = 0) -> str:
    """JSON in which whatever fits stands in one line."""
    plain = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, dict | list) or len(plain) + indent <= LINE:
        return plain
    pad = " " * (indent + 1)
    if isinstance(value, dict):
        items = [f"{json.dumps(k)}: {spelled(v, indent + 1)}" for k, v in value.items()]
    else:
        items = [spelled(v, indent + 1) for v in value]
    opening, closing = ("{", "}") if isinstance(value, dict) else ("[", "]")
    return opening + "\n" + ",\n".join(pad + item for item in items) + "\n" + " " * indent + closing
