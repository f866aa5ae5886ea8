"""`/v1/embeddings` over an encoder: the library's vectors on the wire, and a short text is not kept waiting."""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import assay
from tests.models import others
from tests.serve.conftest import start_server


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("encoder") / "bert.gguf"
    others.make("bert", found)
    return found


@pytest.fixture(scope="module")
def http(path: Path) -> Iterator[httpx.Client]:
    server = start_server([("bert", path)])
    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client
    server.end()


def embed(http: httpx.Client, **body: Any) -> np.ndarray:
    answer = http.post("/v1/embeddings", json=body)
    assert answer.status_code == 200, answer.text
    return np.array([item["embedding"] for item in answer.json()["data"]], np.float32)


def test_the_vectors_are_the_librarys(http: httpx.Client, path: Path) -> None:
    texts = [others.IDS[:n].tolist() for n in (3, 40, 1)] + [np.tile(others.IDS, 10).tolist()]
    with assay.load(path) as model:
        wanted = model.embed(texts)
        np.testing.assert_array_equal(embed(http, input=texts), wanted)
        np.testing.assert_array_equal(embed(http, input=texts[0], dimensions=8)[0], model.embed(texts[0], dimensions=8))
        np.testing.assert_array_equal(embed(http, input=texts[1], pooling="first")[0],
                                      model.embed(texts[1], pooling="first"))  # fmt: skip
    coded = http.post("/v1/embeddings", json={"input": texts, "encoding_format": "base64"}).json()
    raw = [base64.b64decode(item["embedding"]) for item in coded["data"]]
    np.testing.assert_array_equal([np.frombuffer(one, "<f4") for one in raw], wanted)
    assert coded["usage"]["prompt_tokens"] == sum(map(len, texts))


@pytest.mark.parametrize(
    ("route", "body", "code"),
    [
        ("/v1/completions", {"prompt": [1, 2]}, "unsupported"),
        ("/v1/embeddings", {"input": "text"}, "invalid_value"),  # the file has no vocabulary
        ("/v1/embeddings", {"input": [1], "dimensions": 73}, "invalid_value"),
        ("/v1/embeddings", {"input": [1], "pooling": "max"}, "invalid_value"),
        ("/v1/embeddings", {"input": [96]}, "invalid_value"),
        ("/v1/embeddings", {"input": [1] * 513}, "context_length_exceeded"),
    ],
)
def test_what_cannot_be_is_said(http: httpx.Client, route: str, body: dict[str, Any], code: str) -> None:
    answer = http.post(route, json=body)
    assert answer.status_code == 400 and answer.json()["error"]["code"] == code, answer.text


def test_a_short_text_does_not_wait_for_long_ones(http: httpx.Client) -> None:
    """Texts that must be run whole take turns: a short one is let in between two of them."""
    large = {"input": [others.IDS.tolist() * 12] * 64}
    began = time.monotonic()
    thread = threading.Thread(target=lambda: http.post("/v1/embeddings", json=large))
    thread.start()
    waits = []
    while thread.is_alive():
        sent = time.monotonic()
        embed(http, input=[1, 2, 3])
        waits.append(time.monotonic() - sent)
    assert len(waits) > 3 and np.median(waits) < 0.2 * (time.monotonic() - began), waits
