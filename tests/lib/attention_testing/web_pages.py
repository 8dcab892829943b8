"""The pages of the programs in Chromium: fixtures, and what both pages must satisfy."""

import contextlib
import shutil
from pathlib import Path

import pytest

from attention_testing import servers

SAMPLE = Path(__file__).parents[3] / "docs" / "photographer.jpg"

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@contextlib.contextmanager
def served(program, temporary, *options):
    """Yield the address of a page, whose process has its files in `temporary`."""
    pytest.importorskip("gradio")
    environment = {"TMPDIR": str(temporary)}
    with servers.served(program, *options, command="web", **environment) as (
        _,
        address,
    ):
        yield address


@pytest.fixture(scope="module")
def temporary(tmp_path_factory):
    """The folder in which a program makes its temporary folder."""
    return tmp_path_factory.mktemp("temporary")


@pytest.fixture(scope="module")
def browser():
    """Chromium, driven by Playwright, with a camera that shows a test pattern."""
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=CHROMIUM,
            args=[
                # Containers run tests as root, which Chromium's sandbox refuses.
                "--no-sandbox",
                "--use-fake-device-for-media-stream",
                "--use-fake-ui-for-media-stream",
            ],
        )
        yield browser
        browser.close()


@contextlib.contextmanager
def opened(browser, address, *, width=1200, dark=False):
    """Yield a page, and a list of the browser's requests to other addresses."""
    scheme = "dark" if dark else "light"
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme
    )
    elsewhere = []

    def watch(request):
        if not request.url.startswith((f"{address}/", "data:", f"blob:{address}/")):
            elsewhere.append(request.url)

    context.on("request", watch)
    page = context.new_page()
    # Busy machines take longer than the 30 seconds that are Playwright's default.
    page.set_default_timeout(120_000)
    page.goto(address)
    # A script builds the page: with a place for results, or with tabs.
    page.wait_for_selector(".ka-placeholder, [role=tab]")
    yield page, elsewhere
    context.close()


def repeat_until(act, element, *, times=4):
    """Act, and wait for the `Locator` of an element; act again if it does not appear.

    On a busy machine, Gradio sometimes loses an event that begins soon after another
    one has ended.
    """
    from playwright.sync_api import TimeoutError as NotYet

    for _ in range(times - 1):
        act()
        with contextlib.suppress(NotYet):
            element.wait_for(timeout=30_000)
            return
    act()
    element.wait_for()


@contextlib.contextmanager
def settled(page):
    """Wait until the events of a page that begin in this block have ended.

    Gradio closes its stream after the last event, and loses an event that begins in the
    same milliseconds; see `repeat_until`.
    """
    running = set()

    def begin(request):
        if "/queue/" in request.url:
            running.add(request)

    def end(request):
        running.discard(request)

    page.on("request", begin)
    page.on("requestfinished", end)
    page.on("requestfailed", end)
    yield
    idle = 0
    while idle < 5:
        page.wait_for_timeout(50)
        idle = 0 if running else idle + 1


def is_within(page):
    """Return whether nothing is wider than the page, and no result is squeezed."""
    widths = page.eval_on_selector_all(
        ".ka-results > *", "results => results.map(x => x.clientWidth)"
    )
    scrolled = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    return scrolled == 0 and min(widths) >= 256


def tab_to(page, name):
    """Press Tab until the control whose name begins with `name` has the focus."""
    for _ in range(50):
        page.keyboard.press("Tab")
        names = page.evaluate(
            "[document.activeElement].map(x => [x.ariaLabel, x.innerText, "
            "...[...(x.labels ?? [])].map(x => x.innerText)]).flat()"
        )
        if any(x and x.strip().startswith(name) for x in names):
            return
    raise AssertionError(f"Tab does not reach {name}")


def check_keyboard(page):
    """Check that the Tab key reaches every control, also the options, and its name."""
    tab_to(page, "Options")
    page.keyboard.press("Enter")
    page.get_by_label("Beam width").wait_for()

    assert unreached(page) == []
    assert unnamed(page) == []


def unreached(page):
    """Return the visible controls that the Tab key does not reach, as HTML.

    Radio buttons of one name count as one: the arrow keys move between them.
    """
    # Tab starts from the place of the last click.
    page.mouse.click(1, 1)
    for _ in range(80):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement == document.body"):
            break
        page.evaluate("document.activeElement.dataset.reached = ''")
    return page.evaluate(
        """() => {
            const radios = (x) => document.getElementsByName(x.name);
            const reached = (x) => x.type == "radio"
                ? [...radios(x)].some(x => "reached" in x.dataset)
                : "reached" in x.dataset;
            return [...document.querySelectorAll("a, button, input, textarea, select")]
                .filter(x => x.checkVisibility({visibilityProperty: true}))
                .filter(x => !x.disabled && x.tabIndex >= 0 && !reached(x))
                .map(x => x.outerHTML);
        }"""
    )


def unnamed(page):
    """Return the roles of the controls that have no name for screen readers."""
    tree = page.context.new_cdp_session(page).send("Accessibility.getFullAXTree")
    return [
        node["role"]["value"]
        for node in tree["nodes"]
        if any(x["name"] == "focusable" for x in node.get("properties", []))
        and not node["name"]["value"].strip()
    ]
