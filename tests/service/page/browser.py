"""A real browser: Chromium, driven over chromedriver's own HTTP (W3C WebDriver)."""

import asyncio
import json
import shutil
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.metadata import files
from pathlib import Path
from typing import Any

import httpx
import pytest

NEEDED = pytest.mark.skipif(
    shutil.which("chromedriver") is None,
    reason="chromedriver is not installed (Debian: chromium-driver)",
)
ARGUMENTS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")
PATIENCE_SECONDS = 30.0  # as chromedriver has with a script
LOOK = """const [told] = arguments, seen = () => { %s };
(function look() {
  try {
    const found = seen();
    if (found) told(found); else setTimeout(look, 10);
  } catch (error) { told({ error: String(error) }); }
})();"""
SHOWN = "return document.getElementById('status').textContent.includes(' heads, ')"
COMPARED = "return document.getElementById('alike').ariaBusy !== 'true'"
# What an action says next to its control
SAID = "return [...document.querySelectorAll('output.said')].map((one) => one.textContent).join()"
FAILED = "return document.querySelector('output.said.bad')?.textContent"
SORTED = f"{SAID}.includes('Heads sorted')"
# WebDriver's names of keys that write nothing
KEYS = {"tab": "\ue004", "enter": "\ue007", "right": "\ue014", "down": "\ue015"}
# Deque's rules of accessibility
AXE = next(
    Path(file.locate())
    for file in files("axe-playwright-python") or []
    if file.name == "axe.min.js"
)
# What reaches beyond the window, or holds more than it shows, but for boxes that scroll
WIDE = """
const edge = document.documentElement.clientWidth + 1;
const wide = (one) => one.getBoundingClientRect().right > edge
  || (one.clientWidth && one.scrollWidth > one.clientWidth + 1);
return [document.documentElement, ...document.querySelectorAll("body *")]
  .filter((one) => !one.closest(".scroll, [role=grid]") && wide(one)).map((one) => one.outerHTML);
"""


class Page:
    """A page in a browser.

    Args:
        http: a client of chromedriver's session.
    """

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    async def open(self, url: str) -> None:
        """Go to an address; it returns when the page is loaded."""
        await self._call("url", {"url": url})

    async def run(self, script: str) -> Any:
        """What a function's body returns, run in the page."""
        return await self._call("execute/sync", {"script": script, "args": []})

    async def press(self, *keys: str) -> None:
        """Press keys one after the other, wherever the focus is; a key may be a whole text."""
        strokes = [
            {"type": kind, "value": stroke}
            for key in keys
            for stroke in ([key] if key in KEYS.values() else key)
            for kind in ("keyDown", "keyUp")
        ]
        await self._call(
            "actions", {"actions": [{"type": "key", "id": "keyboard", "actions": strokes}]}
        )

    async def tap(self, element: str, at: tuple[float, float] = (0.5, 0.5)) -> None:
        """Touch what a script's expression gives, at a part of its box."""
        await self.click(element, at, "touch")

    async def click(
        self, element: str, at: tuple[float, float] = (0.5, 0.5), kind: str = "mouse"
    ) -> None:
        """Click with the mouse on what a script's expression gives, at a part of its box."""
        x, y = await self.run(
            f"""const element = {element};
            element.scrollIntoView({{ block: "center" }});
            const box = element.getBoundingClientRect();
            return [box.x + {at[0]} * box.width, box.y + {at[1]} * box.height]"""
        )
        here = {"type": "pointerMove", "x": round(x), "y": round(y)}
        press = [{"type": each, "button": 0} for each in ("pointerDown", "pointerUp")]
        way = {"pointerType": kind}
        mouse = {"type": "pointer", "id": kind, "parameters": way, "actions": [here, *press]}
        await self._call("actions", {"actions": [mouse]})

    async def wait(self, script: str) -> Any:
        """The first thing that is true of what a function's body returns; the page itself looks."""
        return await self._call("execute/async", {"script": LOOK % script, "args": []})

    async def resize(self, width: int, height: int, zoom: float = 1) -> None:
        """Give the page so many CSS pixels of `zoom` device pixels each; 0 by 0: the window's."""
        params = {"width": width, "height": height, "deviceScaleFactor": zoom, "mobile": False}
        body = {"cmd": "Emulation.setDeviceMetricsOverride", "params": params}
        await self._call("goog/cdp/execute", body)

    @asynccontextmanager
    async def before(self, script: str) -> AsyncIterator[None]:
        """Run a script in every page that is opened, before its own."""
        add, remove = (f"Page.{verb}ScriptToEvaluateOnNewDocument" for verb in ("add", "remove"))
        body = {"cmd": add, "params": {"source": script}}
        made = await self._call("goog/cdp/execute", body)
        try:
            yield
        finally:
            await self._call("goog/cdp/execute", {"cmd": remove, "params": made})

    @asynccontextmanager
    async def theme(self, name: str) -> AsyncIterator[None]:
        """Let the reader prefer "light" or "dark"."""
        await self._prefer(name)
        try:
            yield
        finally:
            await self._prefer("")

    async def _prefer(self, theme: str) -> None:
        features = [{"name": "prefers-color-scheme", "value": theme}]
        body = {"cmd": "Emulation.setEmulatedMedia", "params": {"features": features}}
        await self._call("goog/cdp/execute", body)

    async def downloads(self, folder: Path) -> None:
        """Keep what is downloaded in a folder."""
        params = {"behavior": "allow", "downloadPath": str(folder)}
        body = {"cmd": "Browser.setDownloadBehavior", "params": params}
        await self._call("goog/cdp/execute", body)

    async def heap(self) -> int:
        """The bytes that the page's scripts hold."""
        await self._call("goog/cdp/execute", {"cmd": "Performance.enable", "params": {}})
        body = {"cmd": "Performance.getMetrics", "params": {}}
        metrics = (await self._call("goog/cdp/execute", body))["metrics"]
        return int(next(one["value"] for one in metrics if one["name"] == "JSHeapUsedSize"))

    async def until(self, done: Callable[[], bool]) -> None:
        """Wait for what is seen outside of the page."""
        end = time.monotonic() + PATIENCE_SECONDS
        while not done():
            assert time.monotonic() < end
            await asyncio.sleep(0.02)

    async def complaints(self) -> list[str]:
        """The errors on its console: scripts that failed, what the policy forbade."""
        entries = await self._call("se/log", {"type": "browser"})
        return [entry["message"] for entry in entries if entry["level"] == "SEVERE"]

    async def _call(self, what: str, body: dict[str, Any]) -> Any:
        answer = (await self._http.post(what, json=body)).json()["value"]
        assert not (isinstance(answer, dict) and "error" in answer), answer
        return answer


def labelled(name: str) -> str:
    """The element of an accessible name, as an expression of the page."""
    return f"""document.querySelector('[aria-label="{name}"]')"""


async def fresh(browser: Page, address: str, fragment: str = "") -> None:
    """Open the page anew, with an empty console."""
    await browser.open("about:blank")
    await browser.complaints()
    await browser.open(f"{address}/{fragment}")
    await browser.wait("return !document.querySelector('button[type=submit]').disabled")


async def ask(browser: Page, address: str, text: str, other: str = "") -> None:
    """Open the page anew, write the texts and press Show."""
    await fresh(browser, address)
    await browser.run(
        f"""document.getElementById("text").value = {json.dumps(text)};
        document.getElementById("other").value = {json.dumps(other)};
        document.querySelector("button[type=submit]").click()"""
    )
    await browser.wait(SHOWN)
    await browser.wait(COMPARED)


def saved(*files: Path) -> bool:
    """Tell whether files are downloaded; Chromium makes an empty one of the name first."""
    return all(file.exists() and file.stat().st_size for file in files)


async def taken(browser: Page, title: str, file: Path) -> bytes:
    """What a button saves."""
    await browser.downloads(file.parent)
    await browser.run(
        f"""[...document.querySelectorAll("#exports button")].find(
          (button) => button.textContent.startsWith("{title}")).click()"""
    )
    await browser.until(lambda: saved(file))
    return await asyncio.to_thread(file.read_bytes)
