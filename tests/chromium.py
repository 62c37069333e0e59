"""A headless chromium on a pipe: pages opened, scripts run in them, errors heard, pictures taken. Standard library only."""

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--mute-audio")
LOOKS: dict[str, dict[str, Any]] = {
    "desktop": {"width": 1280},
    "phone": {"width": 390, "height": 844},
    "dark": {"width": 1280, "dark": True},
    "dark-phone": {"width": 390, "height": 844, "dark": True},
}
FAULTS = r"""(() => {
  const out = [], all = (what) => [...document.querySelectorAll(what)], box = (one) => one.getBoundingClientRect();
  const seen = (one) => one.checkVisibility() && box(one).width > 0, named = (one) => `${one.tagName} ${(one.id || one.alt || one.ariaLabel || one.textContent).slice(0, 60)}`;
  const scrolls = (one) => { for (; one && one !== document.body; one = one.parentElement) if (/auto|scroll/.test(getComputedStyle(one).overflowX)) return true; return false; };
  const fault = (what, found) => { for (const one of found) out.push(`${what}: ${named(one)}`); };
  if (document.documentElement.scrollWidth > innerWidth) out.push(`wider than its window by ${document.documentElement.scrollWidth - innerWidth}`);
  fault("broken picture", [...document.images].filter((i) => !i.complete || !i.naturalWidth));
  fault("picture without words", [...document.images].filter((i) => !i.alt));
  fault("flat drawing", all("figure svg").filter((s) => seen(s) && box(s).height < 20));
  const copy = new OffscreenCanvas(80, 80).getContext("2d", { willReadFrequently: true });
  const values = (c) => { copy.clearRect(0, 0, 80, 80); copy.drawImage(c, 0, 0, 80, 80); return new Set(copy.getImageData(0, 0, 80, 80).data).size; };
  fault("empty canvas", all("canvas").filter((c) => seen(c) && c.width && values(c) < 4));
  fault("dead link", all('a[href^="#"]').filter((a) => a.hash.length > 1 && !a.hash.includes("?") && !document.getElementById(a.hash.slice(1)) && !window.lab));
  fault("empty section", all("section").filter((s) => seen(s) && s.innerText.trim().split("\n").length < 2 && !s.querySelector("svg, img, canvas")));
  fault("sticks out", all("figure, table, .chart, pre, p, h1, h2, input, button").filter((e) => seen(e) && !scrolls(e) && !e.closest(".unseen, .skip") && box(e).right > innerWidth + 1));
  fault("cut off", all("figure svg text, figure svg tspan").filter((t) => !t.childElementCount).filter((t) => {
    const a = box(t), b = box(t.ownerSVGElement), more = ((t.tagName === "text" ? 0.4 : 0.8) * parseFloat(getComputedStyle(t).fontSize) * b.width) / t.ownerSVGElement.viewBox.baseVal.width; // ink is smaller than its box
    return seen(t) && a.width > 0 && (a.left < b.left - more || a.right > b.right + more || a.top < b.top - more || a.bottom > b.bottom + more);
  }));
  fault("shortened", all("body *").filter((e) => seen(e) && getComputedStyle(e).textOverflow === "ellipsis" && e.scrollWidth > e.clientWidth));
  const words = all("body *").filter((e) => seen(e) && !e.closest("pre, script, style")).flatMap((e) => [...e.childNodes].filter((n) => n.nodeType === 3).map((n) => n.nodeValue));
  for (const word of words) {
    if (/\d\.\d{7,}/.test(word)) out.push(`a number that nobody reads: ${word.trim().slice(0, 80)}`);
    if (/\b(NaN|nan|undefined|None|Infinity)\b|\[object|tensor\(/.test(word)) out.push(`a word of programs: ${word.trim().slice(0, 80)}`);
  }
  return out;
})()"""


def find_chromium() -> str | None:
    """The browser's path, or None."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Browser:
    """One page in a browser of its own, driven by the DevTools protocol over file descriptors 3 and 4."""

    def __init__(self, path: str, profile: str, *flags: str) -> None:
        (read, self._in), (self._out, write) = os.pipe(), os.pipe()
        wires = f'exec "$0" "$@" 3<&{read} 4>&{write}'
        command = ["bash", "-c", wires, path, *FLAGS, *flags, f"--user-data-dir={profile}", "--remote-debugging-pipe"]
        self.process = subprocess.Popen(
            command, pass_fds=(read, write), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(read)
        os.close(write)
        self._buffer, self._number, self.session = b"", 0, ""
        self.errors: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            piece = os.read(self._out, 1 << 20)
            if not piece:
                raise ConnectionError(f"chromium ended, exit code {self.process.poll()}")
            self._buffer += piece
        line, self._buffer = self._buffer.split(b"\0", 1)
        message: dict[str, Any] = json.loads(line)
        self._hear(message)
        return message

    def _hear(self, message: dict[str, Any]) -> None:
        """Keep what goes wrong in the page."""
        method, said = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            details = said["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Runtime.consoleAPICalled" and said["type"] in {"error", "warning", "assert"}:
            self.errors.append(" ".join(str(part.get("value", part.get("description"))) for part in said["args"]))
        elif method == "Log.entryAdded" and said["entry"]["level"] in {"error", "warning"}:
            self.errors.append(f"{said['entry']['text']} {said['entry'].get('url', '')}")
        elif method == "Network.loadingFailed" and not said.get("canceled"):
            self.errors.append(f"not loaded: {said['errorText']}")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A command of the DevTools protocol, and its answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._in, data) :]
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def run(self, script: str) -> Any:
        """The value of an expression in the page, awaited."""
        said = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in said:
            details = said["exceptionDetails"]
            raise RuntimeError(details.get("exception", {}).get("description", details["text"]))
        return said["result"].get("value")

    def open(
        self, address: str, *, width: int = 1280, height: int = 900, dark: bool = False, still: bool = False
    ) -> Self:
        """Load a page; `still` asks for reduced motion."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        features = [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "reduce" if still else "no-preference"},
        ]
        self.call("Emulation.setEmulatedMedia", features=features)
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=address)
        while (
            not self._loaded()
        ):  # events of loading may come before the answer to `navigate`, or belong to the blank page
            time.sleep(0.01)
        return self

    def _loaded(self) -> bool:
        try:
            return bool(self.run("document.readyState === 'complete' && location.href !== 'about:blank'"))
        except RuntimeError:  # between two pages
            return False

    def wait(self, seconds: float) -> None:
        """Let the page go on for a while."""
        self.run(f"new Promise((done) => setTimeout(done, {1000 * seconds}))")

    def picture(self, path: str | Path, *, whole: bool = False) -> None:
        """A PNG of what is seen, or of the whole page."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}} if whole else {}
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole, **clip)["data"]
        Path(path).write_bytes(base64.b64decode(data))

    def faults(self) -> list[str]:
        """What is wrong with the page that is open: on its console, with its pictures, links and sections, at its right edge,
        with its numbers. What was heard is forgotten."""
        heard = [f"console: {error}" for error in self.errors]
        self.errors.clear()
        return [*heard, *self.run(FAULTS)]

    def close(self) -> None:
        """End the browser."""
        self.process.terminate()
        self.process.wait()
        os.close(self._in)
        os.close(self._out)


@contextmanager
def browsing(*flags: str) -> Iterator[Browser]:
    """A browser for the time of a block."""
    path = find_chromium()
    if path is None:
        raise FileNotFoundError("chromium is not installed")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = Browser(path, profile, *flags)
        try:
            yield browser
        finally:
            browser.close()
