"""The HTML report: one file with the question, the results, what left each site and what it cost.

The file needs no network: style, charts and the few lines of script are inside, and its content security
policy forbids everything else. It makes sense without the script, and in print.
"""

from __future__ import annotations

import base64
import hashlib
import re
from html import escape
from importlib.resources import files
from pathlib import Path
from urllib.parse import quote

from confrere.core.results import ComparisonResult
from confrere.report.history import History
from confrere.report.page.comparison_page import comparison_page
from confrere.report.page.markup import Child, tag, together
from confrere.report.page.run_page import run_page
from confrere.report.page.site_page import site_page
from confrere.report.page.who_helped import partner_searches
from confrere.report.results_folder import read_comparison, read_run, runs_of
from confrere.version import __version__

__all__ = ["write_report"]


def write_report(folder: Path, out: Path | None = None, site: str | None = None) -> Path:
    """Write the report of a run or of a comparison, or of one site in a comparison; by default report.html in its folder."""
    if site is not None:
        comparison = read_comparison(folder)
        found = partner_searches(folder, comparison)
        title, body = site_page(comparison, site, _histories(folder, comparison), found)
    elif (folder / "comparison.json").exists():
        title, body = comparison_page(read_comparison(folder), folder)
    else:
        title, body = run_page(read_run(folder))
    path = out or folder / ("report.html" if site is None else f"report-{quote(site, safe=' ')}.html")
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(path.name + ".part")
    beside.write_text(page(title, body), encoding="utf-8")
    beside.replace(path)
    return path


def _histories(folder: Path, comparison: ComparisonResult) -> list[History]:
    """The journals of the collaboration, one per seed."""
    runs = runs_of(folder, comparison.together.name) if comparison.together else []
    return [read_run(p).history for p in runs if (p / "journal.jsonl").exists()]


def page(title: str, body: list[Child]) -> str:
    """The whole document. Only the style and the script that are written here may act in it."""
    here = files("confrere.report.page")
    template = (here / "page.html").read_text(encoding="utf-8")
    style = (here / "style.css").read_text(encoding="utf-8")
    script = re.search(r"<script>(.*?)</script>", template, re.DOTALL)
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script[1] if script else '')}; "
        "base-uri 'none'; form-action 'none'"
    )
    footer = tag(
        "footer",
        f"Made by Confrère {__version__}. One file, no network. Nothing is shown that was not measured. "
        "The results of single sites are private to them: pass this page on only with their consent.",
    )
    filled = {
        "policy": policy,
        "title": escape(f"{title} – Confrère"),
        "style": style,
        "body": together([*body, footer]),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda m: filled[m[1]], template)


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
