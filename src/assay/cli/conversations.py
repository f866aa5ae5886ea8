"""State of `assay chat`: the history of typed lines, saved conversations, and settings changed with /set."""

from __future__ import annotations

import contextlib
import json
import os
import re
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.cli.common import SAMPLING, setting_type
from assay.cli.number_types import MOST_SEED, whole
from assay.errors import AssayError
from assay.system.files import write
from assay.system.home import home
from assay.system.text_files import read_text

if TYPE_CHECKING:
    from assay.runtime.session import Session

LINES = 1000  # inputs in the history
_LARGEST = 64 << 20  # bytes of a conversation
_OTHERS = {
    "temperature": "temp",
    "num_predict": "predict",
    "max_tokens": "predict",
    "repetition_penalty": "repeat_penalty",
}


@contextlib.contextmanager
def line_history() -> Iterator[Callable[[str], None]]:
    """Line editing with the history of earlier sessions, if readline is available.

    Yields a function that adds an input to the history. An input of several lines is one entry, so that cursor up
    brings it back whole. A paste of several lines is one input (bracketed paste).
    """
    try:
        import readline
    except ImportError:
        yield lambda text: None
        return
    able = os.environ.get("TERM") not in (None, "", "dumb")
    if able and "libedit" not in (readline.__doc__ or ""):  # libedit has another syntax, and no bracketed paste
        readline.parse_and_bind("set enable-bracketed-paste on")
    readline.set_auto_history(False)  # it would add every line by itself
    path = home() / "chat_history"
    for entry in read_history(path):
        readline.add_history(entry)

    def remember(text: str) -> None:
        last = readline.get_current_history_length()
        if text and (not last or readline.get_history_item(last) != text):
            readline.add_history(text)

    try:
        yield remember
    finally:
        count = readline.get_current_history_length()
        write_history(path, [readline.get_history_item(i + 1) for i in range(count)])
        readline.set_auto_history(True)


def read_history(path: Path) -> list[str]:
    """The inputs of earlier sessions. An entry is a line; one of several lines is a JSON string."""
    try:
        with path.open("rb") as file:
            lines = file.read(_LARGEST).decode(errors="replace").splitlines()
    except OSError:
        return []
    found = []
    for line in lines[-LINES:]:
        try:
            value = json.loads(line) if line.startswith('"') else line
        except (ValueError, RecursionError):
            value = line
        found.append(value if isinstance(value, str) else line)
    return [entry.replace("\0", "") for entry in found if entry]


def write_history(path: Path, entries: list[str]) -> None:
    """Write the inputs to a file that only the user can read. A failure is not an error of the chat."""
    lines = [json.dumps(entry) if "\n" in entry or entry.startswith('"') else entry for entry in entries[-LINES:]]
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
        path.write_text("".join(f"{line}\n" for line in lines), errors="replace")


# --- conversations


def save_conversation(name: str, messages: list[dict[str, str]]) -> Path:
    """Save a conversation and return its path."""
    path = _path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path, json.dumps({"messages": messages}, ensure_ascii=False, indent=1) + "\n")
    return path


def load_conversation(name: str) -> list[dict[str, str]]:
    """Load a saved conversation, or a JSON file of messages in OpenAI's form."""
    path = _path(name)
    if not path.is_file():
        there = ", ".join(saved_names())
        raise AssayError(
            f"{name}: no such conversation; {f'there are {there}' if there else 'no conversation is saved'}"
        )
    if path.stat().st_size > _LARGEST:
        raise AssayError(f"{path}: too large for a conversation")
    try:
        found = json.loads(read_text(path, "a conversation; give a JSON file of messages"))
        messages = found["messages"] if isinstance(found, dict) else found
        good = [{"role": str(m["role"]), "content": m["content"]} for m in messages if isinstance(m["content"], str)]
    except (ValueError, LookupError, TypeError, RecursionError):
        raise AssayError(f"{path}: is not a conversation (a JSON object with messages)") from None
    return good


def saved_names() -> list[str]:
    return sorted(path.stem for path in (home() / "chats").glob("*.json"))


def _path(name: str) -> Path:
    """A name, or the path of a JSON file."""
    if name.endswith(".json"):
        return Path(name).expanduser()
    if not re.fullmatch(r"[\w][\w. -]{0,99}", name):
        raise AssayError("give a name of letters and digits, or a file.json")
    return home() / "chats" / f"{name}.json"


# --- settings


def apply_setting(session: Session, text: str) -> str | bool:
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
            seed = whole(-1, MOST_SEED)(value)
            session.params = replace(session.params, seed=None if seed < 0 else seed)
        else:
            changed: dict[str, Any] = {name: setting_type(name)(value)}
            session.params = replace(session.params, **changed)
    except ArgumentTypeError as error:
        raise AssayError(f"{name}: {error}") from None
    return f"{name} {value}"


def _settings(session: Session) -> dict[str, Any]:
    found = {name: getattr(session.params, name) for name, _, _ in SAMPLING}
    return {
        "predict": session.max_tokens,
        "seed": "random" if session.params.seed is None else session.params.seed,
    } | found
