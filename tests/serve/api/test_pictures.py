"""Pictures in requests: every dialect, what is refused, and the limits."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest

from assay.gguf import open_file
from assay.runtime.opening import Opened, OpenOptions
from tests.library.test_pictures import picture
from tests.picture_prompts import FOLDER
from tests.serve.conftest import Server, Start, start_server

ROWS = 9  # that a picture becomes
OPTIONS = {"engine": "cpu", "ctx_size": 128, "template": "chatml", "threads": 1}


def encoded(seed: int = 1) -> str:
    return base64.b64encode(picture(seed)).decode()


URL = f"data:image/x-portable-pixmap;base64,{encoded()}"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("seeing")
    shutil.copy(FOLDER / "gemma3-mmproj.gguf", folder / "mmproj.gguf")
    return Path(shutil.copy(FOLDER / "gemma3-text.gguf", folder / "eye.gguf"))


@pytest.fixture(scope="module")
def seeing(model: Path) -> Iterator[Server]:
    found = start_server([("eye", model)], options=OPTIONS)
    yield found
    assert found.end() == 0


def post(server: Server, path: str, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(server.url + path, json=body, timeout=60)


def asking(url: str) -> dict[str, Any]:
    parts = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": url}}]
    return {"messages": [{"role": "user", "content": parts}], "max_tokens": 2, "temperature": 0}


def test_tokens_are_counted_without_the_tower(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where more tokens would be refused; and the same number as when the picture is computed."""
    opened = Opened(open_file(model), OpenOptions(engine="cpu", ctx_size=128))
    reader = opened.pictures
    read = reader.read(picture())
    monkeypatch.setattr(reader.projector, "run", None)
    counted = reader.count(picture())
    assert counted.tokens == read.tokens == reader.tokens(53, 37) == ROWS
    assert [p for p in counted.pieces if isinstance(p, str)] == [p for p in read.pieces if isinstance(p, str)]


def test_every_dialect_takes_a_picture(seeing: Server) -> None:
    """Each prompt has the rows of the picture and its two markers more than the same prompt without it."""
    source = {"type": "base64", "media_type": "image/png", "data": encoded()}
    text = {"type": "text", "text": "a"}

    def chat(*parts: Any) -> int:
        body = {"messages": [{"role": "user", "content": [text, *parts]}], "max_tokens": 1}
        return int(post(seeing, "/v1/chat/completions", body).json()["usage"]["prompt_tokens"])

    def anthropic(*parts: Any) -> int:
        body = {"messages": [{"role": "user", "content": [text, *parts]}]}
        return int(post(seeing, "/v1/messages/count_tokens", body).json()["input_tokens"])

    def responses(*parts: Any) -> int:
        body = {
            "input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}, *parts]}],
            "max_output_tokens": 1,
        }
        return int(post(seeing, "/v1/responses", body).json()["usage"]["input_tokens"])

    def ollama(*images: str) -> int:
        body = {"model": "eye", "messages": [{"role": "user", "content": "a", "images": list(images)}], "stream": False}
        return int(post(seeing, "/api/chat", body | {"options": {"num_predict": 1}}).json()["prompt_eval_count"])

    def generate(*images: str) -> int:
        body = {"model": "eye", "prompt": "a", "images": list(images), "stream": False, "options": {"num_predict": 1}}
        return int(post(seeing, "/api/generate", body).json()["prompt_eval_count"])

    def llama(*images: str) -> int:
        prompt = {"prompt_string": "a" + "<__media__>" * len(images), "multimodal_data": list(images)}
        return int(post(seeing, "/completion", {"prompt": prompt, "n_predict": 1}).json()["tokens_evaluated"])

    def older(*images: str) -> int:
        body = {"prompt": "a[img-7]" if images else "a", "image_data": [{"id": 7, "data": i} for i in images]}
        return int(post(seeing, "/completion", body | {"n_predict": 1}).json()["tokens_evaluated"])

    for count, given in (
        (chat, {"type": "image_url", "image_url": {"url": URL}}),
        (anthropic, {"type": "image", "source": source}),
        (responses, {"type": "input_image", "image_url": URL}),
        (ollama, encoded()), (generate, encoded()), (llama, encoded()), (older, encoded()),
    ):  # fmt: skip
        assert count(given) == count() + ROWS + 2, count.__name__
        assert count(given, given if count is not older else encoded(2)) >= count() + ROWS + 2


def test_a_picture_is_cached_and_another_one_is_not_taken_for_it(seeing: Server) -> None:
    def cached(*seeds: int) -> int:
        parts = [{"type": "image_url", "image_url": {"url": f"data:;base64,{encoded(seed)}"}} for seed in seeds]
        body = {"messages": [{"role": "user", "content": parts}], "max_tokens": 1}
        usage = post(seeing, "/v1/chat/completions", body).json()["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    cached(5, 6, 7)
    again, other = cached(5, 6, 7), cached(8, 6, 7)
    assert again >= 32 and other < 32


def test_what_is_refused(seeing: Server) -> None:
    many = asking(URL)
    many["messages"][0]["content"] *= 9
    for body, status, words in (
        (asking("http://127.0.0.1:9/a.png"), 400, "fetches no pictures"),
        (asking("file:///etc/passwd"), 400, "must be a data URL"),
        (asking("data:;base64,@@"), 400, "not valid base64"),
        (asking("data:;base64"), 400, "comma"),
        (asking("data:;base64," + base64.b64encode(b"P6 9000 9000 255 x").decode()), 400, "too large"),
        (asking("data:;base64," + base64.b64encode(b"P6 9 9 255 x").decode()), 400, "truncated"),
        (many, 400, "shorten"),  # nine pictures do not fit the context
        ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, 400, "audio is not supported"),
    ):
        reply = post(seeing, "/v1/chat/completions", body)
        assert reply.status_code == status and words in reply.text, reply.text
    assert (
        post(seeing, "/completion", {"prompt": {"prompt_string": "a", "multimodal_data": [encoded()]}}).status_code
        == 400
    )
    assert (
        post(seeing, "/completion", {"prompt": "[img-3]", "image_data": [{"id": 7, "data": encoded()}]}).status_code
        == 400
    )
    assert httpx.get(f"{seeing.url}/props").json()["modalities"]["vision"]
    assert "vision" in post(seeing, "/api/show", {"model": "eye"}).json()["capabilities"]


def test_urls_are_fetched_if_the_server_is_told_so(model: Path, start: Start) -> None:
    class Pictures(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = self.path == "/a"
            self.send_response(200 if found else 302)
            if not found:
                self.send_header("Location", "ftp://127.0.0.1/b" if self.path == "/away" else "/a")
            self.end_headers()
            self.wfile.write(picture() if found else b"")

        def log_message(self, *_: Any) -> None: ...

    site = HTTPServer(("127.0.0.1", 0), Pictures)
    Thread(target=site.serve_forever, daemon=True).start()
    server = start([("eye", model)], options=OPTIONS, config={"media_urls": True}, limits={"picture_bytes": 10_000})
    try:
        for path, status in (("/a", 200), ("/moved", 200), ("/away", 400)):
            reply = post(server, "/v1/chat/completions", asking(f"http://127.0.0.1:{site.server_port}{path}"))
            assert reply.status_code == status, reply.text
    finally:
        site.shutdown()
        site.server_close()
