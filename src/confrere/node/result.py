"""What a site has in the end: its own model in a file that cannot run code, and a card that says what it is.

    model/model.safetensors   weights, how to build the networks, how to encode a record: all that `predict` needs
    model/card.toml           the facts, for programs
    model/card.md             the same, for people

The model is PRIVATE: it was trained on the site's records without noise, and stays in the building.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w
import torch
from safetensors.torch import save_file

from confrere.core.errors import DataError
from confrere.data.schema import Schema
from confrere.node.failpoints import reach
from confrere.privacy.accounting import Guarantee
from confrere.runtime.participant import outputs_of
from confrere.runtime.run import versions
from confrere.runtime.simulate import predictors

if TYPE_CHECKING:
    from confrere.node.daemon import Node

FORMAT = "confrere-model-1"


def save(node: Node) -> Path:
    """Write model and card; each file is whole or not there."""
    folder = node.setting.home / "model"
    folder.mkdir(exist_ok=True, mode=0o700)
    role = node.strategy.deploys[0]
    terms = [(w, m) for w, m in predictors(node.strategy, node.state)[role] if w]
    specs = {node.site.architecture(r).name: node.study.models.of(node.me, r) for r in ("private", "proxy")}
    specs |= {node.site.architecture(r).name: spec for r, spec in node.site.further.items()}
    tensors: dict[str, torch.Tensor] = {}
    parts = []
    for n, (weight, model) in enumerate(terms):
        tensors |= {f"{n}/{name}": t.contiguous().clone() for name, t in model.params.items()}
        parts.append({"weight": weight, "network": specs[model.architecture], "custody": model.custody.name})
    task, schema = node.setting.task, node.setting.schema
    meta = {
        "format": FORMAT,
        "parts": json.dumps(parts),
        "task": json.dumps({**asdict(task), "outputs": outputs_of(task)}),
        "schema": json.dumps(schema.to_dict(), default=str) if schema is not None else "",
        "site": json.dumps(_translation(node)),
        "features": node.study.data.features,
        "shift": json.dumps(node.site.own_mix(torch.zeros(1, outputs_of(task)))[0].tolist()),
    }
    facts = card(node)
    temporary = folder / "model.safetensors.part"
    save_file(tensors, temporary, meta)
    os.chmod(temporary, 0o600)
    _settle(temporary)
    reach("result-written")
    write(folder / "card.toml", tomli_w.dumps(facts))
    write(folder / "card.md", page(facts))
    os.replace(temporary, folder / "model.safetensors")
    return folder


def card(node: Node) -> dict[str, Any]:
    """The facts about a model, its metrics PRIVATE like the model."""
    study, guarantee = node.study, node.site.guarantee()
    held_out = (node.quality.get("test") or {}).get(node.strategy.deploys[0], {})
    return {
        "custody": "PRIVATE: trained on the site's own records; keep it in the building",
        "site": node.me,
        "study": {
            "name": study.name, "title": study.title, "question": study.question, "hash": node.setting.agreed,
            "strategy": study.strategy_name, "rounds": study.rounds, "rounds_done": node.done,
            "members": sorted(node.setting.members),
        },
        "task": {"kind": node.setting.task.kind, "classes": list(node.setting.task.classes)},
        "schema": node.setting.schema.fingerprint if node.setting.schema else "",
        "metrics_private": {"records": "the site's own test records", **held_out},
        "privacy": statement(guarantee, node.setting.rehearsal),
        "made": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "versions": versions(),
    }  # fmt: skip


def statement(guarantee: Guarantee | None, rehearsal: bool) -> dict[str, Any]:
    """What left the site in the making of this model, with everything that belongs to an ε."""
    if rehearsal:
        return {"text": "a rehearsal with seeded noise: what was exchanged is not private"}
    if guarantee is None:
        return {"text": "nothing that was trained with noise has left; there is no guarantee"}
    return {
        "text": f"What left the site (the proxy) was protected: {guarantee}. This model itself was not, and must not leave.",
        "epsilon": guarantee.epsilon, "delta": guarantee.delta, "unit": guarantee.unit,
        "accountant": guarantee.accountant, "proven": guarantee.proven,
    }  # fmt: skip


def page(facts: Mapping[str, Any]) -> str:
    """The card as a page."""
    study, metrics = facts["study"], dict(facts["metrics_private"])
    where = metrics.pop("records")
    lines = [
        f"# The model of {facts['site']}: {study['title'] or study['name']}", "",
        f"**{facts['custody']}.**", "",
        *([study["question"], ""] if study["question"] else []),
        f"- Study {study['name']} (hash {study['hash']}), {study['strategy']},"
        f" {study['rounds_done']} of {study['rounds']} rounds, with {', '.join(study['members'])}.",
        f"- Task: {facts['task']['kind']} ({', '.join(facts['task']['classes']) or 'a number'}).",
        f"- Schema {facts['schema'][:16] or 'none'}.",
        f"- {facts['privacy']['text']}",
        f"- Made {facts['made']} with " + ", ".join(f"{k} {v}" for k, v in facts["versions"].items()) + ".",
        "", f"On {where} (PRIVATE):", "",
        *(f"- {name.replace('_', ' ')}: {value:.4g}" for name, value in metrics.items()), "",
        "Use: `confrere predict model.safetensors records.csv -o predictions.csv`", "",
    ]  # fmt: skip
    return "\n".join(lines)


def write(path: Path, text: str) -> None:
    """Put a file in place whole, readable by its owner only."""
    temporary = path.with_suffix(path.suffix + ".part")
    temporary.write_text(text, encoding="utf-8")
    os.chmod(temporary, 0o600)
    _settle(temporary)
    os.replace(temporary, path)


def _translation(node: Node) -> dict[str, Any]:
    """How this site's files differ from the schema: a file to predict is read the same way."""
    own = node.study.sites.get(node.me)
    keys = ("delimiter", "encoding", "decimal", "sheet", "rename", "units")
    return {k: getattr(own, k) for k in keys} if own is not None else {}


def _settle(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def schema_of_model(meta: Mapping[str, str], where: str) -> Schema:
    if not meta.get("schema"):
        raise DataError(f"{where}: this model was made without a schema, so a file cannot be encoded for it")
    return Schema.from_dict(json.loads(meta["schema"]), where)
