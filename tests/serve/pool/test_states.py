"""A model with a state behind the real server: its memory is told at the start, in /metrics, /v1/status and `ps`.

The further choices of a request go on from a snapshot, and a context that is full ends an answer without any shift.
"""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from assay.cli import main
from tests import forked

GOLDEN = Path(__file__).parents[2] / "data" / "arch" / "qwen35.gguf"
PROMPT = [(7 * i * i + 3) % 96 for i in range(70)]


class Served:
    """`assay serve` in a process of its own."""

    def __init__(self, *options: str) -> None:
        command = [
            sys.executable,
            "-m",
            "assay",
            "serve",
            str(GOLDEN),
            "--port",
            "0",
            "--engine",
            "cpu",
            "--threads",
            "1",
        ]
        self.process = forked.Popen([*command, *options], stderr=subprocess.PIPE, text=True)
        assert self.process.stderr
        self.line = self.process.stderr.readline()
        self.url = self.line.split(" at ")[1].split(" ")[0]
        self.states = self.process.stderr.readline()

    def get(self, path: str) -> str:
        with urllib.request.urlopen(self.url + path, timeout=60) as reply:
            return str(reply.read().decode())

    def complete(self, **request: Any) -> dict[str, Any]:
        body = json.dumps({"prompt": PROMPT, "temperature": 0, "logprobs": 1, "ignore_eos": True} | request).encode()
        call = urllib.request.Request(f"{self.url}/v1/completions", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(call, timeout=60) as reply:
            found: dict[str, Any] = json.loads(reply.read())
        return found


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    server = Served("--state-slots", "6")
    yield server
    server.process.terminate()
    server.process.wait()


def test_memory_is_told(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    """6 slots of 5,376 bytes, which the engine holds twice: 64,512 bytes."""
    assert served.states.startswith(
        "qwen35: 6 states of 0.0 MB for running sequences and snapshots of prefixes, 0.1 MB"
    )
    served.complete(max_tokens=2)
    status = json.loads(served.get("/v1/status"))["models"][0]
    assert status["states"] == {"slots": 6, "running": 0, "snapshots": status["states"]["snapshots"], "bytes": 64512}
    assert 1 <= status["states"]["snapshots"] <= 6 and status["bytes"] > 64512
    metrics = dict(
        line.rsplit(" ", 1) for line in served.get("/metrics").splitlines() if line.startswith("assay_state")
    )
    assert float(metrics['assay_state_slots{model="qwen35"}']) == 6
    assert float(metrics['assay_state_bytes{model="qwen35"}']) == 64512
    assert float(metrics['assay_state_snapshots{model="qwen35"}']) == status["states"]["snapshots"]
    assert main(["ps", "--url", served.url]) == 0
    assert f"{status['states']['snapshots']} of 6" in capsys.readouterr().out
    (row,) = json.loads(served.get("/v1/replicas"))["data"]
    assert row["state_slots"] == 6 and row["state_bytes"] == 64512


def test_choices_go_on_from_a_snapshot(served: Served) -> None:
    """`n` of 4: the same tokens four times, and the prompt is computed once."""
    prompt = [*PROMPT[5:], *PROMPT[:5]]
    found = served.complete(prompt=prompt, n=4, max_tokens=12)
    assert len({tuple(choice["logprobs"]["token_logprobs"]) for choice in found["choices"]}) == 1
    assert served.complete(prompt=prompt, max_tokens=12)["usage"]["prompt_tokens_details"]["cached_tokens"] == 64


def test_a_full_context_ends_the_answer(served: Served) -> None:
    """A state cannot be shifted, so nothing is dropped from the front: the answer ends at the context of 128."""
    found = served.complete(max_tokens=500)
    assert found["choices"][0]["finish_reason"] == "length"
    assert found["usage"]["total_tokens"] == 128


def test_inspect_tells_the_states_of_a_server(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(GOLDEN), "--fast"]) == 0
    assert "states      1.4 MB in a server: 128 slots of 5.4 kB in float32, each held twice" in capsys.readouterr().out
    assert main(["inspect", str(GOLDEN), "--fast", "--json", "--state-slots", "6"]) == 0
    memory = json.loads(capsys.readouterr().out)["memory"]
    assert (memory["state"], memory["state_slots"], memory["states"]) == (5376, 6, 64512)
