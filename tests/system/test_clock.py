"""The wall clock leaps by a day, back and forth: no deadline rings, nothing hangs, every letter stays."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

httpx = pytest.importorskip("httpx")
pytest.importorskip("uvicorn")

from tests import tiny  # noqa: E402
from tests.hostile.conftest import bounded  # noqa: E402
from tests.serve.conftest import Start, start  # noqa: E402, F401

ASK = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 12, "temperature": 0.8, "seed": 7}


def answers(url: str) -> list[str]:
    """Plain, constrained, streamed: what a template, a grammar and the scheduler take their time for."""
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "integer"}}}
    found = [
        httpx.post(f"{url}/v1/chat/completions", json={**ASK, **more}, timeout=60)
        for more in ({}, {"response_format": form}, {"stream": True})
    ]
    assert [reply.status_code for reply in found] == [200] * 3, [reply.text for reply in found]
    said = [reply.json()["choices"][0]["message"]["content"] for reply in found[:2]]
    assert "error" not in found[2].text and found[2].text.rstrip().endswith("[DONE]")
    return said


def test_the_shim_makes_the_clock_leap(shim: str) -> None:
    script = "import time; t = [time.time() for _ in range(6)]; print(max(t) - min(t))"
    done = bounded("-c", script, LD_PRELOAD=shim, JUMP="86400")
    assert float(done.stdout) > 86400


@pytest.mark.slow
def test_a_server_does_not_notice(shim: str, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    path = tiny.make(tmp_path / "tiny.gguf", n_ctx=512)
    expected = answers(start([("tiny", path)]).url)
    monkeypatch.setenv("LD_PRELOAD", shim)
    monkeypatch.setenv("JUMP", "86400")
    server = start([("tiny", path)])
    begun = time.monotonic()
    assert answers(server.url) == expected
    assert time.monotonic() - begun < 30, "something waited for the clock"
    assert server.end() == 0


def test_a_run_does_not_notice(shim: str, tmp_path: Path) -> None:
    path = tiny.make(tmp_path / "tiny.gguf", n_ctx=512)
    args = ("-m", "assay", "run", path, "-p", "hello", "-n", "8", "--temp", "0")
    plain, leaping = bounded(*args), bounded(*args, LD_PRELOAD=shim, JUMP="86400")
    assert plain.returncode == leaping.returncode == 0, leaping.stderr
    assert plain.stdout == leaping.stdout
