"""What people see and do in the pages, in a real browser on the real service."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Dialog, Locator, Page, expect

from tests.browser.conftest import Lake, window
from tests.support.served import Served, running_service

NASTY = "<img src=x onerror=alert(1)>'\"; DROP TABLE tbl;--"
PAGES = ("/", "/tables", "/operations", "/instances", "/alarms", "/login", "/tables/sales/trips")
Check = Callable[[Page], None]
Keep = Callable[[Page, str], None]


def settle(page: Page, name: str) -> None:
    """Run a compaction of a table from its page, and wait until the page says that it is done."""
    page.goto(f"/tables/sales/{name}")
    page.get_by_role("link", name="Run compaction").click()
    page.get_by_role("button", name="Yes, run compaction").click()
    expect(history(page).get_by_text("completed", exact=True).first).to_be_visible()


def history(page: Page) -> Locator:
    return page.get_by_role("region", name="History")


def sorted_names(page: Page) -> list[str]:
    return page.locator("table tbody td.name a").all_inner_texts()


def test_the_overview_counts_the_lake_and_leads_to_everything(page: Page, lake: Lake, picture: Keep) -> None:
    settle(page, "clicks")
    page.goto("/")
    tile = page.locator(".tile", has_text="tables")
    assert int(tile.locator("dd").inner_text()) >= 4
    picture(page, "overview")
    for name in ("Tables", "Operations", "Instances", "Alarms"):
        page.get_by_role("navigation").get_by_role("link", name=name).click()
        expect(page.get_by_role("heading", level=1)).to_contain_text(name)
        expect(page.locator("nav [aria-current=page]")).to_have_text(name)


def test_tables_are_found_by_a_part_of_their_name(page: Page, picture: Keep) -> None:
    page.goto("/tables")
    picture(page, "tables")
    page.get_by_role("searchbox", name="Name or path").fill("ord")
    page.keyboard.press("Enter")
    expect(page.locator("tbody tr")).to_have_count(1)
    assert sorted_names(page) == ["sales.orders"]


def test_tables_are_sorted_by_keyboard(page: Page) -> None:
    page.goto("/tables")
    expect(page.get_by_role("columnheader", name="table", exact=True)).to_have_attribute("aria-sort", "ascending")
    ascending = sorted_names(page)
    assert ascending == sorted(ascending)
    page.get_by_role("link", name="table", exact=True).focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("columnheader", name="table", exact=True)).to_have_attribute("aria-sort", "descending")
    assert sorted_names(page) == ascending[::-1]
    page.get_by_role("link", name="commits behind").click()
    behind = [int(text) for text in page.locator("table tbody tr td:nth-child(4)").all_inner_texts()]
    assert behind == sorted(behind, reverse=True)


def test_the_first_stop_of_the_keyboard_leads_past_the_navigation(page: Page) -> None:
    page.goto("/tables")
    page.keyboard.press("Tab")
    expect(page.locator(":focus")).to_have_text("Skip to content")
    expect(page.locator(":focus")).to_be_in_viewport()


def test_a_compaction_is_run_from_the_page_and_its_state_changes_live(page: Page, lake: Lake, picture: Keep) -> None:
    page.goto("/tables/sales/trips")
    expect(page.get_by_role("img", name="Timeline from")).to_be_visible()
    assert page.locator("rect.bar.completed").count() == 6
    page.get_by_role("link", name="Run compaction").click()
    expect(page.get_by_text("whether it is due or not")).to_be_visible()
    picture(page, "confirm")
    page.get_by_role("button", name="Yes, run compaction").click()
    page.evaluate("window.isTheSamePage = true")
    expect(history(page).get_by_text("completed", exact=True).first).to_be_visible()
    # The compaction is on the picture of the timeline, and nobody reloaded the page.
    expect(page.locator("svg text", has_text=re.compile("^commit$"))).to_be_visible()
    bars = [page.locator("rect.bar").nth(n).bounding_box() for n in range(7)]
    edges = sorted((bar["x"], bar["x"] + bar["width"]) for bar in bars if bar is not None)
    assert all(end <= start + 0.2 for (_, end), (start, _) in pairwise(edges)), edges
    assert page.evaluate("window.isTheSamePage")
    picture(page, "table")
    history(page).get_by_role("link").first.click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("compaction of sales.trips")
    expect(page.get_by_role("region", name="Attempts")).to_contain_text("arrow")
    picture(page, "operation")
    # What somebody has opened stays open while the page renews itself.
    page.get_by_text("Result of the newest attempt").click()
    page.evaluate("document.querySelector('.tile').textContent = 'old'")
    expect(page.locator(".tile").first).not_to_have_text("old")
    expect(page.locator("details pre")).to_be_visible()


def test_a_page_says_when_the_service_is_gone(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    with running_service(tmp_path / "service", allow=tmp_path / "lake") as served:
        # Its window is not watched: the browser reports that nobody answers, too.
        context = browser.new_context(base_url=served.url)
        page = context.new_page()
        page.goto("/")
        expect(page.locator("#stale")).to_be_hidden()
    expect(page.get_by_role("alert")).to_contain_text("The service does not answer. What is shown is from")
    context.close()


def test_a_paused_table_starts_nothing_until_it_is_resumed(page: Page, lake: Lake) -> None:
    page.goto("/tables/sales/orders")
    page.get_by_role("link", name="Pause").click()
    expect(page.get_by_text("Nothing will start on this table")).to_be_visible()
    page.get_by_role("link", name="No, go back").click()
    assert not lake.served.client().get("/v1/tables/sales/orders")["paused"]
    page.get_by_role("link", name="Pause").click()
    page.get_by_role("button", name="Yes").click()
    assert lake.served.client().get("/v1/tables/sales/orders")["paused"]
    page.goto("/tables?state=paused")
    assert sorted_names(page) == ["sales.orders"]
    page.get_by_role("link", name="sales.orders").click()
    page.get_by_role("link", name="Resume").click()
    page.get_by_role("button", name="Yes").click()
    expect(page.get_by_role("link", name="Pause")).to_be_visible()
    assert not lake.served.client().get("/v1/tables/sales/orders")["paused"]


def test_an_operation_is_cancelled_and_tried_again(page: Page, lake: Lake) -> None:
    client = lake.served.client()
    client.post("/v1/tables/sales/customers/pause")
    page.goto("/tables/sales/customers")
    page.get_by_role("link", name="Run compaction").click()
    page.get_by_role("button", name="Yes").click()
    page.get_by_role("region", name="Waiting and running").get_by_role("link").first.click()
    page.get_by_role("link", name="Cancel").click()
    expect(page.get_by_text("It waits, and will not run.")).to_be_visible()
    page.get_by_role("button", name="Yes").click()
    expect(page.locator("main .state").first).to_have_text("cancelled")
    page.get_by_role("link", name="Try again").click()
    page.get_by_role("button", name="Yes").click()
    expect(page.locator("main .state").first).to_have_text("pending")
    client.post("/v1/tables/sales/customers/resume")
    expect(page.locator("main .state").first).to_have_text("completed")


def test_a_table_tells_what_comes_next_and_what_its_files_are(page: Page, lake: Lake, accessible: Check) -> None:
    page.goto("/tables/sales/orders")
    expect(page.get_by_role("region", name="What comes next")).to_contain_text("3 of 5 delta commits")
    # Fetched after the page.
    expect(page.get_by_role("region", name="Sizes of base files")).to_contain_text("below 1 MiB")
    page.get_by_role("link", name="Preview of compaction").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("The next compaction of sales.orders")
    accessible(page)


def test_a_policy_is_changed_and_a_wrong_one_is_refused_with_the_reason(page: Page, lake: Lake) -> None:
    page.goto("/tables/sales/orders")
    page.get_by_label("The table's own part").fill('{"services": [], "compact_after_commits": 7}')
    page.get_by_role("button", name="See what would change").click()
    expect(page.get_by_role("row", name="compact_after_commits 5 7")).to_be_visible()
    page.get_by_role("button", name="Yes, change the policy").click()
    expect(page.get_by_label("The table's own part")).to_have_value(re.compile('"compact_after_commits": 7'))
    assert lake.served.client().get("/v1/tables/sales/orders")["policy"]["compact_after_commits"] == 7


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", PAGES)
def test_axe_finds_nothing_on_a_page(page: Page, accessible: Check, path: str, scheme: str) -> None:
    page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    page.goto(path)
    accessible(page)


def test_axe_finds_nothing_on_an_operation_and_on_questions(page: Page, accessible: Check) -> None:
    settle(page, "clicks")
    accessible(page)
    history(page).get_by_role("link").first.click()
    accessible(page)
    for path in ("/tables/sales/trips/confirm/pause", "/tables/sales/trips/files", "/tables/sales/nothing"):
        with_answer = page.goto(path)
        assert with_answer is not None
        accessible(page)


@pytest.mark.parametrize("path", [*PAGES, "/tables/sales/trips/confirm/remove"])
def test_a_phone_scrolls_no_page_sideways(page: Page, path: str, picture: Keep) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    page.goto(path)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert page.evaluate("[...document.querySelectorAll('nav')].every((nav) => nav.scrollWidth <= nav.clientWidth)")
    if path == "/tables/sales/trips":
        picture(page, "phone")


def test_dark_is_dark_and_light_is_light(page: Page, picture: Keep) -> None:
    page.goto("/")
    shades = {}
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
        shade = page.evaluate("getComputedStyle(document.body).backgroundColor")
        shades[scheme] = sum(int(part) for part in re.findall(r"\d+", shade)[:3]) / 3
    assert shades["light"] > 200
    assert shades["dark"] < 60
    page.goto("/tables/sales/trips")
    picture(page, "dark")


def test_names_with_markup_are_shown_and_do_nothing(page: Page, lake: Lake) -> None:
    dialogs: list[str] = []

    def dismiss(dialog: Dialog) -> None:
        dialogs.append(dialog.message)
        dialog.dismiss()

    page.on("dialog", dismiss)
    made = lake.add("plain")
    lake.served.client().post(
        "/v1/tables", {"db_name": "sales", "table_name": "plain", "base_path": made.path, "owner": NASTY}
    )
    page.goto("/tables")
    expect(page.get_by_role("cell", name=NASTY, exact=True)).to_be_visible()
    page.goto(f"/tables?search={NASTY}")
    expect(page.get_by_role("searchbox")).to_have_value(NASTY)
    assert dialogs == []
    assert page.locator("img[src=x]").count() == 0


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[tuple[Served, str]]:
    """A service with one token, and that token."""
    with running_service(tmp_path / "service", allow=tmp_path) as served:
        yield served, served.client().post("/v1/tokens", {"name": "root", "role": "admin"})["token"]


def test_with_a_token_people_log_in_and_out(browser: Browser, locked: tuple[Served, str], accessible: Check) -> None:
    served, secret = locked
    for page in window(browser, served):
        page.goto("/tables")
        assert page.url.endswith("/login?then=%2Ftables")
        accessible(page)
        page.get_by_label("Token").fill("not a token")
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("alert")).to_contain_text("not known")
        page.get_by_label("Token").fill(secret)
        page.get_by_role("button", name="Log in").click()
        # The page that was asked for.
        expect(page.get_by_role("heading", level=1)).to_have_text("Tables")
        assert page.evaluate("document.cookie") == ""
        assert secret not in page.content()
        accessible(page)
        # A link in a message about an alarm, which some other site shows.
        page.goto(f"data:text/html,<a href='{served.url}/alarms'>look</a>")
        page.get_by_role("link", name="look").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("Alarms")
        page.get_by_role("button", name="Log out root").click()
        page.goto("/")
        assert page.url.endswith("/login")
