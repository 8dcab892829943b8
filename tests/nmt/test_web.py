"""The page of the translator in a browser, and its endpoint."""

import pytest
from web_pages import chromium, opened, served

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    with served("nmt", tmp_path_factory.mktemp("temporary")) as address:
        yield address


def translate(page, sentence):
    page.get_by_label("Sentence").fill(sentence)
    page.get_by_role("button", name="Translate").click()
    page.wait_for_selector(".ka-words")


def bars_shown(page):
    """Whether the bars of each word of the translation are shown."""
    return page.eval_on_selector_all(
        ".ka-words svg",
        "drawings => drawings.map(x => "
        "getComputedStyle(x.querySelector('rect')).display != 'none')",
    )


def test_a_click_the_arrow_keys_and_the_mouse_show_where_a_word_looked(
    browser, address
):
    with opened(browser, address) as (page, _):
        translate(page, "A dog runs in the snow.")
        words = page.locator(".ka-words label span")
        assert words.all_inner_texts()[:2] == ["Ein", "Hund"]

        words.nth(1).click()
        page.mouse.move(0, 0)
        assert bars_shown(page).index(True) == 1

        page.keyboard.press("ArrowDown")
        assert bars_shown(page).index(True) == 2

        words.nth(0).hover()
        assert bars_shown(page).index(True) == 0
        assert sum(bars_shown(page)) == 1


@pytest.mark.parametrize("width", [400, 1200])
def test_nothing_is_cut_off_or_fetched_from_elsewhere(browser, address, width):
    with opened(browser, address, width=width, dark=True) as (page, elsewhere):
        page.get_by_role("button", name="A man in a blue shirt").click()
        page.wait_for_selector(".ka-heat")

        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert elsewhere == []


def test_markup_in_a_sentence_is_text(browser, address):
    with opened(browser, address) as (page, _):
        translate(page, "A <b>dog</b> ${1+1} {{value}} <img src=x onerror=alert(1)>")

        sources = page.locator(".ka-alignment li").all_inner_texts()
        assert sources[:4] == ["A", "<b>dog</b>", "${1+1}", "{{value}}"]


def test_a_text_file_gives_a_table_and_a_download(browser, address, tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("A dog runs.\n\nTwo women sing.\n")
    with opened(browser, address) as (page, _):
        page.get_by_role("tab", name="A text file").click()
        page.locator("input[type=file]").set_input_files(path)
        with page.expect_download() as download:
            page.get_by_role("link", name="Download").click()
        lines = download.value.path().read_text().splitlines()

    assert [bool(x) for x in lines] == [True, False, True]


def test_a_bad_text_file_is_one_sentence_on_the_page(browser, address, tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes("A dog runs.".encode("utf-16-le"))
    with opened(browser, address) as (page, _):
        page.get_by_role("tab", name="A text file").click()
        page.locator("input[type=file]").set_input_files(path)

        alert = page.wait_for_selector("[role=alert].ka-alert")
        assert alert.inner_text().startswith("the text is not UTF-8")


def test_clients_translate(address):
    client = pytest.importorskip("gradio_client").Client(address, verbose=False)

    (best,) = client.predict(sentence="A dog runs.", api_name="/translate")
    client.close()

    assert best["words"][:2] == ["Ein", "Hund"]
    assert best["source_words"] == ["A", "dog", "runs."]
