"""The pages in a real browser: an answer, and the run goes on as one looks; by keys alone; on a phone; without scripts."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from stepseven import Layer
from tests.http.desk import Served, served
from tests.http.page_flows import renewal
from tests.servers.databases import url
from tests.workers.crew import Crew

pytestmark = [pytest.mark.browser]
SOON = 20_000  # ms: a machine that others use, too


class Window:
    """A page of the browser, signed in. Whatever it says on its console, or loads from elsewhere, is a fault."""

    def __init__(self, browser: Any, server: Served, **more: Any) -> None:
        self.faults: list[str] = []
        self.page = browser.new_context(base_url=server.url, **more).new_page()
        self.page.set_default_timeout(SOON)
        self.page.on("console", lambda m: self.faults.append(m.text) if m.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("request", lambda r: None if r.url.startswith(server.url) else self.faults.append(r.url))

    def sign_in(self, server: Served) -> None:
        """By the link that ``serve`` prints: it shows a button, and that signs in."""
        self.page.goto(server.sign_in)
        self.page.get_by_role("button", name="Sign in").click()
        self.page.wait_for_url(f"{server.url}/")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Headless Chromium."""
    sync_api = pytest.importorskip("playwright.sync_api")
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    with sync_api.sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
        yield made
        made.close()


async def _ask(where: str) -> None:
    async with Layer(where) as layer:
        await layer.run(renewal(), client="acme", run_id="r-1", goal="renewal Q3", wait=0)


@pytest.fixture
def asking(tmp_path: Path) -> Iterator[Served]:
    """A server, a worker, and a run that has asked."""
    with Crew(url(tmp_path), tmp_path) as crew, served(tmp_path) as server:
        with ThreadPoolExecutor(1) as aside:  # the browser's driver has a loop in this thread
            aside.submit(asyncio.run, _ask(url(tmp_path))).result()
        crew.hire("tests.http.page_flows")
        yield server


def test_answered_and_seen_to_its_end(browser: Any, asking: Served) -> None:
    """Sign in, answer, approve with an edit; the run's page shows the end without being loaded again."""
    window = Window(browser, asking)
    window.sign_in(asking)
    page = window.page
    page.get_by_role("button", name="ben").click()
    page.wait_for_url("**/runs/r-1*")
    page.get_by_role("link", name="May I send").first.click()
    page.get_by_text("Edit the values first", exact=True).click()
    page.locator("textarea[name=edit-text]").fill("Dear Ben")
    page.get_by_role("button", name="yes, exactly so").click()
    page.wait_for_url("**/runs/r-1*")
    page.locator("section > pre", has_text="sent 'Dear Ben' to ben@acme.example").wait_for()
    assert window.faults == []


def test_by_keys_alone(browser: Any, asking: Served) -> None:
    """Keys: j and k move, a number chooses, the same again sends; ? says so. No mouse."""
    window = Window(browser, asking)
    window.sign_in(asking)
    page = window.page
    page.keyboard.press("?")
    page.get_by_role("dialog", name="Keys").wait_for()
    page.keyboard.press("Escape")
    page.keyboard.press("1")
    assert page.evaluate("document.activeElement.value") == "ann"
    page.keyboard.press("1")
    page.wait_for_url("**/runs/r-1*")
    page.get_by_role("link", name="May I send").first.wait_for()
    assert window.faults == []


def test_without_javascript_on_a_phone(browser: Any, asking: Served) -> None:
    """Everything can be read and pressed at 390 × 844, nothing is cut off at the side, and no script is needed."""
    window = Window(browser, asking, java_script_enabled=False, viewport={"width": 390, "height": 844})
    window.sign_in(asking)
    page = window.page
    page.locator(".item").first.click()
    page.get_by_role("button", name="ann").click()
    page.wait_for_url("**/runs/r-1*")
    page.get_by_text("Your answer is kept").wait_for()
    for path in ("/", "/runs", "/runs/r-1", "/board", "/clients", "/clients/acme", "/review"):
        page.goto(path)
        box = page.locator("body").bounding_box()
        assert box is not None
        assert box["width"] <= 390, path
    assert window.faults == []


def test_a_double_click_answers_once(browser: Any, asking: Served) -> None:
    """The second press sends nothing."""
    window = Window(browser, asking)
    window.sign_in(asking)
    posts: list[str] = []
    window.page.on("request", lambda r: posts.append(r.url) if r.method == "POST" else None)
    window.page.get_by_role("button", name="ann").dblclick()
    window.page.wait_for_url("**/runs/r-1*")
    assert len(posts) == 1
    assert window.faults == []
