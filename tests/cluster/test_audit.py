"""A bit flips in a replica's memory: an audit finds it, and names the replica and the node."""

from __future__ import annotations

import asyncio
import os
import struct
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("llguidance")

from assay.cluster.fleet import Bounds
from assay.cluster.launchers import LocalLauncher
from assay.cluster.replicated_model import Cluster
from assay.gguf import open_file
from assay.graph import Graph
from assay.models import load
from tests.cluster.harness import client_of
from tests.tiny import make

CHAT: dict[str, Any] = {
    "messages": [{"role": "user", "content": "hello the world"}], "max_tokens": 12, "ignore_eos": True, "seed": 3,
}  # fmt: skip


def flip(pid: int, pattern: bytes, at: int, bit: int) -> int:
    """Flip a bit wherever a process has these bytes in writable memory; how often that was."""
    found = 0
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
        for line in maps:
            span, rights = line.split()[:2]
            start, end = (int(x, 16) for x in span.split("-"))
            if not rights.startswith("rw") or "[v" in line:
                continue
            try:
                memory.seek(start)
                data = memory.read(end - start)
            except (OSError, OverflowError):
                continue
            place = data.find(pattern)
            while place >= 0:
                memory.seek(start + place + at)
                memory.write(bytes([data[place + at] ^ (1 << bit)]))
                found += 1
                place = data.find(pattern, place + 1)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("n", [2, 3])
def test_a_flipped_bit_is_found_and_named(tmp_path: Path, n: int) -> None:
    """With three replicas the third decides, with two a fresh one."""
    path = make(tmp_path / "m.gguf", n_ctx=256, n_layer=3)
    file = open_file(path)
    weight = file.decode("blk.1.ffn_norm.weight").astype("<f4").tobytes()
    node = reader(load(file).graph, "blk.1.ffn_norm.weight")

    async def main() -> None:
        launcher = LocalLauncher()
        async with client_of(path, Cluster(lambda: launcher, Bounds(n, n), audit=1.0)) as (client, entry):
            fleet: Any = entry.worker
            await fleet.wait_until_complete()
            auditor = fleet.finished.__self__
            await client.post("/v1/chat/completions", json=CHAT)
            await auditor.wait_until_idle()
            assert auditor.done == 1 and not auditor.found, "healthy replicas agree"
            sick = fleet.up[1]
            if os.geteuid() != 0 and not flip(sick.handle.process.pid, weight, 5, 0):
                pytest.skip("another process's memory cannot be written here")
            assert flip(sick.handle.process.pid, weight, 5, 6) > 0
            for i in range(6):
                await client.post("/v1/chat/completions", json=CHAT | {"seed": i, "messages": [
                    {"role": "user", "content": f"{i} hello the world"}]})  # fmt: skip
                await auditor.wait_until_idle()
                if auditor.found:
                    break
            finding = auditor.found[0]
            assert finding.replica == sick.name and finding.first == node, finding
            assert sick.state in ("draining", "gone")
            await fleet.wait_until_complete()
            assert sick not in fleet.up and len(fleet.up) == n
            assert b"assay_cluster_audit_differences" in (await client.get("/metrics")).content

    asyncio.run(main())


def reader(graph: Graph, weight: str) -> str:
    """The first node that reads a weight."""
    return next(node.name for node in graph if weight in node.weights)


def test_flip_flips() -> None:
    value = bytearray(struct.pack("<8d", *(0.1234567 * i for i in range(8))))
    pattern = bytes(value)
    try:
        assert flip(os.getpid(), pattern, 3, 1) >= 1
    except PermissionError:
        pytest.skip("memory cannot be written here")
