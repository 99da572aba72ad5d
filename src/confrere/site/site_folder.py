"""The folder that a site keeps from a run: its own model in a file that cannot run code, a card, its journal.

    sites/NAME/model/model.safetensors   weights, how to build the networks, how to encode a record: all that `predict` needs
    sites/NAME/model/card.toml           the facts, for programs
    sites/NAME/model/card.md             the same, for people
    sites/NAME/journal.jsonl             the events of this site

Every runtime leaves it. A node writes its journal as it goes; a simulation writes the folders at the end (see
`simulation.finished_run`). All of it is PRIVATE: the model was trained on the site's records without noise.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import tomli_w
import torch
from safetensors.torch import save_file

from confrere.core.custody import strictest
from confrere.core.errors import DataError
from confrere.core.owner_only import make_private_folder, private_draft, write_private
from confrere.core.seeds import NOT_PRIVATE
from confrere.data.schema import Schema
from confrere.privacy.charges import CEILING, Guarantee, rounded_up
from confrere.report import words
from confrere.site.deployment import Deployment
from confrere.site.participant import Participant
from confrere.site.site_run import SiteRun
from confrere.study import Study
from confrere.version import versions

FORMAT = "confrere-model-1"
STORE = "node.sqlite"
"""A node's store, in the folder of its site."""


def site_folder_of(folder: Path, name: str) -> Path:
    """Where a site's files are in the folder of a run; any name of a site stays within that folder."""
    return folder / "sites" / quote(name, safe=" ")


@dataclass(frozen=True)
class Ending:
    """How a run ended for a site: what its card states beside what the site itself knows."""

    study: str
    """The hash of the study that all agreed on."""
    members: Sequence[str]
    done: int
    """How many rounds are over."""
    deployment: Deployment
    schema: Schema | None = None
    scores: Mapping[str, Any] = field(default_factory=dict)
    """The last evaluation of the site's models; PRIVATE."""
    rehearsal: bool = True


def save_model(
    home: Path,
    run: SiteRun,
    name: str,
    ending: Ending,
    settle: Callable[[Path], None] = lambda path: None,
) -> Path:
    """Write model and card of the site with this name; each file is whole or not there.

    `settle` makes sure that a file is on the disk before it gets its name.
    """
    folder = home / "model"
    make_private_folder(folder)
    site, study, task = run.judges[name], run.study, run.site.task
    terms = [(w, m) for w, m in ending.deployment.predictor if w.value]
    specs = _networks(run.site)
    tensors: dict[str, torch.Tensor] = {}
    parts = []
    for n, (weight, model) in enumerate(terms):
        tensors |= {f"{n}/{key}": t.contiguous().clone() for key, t in model.params.items()}
        held = strictest([weight.custody, model.custody])
        parts.append({"weight": weight.value, "network": specs[model.architecture], "custody": held.name})
    meta = {
        "format": FORMAT,
        "parts": json.dumps(parts),
        "task": json.dumps({**asdict(task), "outputs": task.outputs}),
        "schema": json.dumps(ending.schema.to_dict(), default=str) if ending.schema is not None else "",
        "site": json.dumps(_translation(study, name)),
        "features": study.data.features,
        "encoder": json.dumps(_encoder(study)) if study.data.encoder is not None else "",
        "shift": json.dumps(site.own_mix(torch.zeros(1, task.outputs))[0].tolist()),
    }
    facts = card(run, name, ending)
    temporary = private_draft(folder / "model.safetensors")
    save_file(tensors, temporary, meta)
    settle(temporary)
    write_private(folder / "card.toml", tomli_w.dumps(facts))
    write_private(folder / "card.md", page(facts))
    os.replace(temporary, folder / "model.safetensors")
    return folder


def _networks(site: Participant) -> dict[str, Any]:
    """How to build each network that the site's models may have, by the name of its architecture."""
    own = {site.architecture(r).name: site.study.models.of(site.name, r) for r in ("private", "proxy")}
    return own | {site.architecture(r).name: spec for r, spec in site.extra_networks.items()}


def card(run: SiteRun, name: str, ending: Ending) -> dict[str, Any]:
    """The facts about a model, its metrics PRIVATE like the model."""
    study, site = run.study, run.judges[name]
    chosen = ending.deployment
    held_out = (
        chosen.scores if chosen.own else (ending.scores.get("test") or {}).get(run.strategy.deploys[0], {})
    )
    own, tested = len(site.own_records()), len(site.data.test)
    what = (
        "trained on the site's own records"
        if own
        else "the site had no records to train on, it is its peers'"
    )
    return {
        "custody": f"PRIVATE: {what}; keep it in the building",
        "site": name,
        "study": {
            "name": study.name, "title": study.title, "question": study.question, "hash": ending.study,
            "strategy": study.strategy_name, "rounds": study.rounds, "rounds_done": ending.done,
            "members": sorted(ending.members),
        },
        "task": {"kind": site.task.kind, "classes": list(site.task.classes)},
        "deployed": {"model": "own" if chosen.own else "collaborative", "text": chosen.text},
        "schema": ending.schema.fingerprint if ending.schema else "",
        **({} if study.data.encoder is None else {"encoder": _encoder(study)}),
        "metrics_private": {
            "records": "the site's own test records" if tested else "no records: it was not evaluated", **held_out,
        },
        **({} if chosen.verdict is None else {"verdict_private": _verdict(chosen)}),
        "privacy": {"text": NOT_PRIVATE} if ending.rehearsal else statement(
            site.guarantee(), site.spending().get("units", {})
        ),
        "made": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "versions": versions(),
    }  # fmt: skip


def _verdict(chosen: Deployment) -> dict[str, Any]:
    """The collaborative model against one trained alone, on the test patients."""
    assert chosen.verdict is not None
    return {
        "text": words.model_verdict(chosen.verdict, deployed=not chosen.own),
        "in_patients": words.errors_of_100(chosen.verdict),
        **chosen.verdict.as_json(),
    }


def statement(guarantee: Guarantee | None, units: Mapping[str, float | None]) -> dict[str, Any]:
    """What left the site in the making of this model, with everything that belongs to an ε."""
    if guarantee is None:
        return {"text": "nothing that was trained with noise has left; there is no guarantee"}
    how = (
        "was trained with noise that is no longer taken for protection"
        if guarantee.above_ceiling
        else "was protected"
    )
    every = {u: "no bound" if value is None else value for u, value in units.items()}
    also = "".join(
        f" Per {u}: {value if isinstance(value, str) else f'ε = {rounded_up(value)}'}."
        for u, value in every.items()
        if u != guarantee.unit
    )
    return {
        "text": f"What left the site (the proxy) {how}: {guarantee}.{also} This model itself was not protected, and must not"
        " leave.",
        "epsilon": guarantee.epsilon, "delta": guarantee.delta, "unit": guarantee.unit,
        "accountant": guarantee.accountant, "proven": guarantee.proven, "units": every,
        "ceiling": guarantee.ceiling or CEILING, "above_ceiling": guarantee.above_ceiling,
        **({"condition": guarantee.condition} if guarantee.condition else {}),
    }  # fmt: skip


def page(facts: Mapping[str, Any]) -> str:
    """The card as a page."""
    study, metrics = facts["study"], dict(facts["metrics_private"])
    where, verdict = metrics.pop("records"), facts.get("verdict_private", {})
    lines = [
        f"# The model of {facts['site']}: {study['title'] or study['name']}", "",
        f"**{facts['custody']}.**", "",
        *([study["question"], ""] if study["question"] else []),
        f"- Study {study['name']} (hash {study['hash']}), {study['strategy']},"
        f" {study['rounds_done']} of {study['rounds']} rounds, with {', '.join(study['members'])}.",
        f"- Task: {facts['task']['kind']} ({', '.join(facts['task']['classes']) or 'a number'}).",
        f"- Schema {facts['schema'][:16] or 'none'}.",
        *([f"- Encoder: {encoder['title']}."] if (encoder := facts.get("encoder")) else []),
        *([f"- {facts['deployed']['text'].capitalize()}."] if facts["deployed"]["text"] else []),
        f"- {facts['privacy']['text']}",
        f"- Made {facts['made']} with " + ", ".join(f"{k} {v}" for k, v in facts["versions"].items()) + ".",
        "", f"On {where} (PRIVATE):", "",
        *(f"- {name.replace('_', ' ')}: {value:.4g}" for name, value in metrics.items()), "",
        *(f"{words.capital(text)}.\n" for text in (verdict.get("text"), verdict.get("in_patients")) if text),
        "Use: `confrere predict model.safetensors records.csv -o predictions.csv`", "",
    ]  # fmt: skip
    return "\n".join(lines)


def _encoder(study: Study) -> dict[str, Any]:
    """The encoder that the model takes features of, without the place of its file."""
    spec = study.data.encoder
    assert spec is not None
    file = Path(spec.file).name
    stated = {"name": spec.name, "file": file, "sha256": spec.checksum, "size": spec.size}
    kept = {key: value for key, value in stated.items() if value}
    return {**kept, "identity": spec.identity, "title": replace(spec, file=file).title}


def _translation(study: Study, name: str) -> dict[str, Any]:
    """How this site's files differ from the schema: a file to predict is read the same way."""
    own = study.sites.get(name)
    keys = ("delimiter", "encoding", "decimal", "sheet", "rename", "units", "encoder")
    return {k: getattr(own, k) for k in keys} if own is not None else {}


def schema_of_model(meta: Mapping[str, str], where: str) -> Schema:
    if not meta.get("schema"):
        raise DataError(f"{where}: this model was made without a schema, so a file cannot be encoded for it")
    return Schema.from_dict(json.loads(meta["schema"]), where)
