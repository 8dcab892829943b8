"""Parts shared by both pages: fragments of HTML, models, and refused requests.

The pages themselves are tested in a browser; see `test_web.py` of each program.
"""

import asyncio
import base64
import os
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from attention_testing.servers import until
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.models import name_of
from keras_attention_apps.common.options import ServerConfig
from keras_attention_apps.common.web import guard as guards
from keras_attention_apps.common.web.guard import HEADERS, Guard, notice, read_password
from keras_attention_apps.common.web.markup import words
from keras_attention_apps.common.web.models import Models, Turns
from keras_attention_apps.common.web.server import is_local
from keras_attention_apps.nmt.main import main


def test_words_are_radio_buttons_and_their_texts_are_escaped():
    markup = words(["a", "<b>"], ["<i></i>", ""], group="g", label="l", chosen=1)
    assert markup.count('type="radio" name="g"') == 2
    assert 'value="1" checked><span dir="auto">&lt;b&gt;</span>' in markup


class Keras:
    """A stand-in for a model that searches with any options."""

    purpose = None

    def search_options(self, **options):
        return options


class Lite(Keras):
    """A stand-in for a model whose beam width is fixed."""

    def search_options(self, **options):
        if options.get("beam_size", 5) != 5:
            raise UserError("beam_size is fixed")


def test_a_model_is_loaded_once_for_each_runtime():
    loaded = []

    def load(model, config, *, search, **options):
        loaded.append(Lite() if search.get("beam_size", 5) == 5 else Keras())
        return loaded[-1]

    model = SimpleNamespace(name="preset", options={})
    config = SimpleNamespace(model=model, runtime=None)
    models = Models(SimpleNamespace(load=load), config)
    for search in ({}, {"beam_size": 3}, {"beam_size": 5}, {"beam_size": 2}):
        models.load(search)

    assert [type(x) for x in loaded] == [Lite, Keras]


def test_names_have_no_folders_of_this_computer():
    for model, name in {
        "multi30k-en-de-luong": "multi30k-en-de-luong",
        "/home/me/runA/model": "runA/model",
        "runA/model+runB/model+c": "runA/model+runB/model+c",
        "model": "model",
        "/model": "model",
        "~/folder/my.tflite": "my.tflite",
        "": "",
    }.items():
        assert name_of(model) == name


UPLOAD, LENGTH = "/gradio_api/upload", {"content-length": "9"}


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/", {}, 200),
        (UPLOAD, {"content-length": "9000000"}, 200),
        (UPLOAD, {"content-length": "11000000"}, 413),
        ("/gradio_api/queue/join", {"content-length": "9000000"}, 413),
        (UPLOAD, {"transfer-encoding": "chunked"}, 411),
        ("/gradio_api/proxy=https://example.com", {}, 404),
        ("/gradio_api/file=https://example.com", {}, 403),
        ("/openapi.json", {}, 404),
        ("/gradio_api/openapi.json", {}, 404),
        ("/gradio_api/component_server", LENGTH, 404),
        (UPLOAD, {**LENGTH, "origin": "null"}, 403),
        (UPLOAD, {**LENGTH, "host": "a:80", "origin": "http://b:80"}, 403),
        (UPLOAD, {**LENGTH, "host": "a:80", "origin": "http://a:80"}, 200),
        (UPLOAD, {**LENGTH, "x-forwarded-host": "a", "origin": "https://a"}, 200),
    ],
)
def test_the_server_bounds_requests_and_refuses_routes(path, headers, status, tmp_path):
    guard = Guard(page, config=ServerConfig(max_megabytes=1), folder=tmp_path)
    assert status_of(guard, path, headers) == status


async def page(scope, receive, send):
    """A stand-in for the application of a page."""
    await send({"type": "http.response.start", "status": 200, "headers": []})


def status_of(guard, path, headers):
    """Check the headers of the response to a request, and return its status.

    A request with a body is a POST request.
    """
    sent = []

    async def send(message):
        sent.append(message)

    method = "POST" if "content-length" in headers else "GET"
    headers = [(k.encode(), v.encode()) for k, v in headers.items()]
    scope = {"type": "http", "method": method, "path": path, "headers": headers}
    asyncio.run(guard(scope, None, send))
    assert set(sent[0]["headers"]) >= set(HEADERS)
    return sent[0]["status"]


def test_uploads_are_refused_while_the_disk_is_full(monkeypatch, tmp_path):
    now = [0.0]
    monkeypatch.setattr(guards, "MAX_ON_DISK", 100)
    monkeypatch.setattr(guards, "time", SimpleNamespace(monotonic=lambda: now[0]))
    guard = Guard(page, config=ServerConfig(), folder=tmp_path)

    def upload():
        return status_of(guard, UPLOAD, LENGTH)

    assert upload() == 200
    (tmp_path / "large").write_bytes(bytes(200))
    # The sizes are summed once a second.
    now[0] = 0.5
    assert upload() == 200
    now[0] = 1.0
    assert upload() == 503


def test_old_files_and_empty_folders_are_removed(tmp_path):
    for folder in ("old", "both", "empty", "new"):
        (tmp_path / folder).mkdir()
    for name in ("old/image.png", "both/old.png", "both/new.png", "part"):
        (tmp_path / name).write_text("content")
    for name in ("old/image.png", "both/old.png", "part", "both", "empty"):
        before = time.time() - guards.UPLOAD_AGE - 1
        os.utime(tmp_path / name, (before, before))

    guards.remove_old(tmp_path)

    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}
    # The folder of the removed file has just been changed.
    assert left == {"old", "both", "both/new.png", "new"}


def test_uploads_are_removed_while_the_page_is_served(monkeypatch):
    monkeypatch.setattr(guards, "UPLOAD_INTERVAL", 0.01)
    monkeypatch.setattr(guards, "UPLOAD_AGE", -1)
    with guards.upload_folder("test") as folder:
        path = folder / "image.png"
        path.write_text("content")
        until(lambda: not path.exists())
    assert not folder.exists()


@pytest.mark.browser
def test_an_upload_that_is_created_again_has_paths():
    pytest.importorskip("gradio")
    from keras_attention_apps.common.web import page

    upload = page.ImageUpload()
    # Gradio does so when it updates the page.
    again = upload.__class__(**upload.constructor_args)
    assert again.preprocess(SimpleNamespace(path="a.png")) == "a.png"
    assert not Path(page.__file__).with_suffix(".pyi").exists()


@pytest.mark.browser
def test_a_request_beyond_the_queue_is_refused_with_a_sentence(tmp_path):
    gradio = pytest.importorskip("gradio")
    testclient = pytest.importorskip("fastapi.testclient")
    from keras_attention_apps.common.web.page import application_of

    with gradio.Blocks() as page:
        gradio.Button().click(lambda: None, api_name="wait")
    application = application_of(page, ServerConfig(max_queue=2), tmp_path)
    # Nothing leaves the queue, since the client does not start the application.
    client = testclient.TestClient(application, base_url="http://127.0.0.1")

    def ask():
        return client.post("/gradio_api/call/wait", json={"data": []})

    assert [ask().status_code for _ in range(3)] == [200, 200, 503]
    assert ask().json()["detail"].startswith("Queue is full")


def test_every_request_needs_the_password(monkeypatch, tmp_path):
    monkeypatch.setattr(guards, "PASSWORD_SECONDS", 0)
    guard = Guard(page, config=ServerConfig(), folder=tmp_path, password=b"secret")

    def status(login, path="/"):
        token = base64.b64encode(login.encode()).decode()
        return status_of(guard, path, {"authorization": f"Basic {token}"})

    assert status_of(guard, "/", {}) == 401
    assert status_of(guard, "/static/logo.svg", {}) == 401
    assert status("anybody:wrong") == status("secret") == status("") == 401
    assert status_of(guard, "/", {"authorization": "Bearer secret"}) == 401
    assert status("anybody:secret") == 200


def test_the_password_is_the_first_line_of_a_file(tmp_path):
    path = tmp_path / "password"
    path.write_bytes(" a long pässword \r\nmore".encode())

    assert read_password(path) == "a long pässword".encode()
    assert read_password(None) is None
    for content, actual in (
        (b"", "none"),
        (b"  \n", "none"),
        (b" fifteen letters\n", "one of 15 bytes"),
        (b"x" * 1001, "one of 1001 bytes"),
    ):
        path.write_bytes(content)
        expected = f"a password of 16 to 1000 bytes in the first line.*{actual}"
        with pytest.raises(UserError, match=expected):
            read_password(path)


def test_the_notice_says_whether_there_is_a_login():
    assert "no login" in notice(None) and "--password-file" in notice(None)
    assert "without encryption" in notice(b"secret")


def test_turns_are_taken_in_the_order_of_the_threads():
    turns, order = Turns(), []

    def take(number):
        with turns:
            order.append(number)

    with turns:
        threads = [threading.Thread(target=take, args=(i,)) for i in range(6)]
        for number, thread in enumerate(threads):
            thread.start()
            until(lambda waiting=number + 2: turns._tickets == waiting)
    for thread in threads:
        thread.join()

    assert order == [0, 1, 2, 3, 4, 5]


def test_other_hosts_are_not_local():
    hosts = ("127.0.0.1", "localhost", "::1", "0.0.0.0")
    assert [is_local(host) for host in hosts] == [True, True, True, False]


def test_without_gradio_the_error_names_the_extra(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "gradio", None)
    for module in ("common.web.page", "nmt.web"):
        monkeypatch.delitem(sys.modules, f"keras_attention_apps.{module}", False)

    assert main(["web", "--port", "0"]) == 2
    assert 'pip install . "./apps[web]"' in capsys.readouterr().err
