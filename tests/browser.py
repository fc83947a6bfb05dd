"""A real Chromium, without a window, driven over the pipe of its own debugging protocol: no driver, no port, no package."""

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

CHROMIUM = next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None)

_WAIT = """new Promise((done) => {
  const end = Date.now() + 300000;
  const look = () => ((CONDITION) ? done(true) : Date.now() > end ? done(false) : setTimeout(look, 20));
  look();
})"""

_MIDDLE = """(async () => {
  const element = document.querySelector(SELECTOR);
  const frame = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  for (let settled = 0; settled < 2; settled++) {
    element.scrollIntoView({ block: "center", inline: "center", behavior: "instant" });
    await frame();
  }
  const box = element.getBoundingClientRect();
  return { x: box.x + box.width / 2, y: box.y + box.height / 2 };
})()"""

_CONTRASTS = """[...document.querySelectorAll(WORDS)].map((words) => {
  const linear = (one) => (one <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4);
  const light = (colour) => colour.match(/[\\d.]+/g).slice(0, 3).map((one) => linear(one / 255))
    .reduce((sum, one, i) => sum + one * [0.2126, 0.7152, 0.0722][i], 0);
  const [ink, ground] = [light(getComputedStyle(words).color), light(getComputedStyle(words.closest(GROUND)).backgroundColor)];
  return (Math.max(ink, ground) + 0.05) / (Math.min(ink, ground) + 0.05);
})"""


class Browser:
    """`with Browser(folder) as browser: browser.open(page)`; `folder` holds its profile. It remembers errors and requests of its pages."""

    def __init__(self, folder: Path) -> None:
        assert CHROMIUM is not None
        self.errors: list[str] = []
        self.requests: list[str] = []
        self._number = 0
        self._loaded = False
        self._unread = b""
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        switches = (
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            "--remote-debugging-pipe",
        )
        # Chromium reads commands from descriptor 3 and answers on 4. Bash puts the pipes there; sh knows no descriptor above 9.
        self._process = subprocess.Popen(
            [
                "bash",
                "-c",
                f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}',
                "bash",
                CHROMIUM,
                *switches,
                f"--user-data-dir={folder}",
                "about:blank",
            ],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)

    def __enter__(self) -> Self:
        self._session: str | None = None
        targets = self.call("Target.getTargets")["targetInfos"]
        target = next(one["targetId"] for one in targets if one["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for part in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{part}.enable")
        self.resize(1280, 900)
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        os.close(self._out)  # without its master the browser ends
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._in)

    def call(self, method: str, **parameters: Any) -> Any:
        self._number += 1
        number = self._number
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        unsent = json.dumps(message).encode() + b"\0"
        while unsent:
            unsent = unsent[os.write(self._out, unsent) :]
        while (answer := self._next()).get("id") != number:
            pass
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._unread:
            chunk = os.read(self._in, 1 << 20)
            if not chunk:
                raise RuntimeError(f"the browser ended with exit code {self._process.wait()}")
            self._unread += chunk
        line, self._unread = self._unread.split(b"\0", 1)
        message: dict[str, Any] = json.loads(line)
        said, about = message.get("params", {}), message.get("method")
        if about == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(said["exceptionDetails"]))
        elif about == "Log.entryAdded" and said["entry"]["level"] in ("error", "warning"):
            self.errors.append(f"{said['entry']['text']} {said['entry'].get('url', '')}")
        elif about == "Runtime.consoleAPICalled" and said["type"] in ("error", "warning", "assert"):
            self.errors.append(json.dumps(said["args"]))
        elif about == "Network.requestWillBeSent":
            self.requests.append(said["request"]["url"])
        elif about == "Page.loadEventFired":
            self._loaded = True
        return message

    def resize(self, width: int, height: int) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)

    def dark(self, on: bool = True) -> None:
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if on else "light"}])

    def open(self, page: Path | str) -> None:
        """A file or an address. Returns when the page has loaded and its script is done."""
        self.errors.clear()
        self.requests.clear()
        self._loaded = False
        self.call("Page.navigate", url=page if isinstance(page, str) else page.resolve().as_uri())
        while not self._loaded:
            self._next()
        self.wait("document.documentElement.classList.contains('drawn')")

    @contextmanager
    def visit(self, page: Path, *, width: int = 1280) -> Iterator[None]:
        """Opens a file by daylight in a wide window. Afterwards nothing went wrong on its page, and it asked for nothing outside itself."""
        self.dark(False)
        self.resize(width, 900)
        self.open(page)
        yield
        assert self.errors == []
        assert [url for url in self.requests if not url.startswith(("data:", "file:"))] == []

    def run(self, script: str) -> Any:
        """The value of an expression on the page; a promise's once it has it."""
        done = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True, userGesture=True)
        if "exceptionDetails" in done:
            raise RuntimeError(f"{script}: {done['exceptionDetails']}")
        return done["result"].get("value")

    def wait(self, condition: str) -> None:
        """Until an expression is true; gives up after five minutes."""
        if not self.run(_WAIT.replace("CONDITION", condition)):
            raise AssertionError(f"never true: {condition}; errors of the page: {self.errors}")

    def hover(self, selector: str) -> dict[str, float]:
        """Puts the mouse on the middle of the element, once it is there."""
        self.wait(f"document.querySelector({json.dumps(selector)})")
        where: dict[str, float] = self.run(_MIDDLE.replace("SELECTOR", json.dumps(selector)))
        self.call("Input.dispatchMouseEvent", type="mouseMoved", **where)
        return where

    def click(self, selector: str) -> None:
        """With the mouse: what lies over the element gets the click."""
        where = self.hover(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, button="left", buttons=1, clickCount=1, **where)

    def key(self, name: str) -> None:
        code = {"Tab": 9, "Enter": 13, "Escape": 27}.get(name, 0)
        typed = {"text": "\r"} if name == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=code, **typed)

    def write(self, field: str, text: str, place: int = 0) -> None:
        """Replaces what stands in a field, the first of those that the selector names or another."""
        self.run(
            f"(() => {{ const field = document.querySelectorAll({json.dumps(field)})[{place}]; field.value = {json.dumps(text)}; "
            "field.dispatchEvent(new Event('input')); })()"
        )

    def contrasts(self, words: str, ground: str) -> list[float]:
        """Of the texts that a selector names with the nearest element around them that is a ground; WCAG AA wants at least 4.5."""
        found: list[float] = self.run(_CONTRASTS.replace("WORDS", json.dumps(words)).replace("GROUND", json.dumps(ground)))
        return found

    def picture(self, path: Path, whole: bool = False) -> None:
        """What one sees as a PNG, for eyes."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=whole)["data"]))
