"""Prefixes on disk: a restart finds them with the same bits; whatever happens to the folder costs time and no bit."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from assay.engines.contract import PAGE, PagedEngine
from assay.engines.cpu import CpuEngine
from assay.engines.reference import ReferenceEngine
from assay.errors import AssayError
from assay.gguf import open_file
from assay.models import Model, load
from assay.runtime.cache_folder import CacheFolder, open_folder
from assay.runtime.params import GREEDY
from assay.runtime.scheduler import Scheduler
from assay.runtime.sequence import Job, Sequence
from assay.text import Tokenizer
from tests.models import others
from tests.tiny import make

PROMPT = tuple(int(t) for t in np.random.default_rng(3).integers(259, 290, 10 * PAGE + 5))
Engine = Callable[[Model], PagedEngine]


def cpu(model: Model, **options: object) -> PagedEngine:
    return CpuEngine(model, threads=1, n_pages=32, **options)  # type: ignore[arg-type]


def windowed(model: Model) -> PagedEngine:
    return cpu(model, window_pages=lambda _: 6)


def reference(model: Model) -> PagedEngine:
    return ReferenceEngine(model, n_pages=32)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Model]:
    folder, made = tmp_path_factory.mktemp("models"), dict[str, Model]()

    def get(name: str) -> Model:
        if name not in made:
            path = folder / f"{name}.gguf"
            if name not in ("dense", "windowed"):
                others.make(name, path)
            else:
                window = {"window": 40, "metadata": {"gemma3.attention.sliding_window_pattern": [True, False, True]}}
                make(path, n_layer=3, n_ctx=1024, type="Q8_0", **(window if name == "windowed" else {}))
            made[name] = load(open_file(path))
        return made[name]

    return get


def prompt_of(model: Model) -> tuple[int, ...]:
    return tuple(t % model.hparams.n_vocab for t in PROMPT)


def answer(engine: PagedEngine, ids: tuple[int, ...], folder: Path | None = None, n: int = 6) -> Sequence:
    """The sequence of one request, after the engine was closed: as of a process that starts, answers and ends."""
    model = engine.model
    tokenizer = Tokenizer.from_gguf(model.file, nameless=model.hparams.n_vocab)
    scheduler = Scheduler(engine, tokenizer, chunk=64, folder=open_folder(folder) if folder else None)
    made = scheduler.make(Job(ids, GREEDY, n, ignore_eos=True, receipt=True), lambda update: None)
    scheduler.add([made])
    while scheduler.busy:
        scheduler.step()
    scheduler.pages.check()
    scheduler.close()
    return made


def same(a: Sequence, b: Sequence) -> bool:
    return a.ids == b.ids and a.row_digests == b.row_digests and bool(a.row_digests)


@pytest.mark.parametrize(
    ("name", "engine"),
    [("dense", cpu), ("windowed", windowed), ("qwen35", cpu), ("mamba2", cpu), ("lfm2", cpu), ("rwkv7", cpu),
     ("dense", reference), ("qwen35", reference)],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)  # fmt: skip
def test_a_restart_finds_the_prefix_and_computes_the_same_bits(
    models: Callable[[str], Model], name: str, engine: Engine, tmp_path: Path
) -> None:
    model = models(name)
    ids = prompt_of(model)
    first = answer(engine(model), ids, tmp_path)
    again = answer(engine(model), ids, tmp_path)
    assert (first.cached, again.cached) == (0, 10 * PAGE)
    assert same(first, again)
    assert same(first, answer(engine(model), ids))
    # The next turn of the conversation goes on after the answer; another prompt leaves the tree in the middle.
    turn = (*first.ids, *ids[: 2 * PAGE])
    assert same(answer(engine(model), turn, tmp_path), answer(engine(model), turn))
    other = (*ids[: 4 * PAGE + 3], *ids[:40])
    assert same(answer(engine(model), other, tmp_path), answer(engine(model), other))


def test_the_state_after_an_answer_is_kept_for_the_next_turn(models: Callable[[str], Model], tmp_path: Path) -> None:
    model = models("qwen35")
    ids = prompt_of(model)
    first = answer(cpu(model), ids, tmp_path, n=2 * PAGE)
    turn = (*first.ids, *ids[:PAGE])
    again = answer(cpu(model), turn, tmp_path)
    assert again.cached == (len(first.ids) - 1) // PAGE * PAGE
    assert same(again, answer(cpu(model), turn))


def test_another_arithmetic_or_file_does_not_share(models: Callable[[str], Model], tmp_path: Path) -> None:
    ids = prompt_of(models("dense"))
    answer(cpu(models("dense")), ids, tmp_path)
    for engine in (
        cpu(models("dense"), precision="exact"),
        cpu(models("dense"), kv_type="bf16"),
        cpu(models("windowed")),
    ):
        assert answer(engine, ids, tmp_path).cached == 0


def test_several_sequences_are_restored_beside_one_that_runs(models: Callable[[str], Model], tmp_path: Path) -> None:
    model = models("windowed")
    ids = prompt_of(model)
    prompts = [ids, ids[: 5 * PAGE] + ids[:50], ids[7:]]
    alone = [answer(windowed(model), prompt, tmp_path) for prompt in prompts]
    scheduler = Scheduler(windowed(model), Tokenizer.from_gguf(model.file), folder=open_folder(tmp_path))
    made = [
        scheduler.make(Job(p, GREEDY, 6, ignore_eos=True, receipt=True), lambda update: None)
        for p in (ids[3:90], *prompts, *prompts)
    ]
    scheduler.add(made)
    scheduler.cancel([made[-1]])  # while it waits for its pages
    while scheduler.busy:
        scheduler.step()
        scheduler.pages.check()
    scheduler.close()
    assert all(same(a, b) for a, b in zip(alone, made[1:4], strict=True))


# --- what can happen to the folder


def entries(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("??/*") if path.is_file())


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[random.Random(path.name).randrange(len(content))] ^= 16
    path.write_bytes(content)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "one bit": flip,
    "cut": lambda path: os.truncate(path, path.stat().st_size // 2),
    "empty": lambda path: os.truncate(path, 0),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "another's": lambda path: path.write_bytes(entries(path.parents[1])[0].read_bytes() + b""),
    "missing": lambda path: path.unlink(),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_entries_are_computed_again(models: Callable[[str], Model], tmp_path: Path, damage: str) -> None:
    model = models("qwen35")
    ids = prompt_of(model)
    first = answer(cpu(model), ids, tmp_path)
    for path in entries(tmp_path)[1::2]:
        DAMAGE[damage](path)
    assert same(first, answer(cpu(model), ids, tmp_path))
    for path in entries(tmp_path):
        DAMAGE[damage](path)
    again = answer(cpu(model), ids, tmp_path)
    assert again.cached == 0
    assert same(first, again)


def test_a_full_disk_costs_time_only(models: Callable[[str], Model], tmp_path: Path) -> None:
    model = models("dense")
    ids = prompt_of(model)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, before[1]))  # no file may be larger
    try:
        first = answer(cpu(model), ids, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not entries(tmp_path)
    assert same(first, answer(cpu(model), ids, tmp_path))


def test_the_folder_keeps_to_its_limit_and_drops_the_least_recently_used(tmp_path: Path) -> None:
    names = [f"{i:064x}" for i in range(6)]
    folder = CacheFolder(tmp_path, 4 * 1100)
    for name in names[:4]:
        assert folder.put(name, [b"x" * 1000])
        assert folder.flush()
    folder.touch(names[:1])
    folder.put(names[4], [b"y" * 500, b"z" * 500])
    assert folder.flush()
    assert [folder.has(name) for name in names] == [True, False, True, True, True, False]
    assert not folder.put(names[5], [b"x" * 5000])
    folder.close()
    again = CacheFolder(tmp_path, 3 * 1100)
    assert again.use.bytes <= 3 * 1100
    assert bytes(again.get(names[4]) or b"") == b"y" * 500 + b"z" * 500
    again.close()


def test_a_folder_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(AssayError, match="could plant wrong values"):
        CacheFolder(tmp_path)


WRITER = """
import sys
from assay.runtime.cache_folder import CacheFolder
folder = CacheFolder(sys.argv[1])
for i in range(100000):
    while not folder.put(f"{i:064x}", [bytes([i % 256]) * 300000]):
        folder.flush()
"""


def test_a_process_that_is_killed_while_it_writes_leaves_whole_entries(tmp_path: Path) -> None:
    for delay in (0.01, 0.05):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)])
        while not entries(tmp_path):
            time.sleep(0.005)
        time.sleep(delay)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        folder = CacheFolder(tmp_path)
        for path in entries(tmp_path):
            if not path.name.endswith(".part"):
                content = folder.get(path.name)
                assert content is not None
                assert bytes(content) == bytes([int(path.name, 16) % 256]) * 300000
        assert folder.use.damaged == 0
        folder.close()
