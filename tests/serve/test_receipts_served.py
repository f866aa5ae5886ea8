"""`assay serve --receipts`: streams and whole answers carry the same receipt, and `assay verify` replays it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from assay.cli import main
from tests import forked
from tests.tiny import make

pytest.importorskip("cryptography")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("receipts")
    path = make(folder / "tiny.gguf")
    words = ["serve", str(path), "--port", "0", "--receipts", str(folder / "key"), "-t", "1", "--json"]
    process = forked.Popen(
        [sys.executable, "-m", "assay.cli", *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    url = json.loads(process.stdout.readline())["url"]
    yield url, path, folder
    process.terminate()
    assert process.wait(60) == 0


def _events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


@pytest.mark.parametrize("route", ["completions", "chat/completions"])
def test_answers_carry_receipts(served: Any, route: str, capsys: pytest.CaptureFixture[str]) -> None:
    url, path, folder = served
    said = {"prompt": "abc"} if route == "completions" else {"messages": [{"role": "user", "content": "abc"}]}
    body = {**said, "max_tokens": 8, "seed": 3, "temperature": 0.8, "ignore_eos": True, "n": 2}
    whole = httpx.post(f"{url}/v1/{route}", json=body, timeout=120).json()
    assert len(whole["receipts"]) == 2 and len(whole["receipts"][0]["tokens"]) == 8
    stream = httpx.post(f"{url}/v1/{route}", json={**body, "stream": True}, timeout=120).text
    (last,) = [event["receipts"] for event in _events(stream) if "receipts" in event]
    assert last == whole["receipts"]
    answer = folder / "answer.json"
    answer.write_text(json.dumps(whole))
    public = whole["receipts"][0]["key"]
    assert main(["verify", str(answer), "--model", str(path), "--key", public, "-t", "1"]) == 0
    assert capsys.readouterr().out.count("agrees: all 8 tokens") == 2
    whole["receipts"][0]["tokens"][4] ^= 1
    answer.write_text(json.dumps(whole["receipts"][0]))
    assert main(["verify", str(answer), "--model", str(path)]) == 1
    assert "DIFFERS" in capsys.readouterr().out


def test_bad_receipts_are_one_line(served: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, path, _ = served
    for text in ("", "[]", "{}", '{"receipts": []}', '{"receipts": [1]}', "[" * 5000):
        bad = tmp_path / "bad.json"
        bad.write_text(text)
        assert main(["verify", str(bad), "--model", str(path)]) == 2
        assert capsys.readouterr().err.count("\n") == 1
