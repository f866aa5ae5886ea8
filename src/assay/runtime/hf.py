"""Models from the Hugging Face Hub: `hf:owner/repo[:file-or-quant]`, through huggingface_hub, so its cache, its
token and its offline mode are the user's usual ones. Offline, or when the hub cannot be reached, the choice is
among the files already in the cache."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from assay.errors import AssayError
from assay.system.terminal import printable

_REPO = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_SPLIT = re.compile(r"(?P<stem>.+)-(?P<n>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)


def fetch(argument: str) -> Path:
    """Download what the argument names, all parts of a split file; the path of the first part."""
    repo, _, wanted = argument.removeprefix("hf:").partition(":")
    if not _REPO.fullmatch(repo) or ".." in repo:
        raise AssayError(f"{argument}: expected hf:owner/repo or hf:owner/repo:file-or-quant")
    try:
        import huggingface_hub
        from huggingface_hub import constants
    except ImportError:
        raise AssayError(f"{argument}: needs the package huggingface_hub; pip install huggingface_hub") from None
    files = choose(argument, _list(argument, repo), wanted)
    paths = []
    for file in files:
        try:
            path = Path(huggingface_hub.hf_hub_download(repo, file))
            _check_place(path, Path(constants.HF_HUB_CACHE))
            paths.append(path)
        except AssayError as error:
            raise AssayError(f"{argument}: {file}: {error}") from None
        except Exception as error:  # whatever the client raises: network, permission, disk, a name it refuses
            raise AssayError(f"{argument}: cannot fetch {file}: {_line(error)}") from error
    return paths[0]


def _check_place(path: Path, cache: Path) -> None:
    """A downloaded file must lie in the cache, and be one. The client has built its path from what the server said (an
    ETag names the blob), so a server may have made it point elsewhere; what does is not used."""
    real, root = path.resolve(), cache.resolve()
    if not real.is_relative_to(root):
        raise AssayError(f"was written to {printable(str(real))}, outside the cache {root}; do not trust this server")
    if not real.is_file():
        raise AssayError(f"{printable(str(real))} is not a file")


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
    """Whether a name of a server's list stays below the folder it is put into."""
    return not file.startswith("/") and ".." not in file.split("/") and file.isprintable() and "\\" not in file


def _models(files: Sequence[str]) -> dict[str, list[str]]:
    """Whole models by name: a single file, or the parts of a split one under their stem."""
    models: dict[str, list[str]] = {}
    for file in sorted(files):
        split = _SPLIT.fullmatch(file)
        models.setdefault(f"{split['stem']}.gguf" if split else file, []).append(file)
    return models


def _list(argument: str, repo: str) -> list[str]:
    """Files of the repository: the hub's list, or the cache's when offline or unreachable."""
    import huggingface_hub
    from huggingface_hub import constants

    reason = "offline mode is on (HF_HUB_OFFLINE)"
    if not constants.HF_HUB_OFFLINE:
        try:
            return huggingface_hub.HfApi().list_repo_files(repo)
        except Exception as error:  # as above; the cache may still have it
            reason = _line(error)
    try:
        snapshot = Path(huggingface_hub.snapshot_download(repo, local_files_only=True))
    except Exception as error:
        raise AssayError(f"{argument}: not in the local cache, and {reason}") from error
    return [path.relative_to(snapshot).as_posix() for path in snapshot.rglob("*.gguf")]


def _line(error: Exception) -> str:
    return printable(next(iter(str(error).strip().splitlines()), type(error).__name__))
