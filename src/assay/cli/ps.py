"""`assay ps`: the state of a running server."""

from __future__ import annotations

import argparse
import json
import os
import urllib.error
import urllib.request
from typing import Any

from assay.cli import common
from assay.cli.number_types import whole
from assay.cli.progress import clock
from assay.cli.style import size, table
from assay.errors import AssayError
from assay.system.terminal import printable

HELP = "show the state of a running server: models, streams, queue, cache"
EXAMPLE = """
assay ps
assay ps --url http://gpu-box:8080 --api-key "$KEY"
"""
_LARGEST = 8 << 20  # bytes of an answer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", help="address of the server (default http://127.0.0.1:8080)")
    parser.add_argument("--port", type=whole(0, 65535), default=8080, help="its port, if it runs on this machine")
    parser.add_argument(
        "--api-key", metavar="KEY", help="API key of the server; default: the environment variable ASSAY_API_KEY"
    )
    common.add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    url = args.url or f"http://127.0.0.1:{args.port}"
    found = _get(url, args.api_key or os.environ.get("ASSAY_API_KEY"))
    common.emit(args, found, "")
    if not args.json:
        try:
            print(_text(found))
        except (LookupError, TypeError, ValueError):
            raise AssayError(f"{url}: not an assay server, or one of another version") from None
    return 0


def _text(found: dict[str, Any]) -> str:
    rows = [
        (
            str(m["id"]),
            "loaded" if m["loaded"] else "on disk",
            size(m["bytes"]) if m["loaded"] else "-",
            str(m["running"]),
            str(m["waiting"]),
            f"{100 * m['cache']['used'] / max(m['cache']['positions'], 1):.0f} %" if m["loaded"] else "-",
            _states(m.get("states")),
            f"{m['tokens_per_second']:.1f}",
        )
        for m in found["models"]
    ]
    head = ("MODEL", "STATE", "MEMORY", "RUNNING", "WAITING", "CACHE", "STATES", "TOKENS/S")
    up = f"assay {printable(str(found['version']), 20)}, up {clock(found['uptime_s'])}, {found['requests']} requests"
    return f"{table(head, rows, right=(2, 3, 4, 5, 6, 7))}\n{up}"


def _states(found: dict[str, int] | None) -> str:
    """How many state slots are used, of a model that has some."""
    return f"{found['running'] + found['snapshots']} of {found['slots']}" if found else "-"


def _get(url: str, key: str | None) -> dict[str, Any]:
    if not url.startswith(("http://", "https://")):
        raise AssayError(f"{url}: must begin with http:// or https://")
    request = urllib.request.Request(f"{url.rstrip('/').removesuffix('/v1')}/v1/status")
    if key:
        request.add_header("Authorization", f"Bearer {key}")
    try:
        with urllib.request.urlopen(request, timeout=10) as reply:
            found = json.loads(reply.read(_LARGEST))
    except urllib.error.HTTPError as error:
        why = {401: "needs a key; give it with --api-key", 404: "not an assay server, or an old one"}
        raise AssayError(f"{url}: {why.get(error.code, f'answered {error.code}')}") from None
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "reason", error)
        told = getattr(reason, "strerror", None) or reason  # without "[Errno 111]"
        raise AssayError(
            f"{url}: no server answers there ({printable(str(told), 100)}); start one with `assay serve`, or give the "
            "address of another with --url"
        ) from None
    if not isinstance(found, dict):
        raise AssayError(f"{url}: not an assay server")
    return found
