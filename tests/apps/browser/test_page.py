"""The page of apps/browser in Chromium, beside the programs in Python."""

import base64
import functools
import http.server
import json
import re
import subprocess
import threading

import numpy as np
import pytest
from PIL import Image

from attention_testing.arrays import assert_close
from attention_testing.browser_pages import SOURCE, Handler
from attention_testing.captioner.image_files import encode, turned
from attention_testing.web_pages import SAMPLE, opened, tab_to, unnamed, unreached
from keras_attention_apps.captioner import LiteCaptioner
from keras_attention_apps.captioner.images import read_array
from keras_attention_apps.common.litert import read_model_file, write_model_file
from keras_attention_apps.nmt import LiteTranslator
from keras_attention_apps.nmt.markup import translate_file

pytest.importorskip("ai_edge_litert")
pytestmark = pytest.mark.browser

SENTENCE = "Two dogs are playing in the snow."
# Both runtimes round activations to eight bits, after sums in another order.
TOLERANCE = 2e-2


class Isolated(Handler):
    headers_of_all = (
        ("Cross-Origin-Opener-Policy", "same-origin"),
        ("Cross-Origin-Embedder-Policy", "require-corp"),
    )


@pytest.fixture(scope="module")
def address(built, serve):
    return serve(built)


@pytest.fixture(scope="module")
def captioner(built):
    return LiteCaptioner(built / "models" / "captioner.tflite")


@pytest.fixture(scope="module")
def translator(built):
    return LiteTranslator(built / "models" / "translator.tflite")


def caption_sample(page):
    page.get_by_role("button", name="Use the sample").click()
    page.wait_for_selector("h2.caption")


def listed(page, panel):
    """Return the texts and scores of the best results."""
    labels = page.locator(f"#{panel} .best label").all()
    texts = [label.locator("span").inner_text() for label in labels]
    scores = [label.locator("small").inner_text().split()[-1] for label in labels]
    return list(zip(texts, map(float, scores), strict=True))


def check_listed(page, panel, expected):
    """Check the best results against those of Python."""
    for (text, score), result in zip(listed(page, panel), expected, strict=True):
        assert text == result.text
        assert score == pytest.approx(result.score, abs=TOLERANCE)


def alert_of(page):
    """Wait for the alert of a page, and return its text."""
    page.get_by_role("alert").wait_for()
    return page.get_by_role("alert").text_content()


def test_the_sample_has_the_captions_of_the_command(browser, address, captioner):
    ((_, expected),) = captioner.caption_each([SAMPLE], n_best=3)
    with opened(browser, address) as (page, elsewhere):
        caption_sample(page)

        assert page.locator("h2").first.text_content() == expected[0].text
        check_listed(page, "captioner", expected)
        alt = page.locator("#captioner img").get_attribute("alt")
        assert alt == f"The photograph: {expected[0].text}"
        status = page.locator("#status", has_text=f"Caption: {expected[0].text}.")
        status.wait_for(state="attached")
        assert elsewhere == []


def test_a_button_copies_the_caption(browser, address):
    with opened(browser, address) as (page, _):
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        caption_sample(page)
        page.get_by_role("button", name="Copy").click()
        page.get_by_role("button", name="Copied").wait_for()

        copied = page.evaluate("navigator.clipboard.readText()")
        assert copied == page.locator("h2.caption").text_content()


def test_another_caption_of_the_list_can_be_shown(browser, address):
    with opened(browser, address) as (page, _):
        caption_sample(page)
        page.locator("#captioner .best label").nth(1).click()

        text = listed(page, "captioner")[1][0]
        assert page.locator("h2.caption").text_content() == text


def test_a_sentence_is_translated_while_it_is_typed(browser, address, translator):
    (expected,) = translator.translate_each([SENTENCE], n_best=3)
    with opened(browser, f"{address}/#translator") as (page, elsewhere):
        page.get_by_label("Sentence", exact=True).last.press_sequentially(SENTENCE)
        page.wait_for_function(
            "text => document.querySelector('#translator h2')?.textContent == text",
            arg=expected[0].text,
        )

        check_listed(page, "translator", expected)
        words = page.locator("#translator ol li").all_text_contents()
        assert words == [*expected[0].source_words, "end"]
        # The page's own address has a fragment.
        assert [x for x in elsewhere if not x.startswith(address)] == []


PAGE = f"""<!DOCTYPE html>
<html lang="en"><title>Two dogs</title><script>if (a < b) c();</script>
<p>{SENTENCE} A man with a <b>red hat</b> reads a book.<img src="http://a.test/b.png">
<p translate="no">Two dogs</p><pre>caf\u00e9</pre></html>
"""


def test_a_page_is_translated_as_by_the_command(browser, address, translator, tmp_path):
    file = tmp_path / "page.html"
    file.write_bytes(PAGE.encode("utf-8-sig"))
    options = {"language": "de", "marks_unsure": True}
    expected = translate_file(translator, f"\ufeff{PAGE}", "html", **options)
    with opened(browser, f"{address}/#translator") as (page, elsewhere):
        page.set_input_files("#page-file", file)
        link = page.get_by_role("link", name="Save page.de.html")
        with page.expect_download() as download:
            link.click()
        saved = download.value.path().read_bytes()
        # Nothing is fetched for the preview.
        frame = page.frame_locator("iframe[title=Preview]")
        frame.get_by_text("Two dogs", exact=True).wait_for()
        assert [x for x in elsewhere if not x.startswith(address)] == []
    assert saved == expected.text.encode()


def test_the_translation_of_a_page_can_be_stopped(library):
    error, loaded = library(
        """async ([text]) => {
            const stopping = new AbortController();
            let loaded = 0;
            const onProgress = (progress) => {
                loaded = progress.loaded;
                if (loaded === 2) stopping.abort();
            };
            const translator = await model("translator");
            const options = { onProgress, signal: stopping.signal };
            const found = await translator.translateHtml(text, options).catch((x) => x);
            return [found.message, loaded];
        }""",
        ["".join(f"<p>Number {i} is a dog." for i in range(300))],
    )
    assert error == "The translation was stopped."
    assert loaded < 300


@pytest.mark.parametrize(
    "content",
    [
        "<pre>caf\u00e9 \U0001f600\r\n".encode(),
        "\ufeff<pre>caf\u00e9\n".encode("utf-16-le"),
        "\ufeff<pre>caf\u00e9\n".encode("utf-16-be"),
        "<meta charset=iso-8859-2><pre>\u0159\u00e9".encode("iso-8859-2"),
        "<pre>caf\u00e9 \u201cx\u201d \x81".encode("windows-1252", "replace"),
        "<pre>caf\u00e9 \u20ac \ue0e9 ".encode() + b"\xff\xc3 x",
    ],
    ids=range(6),
)
def test_the_bytes_of_a_file_without_words_stay(library, content):
    saved = library(
        """async ([bytes]) => {
            const binary = atob(bytes);
            const file = new Blob([Uint8Array.from(binary, (x) => x.charCodeAt(0))]);
            const translator = await model("translator");
            // Nothing is translated.
            const text = await translator.translateFile(file, { language: "de" });
            return Array.from(new Uint8Array(await text.file.arrayBuffer()));
        }""",
        [base64.b64encode(content).decode()],
    )
    assert bytes(saved) == content


TEXTS = (
    SENTENCE,
    "",
    " a\tlittle \u200b girl\n",
    "The ca\u00adfe\u0301 is closed today \u2764\ufe0f\u200d\U0001f525.\ud83d",
    "Mr. Smith paid $3.50, e.g. for tea. Was it No. 5? Yes. (No. Never.) Why?",
    "He said: \u00ab Come in. \u00bb Then he left \u2026 Then I came.",
    "\u72d7\u5728\u96ea\u91cc\u73a9\u3002\u732b\u4e5f\u662f\uff01 \u0e2b\u0e21\u0e32",
    # The best translations of what is no English may have nearly equal scores.
    "1. I know Dr. Miller. We read S. 5 usw. The cat, z. B. my cat, sleeps.",
    "Go! " * 101,
)


def has_clear_links(weights):
    """Return whether rounding cannot change the largest weight of a word."""
    if weights.shape[1] < 2:
        return True
    second, largest = np.sort(weights, axis=1)[:, -2:].T
    return bool(np.all(largest - second > 0.01))


def test_links_that_are_compared(translator):
    clear = [
        has_clear_links(best.weights)
        for best, *_ in translator.translate_each(TEXTS, n_best=2)
    ]
    assert sum(clear) > len(TEXTS) / 2


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_texts_are_translated_as_in_python(library, translator, text):
    (expected,) = translator.translate_each([text], n_best=2)
    actual = library(
        "async text => (await model('translator')).translate(text, {nBest: 2})", text
    )

    assert len(actual) == len(expected)
    for entry, translation in zip(actual, expected, strict=True):
        assert entry["text"] == translation.text
        assert entry["sourceWords"] == translation.source_words
        assert entry["words"] == translation.words
        assert entry["subwords"] == translation.subwords
        assert entry["cut"] == translation.cut
        assert entry.get("unsure") == translation.unsure
        if has_clear_links(translation.weights):
            assert [tuple(pair) for pair in entry["alignment"]] == translation.alignment
        weights = np.reshape(entry["weights"], translation.weights.shape)
        np.testing.assert_allclose(weights, translation.weights, atol=TOLERANCE)
        assert_close(
            entry["meanLogProbability"], translation.mean_log_probability, TOLERANCE
        )
        assert_close(
            np.array(entry["probabilities"]), translation.probabilities, TOLERANCE
        )


def test_a_text_that_is_too_long_is_cut_as_in_python(library, translator):
    # Nearly equal scores may be in another order, so the translations are not compared.
    text = "x" * 300
    expected = translator.translate(text)
    (actual,) = library(
        "async text => (await model('translator')).translate(text)", text
    )

    assert actual["cut"] and expected.cut
    assert actual["sourceWords"] == expected.source_words


def photograph(width, height):
    """A crop of the sample in colour."""
    with Image.open(SAMPLE) as sample:
        grey = np.asarray(sample.convert("L").resize((width, height)), "float32")
    across = np.linspace(0.4, 1, width)[None, :, None] * [1.0, 0.8, 0.5]
    return Image.fromarray(np.rint(grey[..., None] * across).astype("uint8"))


def stored_turned(orientation):
    exif = turned(orientation)
    return encode(photograph(301, 207), "JPEG", quality=95, exif=exif)


def transparent():
    image = photograph(203, 307).convert("RGBA")
    image.putalpha(Image.linear_gradient("L").resize(image.size))
    return encode(image, "PNG")


IMAGES = {
    "wide": lambda: encode(photograph(1031, 457), "JPEG"),
    "tall": lambda: encode(photograph(331, 1999), "PNG"),
    "small": lambda: encode(photograph(31, 17), "PNG"),
    "one pixel": lambda: encode(photograph(1, 1), "PNG"),
    # More pixels than are drawn at the same time.
    "large": lambda: encode(photograph(3001, 2003), "JPEG"),
    "grey": lambda: encode(photograph(301, 207).convert("L"), "PNG"),
    "transparent": transparent,
    "palette": lambda: encode(photograph(301, 207).quantize(64), "GIF"),
    "lossless WebP": lambda: encode(photograph(301, 207), "WEBP", lossless=True),
    "other colour space": lambda: encode(
        photograph(301, 207), "PNG", icc_profile=display_p3()
    ),
    **{f"turned {i}": functools.partial(stored_turned, i) for i in range(1, 9)},
}


def display_p3():
    """A colour profile that swaps red and blue."""
    from PIL import ImageCms

    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    tags = {b"rXYZ": b"bXYZ", b"bXYZ": b"rXYZ"}
    return re.sub(b"[rb]XYZ", lambda match: tags[match[0]], profile)


@pytest.fixture(scope="module")
def read_images(built, browser, serve, tmp_path_factory):
    """A function that reads an image in the browser, as an array."""
    folder = tmp_path_factory.mktemp("images")
    command = [SOURCE / "node_modules/.bin/esbuild", SOURCE / "src/library/image.ts"]
    command += ["--bundle", "--format=esm", f"--outfile={folder / 'image.js'}"]
    subprocess.run(command, check=True, capture_output=True)
    (folder / "index.html").write_text("<button role=tab>images</button>")
    with opened(browser, serve(folder)) as (page, _):

        def read(content, size):
            decoded = page.evaluate(
                """async ([content, size]) => {
                    const {decodeImage, imageToArray} = await import("/image.js");
                    const bytes = Uint8Array.from(atob(content), x => x.charCodeAt(0));
                    const image = await decodeImage(new Blob([bytes]));
                    const array = imageToArray(image, size);
                    const characters = Array.from(array, x => String.fromCharCode(x));
                    return btoa(characters.join(""));
                }""",
                [base64.b64encode(content).decode(), size],
            )
            pixels = np.frombuffer(base64.b64decode(decoded), "uint8")
            return pixels.reshape(size, size, 3)

        yield read


@pytest.mark.parametrize("name", IMAGES)
def test_images_are_read_as_in_python(read_images, name):
    content = IMAGES[name]()
    pixels = read_images(content, 97).astype("int32")

    difference = np.abs(pixels - read_array(content, 97))
    # Browsers and Pillow round transparent colours in different places.
    assert difference.max() <= (2 if name == "transparent" else 0)


def drop(page, address, name):
    """Drop a file of the server on the page."""
    page.evaluate(
        """async ([address, name]) => {
            const content = await (await fetch(address)).blob();
            const transfer = new DataTransfer();
            transfer.items.add(new File([content], name));
            const options = {dataTransfer: transfer, bubbles: true, cancelable: true};
            document.body.dispatchEvent(new DragEvent("dragover", options));
            document.body.dispatchEvent(new DragEvent("drop", options));
        }""",
        [address, name],
    )


@pytest.fixture(scope="module")
def files(built, serve, tmp_path_factory):
    """The folder of files to drop, and its address."""
    folder = tmp_path_factory.mktemp("files")

    class Open(Handler):
        headers_of_all = (("Access-Control-Allow-Origin", "*"),)

    return folder, serve(folder, Open)


def write_changed(path, copy, **metadata):
    """Write a copy of a translator's file with other metadata."""
    contents, files = read_model_file(path, "translator")
    model, changed = path.read_bytes()[: contents["model_bytes"]], contents | metadata
    write_model_file(
        copy, model, kind=changed.pop("kind"), metadata=changed, files=files
    )


def test_a_dropped_file_is_used(browser, address, built, files):
    folder, their_address = files
    path = built / "models" / "translator.tflite"
    confidence = read_model_file(path, "translator")[0]["confidence"]
    metadata = {"name": "mine", "purpose": "whatever"}
    metadata["confidence"] = {**confidence, "threshold": 1.0}
    write_changed(path, folder / "mine.tflite", **metadata)
    with opened(browser, address) as (page, _):
        drop(page, f"{their_address}/mine.tflite", "mine.tflite")
        page.locator("#translator .model b", has_text="mine").wait_for()
        page.locator("#examples button").first.click()
        page.locator("#translator .unsure").wait_for()

        assert "whatever" in page.locator("#translator .model").text_content()
        page.get_by_role("button", name="Back to the included model").click()
        page.locator("#translator .model b", has_text="tatoeba").wait_for()
        page.locator("#translator .unsure").wait_for(state="detached")


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda x: b"This is no model, but a text.", "is no LiteRT model"),
        (lambda x: x[:-100_000], "has no readable metadata"),
        (
            lambda x: x[:5000] + b"damaged" + x[5007:],
            "damaged: its checksum differs",
        ),
    ],
)
def test_a_broken_file_gets_a_sentence(browser, address, built, files, damage, reason):
    folder, their_address = files
    content = (built / "models" / "translator.tflite").read_bytes()
    (folder / "broken.tflite").write_bytes(damage(content))
    with opened(browser, address) as (page, _):
        drop(page, f"{their_address}/broken.tflite", "broken.tflite")

        assert reason in alert_of(page)
        # The included model still works.
        caption_sample(page)
        assert page.get_by_role("alert").count() == 0


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ({"kind": "painter"}, "This file is a painter"),
        ({"version": 2}, "version 2"),
        ({"lengths": [8]}, "no valid lengths"),
        ({"calibration": {"levels": []}}, "no valid calibration"),
    ],
)
def test_a_file_with_other_metadata_gets_a_sentence(
    library, built, files, metadata, reason
):
    folder, their_address = files
    path = built / "models" / "translator.tflite"
    write_changed(path, folder / "other.tflite", **metadata)
    message = library(
        "address => library.load(address).then(() => '', error => error.message)",
        f"{their_address}/other.tflite",
    )

    assert reason in message


def test_an_image_that_cannot_be_read_gets_a_sentence(browser, address):
    with opened(browser, address) as (page, _):
        file = {"name": "a.jpg", "mimeType": "image/jpeg", "buffer": b"no photograph"}
        page.set_input_files("#photo", file)

        assert "cannot be read" in alert_of(page)


def test_a_file_of_another_kind_gets_a_sentence(browser, address, files):
    folder, their_address = files
    (folder / "notes.txt").write_text("notes")
    with opened(browser, address) as (page, _):
        drop(page, f"{their_address}/notes.txt", "notes.txt")

        assert "Received: notes.txt" in alert_of(page)


def test_the_camera_takes_a_photograph(browser, address):
    with opened(browser, address) as (page, _):
        for answer in ("Cancel", "Take the photograph"):
            assert page.locator("h2").count() == 0
            page.get_by_role("button", name="Take one").click()
            page.wait_for_function("document.querySelector('video')?.videoWidth")
            page.get_by_role("button", name=answer).click()
            page.locator("dialog").wait_for(state="detached")
        page.wait_for_selector("h2.caption")


def test_the_page_works_offline(browser, built, serve):
    # The server ends, so nothing can come from it.
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Handler, directory=built)
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with opened(browser, f"http://127.0.0.1:{server.server_port}") as (page, _):
        caption_sample(page)
        expected = page.locator("h2").text_content()
        page.wait_for_function(
            """async () => {
                const cache = await caches.open("keras-attention");
                const kept = (await cache.keys()).map(({url}) => url).join();
                return kept.includes("captioner.tflite") && kept.includes("wasm.gz");
            }"""
        )
        server.shutdown()
        server.server_close()
        page.reload()
        caption_sample(page)

        assert page.locator("h2").text_content() == expected
        page.get_by_role("tab", name="Sentence").click()
        alert = page.locator("#translator").get_by_role("alert")
        alert.wait_for()
        assert "offline" in alert.text_content()


@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_a_telephone(browser, address, dark):
    with opened(browser, address, width=400, dark=dark) as (page, _):
        caption_sample(page)
        assert page.evaluate("document.documentElement.scrollWidth") == 400
        page.get_by_role("tab", name="Sentence").click()
        page.locator("#examples button").last.click()
        page.wait_for_selector("#translator h2")

        assert page.evaluate("document.documentElement.scrollWidth") == 400


def test_the_keyboard_reaches_everything(browser, address):
    with opened(browser, address) as (page, _):
        caption_sample(page)
        assert unreached(page) == []
        assert unnamed(page) == []
        script = "[...document.querySelectorAll('.layer')].map(x => x.className)"
        before = page.evaluate(script)
        page.locator("#captioner .words input:checked").focus()
        page.keyboard.press("ArrowLeft")
        assert page.evaluate(script) != before

        tab_to(page, "Photograph")
        page.keyboard.press("ArrowRight")
        page.get_by_role("tab", name="Sentence", selected=True).wait_for()
        assert page.locator("#translator").is_visible()


def test_inside_of_another_page_nothing_is_loaded_before_it_is_used(
    browser, built, serve, tmp_path
):
    (tmp_path / "browser").symlink_to(built)
    (tmp_path / "index.html").write_text(
        "<button role=tab>tab</button>"
        "<iframe src=browser/index.html width=800></iframe>"
    )
    with opened(browser, serve(tmp_path)) as (page, _):
        requests = []
        page.context.on("request", lambda request: requests.append(request.url))
        frame = page.frame_locator("iframe")
        frame.get_by_text("works offline").wait_for()
        assert not [url for url in requests if "tflite" in url]
        # With a fragment in its address, the frame would scroll into view.
        assert page.frames[1].url.endswith("/browser/index.html")

        frame.get_by_role("button", name="Use the sample").click()
        frame.locator("h2").wait_for()


def test_an_isolated_page_uses_threads(browser, built, serve):
    with opened(browser, serve(built, Isolated)) as (page, _):
        caption_sample(page)

        threads = page.evaluate("navigator.hardwareConcurrency")
        text = page.locator("#captioner .model").text_content()
        assert (f"{threads} threads" in text) == (threads > 1)


def test_the_page_of_the_readme_works(browser, built, serve, tmp_path, captioner):
    readme = (SOURCE / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```html\n(.*?)```", readme, re.DOTALL)
    for file in built.iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "mine.html").write_text(code)
    page = browser.new_page()
    with page.expect_console_message(lambda x: "Zwei Hunde" in x.text, timeout=120_000):
        page.goto(f"{serve(tmp_path)}/mine.html")
        page.wait_for_function("!!document.querySelector('#photo').onchange")
        page.set_input_files("#photo", SAMPLE)
        text = captioner.caption(SAMPLE).text
        page.locator("#caption", has_text=text).wait_for(timeout=120_000)
    page.close()


def test_the_types_describe_the_library(built):
    types = (built / "keras-attention.d.ts").read_text(encoding="utf-8")

    for name in ("load(", "caption(", "translate(", "close("):
        assert name in types
    lock = json.loads((SOURCE / "package-lock.json").read_text(encoding="utf-8"))
    assert not [x for x in lock["packages"].values() if "resolved" in x]
