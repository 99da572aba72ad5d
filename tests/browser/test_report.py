"""The report in a real browser: it renders, its script works, and it asks the network for nothing."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from confrere.report.page import write_report
from tests.unit.report.federation import write_comparison

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))),
    None,
)
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium here: the report was not opened in a browser"
)

HOSTILE = {
    "<script>document.title='owned'</script>": 500,
    '"><img src=x onerror=alert(2)>': 300,
    "St. Mary's": 900,
}


def chromium(page: Path, work: Path, *options: str) -> subprocess.CompletedProcess[str]:
    assert CHROMIUM is not None
    quiet = ["quic", "background-networking", "component-update", "sync", "gpu", "extensions", "default-apps"]
    command = [
        CHROMIUM,
        "--headless",
        "--no-sandbox",
        "--no-first-run",
        *(f"--disable-{what}" for what in quiet),
        f"--user-data-dir={work / 'profile'}",
        "--enable-logging=stderr",
        "--host-resolver-rules=MAP * ~NOTFOUND",
        *options,
        page.as_uri(),
    ]
    home = {**os.environ, "HOME": str(work)}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=home, check=True)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("browser") / "comparison"
    write_comparison(folder, rounds=8, absent={3: ["SVHD"]})
    return write_report(folder)


def test_the_first_screen_is_there_and_the_script_ran(report: Path, tmp_path: Path) -> None:
    dom = chromium(report, tmp_path, "--dump-dom").stdout
    assert "Together is better than alone at 4 of 5 sites" in dom
    assert "it is worse" in dom
    assert 'class="scripted"' in dom


def test_the_console_stays_empty(report: Path, tmp_path: Path) -> None:
    said = chromium(report, tmp_path, "--dump-dom").stderr
    assert "CONSOLE" not in said


def asked_by(page: Path, work: Path) -> set[str]:
    """The addresses that a page asked for; what the browser asks by itself has no page as initiator."""
    log = work / "net.json"
    chromium(page, work, "--dump-dom", f"--log-net-log={log}")
    starts = [e["params"] for e in json.loads(log.read_text())["events"] if isinstance(e.get("params"), dict)]
    own = ("not an origin", None)
    return {p["url"] for p in starts if "url" in p and p.get("initiator") not in own}


def test_nothing_is_asked_of_the_network(report: Path, tmp_path: Path) -> None:
    assert asked_by(report, tmp_path) == set()


def test_asking_the_network_would_be_noticed(tmp_path: Path) -> None:
    page = tmp_path / "asks.html"
    page.write_text('<img src="http://images.invalid/pixel.png">')
    assert asked_by(page, tmp_path) == {"http://images.invalid/pixel.png"}


def test_hostile_names_stay_names(tmp_path: Path) -> None:
    write_comparison(tmp_path / "c", sites=HOSTILE, rounds=4, seeds=2)
    done = chromium(write_report(tmp_path / "c"), tmp_path, "--dump-dom")
    assert "<title>owned" not in done.stdout
    assert "<img" not in done.stdout
    assert "CONSOLE" not in done.stderr


def test_it_prints(report: Path, tmp_path: Path) -> None:
    chromium(report, tmp_path, f"--print-to-pdf={tmp_path / 'page.pdf'}")
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")


def framed(report: Path, work: Path, script: str, width: int = 1200) -> str:
    """What a script beside the report makes of it: `d` is the report's document, the title the answer."""
    page = work / "frame.html"
    page.write_text(
        f'<iframe src="{report.as_uri()}" width="{width}" height="800"></iframe><script>onload = () => {{'
        f"const d = document.querySelector('iframe').contentDocument; document.title = {script};"
        "}</script>"
    )
    dom = chromium(page, work, "--dump-dom", "--allow-file-access-from-files").stdout
    return dom.partition("<title>")[2].partition("</title>")[0]


def test_the_slider_shows_one_round(report: Path, tmp_path: Path) -> None:
    script = """(() => {
        const slider = d.querySelector(".slider input");
        const shown = () => d.querySelectorAll(".network .edge:not(.off)").length;
        const all = shown();
        slider.value = 1;
        slider.dispatchEvent(new Event("input"));
        return [all > 5, shown(), d.querySelector(".slider output").textContent].join("; ");
    })()"""
    assert framed(report, tmp_path, script) == "true; 5; round 1: 5 arrows, 171 KB"


def test_nothing_sticks_out_on_a_phone(report: Path, tmp_path: Path) -> None:
    """A page that is wider than the screen would scroll sideways; only wide tables may, inside themselves."""
    assert int(framed(report, tmp_path, "d.documentElement.scrollWidth", width=390)) <= 390


@pytest.mark.parametrize("width", [390, 768, 1280])
def test_verdicts_are_visible_and_names_are_whole(report: Path, tmp_path: Path, width: int) -> None:
    """Measured in the page: no verdict beyond the right edge, no short site name over two lines."""
    script = (
        "<script>addEventListener('load', () => { const found = [...document.querySelectorAll('.answers .word')];"
        "const out = found.filter(e => e.getBoundingClientRect().right > document.documentElement.clientWidth + 1).length;"
        "const names = [...document.querySelectorAll('.answers tbody th')];"
        "const broken = names.filter(e => { const r = document.createRange(); r.selectNodeContents(e.firstChild);"
        "return r.getClientRects().length > 1; }).length;"
        "document.title = `words ${found.length} out ${out} broken ${broken}`; });</script>"
    )
    page = tmp_path / "measured.html"
    text = report.read_text(encoding="utf-8")
    policy = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')
    page.write_text(policy.sub("", text).replace("</body>", f"{script}</body>"), encoding="utf-8")
    dom = chromium(page, tmp_path, f"--window-size={width},1400", "--dump-dom").stdout
    title = re.search(r"<title>(.*?)</title>", dom)
    assert title is not None
    assert re.fullmatch(r"words [1-9]\d* out 0 broken 0", title[1]), title[1]
