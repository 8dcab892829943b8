"""`captioner serve`: images in, JSON out, on the default model."""

import re
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests
from PIL import Image

from attention_testing.captioner.image_files import encode
from attention_testing.servers import error_of, served
from attention_testing.web_pages import SAMPLE as PHOTO
from keras_attention_apps.captioner.captions import LiteCaptioner
from keras_attention_apps.captioner.config import DEFAULT_MODEL


@pytest.fixture(scope="module")
def address():
    with served("captioner", "--max-megabytes", "1", "--max-megapixels", "1") as url:
        yield url[1]


@pytest.fixture(scope="module")
def captions():
    """The captions of the photograph, best first, as the program describes them."""
    captioner = LiteCaptioner.from_preset(DEFAULT_MODEL)
    ((_, results),) = captioner.caption_each([PHOTO], n_best=3)
    return [caption.details() for caption in results]


def without_maps(caption):
    return {name: x for name, x in caption.items() if name != "attention"}


def upload(address, content, name="dog.jpg", field="image", **values):
    return requests.post(
        f"{address}/caption", files={field: (name, content)}, data=values, timeout=60
    )


@pytest.mark.parametrize("way", ["form", "body", "body of a form of curl"])
def test_an_image_is_captioned(address, captions, way):
    content = PHOTO.read_bytes()
    if way == "form":
        answer = upload(address, content)
    else:
        kind = "image/jpeg" if way == "body" else "application/x-www-form-urlencoded"
        headers = {"content-type": kind}
        answer = requests.post(f"{address}/caption", data=content, headers=headers)

    assert answer.status_code == 200
    assert answer.json() == without_maps(captions[0])
    assert {"mean_log_probability", "probabilities", "unsure"} <= answer.json().keys()


def test_several_captions_and_maps_are_answered_if_wanted(address, captions):
    answer = upload(address, PHOTO.read_bytes(), n_best=3, maps="true").json()

    assert answer.pop("captions") == captions
    assert answer == captions[0]
    url = f"{address}/caption?n_best=2"
    content = requests.post(url, data=PHOTO.read_bytes()).json()
    assert content["captions"] == list(map(without_maps, captions[:2]))


@pytest.mark.parametrize(
    ("content", "status", "error"),
    [
        (b"This is a text, and no image.", 400, "image: expected an image of .*JPEG"),
        (PHOTO.read_bytes()[:2000], 400, "image: "),
        (b"", 400, "image: expected an image. Received: none"),
        (b"\0" * 1_100_000, 413, "at most 1,000,000 bytes"),
        (encode(Image.new("RGB", (1500, 1000))), 400, "image: .*1500 x 1000"),
    ],
    ids=["text", "half", "empty", "large file", "many pixels"],
)
def test_what_is_no_image_is_answered_with_the_reason(address, content, status, error):
    for answer in (
        upload(address, content),
        requests.post(f"{address}/caption", data=content),
    ):
        message = error_of(answer, status)
        assert re.search(error, message), message


def test_wrong_forms_are_answered_with_the_reason(address):
    content = PHOTO.read_bytes()
    for values, error in (
        ({"n_best": 6}, "n_best: input should be less"),
        ({"maps": "x"}, "maps: input should be"),
        ({"field": "x"}, "expected an image"),
    ):
        assert error in error_of(upload(address, content, **values), 400)
    text = requests.post(f"{address}/caption", files={"image": (None, "/etc/passwd")})
    assert "expected an image" in error_of(text, 400)
    two = [("image", ("a.jpg", content)), ("image", ("b.jpg", content))]
    answer = requests.post(f"{address}/caption", files=two)
    assert "Too many files" in error_of(answer, 400)


def test_a_file_name_of_a_client_is_no_path(address, captions):
    for name in ("/etc/passwd", "../../etc/passwd", "\u202egpj.exe"):
        answer = upload(address, PHOTO.read_bytes(), name=name)
        assert answer.json() == without_maps(captions[0])


def test_answers_are_not_mixed_up(address):
    image = Image.open(PHOTO)
    step, height = image.width // 12, image.height
    boxes = ((i * step, 0, (i + 6) * step, height) for i in range(6))
    contents = [encode(image.crop(box)) for box in boxes]
    alone = [upload(address, content).json() for content in contents]
    assert len({answer["log_probability"] for answer in alone}) == len(contents)

    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda x: upload(address, x).json(), contents * 4))
    assert answers == alone * 4
