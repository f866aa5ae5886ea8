"""State of `assay chat`: the history of typed lines, saved conversations, and settings changed with /set."""

from __future__ import annotations

import contextlib
import json
import os
import re
from argparse import ArgumentTypeError
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.cli.common import SAMPLING, number, whole
from assay.errors import AssayError
from assay.runtime.params import SamplerParams
from assay.system.files import write
from assay.system.home import home

if TYPE_CHECKING:
    from assay.runtime.session import Session

LINES = 1000  # typed lines in the history
_LARGEST = 64 << 20  # bytes of a conversation
_OTHERS = {
    "temperature": "temp",
    "num_predict": "predict",
    "max_tokens": "predict",
    "repetition_penalty": "repeat_penalty",
}


@contextlib.contextmanager
def recalled() -> Iterator[None]:
    """Line editing with the history of earlier sessions, if readline is available."""
    try:
        import readline
    except ImportError:
        yield
        return
    path = home() / "chat_history"
    with contextlib.suppress(OSError):
        readline.read_history_file(path)
    readline.set_history_length(LINES)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))  # readable by the user only
            readline.write_history_file(path)


# --- conversations


def keep(name: str, messages: list[dict[str, str]]) -> Path:
    """Save a conversation and return its path."""
    path = _path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path, json.dumps({"messages": messages}, ensure_ascii=False, indent=1) + "\n")
    return path


def bring(name: str) -> list[dict[str, str]]:
    """Load a saved conversation, or a JSON file of messages in OpenAI's form."""
    path = _path(name)
    if not path.is_file():
        there = ", ".join(kept())
        raise AssayError(
            f"{name}: no such conversation; {f'there are {there}' if there else 'no conversation is saved'}"
        )
    if path.stat().st_size > _LARGEST:
        raise AssayError(f"{path}: too large for a conversation")
    try:
        found = json.loads(path.read_text())
        messages = found["messages"] if isinstance(found, dict) else found
        good = [{"role": str(m["role"]), "content": m["content"]} for m in messages if isinstance(m["content"], str)]
    except (ValueError, LookupError, TypeError, RecursionError):
        raise AssayError(f"{path}: is not a conversation (a JSON object with messages)") from None
    return good


def kept() -> list[str]:
    return sorted(path.stem for path in (home() / "chats").glob("*.json"))


def _path(name: str) -> Path:
    """A name, or the path of a JSON file."""
    if name.endswith(".json"):
        return Path(name).expanduser()
    if not re.fullmatch(r"[\w][\w. -]{0,99}", name):
        raise AssayError("give a name of letters and digits, or a file.json")
    return home() / "chats" / f"{name}.json"


# --- settings


def changed(session: Session, text: str) -> str | bool:
    """Apply `/set TEXT` and describe the change. A bool switches the statistics, which the terminal handles."""
    words = text.removeprefix("parameter ").split()
    if not words:
        return "\n".join(f"{name:<20} {value}" for name, value in _settings(session).items())
    name = _OTHERS.get(words[0].replace("-", "_"), words[0].replace("-", "_"))
    value = words[1] if len(words) > 1 else ""
    if name in ("stats", "verbose", "quiet"):
        return (value or "on") in ("on", "true", "yes", "1") and name != "quiet"
    if name == "system":
        session.set_system(text.partition("system")[2].strip().strip('"') or None)
        return "started a new conversation with that system message"
    known = _settings(session)
    if name not in known:
        raise AssayError(f"{words[0]}: no such setting; there are {', '.join(known)}, system, stats")
    if not value:
        return f"{name:<20} {known[name]}"
    try:
        if name == "predict":
            session.max_tokens = whole(-1)(value)
        elif name == "seed":
            seed = whole(-1)(value)
            session.params = replace(session.params, seed=None if seed < 0 else seed)
        else:
            kind: Any = whole(-(2**31)) if isinstance(_DEFAULTS[name], int) else number
            session.params = replace(session.params, **{name: kind(value)})
    except ArgumentTypeError as error:
        raise AssayError(f"{name}: {error}") from None
    return f"{name} {value}"


_DEFAULTS = {field.name: field.default for field in fields(SamplerParams)}


def _settings(session: Session) -> dict[str, Any]:
    found = {name: getattr(session.params, name) for name, _, _ in SAMPLING}
    return {
        "predict": session.max_tokens,
        "seed": "random" if session.params.seed is None else session.params.seed,
    } | found
