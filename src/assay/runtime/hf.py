"""Models from the Hugging Face Hub: `hf:owner/repo[:file-or-quant]`.

Files in the cache of huggingface_hub are used from there, read only. Others are downloaded over HTTPS into assay's own
folder. An interrupted download is resumed, and size and hash are checked against those that the hub states. The
environment variables are the hub's own: HF_TOKEN, HF_ENDPOINT, HF_HOME, HF_HUB_CACHE, HF_HUB_OFFLINE. Offline, or if
the hub cannot be reached, only local files are considered.

The modules of HTTP are imported by the first request: a run of a local file does not need them.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from assay.errors import AssayError
from assay.runtime.registry_models import ReportProgress, locked, silent
from assay.system.home import home
from assay.system.terminal import printable

_REPO = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_SPLIT = re.compile(r"(?P<stem>.+)-(?P<n>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)
_SHA256 = re.compile(r"[0-9a-f]{64}")
_LISTING = 16 << 20  # largest accepted size of a repository's file list, in bytes
_LARGEST = 1 << 44  # largest size that a file may claim, in bytes
_BLOCK = 1 << 20
_OWN_FILE = "run a file that you have: assay run ./file.gguf"
_TIMEOUT = 60.0  # seconds without a byte, after which a request fails


@dataclass(frozen=True)
class Remote:
    """A file as the hub lists it."""

    path: str
    size: int
    sha256: str | None = None


def from_address(text: str) -> str:
    """`hf:owner/repo[:file-or-quant]` for an address of the hub, as browsers and Ollama have it; else the text."""
    found = re.fullmatch(r"(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/([^?#]+)(?:[?#].*)?", text.strip())
    if not found:
        return text
    owner, _, rest = found[1].strip("/").partition("/")
    repo, _, path = rest.partition("/")
    path = re.sub(r"^(?:resolve|blob|tree|raw)/[^/]+/?", "", path)
    return f"hf:{owner}/{repo}" + (f":{path}" if path else "")


def fetch(argument: str, *, progress: ReportProgress = silent, quant: str = "") -> Path:
    """Download the file that the argument names, all parts of a split one; returns the path of the first part.

    `quant` is a file name whose quantisation is used if the repository has renamed the file.
    """
    from http.client import HTTPException

    repo, _, wanted = argument.removeprefix("hf:").partition(":")
    if not _REPO.fullmatch(repo) or ".." in repo:
        raise AssayError(f"{argument}: expected hf:owner/repo or hf:owner/repo:file-or-quant")
    reason = f"offline mode is on (HF_HUB_OFFLINE); unset it, or {_OWN_FILE}"
    if os.environ.get("HF_HUB_OFFLINE", "").upper() not in ("1", "ON", "YES", "TRUE"):
        try:
            there = {file.path: file for file in _list(repo)}
        except (OSError, ValueError, HTTPException) as error:
            reason = _unreachable(error)
        else:
            if quant and wanted == quant and wanted not in there:
                wanted = _quantisation(wanted)
            paths = [_get(argument, repo, there[name], progress) for name in choose(argument, list(there), wanted)]
            return paths[0]
    here = {path: root / path for root in _folders(repo) for path in _files(root)}
    if not here:
        raise AssayError(f"{argument}: not on this machine, and {reason}")
    return here[choose(argument, list(here), wanted)[0]]


def choose(argument: str, files: Sequence[str], wanted: str) -> list[str]:
    """The files of the one model that `wanted` names, in order; split parts belong together.

    A name that is a file wins; then a quantisation that is a whole word of the name (`Q4_K` is not in
    `x-Q4_K_M.gguf`), then any part of the name. Projectors (`mmproj`) are models only when named.
    """
    models = _models([file for file in files if file.lower().endswith(".gguf") and _is_inside(file)])
    plain = {name: parts for name, parts in models.items() if "mmproj" not in name.lower()}
    low = wanted.lower()
    tries = [
        {name: parts for name, parts in models.items() if wanted and wanted in (name, *parts)},
        {n: p for n, p in plain.items() if low in re.split(r"[-./]", n.lower().removesuffix(".gguf"))},
        {n: p for n, p in plain.items() if low in n.lower()},
    ]
    found = next((models for models in tries if models), {})
    if len(found) == 1:
        return next(iter(found.values()))
    listing = ", ".join(sorted(plain)) or "none"
    if not found:
        raise AssayError(f"{argument}: no GGUF file matches {wanted!r} (there: {listing})")
    raise AssayError(f"{argument}: {len(found)} files match; name one: {', '.join(sorted(found))}")


def _is_inside(file: str) -> bool:
    """Whether a name from a server's list stays inside the folder that it is stored in."""
    return not file.startswith("/") and ".." not in file.split("/") and file.isprintable() and "\\" not in file


def _models(files: Sequence[str]) -> dict[str, list[str]]:
    """Whole models by name: a single file, or the parts of a split one under their stem."""
    models: dict[str, list[str]] = {}
    for file in sorted(files):
        split = _SPLIT.fullmatch(file)
        models.setdefault(f"{split['stem']}.gguf" if split else file, []).append(file)
    return models


def _quantisation(file: str) -> str:
    """The quantisation in the name of a file: `q4_k_m` of `model-q4_k_m-00001-of-00002.gguf`."""
    split = _SPLIT.fullmatch(file)
    return re.split(r"[-./]", split["stem"] if split else file.removesuffix(".gguf"))[-1]


# --- local files


def first_part(name: str, count: int) -> str:
    """The name of the first file of a model that is split into `count` files."""
    return name if count == 1 else f"{name.removesuffix('.gguf')}-00001-of-{count:05}.gguf"


def local_file(repo: str, file: str) -> Path | None:
    """The path of a file of a repository if all its parts are on this machine."""
    for folder in _folders(repo):
        split = _SPLIT.fullmatch(file)
        count = int(split["count"]) if split else 1
        parts = [folder / (f"{split['stem']}-{n + 1:05}-of-{count:05}.gguf" if split else file) for n in range(count)]
        if all(part.is_file() for part in parts):
            return parts[0]
    return None


def own_folder(repo: str) -> Path:
    """The folder for files that assay downloaded from a repository."""
    return home() / "models" / "hf" / repo


def stored() -> list[tuple[str, str, str, tuple[Path, ...]]]:
    """Every local model as (program that keeps it, repository, name in the repository, files)."""
    own = home() / "models" / "hf"
    repos = {"/".join(path.relative_to(own).parts) for path in own.glob("*/*") if path.is_dir()}
    cached = {path.name.removeprefix("models--").replace("--", "/", 1) for path in _cache().glob("models--*--*")}
    found = []
    for repo in sorted(repos | cached):
        for folder in _folders(repo):
            owner = "assay" if folder == own_folder(repo) else "huggingface_hub"
            for name, parts in _models(_files(folder)).items():
                found.append((owner, repo, name, tuple(folder / part for part in parts)))
    return found


def _home() -> Path:
    return Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")


def _cache() -> Path:
    return Path(os.environ.get("HF_HUB_CACHE") or _home() / "hub")


def _folders(repo: str) -> list[Path]:
    """Local folders with files of the repository: the newest snapshot of huggingface_hub, and assay's own."""
    folder = _cache() / f"models--{repo.replace('/', '--')}"
    try:
        commit = (folder / "refs" / "main").read_text().strip()
    except (OSError, UnicodeError):
        commit = ""
    snapshot = [folder / "snapshots" / commit] if re.fullmatch(r"[0-9a-f]{40}", commit) else []
    return [path for path in (*snapshot, own_folder(repo)) if path.is_dir()]


def _files(root: Path) -> list[str]:
    return [path.relative_to(root).as_posix() for path in root.rglob("*.gguf") if path.is_file()]


# --- the hub


def _list(repo: str) -> list[Remote]:
    """Files of the repository's main branch."""
    with _open(f"api/models/{repo}/tree/main?recursive=true") as reply:
        data = reply.read(_LISTING + 1)
    if len(data) > _LISTING:
        raise ValueError(f"its list of files is too long (more than {_LISTING} bytes)")
    try:
        return [file for item in json.loads(data) if (file := _remote(item))]
    except (TypeError, AttributeError, RecursionError, LookupError, OverflowError):
        raise ValueError("its list of files is damaged") from None


def _remote(item: dict[str, Any]) -> Remote | None:
    path, size, oid = item.get("path"), item.get("size"), (item.get("lfs") or {}).get("oid")
    if item.get("type") != "file" or not isinstance(path, str) or not isinstance(size, int) or not 0 <= size < _LARGEST:
        return None
    return Remote(path, size, oid if isinstance(oid, str) and _SHA256.fullmatch(oid) else None)


def _get(argument: str, repo: str, file: Remote, progress: ReportProgress) -> Path:
    """The path of a file. It is downloaded unless a local file has the same name and size."""
    from http.client import HTTPException

    for folder in _folders(repo):
        if (folder / file.path).is_file() and (folder / file.path).stat().st_size == file.size:
            return folder / file.path
    target = own_folder(repo) / file.path
    part = target.with_name(f".{target.name}.partial")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _check_room(argument, file, part)
        with locked(target.with_name(f".{target.name}.lock")):
            if not (
                target.is_file() and target.stat().st_size == file.size
            ):  # another process may have downloaded it meanwhile
                _download(repo, file, part, progress)
                os.replace(part, target)
    except (OSError, ValueError, HTTPException) as error:
        raise AssayError(f"{argument}: cannot fetch {file.path}: {_line(error)}") from error
    return target


def _check_room(argument: str, file: Remote, part: Path) -> None:
    """Refuse a file that the disk cannot hold before anything is downloaded."""
    have = part.stat().st_size if part.is_file() else 0
    needed, free = file.size - have, shutil.disk_usage(part.parent).free
    if needed > free:
        raise AssayError(
            f"{argument}: {file.path} needs {needed / 1e9:.1f} GB, and {part.parent} has {free / 1e9:.1f} GB free; "
            "free some, or set ASSAY_HOME to another disk"
        )


def _download(repo: str, file: Remote, part: Path, progress: ReportProgress) -> None:
    """Download into `part`, and resume where an earlier attempt ended."""
    have = part.stat().st_size if part.is_file() and not part.is_symlink() else 0
    have = have if have < file.size else 0
    with _open(f"{repo}/resolve/main/{urllib.parse.quote(file.path)}", have) as reply:
        have = have if getattr(reply, "status", 200) == 206 else 0
        flags = os.O_WRONLY | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | (os.O_APPEND if have else os.O_TRUNC)
        with open(os.open(part, flags, 0o644), "wb") as out:
            while block := reply.read(_BLOCK):
                have += len(block)
                if have > file.size:  # a server may send more than it announced; it is not written
                    break
                out.write(block)
                progress(f"fetching {printable(file.path, 60)}", have, file.size)
    if have != file.size:
        if have > file.size:
            part.unlink()
        raise ValueError(f"found {have} bytes, expected {file.size}; run it again to resume")
    if file.sha256 is not None:
        with part.open("rb") as whole:
            found = hashlib.file_digest(whole, "sha256").hexdigest()
        if found != file.sha256:
            part.unlink()
            raise ValueError(f"wrong sha256 (found {found}, expected {file.sha256}); nothing was kept")


def _endpoint() -> str:
    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or "https://huggingface.co"


def _unreachable(error: Exception) -> str:
    """Why the hub gave no list of files, which host it was, and what to do."""
    from urllib.error import HTTPError, URLError

    host = printable(urllib.parse.urlsplit(_endpoint()).netloc or _endpoint(), 80)
    if isinstance(error, HTTPError):
        if error.code == 404:
            return f"{host} has no such repository; check the name"
        return f"{host} answers {_line(error)}"
    if isinstance(error, URLError | TimeoutError | ConnectionError):
        return (
            f"{host} cannot be reached ({_line(error)}); check the network and the proxy (HTTPS_PROXY), "
            f"set HF_ENDPOINT to a mirror, or {_OWN_FILE}"
        )
    return f"{host}: {_line(error)}"


def _open(path: str, start: int = 0) -> IO[bytes]:
    """Send a request to the hub. The token goes to the hub only, and not to the address of a redirect."""
    import urllib.request

    endpoint = _endpoint()
    if not endpoint.startswith(("https://", "http://")):
        raise ValueError(f"HF_ENDPOINT: must be an http(s) address (found {printable(endpoint, 80)})")
    request = urllib.request.Request(f"{endpoint}/{path}", headers={"User-Agent": "assay"})
    if start:
        request.add_header("Range", f"bytes={start}-")
    if token := _token():
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    reply: IO[bytes] = urllib.request.urlopen(request, timeout=_TIMEOUT)
    return reply


def _token() -> str:
    if token := os.environ.get("HF_TOKEN", "").strip():
        return token
    try:
        return Path(os.environ.get("HF_TOKEN_PATH") or _home() / "token").read_text().strip()
    except (OSError, UnicodeError):
        return ""


def _line(error: Exception) -> str:
    from urllib.error import HTTPError, URLError

    if isinstance(error, HTTPError):
        hint = "; is it private? set HF_TOKEN" if error.code in (401, 403) else ""
        return f"{error.code} {printable(error.reason, 80)}{hint}"
    reason = error.reason if isinstance(error, URLError) else error
    text = getattr(reason, "strerror", None) or str(reason)  # without "[Errno -2]"
    return printable(next(iter(str(text).strip().splitlines()), type(error).__name__))
