"""The page of the captioner in a browser, and its endpoint."""

import base64
import contextlib
import re

import pytest

from attention_testing.web_pages import (
    SAMPLE,
    check_keyboard,
    is_within,
    opened,
    repeat_until,
    served,
    settled,
    tab_to,
)

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def address(temporary):
    with served("captioner", temporary, "--max-megabytes", "1") as address:
        yield address


def upload(page, content):
    page.set_input_files("input[type=file] >> nth=0", content)


def layers_shown(page):
    """The opacity of the map of every word."""
    return page.eval_on_selector_all(
        ".ka-layer", "layers => layers.map(x => +getComputedStyle(x).opacity)"
    )


def words_of(page):
    """Wait for a caption, and return its words."""
    page.wait_for_selector(".ka-words")
    return page.locator(".ka-words label span").all_inner_texts()[1:]


def test_a_click_the_arrow_keys_and_the_mouse_change_the_map(browser, address):
    with opened(browser, address) as (page, _):
        upload(page, SAMPLE)
        assert "camera" in words_of(page)[-1]
        words = page.locator(".ka-words label span")

        words.nth(2).click()
        page.mouse.move(0, 0)
        page.wait_for_timeout(400)
        assert layers_shown(page).index(1) == 1

        page.keyboard.press("ArrowRight")
        page.wait_for_timeout(400)
        assert layers_shown(page).index(1) == 2

        words.nth(5).hover()
        page.wait_for_timeout(400)
        assert layers_shown(page).index(1) == 4
        assert sum(layers_shown(page)) == 1


def test_the_camera_gives_a_caption_after_the_sample(browser, address):
    with opened(browser, address) as (page, _):
        page.get_by_role("button", name="sample").click()
        before = words_of(page)
        page.get_by_role("button", name="Capture from camera").click()
        page.get_by_role("button", name="Click to Access Webcam").click()
        page.wait_for_function("document.querySelector('video').videoWidth > 0")
        page.get_by_role("button", name="capture photo").click()
        page.wait_for_function(
            """before => [...document.querySelectorAll(".ka-words label span")]
                .slice(1).map(x => x.innerText).join() !== before.join()""",
            arg=before,
        )

        assert len(words_of(page)) >= 3
        assert page.get_by_text("expected an uploaded file").count() == 0


def test_a_pasted_image_gives_a_caption(browser, address):
    image = base64.b64encode(SAMPLE.read_bytes()).decode()
    with opened(browser, address) as (page, _):
        page.get_by_role("button", name="sample").wait_for()
        page.evaluate(
            """(image) => {
                const bytes = Uint8Array.from(atob(image), x => x.charCodeAt(0));
                const data = new DataTransfer();
                data.items.add(new File([bytes], "image.jpg", {type: "image/jpeg"}));
                const options = {clipboardData: data, bubbles: true};
                document.body.dispatchEvent(new ClipboardEvent("paste", options));
            }""",
            image,
        )

        assert "camera" in words_of(page)[-1]


def test_the_image_of_the_clipboard_gives_a_caption(browser, address):
    from playwright.sync_api import TimeoutError as NotYet

    with opened(browser, address) as (page, _):
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.evaluate(
            """async () => {
                const canvas = new OffscreenCanvas(200, 200);
                canvas.getContext("2d").fillRect(50, 50, 100, 100);
                const image = canvas.convertToBlob();
                const item = new ClipboardItem({"image/png": image});
                await navigator.clipboard.write([item]);
            }"""
        )
        paste = page.get_by_role("button", name="Paste from clipboard")
        # Headless Chromium sometimes gives access to the clipboard late.
        for _ in range(5):
            with contextlib.suppress(NotYet):
                paste.click(timeout=5_000)
                page.wait_for_selector(".ka-words", timeout=15_000)
                break

        assert len(words_of(page)) >= 3


def test_the_keyboard_is_enough(browser, address):
    with opened(browser, address) as (page, _):
        tab_to(page, "Use the sample photograph")
        page.keyboard.press("Enter")
        words_of(page)
        check_keyboard(page)


@pytest.mark.parametrize(("width", "dark"), [(400, False), (1280, True)])
def test_nothing_is_cut_off_or_fetched_from_elsewhere(browser, address, width, dark):
    with opened(browser, address, width=width, dark=dark) as (page, elsewhere):
        with settled(page):
            page.get_by_role("button", name="sample").click()
            words_of(page)

        assert is_within(page)
        assert elsewhere == []


@pytest.mark.parametrize("before", [False, True], ids=["first", "second"])
def test_a_bad_upload_is_one_sentence_on_the_page(browser, address, tmp_path, before):
    path = tmp_path / "text.jpg"
    path.write_text("This is text.")
    with opened(browser, address) as (page, _):
        if before:
            with settled(page):
                upload(page, SAMPLE)
                words_of(page)
        alert = page.locator("[role=alert].ka-alert")
        repeat_until(lambda: upload(page, path), alert)
        expected = "Cannot read text.jpg: expected an image of "
        assert alert.inner_text().startswith(expected)
        assert str(tmp_path) not in page.content()


def test_a_photograph_that_was_removed_must_be_chosen_again():
    page = pytest.importorskip("keras_attention_apps.captioner.web")
    events = object.__new__(page.CaptionPage)
    removed = "The photograph was removed from the server meanwhile: choose it again"

    result, best = events.show_captions(None, "<table>", 3, 5, 0.7)
    assert removed in result and not best["visible"]
    # No photograph was chosen.
    result, *_ = events.show_captions(None, "", 3, 5, 0.7)
    assert removed not in str(result)


def test_the_caption_is_announced_copied_and_the_alternative_text(browser, address):
    with opened(browser, address) as (page, _):
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        upload(page, SAMPLE)
        # Below each word is its probability.
        words = [word.split()[0] for word in words_of(page)]
        caption = f"{' '.join(words).capitalize()}."
        assert page.inner_text(".ka-text") == caption
        assert page.get_by_role("img", name=caption, exact=True).is_visible()
        # No map is shown before a word is chosen.
        assert sum(layers_shown(page)) == 0
        page.wait_for_function(
            "text => document.querySelector('[role=status].ka-hidden').innerText == "
            "`Caption: ${text}`",
            arg=caption,
        )
        page.get_by_role("button", name="Copy").click()
        page.get_by_role("button", name="Copied").wait_for()

        assert page.evaluate("navigator.clipboard.readText()") == caption


def test_the_upload_shows_the_photograph_which_another_one_replaces(
    browser, address, tmp_path
):
    from PIL import Image

    Image.new("RGB", (90, 60), "red").save(tmp_path / "red.png")
    with opened(browser, address) as (page, elsewhere):
        box = page.locator(".ka-upload")
        before = box.bounding_box()
        upload(page, SAMPLE)
        words_of(page)
        box.get_by_text("Photograph: photographer.jpg").wait_for()
        source = box.locator("img").get_attribute("src")
        # Nothing moves when the photograph appears.
        assert box.bounding_box() == before
        with settled(page):
            upload(page, tmp_path / "red.png")
            box.get_by_text("Photograph: red.png").wait_for()

        assert source.startswith("data:") and source not in page.content()
        assert elsewhere == []


@pytest.mark.parametrize(("width", "order"), [(400, "below"), (1280, "beside")])
def test_the_result_comes_before_the_controls(browser, address, width, order):
    with opened(browser, address, width=width) as (page, _):
        upload(page, SAMPLE)
        words_of(page)
        result = page.locator(".ka-photo").bounding_box()
        box = page.locator(".ka-upload").bounding_box()
        options = page.get_by_role("button", name="Options").bounding_box()

        if order == "beside":
            assert result["x"] > box["x"] + box["width"]
            assert options["x"] < result["x"]
        else:
            assert box["y"] < result["y"] < options["y"]


@pytest.fixture
def client(address):
    client = pytest.importorskip("gradio_client").Client(address, verbose=False)
    yield client
    client.close()


def test_clients_caption_images(client):
    from gradio_client import handle_file

    best, second = client.predict(
        image=handle_file(SAMPLE), n_best=2, api_name="/caption"
    )

    assert best["caption"] == "a man that is holding a camera"
    assert len(best["attention"]) == len(best["words"]) == 7
    assert best["score"] > second["score"]


def test_clients_read_the_error_of_the_program(client):
    from gradio_client import handle_file

    with pytest.raises(
        Exception, match=r"expected an image of .* bytes that begin with"
    ):
        client.predict(image=handle_file(__file__), api_name="/caption")
    with pytest.raises(Exception, match="expected an uploaded file"):
        client.predict(
            image=handle_file("https://example.com/a.png"), api_name="/caption"
        )


@pytest.mark.parametrize("size", [1_100_000, 11_000_000])
def test_larger_uploads_are_refused(address, size):
    httpx = pytest.importorskip("httpx")
    upload = {"files": ("large.jpg", bytes(size))}

    assert httpx.post(f"{address}/gradio_api/upload", files=upload).status_code == 413


def test_larger_images_are_refused_before_they_are_decoded(client, tmp_path):
    from gradio_client import handle_file
    from PIL import Image

    path = tmp_path / "large.png"
    Image.new("1", (10_000, 10_000)).save(path)

    with pytest.raises(Exception, match="at most 50000000 pixels"):
        client.predict(image=handle_file(path), api_name="/caption")


def test_no_file_of_the_server_is_readable(address, temporary):
    httpx = pytest.importorskip("httpx")
    paths = ("/etc/passwd", SAMPLE, temporary, f"{temporary}/../secret")
    for path in (*paths, "https://example.com"):
        assert httpx.get(f"{address}/gradio_api/file={path}").status_code == 403
    for path in ("openapi.json", "gradio_api/proxy=https://example.com"):
        assert httpx.get(f"{address}/{path}").status_code == 404
    assert httpx.get(address, headers={"host": "example.com"}).status_code == 400


def test_the_documented_handler_captions():
    testclient = pytest.importorskip("fastapi.testclient")
    page = (SAMPLE.parent / "serving.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    names = {}
    exec(next(block for block in blocks if "FastAPI" in block), names)
    client = testclient.TestClient(names["app"])

    response = client.post("/caption", content=SAMPLE.read_bytes())
    assert response.json()["caption"] == "a man that is holding a camera"
    broken = client.post("/caption", content=b"text")
    assert broken.status_code == 422 and "expected an image" in broken.json()["detail"]
    assert client.post("/caption", content=bytes(20_000_001)).status_code == 413
