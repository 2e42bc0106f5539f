"""A real Chromium (the operating system's) on the real service with real tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from platform import node

import pyarrow as pa
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tablekeeper import Table
from tests.support.served import Served, running_service

CHROMIUM = "/usr/bin/chromium"
IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
SCHEMA = pa.schema([("id", pa.string()), ("ts", pa.int64())])
RENAME = """(names) => {
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    for (const [from, to] of names) texts.currentNode.data = texts.currentNode.data.replaceAll(from, to);
  }
}"""
# As the pages show them: nothing starts by itself, so that a test meets what it left.
QUIET: dict[str, list[str]] = {"services": []}


@dataclass(frozen=True)
class Lake:
    """A service, and the folder of the tables that it looks after in the database `sales`."""

    served: Served
    folder: Path

    def add(self, name: str, *, commits: int = 3, queue: str = "default") -> Table:
        """A merge-on-read table with something to compact, registered."""
        made = Table.create(self.folder / name, name=name, schema=SCHEMA, key="id", ordering="ts", engine="local")
        for ts in range(commits):
            made.upsert(pa.table({"id": ["a", "b"], "ts": [ts, ts]}, schema=SCHEMA))
        body = {"db_name": "sales", "table_name": name, "base_path": str(self.folder / name), "queue": queue}
        self.served.client().post("/v1/tables", {**body, "policy": QUIET})
        return made


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """The browser. A missing one is a failure with the remedy, not a skip."""
    assert Path(CHROMIUM).exists(), f"{CHROMIUM} is missing: apt-get install chromium"
    # Work runs in processes of its own, on machines that may be busy.
    expect.set_options(timeout=60_000)
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="session")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    """A service without tokens, with four tables."""
    home = tmp_path_factory.mktemp("browser")
    folder = home / "lake"
    folder.mkdir()
    with running_service(home / "service", allow=folder) as served:
        made = Lake(served, folder)
        for name, commits, queue in (
            ("trips", 6, "default"),
            ("orders", 3, "nightly"),
            ("customers", 2, "nightly"),
            ("clicks", 4, "default"),
        ):
            made.add(name, commits=commits, queue=queue)
        yield made


@pytest.fixture
def page(browser: Browser, lake: Lake) -> Iterator[Page]:
    """A fresh window on the service. Whatever the page reports on its console as an error fails the test."""
    yield from window(browser, lake.served)


def window(browser: Browser, served: Served) -> Iterator[Page]:
    """A window with a profile of its own, watched for errors of scripts and of the content security policy."""
    context = browser.new_context(base_url=served.url, viewport={"width": 1100, "height": 760})
    opened = context.new_page()
    opened.set_default_timeout(60_000)
    faults: list[str] = []
    opened.on("pageerror", lambda error: faults.append(str(error)))
    opened.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
    yield opened
    context.close()
    # The browser's own line about a page that was refused on purpose is no error of the page.
    assert [fault for fault in faults if not fault.endswith(("(Unauthorized)", "(Not Found)"))] == []


@pytest.fixture(scope="session")
def accessible() -> Callable[[Page], None]:
    """Fails with what axe finds on a page."""
    axe = Axe()

    def check(page: Page) -> None:
        found = axe.run(page)
        assert found.violations_count == 0, found.generate_report()

    return check


@pytest.fixture(scope="session")
def picture(lake: Lake) -> Callable[[Page, str], None]:
    """Keeps a picture of a page for the documentation, with names in place of this machine's."""

    def keep(page: Page, name: str) -> None:
        IMAGES.mkdir(exist_ok=True)
        page.evaluate(RENAME, [[str(lake.folder), "/lake"], [node(), "keeper"]])
        page.screenshot(path=IMAGES / f"{name}.png")

    return keep
