"""Chromium over its debugging pipe: open a page in a given form (width, dark, print), measure it, take its picture.

The pipe needs neither a driver nor a web socket: messages are JSON, each ended by a zero byte, on descriptors 3 and 4.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))),
    None,
)
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--no-first-run",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    *(f"--disable-{what}" for what in ("quic", "background-networking", "component-update", "sync", "gpu")),
]


@dataclass(frozen=True)
class Form:
    """How a page is looked at."""

    name: str
    width: int
    media: str = "screen"
    dark: bool = False


FORMS = (
    Form("phone", 390),
    Form("tablet", 768),
    Form("desktop", 1280),
    Form("print", 688, media="print"),  # A4 without the margins of the page, in CSS pixels
    Form("dark", 1280, dark=True),
)


class Browser:
    """One Chromium with one page, to be used in a `with` block."""

    def __init__(self, work: Path) -> None:
        assert CHROMIUM is not None
        commands, self._out = os.pipe()
        self._in, answers = os.pipe()
        ours = [
            fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in (commands, answers)
        ]  # 3 and 4 are Chromium's
        nowhere = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_WRONLY, 0) for fd in (1, 2)]
        pipes = [(os.POSIX_SPAWN_DUP2, ours[0], 3), (os.POSIX_SPAWN_DUP2, ours[1], 4)]
        line = [CHROMIUM, *FLAGS, f"--user-data-dir={work / 'profile'}", "about:blank"]
        self._process = os.posix_spawn(
            CHROMIUM, line, {**os.environ, "HOME": str(work)}, file_actions=[*nowhere, *pipes]
        )
        for fd in (commands, answers, *ours):
            os.close(fd)
        self._read, self._number, self._session = b"", 0, ""
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.send("Page.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.kill(self._process, signal.SIGTERM)
        os.waitpid(self._process, 0)
        os.close(self._in)
        os.close(self._out)

    def send(self, method: str, **params: Any) -> Any:
        """Call a method of the debugging protocol and wait for its answer."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            pass
        assert "error" not in answer, answer["error"]
        return answer["result"]

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._read:
            part = os.read(self._in, 1 << 20)
            assert part, "Chromium ended"
            self._read += part
        line, _, self._read = self._read.partition(b"\0")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def open(self, page: Path, form: Form) -> None:
        """Load the page and give it its form."""
        size = {"width": form.width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.send("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if form.dark else "light"}
        self.send("Emulation.setEmulatedMedia", media=form.media, features=[scheme])
        self.send("Page.navigate", url=page.as_uri())
        while self._next().get("method") != "Page.loadEventFired":
            pass

    def measure(self, script: str) -> Any:
        """The value of an expression in the page; the page's content security policy does not apply to it."""
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def picture(self, path: Path) -> Path:
        """The whole page as a PNG."""
        size = self.send("Page.getLayoutMetrics")["cssContentSize"]
        clip = {**size, "scale": 1}
        found = self.send("Page.captureScreenshot", captureBeyondViewport=True, format="png", clip=clip)
        path.write_bytes(base64.b64decode(found["data"]))
        return path

    def pdf(self, path: Path) -> Path:
        """The page as it is printed."""
        path.write_bytes(base64.b64decode(self.send("Page.printToPDF", preferCSSPageSize=True)["data"]))
        return path
