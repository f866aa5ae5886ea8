"""Files appear whole or not at all, whatever stands at their name and whatever the disk says."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from assay.errors import AssayError
from assay.system import files
from assay.system.files import NewFile, new_folder, recall, remember, write
from tests import tiny
from tests.hostile.conftest import bounded, bounded_environment, bounded_memory, one_line

linux = pytest.mark.skipif(sys.platform != "linux", reason="Linux's calls")


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


@pytest.fixture(params=["nameless", "named"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to make a file: without a name, and with a random name that another process cannot guess."""
    if request.param == "named":
        monkeypatch.setattr(files, "_NAMELESS", 0)


@pytest.mark.usefixtures("way")
class TestOneFile:
    def test_it_appears_at_the_end(self, tmp_path: Path) -> None:
        with NewFile(tmp_path / "x", 6) as file:
            file.write(b"abc")
            file.put(b"f", 5)
            file.put(b"de", 3)
            assert "x" not in names(tmp_path)
        assert (tmp_path / "x").read_bytes() == b"abcdef"
        assert names(tmp_path) == ["x"]

    def test_where_writing_at_a_place_is_unknown(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delattr(os, "pwrite", raising=False)  # Windows
        with NewFile(tmp_path / "x") as file:
            file.put(b"def", 3)
            file.put(b"abc", 0)
        assert (tmp_path / "x").read_bytes() == b"abcdef"

    def test_nothing_is_left_of_a_failure(self, tmp_path: Path) -> None:
        (tmp_path / "x").write_text("old")
        with pytest.raises(ZeroDivisionError), NewFile(tmp_path / "x") as file:
            file.write(b"new")
            _ = 1 / 0
        assert (tmp_path / "x").read_text() == "old" and names(tmp_path) == ["x"]

    def test_a_link_is_replaced_and_not_followed(self, tmp_path: Path) -> None:
        (tmp_path / "victim").write_text("mine")
        (tmp_path / "x").symlink_to(tmp_path / "victim")
        (tmp_path / "x.part").symlink_to(tmp_path / "victim")
        write(tmp_path / "x", "new")
        assert (tmp_path / "victim").read_text() == "mine"
        assert not (tmp_path / "x").is_symlink() and (tmp_path / "x").read_text() == "new"

    def test_permissions_stay(self, tmp_path: Path) -> None:
        (tmp_path / "x").write_text("secret")
        (tmp_path / "x").chmod(0o600)
        write(tmp_path / "x", "still secret")
        assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o600

    def test_four_writers_of_one_name(self, tmp_path: Path) -> None:
        """One of them wins, and what it wrote is whole."""
        start = threading.Barrier(4)

        def work(letter: bytes) -> None:
            start.wait()
            with NewFile(tmp_path / "x") as file:
                for _ in range(200):
                    file.write(letter * 1000)

        threads = [threading.Thread(target=work, args=(letter,)) for letter in (b"a", b"b", b"c", b"d")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found = (tmp_path / "x").read_bytes()
        assert len(found) == 200_000 and len(set(found)) == 1
        assert names(tmp_path) == ["x"]

    def test_no_such_folder(self, tmp_path: Path) -> None:
        with pytest.raises(AssayError, match="cannot be written"):
            write(tmp_path / "no" / "x", "a")

    def test_a_name_as_long_as_names_get(self, tmp_path: Path) -> None:
        write(tmp_path / ("n" * 255), "a")
        assert names(tmp_path) == ["n" * 255]


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AssayError, match="is a directory"):
        write(tmp_path, "a")


@linux
def test_a_device_is_written_to_and_stays_one(tmp_path: Path) -> None:
    node = tmp_path / "null"
    try:
        os.mknod(node, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        with open(node, "wb") as file:
            file.write(b"a")
    except OSError:
        node.unlink(missing_ok=True)
        node.symlink_to("/dev/null")
    write(node, "gone")
    assert stat.S_ISCHR(os.stat(node).st_mode) and node.read_bytes() == b""
    with pytest.raises(AssayError, match="no space left"):
        write("/dev/full", "x" * 100_000)
    assert stat.S_ISCHR(os.stat("/dev/full").st_mode)


@linux
def test_a_pipe_gets_the_bytes(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    got = io.BytesIO()

    def read() -> None:
        with open(tmp_path / "pipe", "rb") as file:
            got.write(file.read())

    reader = threading.Thread(target=read)
    reader.start()
    write(tmp_path / "pipe", b"x" * 300_000)
    reader.join()
    assert got.getvalue() == b"x" * 300_000 and stat.S_ISFIFO(os.stat(tmp_path / "pipe").st_mode)


def test_a_folder_takes_the_place_of_another_only_when_it_is_whole(tmp_path: Path) -> None:
    (tmp_path / "kit").mkdir()
    (tmp_path / "kit" / "old").write_text("a")
    with pytest.raises(ZeroDivisionError), new_folder(tmp_path / "kit") as folder:
        (folder / "new").write_text("b")
        _ = 1 / 0
    assert names(tmp_path / "kit") == ["old"] and names(tmp_path) == ["kit"]
    with new_folder(tmp_path / "kit") as folder:
        (folder / "new").write_text("b")
    assert names(tmp_path / "kit") == ["new"] and names(tmp_path) == ["kit"]


def test_a_cache_entry_is_believed_only_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "entry"
    remember(path, b"right")
    assert recall(path) == b"right"
    kept = path.read_bytes()
    for wrong in (b"", b"right", kept[:-1], kept[:-5] + b"wrong", kept + b"more"):
        path.write_bytes(wrong)
        assert recall(path) is None
    path.write_bytes(kept)
    assert recall(path) == b"right"
    path.chmod(0o666)
    assert recall(path) is None, "anybody may have written it"
    path.unlink()
    path.symlink_to("/dev/zero")
    assert recall(path) is None


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    remember(tmp_path / "file" / "entry", b"a")
    remember(Path("/proc/no/entry"), b"a")
    assert recall(tmp_path / "file" / "entry") is None


# -- every write of every verb, with a fault in its way -----------------------------------------------------------


WORK = """
import ctypes, json, os, sys
from pathlib import Path
from assay.errors import AssayError
from assay.gguf import open_file
from assay.gguf.mixes import mix_by_name
from assay.gguf.requantize import quantize
from assay.models import load
from assay.engines.reference import ReferenceEngine
from assay.verify.dumps.tracing import write_trace
from assay.system.files import write, new_folder

def work(what, model, out):
    file = open_file(model)
    try:
        if what == "trace":
            write_trace(out, ReferenceEngine(load(file)), [1, 2, 3], decode=1)
        elif what == "quantize":
            quantize(file, out, mix_by_name("Q8_0"))
        else:
            with new_folder(out) as folder:
                write(folder / "a", "x" * 5000)
    except AssayError as error:
        print(f"assay: {error}", file=sys.stderr)
        return 2
    return 0

# A line of the input is one try, made by a child: importing everything takes far longer than the work.
for line in sys.stdin:
    fault, what, model, out, errors = json.loads(line)
    child = os.fork()
    if child == 0:
        os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
        code = 1
        try:
            if fault:
                ctypes.CDLL(os.environ["LD_PRELOAD"]).fault(fault.encode())
            code = work(what, model, Path(out))
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stderr.flush()
            os._exit(code)
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status), flush=True)
"""


class Worker:
    """A process that makes files, each time in a child of its own, with a fault in the way of its calls."""

    def __init__(self, shim: str, folder: Path) -> None:
        self.errors = folder / "errors"
        self.process = subprocess.Popen(
            [sys.executable, *["-S"] * sys.flags.no_site, "-c", WORK],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**bounded_environment(), "LD_PRELOAD": shim},
            preexec_fn=bounded_memory,
        )

    def __call__(self, what: str, model: Path, out: Path, fault: str = "") -> subprocess.CompletedProcess[str]:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps([fault, what, str(model), str(out), str(self.errors)]) + "\n")
        self.process.stdin.flush()
        code = int(self.process.stdout.readline())
        return subprocess.CompletedProcess([what, fault], code, "", self.errors.read_text())

    def close(self) -> None:
        self.process.communicate()
        assert self.process.returncode == 0


@pytest.fixture(scope="module")
def worker(shim: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    made = Worker(shim, tmp_path_factory.mktemp("worker"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make(tmp_path_factory.mktemp("small") / "a.gguf", n_layer=1, n_embd=32, n_ff=32)


FAULTS = ["write:{}:ENOSPC", "pwrite:{}:ENOSPC", "pwrite:{}:EIO", "fsync:{}:EIO", "fallocate:{}:ENOSPC",
          "rename:{}:ENOSPC", "link:{}:ENOSPC"]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("what", ["trace", "quantize", "folder"])
def test_a_fault_at_every_call_leaves_one_line_and_nothing_else(
    what: str, fault: str, worker: Worker, small: Path, tmp_path: Path
) -> None:
    """The first call of the kind fails, then the second, and so on, until the work gets through untouched."""
    out = tmp_path / "out"
    step = 1
    while step < 400:
        done = worker(what, small, out, fault.format(step))
        if done.returncode == 0:
            break
        one_line(done)
        assert "no space left" in done.stderr or "input/output error" in done.stderr
        assert names(tmp_path) == []
        step = step + 1 if step < 3 else step * 4
    assert done.returncode == 0 and out.exists()
    assert names(tmp_path) == ["out"]


@pytest.mark.parametrize("kind", ["write", "pwrite"])
@pytest.mark.parametrize("what", ["trace", "quantize"])
def test_short_writes_are_gone_on_with(what: str, kind: str, worker: Worker, small: Path, tmp_path: Path) -> None:
    assert worker(what, small, tmp_path / "whole").returncode == 0
    done = worker(what, small, tmp_path / "short", f"{kind}:2:SHORT")
    assert done.returncode == 0, done.stderr[-500:]
    assert (tmp_path / "short").read_bytes() == (tmp_path / "whole").read_bytes()


def test_no_memory_for_anything_large_is_one_line(shim: str, small: Path, tmp_path: Path) -> None:
    code = (
        "import ctypes, os, sys; from assay.cli import main;"
        "import assay.cli.trace, assay.engines.reference, assay.verify.witness, assay.verify.dumps.tracing;"
        "ctypes.CDLL(os.environ['LD_PRELOAD']).arm(int(sys.argv[1])); sys.exit(main(sys.argv[2:]))"
    )
    codes = []
    for size in (1 << 13, 1 << 15, 1 << 17, 1 << 22):
        done = bounded(
            "-c", code, str(size), "trace", small, "--tokens", "1,2", "-o", tmp_path / "out", LD_PRELOAD=shim
        )
        codes.append(done.returncode)
        if done.returncode:
            one_line(done)
            assert "memory" in done.stderr and names(tmp_path) == []
    assert codes[0] == 2 and codes[-1] == 0


@linux
def test_a_trace_that_does_not_fit_says_so_before_it_computes(tmp_path: Path) -> None:
    path = tiny.make(tmp_path / "a.gguf", n_ctx=512)
    code = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20));"
        "from assay.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    (tmp_path / "out").mkdir()
    ids = ",".join(["5"] * 400)
    done = bounded("-c", code, "trace", path, "--tokens", ids, "-o", tmp_path / "out" / "t")
    one_line(done)
    assert "file too large" in done.stderr and names(tmp_path / "out") == []


@linux
@pytest.mark.slow
def test_traces_into_a_full_disk(tmp_path: Path) -> None:
    """A real file system of 256 kB, where this user may mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", disk], capture_output=True).returncode:
        pytest.skip("this user may not mount a file system")
    try:
        path = tiny.make(tmp_path / "a.gguf", n_ctx=512)
        ids = ",".join(["5"] * 300)
        done = bounded("-m", "assay", "trace", path, "--tokens", ids, "-o", disk / "t")
        one_line(done)
        assert "no space left" in done.stderr and names(disk) == []
        one_line(bounded("-m", "assay", "quantize", path, disk / "q", "--type", "F32"))
        assert names(disk) == []
    finally:
        subprocess.run(["umount", disk], check=True)


def _hold(path: str, ready: Path) -> None:
    file = NewFile(path)
    file.write(b"half")
    ready.write_text("")
    signal.pause()


@linux
def test_a_killed_writer_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    child = multiprocessing.get_context("spawn").Process(
        target=_hold, args=(str(tmp_path / "out" / "x"), tmp_path / "ready")
    )
    child.start()
    while not (tmp_path / "ready").exists():
        child.join(0.05)
        assert child.is_alive()
    child.kill()
    child.join()
    left = names(tmp_path / "out")
    assert left == [] or left[0].startswith(".assay-"), "nameless where the file system has such files"
