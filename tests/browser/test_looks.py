"""The report is looked at: on a phone, a tablet and a desktop, dark and in print.

`looks.js` measures in the page: it does not scroll sideways, no text covers other text, no word is split, verdicts are
visible, every strip has its axis, and contrast is that of WCAG AA. The palette is compared as colour-blind people see it.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from confrere.report.page import write_report
from tests.browser.chromium import CHROMIUM, FORMS, Browser, Form
from tests.unit.report.federation import THYROID, write_comparison, write_run

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: the report was not looked at")

LOOKS = (Path(__file__).parent / "looks.js").read_text(encoding="utf-8")
WORDS = ("better", "no clear difference", "worse")
FOLD = 800
"""What a laptop shows of a page that is 1280 pixels wide."""
LONG = {
    "Universitätsklinikum Schleswig-Holstein Campus Kiel": 5400,
    "Groupe hospitalier Pitié-Salpêtrière": 2300,
    "St. Mary's": 950,
    "Ospedale": 240,
}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("chromium")) as opened:
        yield opened


def _complete(folder: Path, **options: Any) -> Path:
    """A comparison with all that a report can show: patients, profiles of the records, trials, missing columns, absences."""
    document = write_comparison(folder, primary="log_loss", **options)
    columns = [f"biomarker_concentration_{n:02d}" for n in range(8)]
    sites = list(document["strategies"]["local"]["sites"])
    for way, missed in {"local": 0.12, "proxyfl": 0.07}.items():
        for n, row in enumerate(document["strategies"][way]["sites"].values()):
            row["tested"] = {"patients": 60, "rarer": 14 - n, "rarer_class": "readmitted within thirty days"}
            row["missing_columns"] = {columns[0]: "imputed", columns[5]: "left out"} if n == 3 else {}
            row["in_patients"] = {
                "threshold": 0.25, "ill": 0.25, "missed": missed, "false_alarms": 0.04, "slope": 0.9,
                "intercept": -0.1, "calibration": [[0.1, 0.1], [0.8, 0.7]],
                "net_benefit": [[0.05, 0.2], [0.5, 0.1], [0.95, -0.01]],
            }  # fmt: skip
    document["records"] = {
        site: {
            "records": 400 - 90 * n,
            "labels": {"not readmitted": 0.75 - 0.1 * n, "readmitted within thirty days": 0.25 + 0.1 * n},
            "missing": {c: 0.04 * n for c in columns if n},
            "apart": {c: 0.3 * n - 0.1 * k for k, c in enumerate(columns)},
        }
        for n, site in enumerate(sites)
    }
    ends = {site: [0.1 - 0.1 * n, 0.3 - 0.1 * n] for n, site in enumerate(sites)}
    document["trials"] = {
        site: {
            peer: {"mean": sum(ends[site]) / 2, "values": [], "interval": ends[site], "word": WORDS[n % 3]}
            for peer in sites
            if peer != site
        }
        for n, site in enumerate(sites)
    }
    (folder / "comparison.json").write_text(json.dumps({**document, "public": True}))
    return folder


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("looks")
    long = _complete(place / "long", sites=LONG, rounds=8, absent={3: ["Ospedale"]})
    many = {f"District {n:02d}": 60 + 37 * n for n in range(20)}
    write_run(place / "run", "proxyfl", 0, THYROID, 6, {s: {"auc": 0.9, "log_loss": 0.3} for s in THYROID})
    write_comparison(place / "many", sites=many, rounds=4, seeds=3)
    short = _complete(place / "short", sites=THYROID, rounds=4)
    return {
        "short names": write_report(short),
        "short names, one site": write_report(short, None, "SVHC"),
        "comparison": write_report(long),
        "one site": write_report(long, None, "Groupe hospitalier Pitié-Salpêtrière"),
        "many sites": write_report(place / "many"),
        "run": write_report(place / "run"),
    }


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
@pytest.mark.parametrize("page", ["comparison", "one site", "many sites", "run"])
def test_the_report_looks_right(browser: Browser, pages: dict[str, Path], page: str, form: Form) -> None:
    browser.open(pages[page], form)
    assert browser.measure(LOOKS) == {}


def test_the_first_screen_has_seven_answers(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["comparison"], FORMS[2])
    script = "[document.querySelectorAll('header .questions dt').length, document.querySelectorAll('.asked').length]"
    assert browser.measure(script) == [6, 1]
    browser.open(pages["one site"], FORMS[2])
    assert browser.measure(script) == [6, 1]


@pytest.mark.parametrize("page", ["short names", "short names, one site"])
def test_all_seven_answers_are_above_the_fold(browser: Browser, pages: dict[str, Path], page: str) -> None:
    browser.open(pages[page], FORMS[2])
    script = (
        "[...document.querySelectorAll('header .answer, header .hundred, header .questions dd > p')]"
        ".map(e => Math.round(e.getBoundingClientRect().bottom))"
    )
    ends = browser.measure(script)
    assert len(ends) >= 2 + 6
    assert max(ends) <= FOLD


@pytest.mark.parametrize("form", [FORMS[2], FORMS[3]], ids=lambda form: form.name)
def test_the_picture_leaves_room_for_the_answer(browser: Browser, pages: dict[str, Path], form: Form) -> None:
    browser.open(pages["short names"], form)
    words, whole = browser.measure(
        "[...document.querySelectorAll('.opening > div, .opening')].map(e => e.clientWidth).sort((a, b) => a - b)"
    )
    assert words > whole / 2


BROKEN = {
    "sticks out": '<div class="w">x</div>',
    "overprinted": '<p>some words</p><p class="up">other words</p>',
    "split word": '<p class="n">Universitätsklinikum</p>',
    "verdict hidden": '<div class="clip"><span class="word">better</span></div>',
    "no axis": '<table><tr><td><svg class="strip" width="50" height="9"></svg></td></tr></table>',
    "faint text": '<p class="f">faint words</p>',
    "faint graphic": '<svg width="20" height="20"><circle class="dot" cx="9" cy="9" r="5" fill="#ddd"/></svg>',
}


@pytest.mark.parametrize("problem", BROKEN)
def test_a_page_that_looks_wrong_would_be_noticed(browser: Browser, tmp_path: Path, problem: str) -> None:
    page = tmp_path / "wrong.html"
    style = (
        ".w { width: 2000px } .up { margin-top: -30px } .n { width: 40px; overflow-wrap: anywhere } "
        ".clip { width: 20px; overflow: hidden; white-space: nowrap } .clip span { margin-left: 40px } .f { color: #aaa }"
    )
    page.write_text(
        f'<!doctype html><meta charset="utf-8"><style>{style}</style><body>{BROKEN[problem]}',
        encoding="utf-8",
    )
    browser.open(page, FORMS[2])
    assert problem in browser.measure(LOOKS)


# Machado, Oliveira and Fernandes 2009, full severity, on linear RGB.
VISION = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
}
SERIES = (("alone", "together", "pooled", "worse"), ("together", "w0", "w1", "w2", "w3", "w4"))
"""Colours that meet in one chart."""
APART = 25.0
"""Least distance of two of them in CIELAB; 2.3 is just noticeable side by side."""


def _lab(colour: str, vision: NDArray[np.float64]) -> NDArray[np.float64]:
    """A colour «#rrggbb» in CIELAB (D65), as it is seen."""
    value = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    x, y, z = to_xyz @ np.clip(vision @ linear, 0, 1) / np.array([0.95047, 1.0, 1.08883])
    f = [np.cbrt(v) if v > 0.008856 else 7.787 * v + 16 / 116 for v in (x, y, z)]
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize("form", [FORMS[2], FORMS[3], FORMS[4]], ids=lambda form: form.name)
def test_colours_of_one_chart_can_be_told_apart_by_everyone(
    browser: Browser, pages: dict[str, Path], form: Form, vision: str
) -> None:
    browser.open(pages["comparison"], form)
    for series in SERIES:
        script = "(names => names.map(n => getComputedStyle(document.documentElement).getPropertyValue('--' + n).trim()))"
        colours = browser.measure(f"{script}({json.dumps(series)})")
        long = [c if len(c) == 7 else "#" + "".join(2 * d for d in c[1:]) for c in colours]
        seen = dict(zip(series, (_lab(c, VISION[vision]) for c in long), strict=True))
        close = [
            (a, b, round(float(np.linalg.norm(seen[a] - seen[b])), 1))
            for a, b in itertools.combinations(series, 2)
            if np.linalg.norm(seen[a] - seen[b]) < APART
        ]
        assert close == []
