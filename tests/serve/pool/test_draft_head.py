"""A server whose model drafts with a head, its own or EAGLE-3: streams at once, and every token is the plain one."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

import assay
from tests import draft_files, eagle_files, tiny


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draft_files.make(tmp_path_factory.mktemp("head") / "hybrid.gguf")


@pytest.mark.parametrize("draft", ["mtp", "eagle"])
def test_streams_with_a_draft_head(draft: str, path: Path, start: Callable[..., Any]) -> None:
    if draft == "eagle":
        draft = str(eagle_files.make(path.with_name("head.gguf"), path))
    server = start([("hybrid", path)], options={"engine": "cpu", "draft": draft, "cache_size": 1024})
    rows = [{"temperature": 0}, {"temperature": 0.8, "seed": 3}, {"temperature": 1.1, "seed": 4, "top_k": 9}]
    asks = [
        {
            "model": "hybrid",
            "prompt": "hello " * (1 + 9 * i),
            "max_tokens": 40,
            "ignore_eos": True,
            "logprobs": 1,
            **row,
        }
        for i, row in enumerate(rows)
    ]
    with ThreadPoolExecutor() as many:
        replies = list(many.map(lambda ask: httpx.post(f"{server.url}/v1/completions", json=ask, timeout=60), asks))
    with assay.load(path, engine="cpu", lookahead=False) as plain:
        for ask, reply in zip(asks, replies, strict=True):
            found = reply.json()["choices"][0]
            params = assay.SamplerParams(
                temp=ask["temperature"], seed=ask.get("seed"), **({"top_k": 9} if "top_k" in ask else {})
            )
            expected = plain.generate(ask["prompt"], params=params, max_tokens=40, ignore_eos=True, logprobs=1)
            assert found["text"] == expected.text
            assert found["logprobs"]["token_logprobs"] == [choice.logprob for choice in expected.logprobs or []]
    metrics = httpx.get(f"{server.url}/metrics").text
    assert "assay_guessed_tokens" in metrics


def test_a_model_without_a_head_is_refused_at_the_start(
    tmp_path: Path, start: Callable[..., Any], capfd: pytest.CaptureFixture[str]
) -> None:
    without = tiny.make(tmp_path / "tiny.gguf")
    with pytest.raises(AssertionError, match="did not start: exit code 2"):
        start([("tiny", without)], options={"engine": "cpu", "draft": "mtp"})
    assert "--draft mtp: tiny.gguf: it has no draft head" in capfd.readouterr().err
