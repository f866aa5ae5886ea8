"""Atomic file writes. All code that writes a file uses this module.

A file appears under its name only when it is complete and on the disk. Until then it has no name (`O_TMPFILE`) or, if
the system lacks that, a random name that is created exclusively. So no symbolic link is followed, and two writers of
one name do not collide. Known space is reserved first, so a full disk is found before hours of work, not after.

Only a regular file is replaced. A device or a pipe is written at the end. A folder, a block device or a socket is
refused.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from assay.errors import AssayError

_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL
for _flag in ("O_NOFOLLOW", "O_CLOEXEC", "O_BINARY"):  # O_BINARY is Windows's: no newline translation
    _NEW |= getattr(os, _flag, 0)
_NAMELESS = getattr(os, "O_TMPFILE", 0)
_REFUSED = {stat.S_IFDIR: "a directory", stat.S_IFBLK: "a block device", stat.S_IFSOCK: "a socket"}
_LARGEST_ENTRY = 1 << 30  # largest cache entry that is read, in bytes
_NO_RESERVING = {errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS, errno.ENODEV}


class NewFile(io.FileIO):
    """A seekable file that is being written. As a context, it is kept if the block succeeds and discarded if not.

    `write` writes everything or raises. System errors become one line about `path`.
    """

    def __init__(
        self, path: str | os.PathLike[str], size: int = 0, *, durable: bool = True, mode: int | None = None
    ) -> None:
        """`size`: bytes that will be needed; 0 if unknown. `mode`: permissions of the file, else as the process's.

        A file that is not `durable` may be lost or damaged by a power failure; it appears whole all the same.
        """
        self.path, self._durable = Path(path), durable
        self._name: Path | None = None  # name of the unfinished file, if it has one
        with errors_about(self.path):
            self._kind, self._mode = _target(self.path)
            self._mode = self._mode if mode is None else mode
            super().__init__(self._open(), "r+b")
            try:
                if size:
                    _reserve(self.fileno(), size)
            except OSError:
                self.discard()
                raise

    def _open(self) -> int:
        if self._kind != stat.S_IFREG:  # spool to a temporary file: pipes and devices are not seekable
            with tempfile.TemporaryFile() as spool:
                return os.dup(spool.fileno())
        folder = self.path.parent
        if _NAMELESS and os.path.exists("/proc/self/fd"):
            with contextlib.suppress(OSError):
                return os.open(folder, os.O_RDWR | _NAMELESS | os.O_CLOEXEC, 0o666)
        self._name = _unique(folder)
        return os.open(self._name, _NEW, 0o666)

    def write(self, data: object) -> int:
        """Write all of it: a system call may write only a part."""
        view = memoryview(data).cast("B")  # type: ignore[arg-type]
        done = 0
        while done < len(view):
            done += super().write(view[done : done + (1 << 30)]) or 0
        return done

    def put(self, data: bytes | memoryview, offset: int) -> None:
        """Write bytes at an offset, without moving the file position."""
        view = memoryview(data).cast("B")
        if not hasattr(os, "pwrite"):  # Windows
            self.seek(offset)
            self.write(view)
            return
        while len(view):
            done = os.pwrite(self.fileno(), view[: 1 << 30], offset)
            view, offset = view[done:], offset + done

    def keep(self) -> None:
        """The file is complete: give it its name, or copy it to the device or pipe."""
        with errors_about(self.path):
            try:
                if self._kind == stat.S_IFREG:
                    self._publish()
                else:
                    self.seek(0)
                    with open(self.path, "wb", buffering=0) as out:
                        shutil.copyfileobj(self, out)
            finally:
                self.discard()

    def _publish(self) -> None:
        if self._mode is not None and hasattr(os, "fchmod"):  # keep the permissions of the replaced file
            os.fchmod(self.fileno(), self._mode)
        if self._durable:
            os.fsync(self.fileno())
        if self._name is None:
            name = _unique(self.path.parent)
            fd = self.fileno()
            os.link(f"/proc/self/fd/{fd}", name, src_dir_fd=fd, follow_symlinks=True)  # a src_dir_fd selects linkat
            self._name = name
        self.close()  # Windows cannot rename an open file
        os.replace(self._name, self.path)
        self._name = None

    def discard(self) -> None:
        """Delete the unfinished file."""
        if self._name is not None:
            with contextlib.suppress(OSError):
                self._name.unlink(missing_ok=True)
            self._name = None
        self.close()

    def __enter__(self) -> NewFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.keep()
            return
        self.discard()
        if isinstance(value, OSError):
            with errors_about(self.path):
                raise value


def check_target(path: str | os.PathLike[str]) -> None:
    """Raise what `NewFile` would raise, before the work whose result it is to hold."""
    with errors_about(path):
        if _target(Path(path))[0] == stat.S_IFREG:
            _check_folder(Path(path).parent)


def check_target_folder(path: Path) -> None:
    """The same for a folder to write to, which need not exist."""
    with errors_about(path):
        if path.exists() and not path.is_dir():
            raise AssayError(f"{path}: is not a folder; name a new one")
        _check_folder(next(p for p in (path, *path.absolute().parents) if p.exists()))


def _check_folder(folder: Path) -> None:
    if not stat.S_ISDIR(os.stat(folder).st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    if not os.access(folder, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def write(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Write a complete file."""
    data = content.encode() if isinstance(content, str) else content
    with NewFile(path, len(data)) as file:
        file.write(data)


def remember(path: Path, content: bytes) -> None:
    """Write a cache entry. A failure is ignored: the entry is then computed again."""
    with contextlib.suppress(OSError, AssayError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, hashlib.sha256(content).digest() + content)


def recall(path: Path) -> bytes | None:
    """A cache entry of `remember`, or None. It must be complete, unchanged, and private to this user."""
    try:
        with open(path, "rb", opener=_open_own) as file:
            digest, content = file.read(32), file.read(_LARGEST_ENTRY)
    except OSError:
        return None
    return content if digest == hashlib.sha256(content).digest() else None


def read_own(path: Path) -> memoryview:
    """The bytes of a file that is private to this user. Raises OSError where it is missing or another's."""
    with open(path, "rb", opener=_open_own) as file:
        return memoryview(file.read(_LARGEST_ENTRY))


def _open_own(path: str, flags: int) -> int:
    fd = os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    found = os.fstat(fd)
    mine = not hasattr(os, "getuid") or (found.st_uid == os.getuid() and not found.st_mode & 0o022)
    if mine and stat.S_ISREG(found.st_mode):
        return fd
    os.close(fd)
    raise PermissionError(errno.EACCES, "owned or writable by another user")


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder that replaces `path` if the block succeeds. The old folder is kept until then."""
    with errors_about(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=".assay-", suffix=".part", dir=path.parent))
        old = unfinished / "old"
        new = unfinished / "new"
        try:
            new.mkdir()
            yield new
            if path.is_symlink() or path.exists():
                os.rename(path, old)
            os.rename(new, path)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)


@contextlib.contextmanager
def errors_about(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn system errors into one line about the file to be written."""
    try:
        yield
    except OSError as error:
        raise AssayError(f"{path}: cannot be written ({(error.strerror or str(error)).lower()})") from None


def _target(path: Path) -> tuple[int, int | None]:
    """The kind and the permissions of the existing file at a path. Symbolic links are followed."""
    if path == Path("-"):
        raise AssayError("-: this is not written to standard output; name a file")
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return stat.S_IFREG, None
    kind = stat.S_IFMT(mode)
    if kind in _REFUSED:
        raise AssayError(f"{path}: is {_REFUSED[kind]}; name a file")
    return kind, stat.S_IMODE(mode) & 0o777


def _unique(folder: Path) -> Path:
    return folder / f".assay-{secrets.token_hex(8)}.part"


def _reserve(fd: int, size: int) -> None:
    try:
        os.posix_fallocate(fd, 0, size)
    except AttributeError:  # not available: a full disk is found later
        os.ftruncate(fd, size)
    except OSError as error:
        if error.errno not in _NO_RESERVING:
            raise
        os.ftruncate(fd, size)
