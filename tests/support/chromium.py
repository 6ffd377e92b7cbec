"""Chromium, driven over a pipe by its own protocol: no library, no port, no network."""

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import time
from pathlib import Path

CHROMIUM = shutil.which("chromium")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage --hide-scrollbars --remote-debugging-pipe"
).split()
PATIENCE = 20  # seconds; only a hanging browser takes so long


class Browser:
    """One page of one browser."""

    def __init__(self, profile: Path) -> None:
        commands, self._commands = os.pipe()
        self._answers, answers = os.pipe()
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 20) for end in (commands, answers)]

        def place_ends():
            os.dup2(ends[0], 3)
            os.dup2(ends[1], 4)

        self.process = subprocess.Popen(
            [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            preexec_fn=place_ends,  # noqa: PLW1509 - the protocol wants the ends at 3 and 4; no thread runs here
            pass_fds=(3, 4),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in (commands, answers, *ends):
            os.close(end)
        self._number, self._rest, self.events = 0, b"", []
        self._session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method, *, session=True, **parameters):
        """Send one command to the page, or to the browser itself, and return its answer; events on the way are kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session and session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def _read(self):
        while b"\0" not in self._rest:
            part = os.read(self._answers, 1 << 20)
            assert part, "chromium has gone"
            self._rest += part
        first, self._rest = self._rest.split(b"\0", 1)
        return json.loads(first)

    def named(self, *names):
        """Events of these names, as their parameters."""
        return [event["params"] for event in self.events if event.get("method") in names]

    def open(self, url, *, width=1280, height=900, dark=False, script=True, media=""):
        """Load a page and wait until it is drawn."""
        self.events.clear()
        self.resize(width, height)
        scheme = "dark" if dark else "light"
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=features, media=media)
        self.call("Emulation.setScriptExecutionDisabled", value=not script)
        self.call("Page.navigate", url="about:blank")
        self.events.clear()
        self.call("Page.navigate", url=url)
        drawn = "document.documentElement.classList.contains('has-script')" if script else "true"
        self.wait(f"document.readyState === 'complete' && location.href !== 'about:blank' && {drawn}")

    def seconds_of_processor(self):
        """What the process of the page has worked so far, all of its threads."""
        processes = self.call("SystemInfo.getProcessInfo", session=False)["processInfo"]
        return sum(one["cpuTime"] for one in processes if one["type"] == "renderer")

    def resize(self, width, height=900):
        """Give the window a size."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def run(self, expression):
        """Evaluate JavaScript in the page and return its value."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait(self, expression):
        """Wait until an expression holds."""
        until = time.monotonic() + PATIENCE
        while not self._holds(expression):
            assert time.monotonic() < until, f"never came true: {expression}"
            time.sleep(0.02)

    def _holds(self, expression):
        try:
            return self.run(expression)
        except AssertionError as error:
            if "navigated or closed" in str(error):  # the page that was asked has gone, and the next one comes
                return False
            raise

    def text(self, selector):
        """What an element shows."""
        return self.run(f"document.querySelector({json.dumps(selector)}).innerText")

    def click(self, selector):
        """Click an element as a script does."""
        self.run(f"document.querySelector({json.dumps(selector)}).click()")

    def mouse(self, kind, x, y, *, clicks=1, pressed=0):
        """Send one mouse event at a place of the window."""
        button = "left" if kind != "mouseMoved" or pressed else "none"
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button=button, buttons=pressed, clickCount=clicks)

    def key(self, name):
        """Press and release a key."""
        codes = {"Tab": 9, " ": 32, "Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowRight": 39}
        text = {"text": {" ": " ", "Enter": "\r"}[name]} if name in {" ", "Enter"} else {}
        code = "Space" if name == " " else name
        for kind in ("keyDown" if text else "rawKeyDown", "keyUp"):
            more = text if kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=name, code=code, windowsVirtualKeyCode=codes[name], **more)

    def close(self):
        """End the browser."""
        with contextlib.suppress(OSError):
            os.write(self._commands, b'{"id":0,"method":"Browser.close"}\0')
        for end in (self._commands, self._answers):
            os.close(end)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
