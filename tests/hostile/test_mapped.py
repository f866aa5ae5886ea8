"""A model's file is cut short while it is in use: the error names it, and the process lives."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from tests import tiny
from tests.hostile.conftest import bounded, one_line

pytest.importorskip("assay._native")
linux = pytest.mark.skipif(sys.platform != "linux", reason="SIGBUS is answered on Linux")

WORK = """
import os, sys
from assay.errors import AssayError
from assay.gguf import open_file
from assay.models import load
from assay import engines
from assay.engines.contract import Chunk
import numpy as np
path, name = sys.argv[1:]
file = open_file(path)
engine = engines.create(name, load(file), n_pages=4)
chunk = Chunk(np.array([5, 6, 7]), 0, np.arange(1, dtype=np.int32), "last")
first = engine.forward([chunk])[0].logits
os.truncate(path, 4096)
for _ in range(2):
    try:
        engine.forward([Chunk(np.array([300, 310]), 0, np.arange(1, dtype=np.int32), "last")])
        print("computed")
    except AssayError as error:
        print(error)
"""


@linux
@pytest.mark.parametrize("engine", ["cpu", "reference"])
@pytest.mark.parametrize("tied", [True, False])
def test_an_engine_says_so(engine: str, tied: bool, tmp_path: Path) -> None:
    path = tiny.make(tmp_path / "v.gguf", type="Q8_0", tied=tied, n_embd=256, n_ff=256)
    done = bounded("-c", WORK, path, engine)
    assert done.returncode == 0, (done.returncode, done.stderr[-1500:])
    for line in done.stdout.splitlines():  # what is packed or decoded does not need the file
        assert line == "computed" or ("became shorter" in line and "v.gguf" in line)
    if engine == "cpu" and not tied:
        assert "became shorter" in done.stdout


@linux
@pytest.mark.parametrize("verb", ["inspect", "quantize"])
def test_a_verb_that_reads_a_shrinking_file(verb: str, tmp_path: Path) -> None:
    path = tiny.make(tmp_path / "v.gguf", n_embd=128)
    code = (
        "import os, sys; from assay.gguf import reader; from assay.cli import main\n"
        "opened = reader._check_disjoint\n"
        "def cut(cursor, tensors):\n"
        "    opened(cursor, tensors); os.truncate(sys.argv[1], 8192)\n"
        "reader._check_disjoint = cut\n"
        "sys.exit(main(sys.argv[2:]))"
    )
    arguments = [path] if verb == "inspect" else [path, tmp_path / "out", "--type", "Q8_0"]
    done = bounded("-c", code, path, verb, *arguments)
    one_line(done)
    assert "became shorter" in done.stderr and not (tmp_path / "out").exists()


@linux
def test_another_sigbus_still_ends_the_process(tmp_path: Path) -> None:
    """Only maps of models are answered for."""
    path = tiny.make(tmp_path / "v.gguf")
    shutil.copy(path, tmp_path / "other")
    code = (
        "import mmap, os, sys; from assay.gguf import open_file\n"
        "file = open_file(sys.argv[1]); other = open(sys.argv[2], 'rb')\n"
        "data = mmap.mmap(other.fileno(), 0, access=mmap.ACCESS_READ)\n"
        "os.truncate(sys.argv[2], 0); print(data[5000])"
    )
    done = bounded("-c", code, path, tmp_path / "other")
    assert done.returncode == -7


@linux
def test_a_server_lives(tmp_path: Path) -> None:
    pytest.importorskip("httpx")
    import httpx

    from tests.serve.conftest import start_server

    path = tiny.make(tmp_path / "v.gguf", type="Q8_0", tied=False, n_embd=256, n_ff=256, n_ctx=512)
    server = start_server([("v", path)])
    try:
        ask = {"prompt": [300, 301, 302], "max_tokens": 2, "temperature": 0}
        assert httpx.post(f"{server.url}/v1/completions", json=ask, timeout=30).status_code == 200
        os.truncate(path, 4096)
        for _ in range(2):
            found = httpx.post(f"{server.url}/v1/completions", json=ask | {"prompt": [310, 311]}, timeout=30)
            assert found.status_code == 500 and "became shorter" in found.json()["error"]["message"]
        lens = httpx.post(f"{server.url}/v1/trace", json={"tokens": [5, 6], "lens": True}, timeout=30)
        assert lens.status_code == 200 or "became shorter" in lens.json()["error"]["message"]
        assert httpx.get(f"{server.url}/health", timeout=5).status_code == 200
    finally:
        assert server.end() == 0
