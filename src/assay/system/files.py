"""Writing files. Everything that leaves a file behind does it through here.

A file appears under its name when it is whole and on the disk, or not at all. Until then it has no name (`O_TMPFILE`)
or, where the system has no such files, one that nobody can guess, made exclusively: no link is followed, and two
writers of one name do not meet. Space that is known to be needed is reserved first, so a full disk is found before
hours of work, not after.

Only a regular file is replaced. A device or a pipe is written to when all is done; a folder, a block device or a
socket is refused.
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
for _flag in ("O_NOFOLLOW", "O_CLOEXEC", "O_BINARY"):  # the last is Windows's: bytes stay as they are
    _NEW |= getattr(os, _flag, 0)
_NAMELESS = getattr(os, "O_TMPFILE", 0)
_REFUSED = {stat.S_IFDIR: "a directory", stat.S_IFBLK: "a block device", stat.S_IFSOCK: "a socket"}
_LARGEST_ENTRY = 1 << 30  # bytes of a cache entry that are read
_NO_RESERVING = {errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS, errno.ENODEV}


class NewFile(io.FileIO):
    """A seekable file in the making; as a context it is kept when the block ends well and vanishes when it does not.

    `write` writes everything or raises. Faults of the system are told as one line about `path`.
    """

    def __init__(self, path: str | os.PathLike[str], size: int = 0) -> None:
        """`size`: bytes that will be needed, 0 where nobody knows."""
        self.path = Path(path)
        self._name: Path | None = None  # of the unfinished file, where it has one
        with told(self.path):
            self._kind, self._mode = _target(self.path)
            super().__init__(self._open(), "r+b")
            try:
                if size:
                    _reserve(self.fileno(), size)
            except OSError:
                self.discard()
                raise

    def _open(self) -> int:
        if self._kind != stat.S_IFREG:  # a spool: pipes and devices cannot be filled in any order
            with tempfile.TemporaryFile() as spool:
                return os.dup(spool.fileno())
        folder = self.path.parent
        if _NAMELESS and os.path.exists("/proc/self/fd"):
            with contextlib.suppress(OSError):
                return os.open(folder, os.O_RDWR | _NAMELESS | os.O_CLOEXEC, 0o666)
        self._name = _unique(folder)
        return os.open(self._name, _NEW, 0o666)

    def write(self, data: object) -> int:
        """All of it, where the system may write a part and say so."""
        view = memoryview(data).cast("B")  # type: ignore[arg-type]
        done = 0
        while done < len(view):
            done += super().write(view[done : done + (1 << 30)]) or 0
        return done

    def put(self, data: bytes | memoryview, offset: int) -> None:
        """Bytes at their place, wherever the last ones went."""
        view = memoryview(data).cast("B")
        if not hasattr(os, "pwrite"):  # Windows
            self.seek(offset)
            self.write(view)
            return
        while len(view):
            done = os.pwrite(self.fileno(), view[: 1 << 30], offset)
            view, offset = view[done:], offset + done

    def keep(self) -> None:
        """The file is whole: give it its name, or send it where it belongs."""
        with told(self.path):
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
        if self._mode is not None and hasattr(os, "fchmod"):  # as private as the file it replaces
            os.fchmod(self.fileno(), self._mode)
        os.fsync(self.fileno())
        if self._name is None:
            name = _unique(self.path.parent)
            fd = self.fileno()
            os.link(f"/proc/self/fd/{fd}", name, src_dir_fd=fd, follow_symlinks=True)  # a src_dir_fd makes it linkat
            self._name = name
        self.close()  # Windows renames no open file
        os.replace(self._name, self.path)
        self._name = None

    def discard(self) -> None:
        """Leave nothing behind."""
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
            with told(self.path):
                raise value


def write(path: str | os.PathLike[str], content: str | bytes) -> None:
    """A whole file at once."""
    data = content.encode() if isinstance(content, str) else content
    with NewFile(path, len(data)) as file:
        file.write(data)


def remember(path: Path, content: bytes) -> None:
    """An entry of a cache. A cache that cannot be written is no error: it remembers nothing."""
    with contextlib.suppress(OSError, AssayError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, hashlib.sha256(content).digest() + content)


def recall(path: Path) -> bytes | None:
    """An entry that `remember` wrote, whole and unchanged, by this user and open to no other; else None."""
    try:
        with open(path, "rb", opener=_open_own) as file:
            digest, content = file.read(32), file.read(_LARGEST_ENTRY)
    except OSError:
        return None
    return content if digest == hashlib.sha256(content).digest() else None


def _open_own(path: str, flags: int) -> int:
    fd = os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    found = os.fstat(fd)
    mine = not hasattr(os, "getuid") or (found.st_uid == os.getuid() and not found.st_mode & 0o022)
    if mine and stat.S_ISREG(found.st_mode):
        return fd
    os.close(fd)
    raise PermissionError(errno.EACCES, "another's entry")


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder that takes the place of `path` when the block ends well. The old one is gone only then."""
    with told(path):
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
def told(path: str | os.PathLike[str]) -> Iterator[None]:
    """What the system refuses, as one line about the file that was to be written."""
    try:
        yield
    except OSError as error:
        raise AssayError(f"{path}: cannot be written ({(error.strerror or str(error)).lower()})") from None


def _target(path: Path) -> tuple[int, int | None]:
    """What stands where the file will be, and its permissions; a link counts as what it leads to."""
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
    except AttributeError:  # not here: a full disk is met later
        os.ftruncate(fd, size)
    except OSError as error:
        if error.errno not in _NO_RESERVING:
            raise
        os.ftruncate(fd, size)
