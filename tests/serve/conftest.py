"""Servers for the tests: real processes, on a port of their own, over tiny models."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import forked
from tests.tiny import make

for module in ("starlette", "uvicorn", "pydantic", "prometheus_client", "httpx"):
    pytest.importorskip(module, reason=f"{module} is not installed: the extra `serve` is not tested")

# As Hermes and Qwen write it: tools in a system turn, calls between tags.
TOOL_TEMPLATE = (
    "{% if tools %}<|turn|>system\n{{ tools | tojson }} Answer <tool_call>{...}</tool_call><|end|>\n{% endif %}"
    "{% for m in messages %}<|turn|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"
)

# ServerLimits are not all on the command line; a test may set any of them.
SCRIPT = """
import asyncio, json, sys
from pathlib import Path
from assay.cli import _fault
from assay.errors import AssayError
from assay.runtime.opening import OpenOptions
from assay.serve.limits import ServerLimits
from assay.serve.server import Config, run
given = json.loads(sys.argv[1])
given["config"] |= {"tls": tuple(map(Path, given["config"]["tls"]))} if "tls" in given["config"] else {}
config = Config(
    models=[(name, Path(path)) for name, path in given["models"]], host=given.get("host", "127.0.0.1"), port=0,
    key=given["key"], memory=given["memory"], **given["config"],
    options=OpenOptions(**given["options"]), limits=ServerLimits(**given["limits"]),
)
try:
    asyncio.run(run(config, lambda url: print(url, flush=True)))
except AssayError as error:
    sys.exit(_fault(str(error)))
"""


@dataclass
class Server:
    """A running server."""

    url: str
    process: subprocess.Popen[str]

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def memory(self) -> int:
        """Resident bytes."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("no VmRSS")

    def end(self) -> int:
        """Ask it to end; its exit code."""
        if self.process.poll() is None:
            self.terminate()
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise


Start = Callable[..., Server]


def start_server(
    models: list[tuple[str, Path]],
    *,
    key: str | None = None,
    memory: int | None = None,
    options: dict[str, Any] | None = None,
    limits: dict[str, Any] | None = None,
    host: str = "127.0.0.1",
    config: dict[str, Any] | None = None,
) -> Server:
    given = {
        "models": [(name, str(path)) for name, path in models],
        "key": key,
        "memory": memory,
        "options": options or {},
        "limits": limits or {},
        "host": host,
        "config": config or {},
    }
    process = forked.Popen(
        [sys.executable, "-c", SCRIPT, json.dumps(given)], stdout=subprocess.PIPE, text=True, env=os.environ
    )
    assert process.stdout
    url = process.stdout.readline().strip()
    if not url:
        raise AssertionError(f"the server did not start: exit code {process.wait()}")
    return Server(url, process)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("serve") / "tiny.gguf", n_ctx=512, template=TOOL_TEMPLATE)


@pytest.fixture
def start() -> Iterator[Start]:
    """Start servers that end with the test."""
    started: list[Server] = []

    def begin(*args: Any, **kwargs: Any) -> Server:
        started.append(start_server(*args, **kwargs))
        return started[-1]

    yield begin
    for server in started:
        server.end()


@pytest.fixture(scope="session")
def server(tiny: Path) -> Iterator[Server]:
    """One server for all tests that leave it as it was."""
    found = start_server([("tiny", tiny)])
    yield found
    assert found.end() == 0
