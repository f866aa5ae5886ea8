"""`assay mcp`: the instrument as tools of an agent, over the Model Context Protocol."""

from __future__ import annotations

import argparse
import functools
import socket
import sys
from collections.abc import Awaitable, Callable
from inspect import getdoc
from typing import Any

from assay.cli.common import emit
from assay.cli.mcp_tools import INSTRUCTIONS, TOOLS
from assay.cli.number_types import whole
from assay.errors import AssayError
from assay.system.extras import install
from assay.version import __version__

HELP = "give an agent the instrument as tools (MCP)"
EXAMPLE = """\
assay mcp                                  # over stdin and stdout, as an agent starts it
assay mcp --port 8090                      # over HTTP, at http://127.0.0.1:8090/mcp
assay mcp --json                           # what the tools are
claude mcp add assay -- assay mcp"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--port", type=whole(0, 65535), metavar="N",
        help="serve over HTTP on this port of this machine, 0: any (default: stdin and stdout)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the tools as one JSON object and end")


def run(args: argparse.Namespace) -> int:
    if args.json:
        emit(args, {"tools": [{"name": tool.__name__, "description": getdoc(tool)} for tool in TOOLS]}, "")
        return 0
    server = made()
    if args.port is None:
        server.run("stdio")
    else:
        port = args.port or _free_port()
        print(f"serving tools at http://127.0.0.1:{port}/mcp; Ctrl-C ends", file=sys.stderr, flush=True)
        server.run("streamable-http", host="127.0.0.1", port=port)
    return 0


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def made() -> Any:
    """The server with all tools."""
    try:
        from mcp.server.mcpserver import MCPServer
        from mcp.server.mcpserver.exceptions import ToolError
    except ImportError:
        raise AssayError(f"mcp: needs the mcp package, version 2 or later; `{install('mcp')}` brings it") from None

    def told(tool: Callable[..., Awaitable[str]]) -> Callable[..., Awaitable[str]]:
        """The tool with its errors as the protocol has them."""

        @functools.wraps(tool)
        async def wrapped(*given: Any, **named: Any) -> str:
            try:
                return await tool(*given, **named)
            except AssayError as error:
                raise ToolError(str(error)) from None

        return wrapped

    server = MCPServer("assay", version=__version__, instructions=INSTRUCTIONS, log_level="ERROR")
    for tool in TOOLS:
        server.add_tool(told(tool), structured_output=False)
    return server
