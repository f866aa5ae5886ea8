"""The example emitters are compiled and run where their compilers are at hand, and assay reads what they wrote."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from assay.library import dump_receiver
from assay.verify.dumps.load import load_dump

EMITTERS = Path(__file__).parents[1] / "docs" / "emitters"
VALUES = [[0.1, -2.5, 3e-7], [4.0, 5.25, -6.0]]

# language -> (program that must be there, command that builds, command that runs)
LANGUAGES: dict[str, tuple[str, list[str], list[str]]] = {
    "c": ("cc", ["cc", "-Wall", "-Wextra", "-Werror", "-o", "emit", "emit.c", "-lm"], ["./emit"]),
    "rust": ("rustc", ["rustc", "-D", "warnings", "-o", "emit", "emit.rs"], ["./emit"]),
    "go": ("go", ["go", "build", "-o", "emit", "emit.go"], ["./emit"]),
    "zig": ("zig", ["zig", "build-exe", "emit.zig", "-lc"], ["./emit"]),
    "js": ("node", ["cp", "emit.js", "emit.mjs"], ["node", "emit.mjs"]),
    "python": (sys.executable, [], [sys.executable, "emit.py"]),
}


@pytest.mark.parametrize("language", LANGUAGES)
def test_emitter(language: str, tmp_path: Path) -> None:
    program, build, run = LANGUAGES[language]
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not on this machine")
    for source in EMITTERS.iterdir():
        shutil.copy(source, tmp_path)
    for command in filter(None, (build, run)):
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=300)
    dump = load_dump(tmp_path / "dump.jsonl")
    assert dump.engine == f"example-{language}" and dump.tokens == (1, 450)
    found = dump.values("embd")
    assert found is not None
    assert np.array_equal(found.astype(np.float32), np.array(VALUES, np.float32))


def test_numbers_of_webgpu_buffers(tmp_path: Path) -> None:
    """The emitter for WebGPU decodes float16, and writes lines that assay reads. Copies need a GPU."""
    if shutil.which("node") is None:
        pytest.skip("node is not on this machine")
    shutil.copy(EMITTERS / "emit_webgpu.js", tmp_path / "emit.mjs")
    halves = np.array([0.1, -2.5, 6e-8, 65504, np.nan], np.float16)
    program = f"""
        import {{ GpuDump, numbers }} from "./emit.mjs";
        const dump = new GpuDump(null, "web", [1, 450]);
        const bytes = Uint16Array.of({", ".join(map(str, halves.view(np.uint16)))}).buffer;
        dump.pending.push(dump.tensor("embd", [5], numbers(bytes, "f16")));
        process.stdout.write(await dump.text());
    """
    command = ["node", "--input-type=module", "-e", program]
    done = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=60)
    (tmp_path / "dump.jsonl").write_bytes(done.stdout)
    found = load_dump(tmp_path / "dump.jsonl").values("embd")
    assert found is not None and np.array_equal(found.astype(np.float16), halves, equal_nan=True)


def test_a_dump_posted_by_javascript(tmp_path: Path) -> None:
    """The emitter's `post` and the receiver of `assay watch --http`: what is printed is the dump."""
    if shutil.which("node") is None:
        pytest.skip("node is not on this machine")
    shutil.copy(EMITTERS / "emit_webgpu.js", tmp_path / "emit.mjs")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = f"""
        import {{ GpuDump }} from "./emit.mjs";
        const dump = new GpuDump(null, "web", [1, 450]);
        dump.pending.push(dump.tensor("embd", [2], [0.5, -2]));
        const answer = await dump.post("http://127.0.0.1:{port}");
        process.stdout.write(String(answer.status));
    """
    with subprocess.Popen(dump_receiver.command(port), stdout=subprocess.PIPE) as receiver:
        done = subprocess.run(
            ["node", "--input-type=module", "-e", program], cwd=tmp_path, capture_output=True, timeout=60
        )
        printed, _ = receiver.communicate(timeout=60)
    assert done.stdout == b"204" and receiver.returncode == 0
    (tmp_path / "dump.jsonl").write_bytes(printed)
    found = load_dump(tmp_path / "dump.jsonl").values("embd")
    assert found is not None and found.tolist() == [0.5, -2.0]
