"""A real browser for figures: headless Chromium, spoken to by its DevTools protocol."""

import base64
import itertools
import json
import shutil
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import websocket  # of jupyter's

NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-port=0")
OFFLINE = ("--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--disable-background-networking")
PAGE = """<!doctype html><meta charset="utf-8"><body>{}<script>
  const figure = document.querySelector("figure"), caption = figure.querySelector("figcaption");
  const wait = (ms) => new Promise((done) => setTimeout(done, ms));
</script>"""


class Browser:
    """One tab; pages have `figure`, `caption` and `wait(ms)`."""

    def __init__(self, port, folder):
        tabs = json.load(urlopen(f"http://127.0.0.1:{port}/json", timeout=20))
        address = next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page")
        self.socket = websocket.create_connection(address, timeout=120, suppress_origin=True)
        self.numbers, self.file = itertools.count(1), Path(folder, "page.html")

    def call(self, method, **parameters):
        """A command's result; a RuntimeError where the browser refuses it."""
        number = next(self.numbers)
        self.socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while (told := json.loads(self.socket.recv())).get("id") != number:
            pass
        if "error" in told:
            raise RuntimeError(f"{method}: {told['error']}")
        return told["result"]

    def show(self, *figures, **how):
        """Open a page with figures; the rest as `visit`."""
        self.file.write_text(PAGE.format("".join(figure.page for figure in figures)))
        self.visit(self.file.as_uri(), **how)

    def visit(self, address, media="", wide=900, arrives="", **features):
        """Open an address, and wait until it is loaded, or the page `arrives` to which it leads; `features`
        such as prefers_color_scheme="dark"."""
        listed = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.call("Emulation.setEmulatedMedia", media=media, features=listed)
        size = {"width": wide, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.call("Page.enable")
        self.call("Page.navigate", url=address)
        for _ in range(200):
            if self.shown() == f"complete{arrives or address}":
                return
            time.sleep(0.05)
        raise TimeoutError("the page did not load within ten seconds")

    def shown(self):
        """How far the page is, and its address; "" while one page takes the place of another."""
        try:
            return self.run("return document.readyState + location.href", late=False)
        except RuntimeError:
            return ""

    def run(self, script, late=True):
        """What the body of an asynchronous function returns; a RuntimeError where it throws."""
        body = f"(async () => {{ {script} }})()" if late else f"(() => {{ {script} }})()"
        told = self.call("Runtime.evaluate", expression=body, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in told:
            raise RuntimeError(told["exceptionDetails"]["exception"].get("description", told))
        return told["result"].get("value")

    def key(self, name, code):
        """Press a key; its name and number, as "ArrowRight", 39."""
        text = {"Enter": "\r"}.get(name, "")
        for kind in ("keyDown", "keyUp"):
            typed = {"key": name, "code": name, "windowsVirtualKeyCode": code, "text": text}
            self.call("Input.dispatchKeyEvent", type=kind, **typed)

    def picture(self, file):
        """Write a PNG of the whole page."""
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        Path(file).write_bytes(base64.b64decode(found["data"]))


@contextmanager
def browsing():
    """A `Browser`; in the end its process is gone, and what it wrote."""
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as folder:
        command = [CHROMIUM, *OPTIONS, *OFFLINE, f"--user-data-dir={folder}/profile", "about:blank"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            noted = Path(folder, "profile/DevToolsActivePort")
            for _ in range(600):
                if noted.exists() and noted.read_text().count("\n"):
                    break
                time.sleep(0.05)
            browser = Browser(noted.read_text().split()[0], folder)
            yield browser
            browser.call("Browser.close")
            process.wait(20)
        finally:
            process.kill()
            process.wait()
