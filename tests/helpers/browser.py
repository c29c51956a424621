"""A headless Chromium for tests, controlled through the DevTools protocol over two pipes, without further packages."""

import base64
import fcntl
import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--remote-debugging-pipe",
)
TIMEOUT = 60  # seconds


class Browser:
    """One tab at first. `errors` collects errors and warnings of the console, `requests` the addresses of all requests.

    `profile` is the folder that the browser keeps its data in, by default one that is deleted in the end.
    """

    def __init__(self, profile=None):
        found = next(filter(None, map(shutil.which, NAMES)), None)
        assert found, f"These tests need a browser: install one of {', '.join(NAMES)}."
        self.errors, self.requests, self._number = [], [], 0
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        theirs, self._out = map(_high, os.pipe())
        self._in, ours = map(_high, os.pipe())

        def connect():
            os.dup2(theirs, 3)
            os.dup2(ours, 4)

        self._process = subprocess.Popen(
            [found, *FLAGS, f"--user-data-dir={profile or self._profile.name}", "about:blank"],
            preexec_fn=connect,
            pass_fds=(3, 4),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs)
        os.close(ours)
        self._rest, self._session = b"", None
        target = next(t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self.tabs = [self._attach(target["targetId"])]

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._process.kill()
        self._process.wait()
        os.close(self._in)
        os.close(self._out)
        self._profile.cleanup()

    def _attach(self, target):
        self._session = None
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        return self._session

    def use(self, number):
        """Direct all further commands to a tab, which is opened if it is the next one."""
        self._session = None
        if number == len(self.tabs):
            self.tabs.append(self._attach(self.call("Target.createTarget", url="about:blank")["targetId"]))
        self._session = self.tabs[number]

    def call(self, method, **parameters):
        """Send a command of the protocol and return its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                return answer["result"]

    def _receive(self):
        end = time.monotonic() + TIMEOUT
        while b"\0" not in self._rest:
            assert time.monotonic() < end, "the browser does not respond"
            self._rest += os.read(self._in, 1 << 20)
        one, self._rest = self._rest.split(b"\0", 1)
        answer = json.loads(one)
        self._listen(answer.get("method"), answer.get("params"))
        return answer

    def _listen(self, event, about):
        if event == "Runtime.exceptionThrown":
            self.errors.append(about["exceptionDetails"]["exception"].get("description", "exception"))
        elif event == "Runtime.consoleAPICalled" and about["type"] in ("error", "warning"):
            self.errors.append(str(about["args"]))
        elif event == "Log.entryAdded" and about["entry"]["level"] in ("error", "warning"):
            self.errors.append(about["entry"]["text"])
        elif event == "Network.requestWillBeSent":
            self.requests.append(about["request"]["url"])

    def open(self, path, width=1280, height=900, dark=False, scripts=True):
        """Load a file, or the page at a URL, in a window of the given size."""
        self.errors.clear()
        self.requests.clear()
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=features)
        self.call("Emulation.setScriptExecutionDisabled", value=not scripts)
        about = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **about)
        is_url = str(path).startswith("http://")
        self.call("Page.navigate", url=str(path) if is_url else Path(path).resolve().as_uri())
        while self._receive().get("method") != "Page.loadEventFired":
            pass
        return self

    def run(self, expression):
        """Evaluate JavaScript and return its value; promises are awaited."""
        about = {"expression": expression, "returnByValue": True, "awaitPromise": True, "userGesture": True}
        result = self.call("Runtime.evaluate", **about)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def press(self, key, **about):
        """Press and release a key; `about` are further fields of the protocol."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, **about)

    def type(self, text):
        """Enter text where the focus is."""
        self.call("Input.insertText", text=text)

    def move(self, x, y):
        """Move the mouse to a point of the window."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def picture(self, path):
        """Write a screenshot to a PNG file."""
        taken = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        Path(path).write_bytes(base64.b64decode(taken["data"]))


def _high(descriptor):
    """Return the same pipe at a descriptor number that cannot collide with 3 and 4."""
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(descriptor)
    return moved
