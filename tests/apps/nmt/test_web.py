"""The page of the translator in a browser."""

import pytest

from attention_testing.web_pages import (
    check_keyboard,
    is_within,
    opened,
    repeat_until,
    served,
    settled,
    tab_to,
)

pytestmark = pytest.mark.browser

SENTENCE = "A man in a blue shirt is standing on a ladder cleaning a window."


@pytest.fixture(scope="module")
def address(temporary):
    with served("nmt", temporary) as address:
        yield address


def translate(page, sentence):
    with settled(page):
        page.get_by_label("Sentence").fill(sentence)
        page.get_by_role("button", name="Translate").click()
        page.wait_for_selector(".ka-words")


def test_the_latest_sentence_is_translated_while_another_one_waits(browser, address):
    with opened(browser, address) as (page, _):
        button = page.get_by_role("button", name="Translate")
        for sentence in ("A man and a dog run. " * 50, "Two dogs are playing."):
            page.get_by_label("Sentence").fill(sentence)
            button.click()

        page.wait_for_selector(".ka-text:text-is('Zwei Hunde spielen.')")


def test_enter_translates_and_shift_enter_breaks_the_line(browser, address):
    with opened(browser, address) as (page, _):
        sentence = page.get_by_label("Sentence")
        sentence.fill("A dog runs")
        sentence.press("Shift+Enter")
        sentence.press_sequentially("in the snow.")
        assert sentence.input_value() == "A dog runs\nin the snow."
        assert page.locator(".ka-words").count() == 0
        sentence.press("Enter")
        page.wait_for_selector(".ka-words")

        assert sentence.input_value() == "A dog runs\nin the snow."
        assert page.inner_text(".ka-text").startswith("Ein Hund")
        assert "English to German" in page.inner_text("header.ka-title")
        # The page has no endpoint.
        assert page.locator("footer").count() == 0


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


def centre(element):
    """Return the vertical centre of an element, in pixels."""
    box = element.bounding_box()
    return box["y"] + box["height"] / 2


def test_the_widest_line_joins_a_word_and_its_source(browser, address):
    with opened(browser, address) as (page, _):
        translate(page, SENTENCE)
        figure = page.locator(".ka-alignment")
        source = figure.locator("li", has_text="ladder")
        target = figure.locator("label", has_text="Leiter")
        target.hover()
        widest = target.locator("svg").evaluate_handle(
            "drawing => [...drawing.querySelectorAll('line')].reduce((x, y) => "
            "+x.getAttribute('stroke-width') > +y.getAttribute('stroke-width') ? x : y)"
        )
        line = widest.as_element().bounding_box()
        ends = sorted([line["y"], line["y"] + line["height"]])
        joined = sorted([centre(source), centre(target.locator("span"))])

        assert ends == pytest.approx(joined, abs=6)
        right = source.bounding_box()["x"] + source.bounding_box()["width"]
        assert line["x"] == pytest.approx(right, abs=6)


def test_the_heat_map_has_the_weights_of_each_word(browser, address):
    with opened(browser, address) as (page, _):
        translate(page, SENTENCE)
        page.wait_for_selector(".ka-heat")
        head = page.locator(".ka-heat thead th").all_inner_texts()
        rows = page.eval_on_selector_all(
            ".ka-heat tbody tr",
            "rows => rows.map(row => [row.querySelector('th').innerText, "
            "...[...row.querySelectorAll('td')].map(x => +x.title)])",
        )

        assert head == SENTENCE.split()
        assert " ".join(row[0] for row in rows) == page.inner_text(".ka-text")
        weights = {word: row for word, *row in rows}
        assert head[weights["Leiter"].index(max(weights["Leiter"]))] == "ladder"
        assert head[weights["Hemd"].index(max(weights["Hemd"]))] == "shirt"
        darkest = page.locator(".ka-heat td[style]").evaluate_all(
            "cells => cells.map(x => [getComputedStyle(x).backgroundColor, +x.title])"
        )
        assert len({colour for colour, _ in darkest}) > 10


def test_the_list_has_as_many_translations_as_wanted(browser, address):
    with opened(browser, address) as (page, _):
        translate(page, "A dog runs in the snow.")
        rows = page.locator(".ka-table tbody tr")
        assert rows.count() == 3
        page.get_by_role("button", name="Options").click()
        number = page.get_by_label("number input for Translations in the list")

        def choose_four():
            number.fill("2")
            number.fill("4")

        repeat_until(choose_four, rows.nth(3))

        cells = [row.locator("td").all_inner_texts() for row in rows.all()]
        assert [rank for rank, _, _ in cells] == ["1", "2", "3", "4"]
        assert cells[0][1] == page.inner_text(".ka-text")
        scores = [float(score) for _, _, score in cells]
        assert scores == sorted(scores, reverse=True)


def test_three_kinds_of_attention_are_side_by_side(browser, address):
    with opened(browser, address, width=1280) as (page, _):
        translate(page, "A dog runs in the snow.")
        figures = page.locator(".ka-alignment")
        compare = page.get_by_label("Show other kinds of attention, too")

        def show_others():
            compare.uncheck()
            compare.check()

        repeat_until(show_others, figures.nth(2))
        boxes = [figure.bounding_box() for figure in figures.all()]
        names = page.locator(".ka-alignment figcaption b").all_inner_texts()
        lines = [figure.locator("line").count() for figure in figures.all()]

        others = [f"multi30k-en-de-{kind}" for kind in ("bahdanau", "luong")]
        assert names == ["tatoeba-multi30k-en-de", *others]
        assert min(lines) >= 6
        assert len({box["y"] for box in boxes}) == 1
        assert boxes[0]["x"] < boxes[1]["x"] < boxes[2]["x"]
        assert is_within(page)

        page.set_viewport_size({"width": 400, "height": 900})
        assert is_within(page)
        assert len({figure.bounding_box()["x"] for figure in figures.all()}) == 1


def test_the_keyboard_is_enough(browser, address):
    with opened(browser, address) as (page, _):
        tab_to(page, "Sentence")
        page.keyboard.type("A dog runs in the snow.")
        tab_to(page, "Translate")
        page.keyboard.press("Enter")
        page.wait_for_selector(".ka-words")
        check_keyboard(page)


@pytest.mark.parametrize(("width", "dark"), [(400, True), (1280, False)])
def test_nothing_is_cut_off_or_fetched_from_elsewhere(browser, address, width, dark):
    with opened(browser, address, width=width, dark=dark) as (page, elsewhere):
        page.get_by_role("button", name="A man in a blue shirt").click()
        page.wait_for_selector(".ka-heat")

        assert is_within(page)
        assert elsewhere == []


def test_markup_in_a_sentence_is_text(browser, address):
    with opened(browser, address) as (page, _):
        translate(page, "A <b>dog</b> ${1+1} {{value}} <img src=x onerror=alert(1)>")

        sources = page.locator(".ka-alignment li").all_inner_texts()
        assert sources[:4] == ["A", "<b>dog</b>", "${1+1}", "{{value}}"]
