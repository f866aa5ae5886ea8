"""`--cache-dir` on a real server: killed and started again it has its prefixes; slots in llama-server's form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from assay.engines.contract import PAGE
from tests.models import others
from tests.serve.conftest import Start
from tests.tiny import make

TEXT = " ".join(f"word {i}" for i in range(60))


def complete(url: str, **fields: Any) -> dict[str, Any]:
    asked = {"prompt": TEXT, "n_predict": 4, "temperature": 0, "n_probs": 2, **fields}
    reply = httpx.post(f"{url}/completion", json=asked, timeout=60)
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


def test_a_killed_server_starts_again_with_its_prefixes_and_slots(start: Start, tiny: Path, tmp_path: Path) -> None:
    options = {"options": {"engine": "cpu", "cache_dir": str(tmp_path), "threads": 1}}
    server = start([("tiny", tiny)], **options)
    first = complete(server.url, id_slot=3)
    assert first["id_slot"] == 3
    saved = httpx.post(f"{server.url}/slots/3?action=save", json={"filename": "talk.bin"}, timeout=60)
    assert saved.json()["n_saved"] == first["tokens_evaluated"] + first["tokens_predicted"]
    server.process.kill()
    server.process.wait()

    server = start([("tiny", tiny)], **options)
    restored = httpx.post(f"{server.url}/slots/0?action=restore", json={"filename": "talk.bin"}, timeout=60).json()
    pages = (first["tokens_evaluated"] - 1) // PAGE * PAGE
    assert restored["n_restored"] >= pages > 0
    again = complete(server.url)
    assert again["timings"]["cache_n"] == pages
    for key in ("content", "completion_probabilities"):
        assert again[key] == first[key]
    status = httpx.get(f"{server.url}/v1/status").json()["cache_dir"]
    assert status["entries"] * PAGE >= pages
    assert (status["failed"], status["damaged"]) == (0, 0)
    assert f'assay_restored_tokens_total{{model="tiny"}} {float(pages)}' in httpx.get(f"{server.url}/metrics").text
    erased = httpx.post(f"{server.url}/slots/0?action=erase", json={}).json()
    assert erased["n_erased"] > 0
    refused = {
        "9999?action=save": {"filename": "a"},
        "x?action=save": {"filename": "a"},
        "0?action=save": {"filename": "../a"},
        "0?action=save&b": {},
        "0?action=restore": {"filename": "missing"},
        "0": {"filename": "a"},
    }
    for path, body in refused.items():
        assert httpx.post(f"{server.url}/slots/{path}", json=body).status_code == 400, path
    (tmp_path / "slots" / "bad").write_text('{"model": 1, "tokens": 3}')
    assert httpx.post(f"{server.url}/slots/0?action=restore", json={"filename": "bad"}).status_code == 400


@pytest.mark.parametrize("kind", ["windowed", "qwen35"])
def test_a_slot_of_a_windowed_or_hybrid_model_is_restored(start: Start, tmp_path: Path, kind: str) -> None:
    """Its pages and states return after kill -9, with the same log-probabilities."""
    path = tmp_path / "model.gguf"
    if kind == "windowed":
        pattern = {"gemma3.attention.sliding_window_pattern": [True, False, True]}
        make(path, n_layer=3, n_ctx=1024, type="Q8_0", window=40, metadata=pattern)
    else:
        others.make(kind, path)
    options = {"options": {"engine": "cpu", "cache_dir": str(tmp_path / "cache"), "threads": 1, "ctx_size": 512}}
    ids = [10 + i * 7 % 60 for i in range(5 * PAGE + 9)]
    asked = {"prompt": ids, "n_predict": 3, "temperature": 0, "n_probs": 2, "ignore_eos": True}

    def ask(url: str, **more: Any) -> dict[str, Any]:
        reply = httpx.post(f"{url}/completion", json=asked | more, timeout=60)
        assert reply.status_code == 200, reply.text
        found: dict[str, Any] = reply.json()
        return found

    server = start([("m", path)], **options)
    first = ask(server.url, id_slot=1)
    saved = httpx.post(f"{server.url}/slots/1?action=save", json={"filename": "s"}, timeout=60).json()
    assert saved["n_saved"] == len(ids) + 3
    server.process.kill()
    server.process.wait()
    server = start([("m", path)], **options)
    restored = httpx.post(f"{server.url}/slots/0?action=restore", json={"filename": "s"}, timeout=60).json()
    again = ask(server.url)
    assert restored["n_restored"] >= again["timings"]["cache_n"] >= 4 * PAGE
    assert again["completion_probabilities"] == first["completion_probabilities"]


def test_slots_are_not_saved_without_a_folder(start: Start, tiny: Path) -> None:
    server = start([("tiny", tiny)])
    reply = httpx.post(f"{server.url}/slots/0?action=save", json={"filename": "a"})
    assert reply.status_code == 400
    assert "--cache-dir" in reply.json()["error"]["message"]
