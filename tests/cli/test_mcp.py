"""`assay mcp` as an agent uses it: the real client over stdio, and an engine with a planted bug."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.cli import mcp_tools
from assay.errors import AssayError
from tests.second_engine import Engine
from tests.tiny import make

PROMPT = "hello the world in a"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("mcp") / "tiny.gguf")


def printed(trace: dict[str, Any], *names: str) -> str:
    """The lines of an engine that prints ten values of each node."""
    return "\n".join(
        f"{name} {np.shape(trace[name])}: {np.array2string(np.ravel(trace[name])[:10], precision=7)[1:-1]}"
        for name in names
    ).replace("\n  ", " ")


def ids_of(model: Path) -> list[int]:
    from assay.gguf import open_file
    from assay.text import Tokenizer

    return Tokenizer.from_gguf(open_file(model)).encode(PROMPT)


@pytest.mark.slow
def test_an_agent_finds_a_planted_bug(model: Path, tmp_path: Path) -> None:
    """Ids, the first lines, the dump of the wrong layer, the cause: each answer leads to the next question."""
    mcp = pytest.importorskip("mcp", reason="the mcp package is not installed")
    ids = ids_of(model)
    run = Engine(str(model), bugs={"rope-type"}).run(ids)
    dump = tmp_path / "run.npz"
    np.savez(dump, tokens=np.array(ids), **{name: value for name, value in run.items() if value is not None})

    async def talk() -> list[str]:
        server = mcp.StdioServerParameters(command=sys.executable, args=["-m", "assay", "mcp"])
        async with mcp.Client(server) as client:
            listed = {tool.name for tool in (await client.list_tools()).tools}
            assert listed == {tool.__name__ for tool in mcp_tools.TOOLS}

            async def ask(name: str, **given: Any) -> str:
                found = await client.call_tool(name, given)
                return ("error: " if found.is_error else "") + "".join(part.text for part in found.content)

            same = ask("check_ids", model=str(model), text=PROMPT, ids=ids)
            cause = ask("diagnose", model=str(model), dump=str(dump), prompt=PROMPT)
            fault = ask("explain_fault", fault="rope-type")
            wrong = ask("diagnose", model=str(model), dump="/nowhere.npz")
            return list(await asyncio.gather(same, cause, fault, wrong))

    same, cause, fault, wrong = asyncio.run(talk())
    assert same.startswith("same: all")
    assert "rope-type" in cause and "Qcur-0" in cause
    assert fault.startswith("rope-type\n  wrong: ") and "https://github.com/" in fault
    assert wrong.startswith("error: ") and "nowhere.npz" in wrong and "Traceback" not in wrong


@pytest.mark.slow
def test_an_agent_over_http(model: Path) -> None:
    """The same tools over HTTP, for two clients at once; a third one finds the server as they left it."""
    mcp = pytest.importorskip("mcp", reason="the mcp package is not installed")
    command = [sys.executable, "-m", "assay", "mcp", "--port", "0"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr
        url = next(word for word in server.stderr.readline().split() if word.startswith("http")).rstrip(";")

        async def ask(ids: list[int]) -> str:
            async with mcp.Client(url) as client:
                assert {tool.name for tool in (await client.list_tools()).tools} == {
                    t.__name__ for t in mcp_tools.TOOLS
                }
                given = {"model": str(model), "text": PROMPT, "ids": ids}
                found = await client.call_tool("check_ids", given)
                return "".join(part.text for part in found.content)

        async def both() -> list[str]:
            return list(await asyncio.gather(ask(ids_of(model)), ask(ids_of(model)[1:])))

        right, wrong = asyncio.run(both())
        assert right.startswith("same: all") and not wrong.startswith("same")
        assert asyncio.run(ask(ids_of(model))) == right
    finally:
        server.terminate()
        server.wait(30)


@pytest.mark.slow
def test_the_next_evidence(model: Path, tmp_path: Path) -> None:
    """Ten values of each layer are those of the first token, where rotation does nothing. Whole layers show it."""
    ids = ids_of(model)
    run = Engine(str(model), bugs={"rope-type"}).run(ids)
    names = ("l_out-0", "l_out-1")
    asked = asyncio.run(mcp_tools.next_evidence(str(model), log=printed(run, *names), tokens=ids))
    assert asked == mcp_tools.HEALTHY
    np.savez(tmp_path / "layers.npz", tokens=np.array(ids), **{name: run[name] for name in names})
    assert "rope-type" in asyncio.run(mcp_tools.next_evidence(str(model), dump=str(tmp_path / "layers.npz")))


def test_the_first_evidence() -> None:
    assert "check_ids" in asyncio.run(mcp_tools.next_evidence("any.gguf"))


@pytest.mark.parametrize(
    ("tool", "given", "words"),
    [
        (mcp_tools.diagnose, {"model": "-h", "dump": "x"}, "model: must be a path"),
        (mcp_tools.diagnose, {"model": "m"}, "exactly one of dump and log"),
        (mcp_tools.diagnose, {"model": "m", "dump": "--html=x"}, "dump: must be a path"),
        (mcp_tools.diff, {"a": "m", "b": "-x"}, "b: must be a path"),
        (mcp_tools.explain_fault, {"fault": "rope-typo"}, "no such fault; near: "),
    ],
)
def test_wrong_arguments(tool: Any, given: dict[str, Any], words: str) -> None:
    with pytest.raises(AssayError, match=words):
        asyncio.run(tool(**given))
