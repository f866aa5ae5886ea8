"""Adapters on a real server: chosen by request as in llama-server, batched, and equal to the library's bits."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

import assay
from assay.gguf import open_file
from assay.models import load
from tests.engines.test_adapters import make_adapter
from tests.serve.conftest import Start

TEXT = "Once upon a time there was"


def test_requests_choose_their_adapters(start: Start, tiny: Path, tmp_path: Path) -> None:
    model = load(open_file(tiny))
    files = [str(make_adapter(tmp_path / f"{i}.gguf", model, seed=i)) for i in range(2)]
    server = start([("tiny", tiny)], options={"engine": "cpu", "threads": 1, "lora": [files[0], f"{files[1]}=0"]})

    def complete(lora: list[dict[str, float]] | None = None) -> Any:
        asked: dict[str, Any] = {"prompt": TEXT, "n_predict": 6, "temperature": 0, "ignore_eos": True, "n_probs": 2}
        asked |= {} if lora is None else {"lora": lora}
        found = httpx.post(f"{server.url}/completion", json=asked, timeout=60).json()
        return found.get("completion_probabilities") or found

    kinds: list[list[dict[str, float]]] = [
        [], [{"id": 0, "scale": 1.0}], [{"id": 1, "scale": 0.5}], [{"id": 0, "scale": 1.0}, {"id": 1, "scale": -1.0}],
    ]  # fmt: skip
    alone = [complete(kind) for kind in kinds]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(complete, [*kinds, *kinds]))
    assert together == [*alone, *alone]
    assert len({str(found) for found in alone}) == 4
    assert complete() == alone[1]

    with assay.load(str(tiny), "cpu", threads=1, lora=[f"{files[1]}=0.5"]) as local:
        result = local.generate(TEXT, max_new_tokens=6, temp=0, ignore_eos=True, logprobs=2)
        assert result.ids == [token["id"] for token in alone[2]]

    rows = httpx.get(f"{server.url}/lora-adapters").json()
    assert [(row["id"], row["path"], row["scale"]) for row in rows] == [(0, "0.gguf", 1.0), (1, "1.gguf", 0.0)]
    assert httpx.post(f"{server.url}/lora-adapters", json=[{"id": 1, "scale": 0.5}]).json() == {"success": True}
    assert complete() == alone[2]
    for wrong in ([{"id": 2, "scale": 1.0}], [{"id": 0, "scale": 1.0}] * 2, [{"id": 0}], [{"id": 0, "scale": 1e9}]):
        reply = httpx.post(f"{server.url}/completion", json={"prompt": TEXT, "lora": wrong})
        assert reply.status_code == 400, wrong
