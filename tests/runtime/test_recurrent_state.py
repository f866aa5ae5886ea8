"""Sequences of models with a state: cut anywhere, beside others, preempted, copied and resumed, they give one result.

The reference engine computes a batch one sequence after the other and a prompt token by token, so equal here means
equal to the last bit, except where a product of several rows is summed in another order by NumPy's library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from assay.engines.contract import PAGE, Array, Chunk, pages_for
from assay.engines.reference import ReferenceEngine, _PagedCache
from assay.errors import AssayError
from assay.gguf import open_file
from assay.models import Model, load
from assay.runtime.cache_slots import StateSlots
from assay.runtime.params import GREEDY
from assay.runtime.scheduler import Scheduler
from assay.runtime.sequence import Job, Sequence, Update
from assay.text import Tokenizer
from tests.models import others

# One of each kind of state: a window alone, delta rule with attention, scans, KDA with latent rows, token shift.
KINDS = ("lfm2", "qwen35", "mamba2", "falcon-h1", "kimi-linear", "mamba", "rwkv7", "rwkv6")
FEW = ("qwen35", "mamba2", "rwkv6")
IDS = np.random.default_rng(8).integers(0, others.N_VOCAB, 100).astype(np.int32)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Model]:
    folder = tmp_path_factory.mktemp("recurrent")
    made: dict[str, Model] = {}

    def get(name: str) -> Model:
        if name not in made:
            others.make(name, folder / f"{len(made)}.gguf")
            made[name] = load(open_file(folder / f"{len(made)}.gguf"))
        return made[name]

    return get


def rows(
    engine: ReferenceEngine, ids: Array, cuts: Iterator[int] | tuple[int, ...], slot: int = 0, page: int = 0
) -> Array:
    """Logits of every position, the text given in pieces that end at `cuts`."""
    table = np.arange(page, page + pages_for(len(ids)), dtype=np.int32)
    found, start = [], 0
    for end in (*cuts, len(ids)):
        found.append(engine.forward([Chunk(ids[start:end], start, table, "all", state_slot=slot)])[0].logits)
        start = end
    return np.concatenate(found)


def close(a: Array, b: Array) -> bool:
    return bool(np.allclose(a, b, rtol=1e-9, atol=1e-10))


@pytest.mark.parametrize("name", KINDS)
def test_cut_at_every_token(name: str, models: Callable[[str], Model]) -> None:
    """Forty tokens cut in two at every place (the kinds take turns), one by one, and in three."""
    model, ids = models(name), IDS[:40]
    whole = rows(ReferenceEngine(model, n_pages=2), ids, ())
    engine = ReferenceEngine(model, n_pages=2)
    for cut in range(1, 40) if name == "lfm2" else range(1 + KINDS.index(name) % 4, 40, 4):
        assert close(rows(engine, ids, (cut,))[-1], whole[-1]), cut
    assert close(rows(engine, ids, tuple(range(1, 40))), whole)
    assert close(rows(engine, ids, (1, 33)), whole)


@pytest.mark.parametrize("name", FEW)
@pytest.mark.parametrize("n", [1, 3, 17])
def test_batches(name: str, n: int, models: Callable[[str], Model]) -> None:
    """Sequences of different lengths and starts side by side: the bits of each alone."""
    model = models(name)
    lengths = [1 + 7 * i % 40 for i in range(n)]
    engine = ReferenceEngine(model, n_pages=2 * n)
    chunks = [
        Chunk(IDS[i : i + size], 0, np.arange(2 * i, 2 * i + 2, dtype=np.int32), state_slot=i)
        for i, size in enumerate(lengths)
    ]
    engine.forward(chunks)
    further = [Chunk(IDS[-3:], c.end, np.array([*c.pages], np.int32), state_slot=c.state_slot) for c in chunks]
    found = engine.forward(further)
    for i, size in enumerate(lengths):
        ids = np.concatenate([IDS[i : i + size], IDS[-3:]])
        alone = rows(ReferenceEngine(model, n_pages=2), ids, (size,))
        assert np.array_equal(found[i].logits[0], alone[-1])


@pytest.mark.parametrize("name", KINDS)
def test_short_and_long_prompts(name: str, models: Callable[[str], Model]) -> None:
    """A prompt of one token; the states of a long one are finite and are those of its pieces."""
    model = models(name)
    one = rows(ReferenceEngine(model, n_pages=1), IDS[:1], ())
    assert one.shape == (1, others.N_VOCAB) and np.isfinite(one).all()
    if name not in FEW:
        return
    ids = np.random.default_rng(4).integers(0, others.N_VOCAB, 1000).astype(np.int32)
    whole = rows(ReferenceEngine(model, n_pages=32), ids, ())
    pieces = rows(ReferenceEngine(model, n_pages=32), ids, (1, 2, 64, 65, 192, 450))
    assert np.isfinite(whole).all() and close(pieces[-1], whole[-1])


# --- through the scheduler


def scheduler(model: Model, **limits: int) -> Scheduler:
    tokenizer = Tokenizer.from_gguf(model.file, nameless=model.hparams.n_vocab)
    pages = limits.pop("n_pages", 64)
    return Scheduler(ReferenceEngine(model, n_pages=pages), tokenizer, **limits)  # type: ignore[arg-type]


def generate(scheduler: Scheduler, *prompts: Array, n: int = 12) -> tuple[list[list[int]], list[Sequence]]:
    """Greedy tokens of each prompt, added together; the allocator is checked after every step."""
    found: list[list[int]] = [[] for _ in prompts]

    def sink(update: Update, ids: list[int]) -> None:
        assert update.error is None, update.error
        if update.choice:
            ids.append(update.choice.id)

    made = [
        scheduler.make(Job(tuple(map(int, prompt)), GREEDY, n, ignore_eos=True), lambda u, ids=ids: sink(u, ids))
        for prompt, ids in zip(prompts, found, strict=True)
    ]
    scheduler.add(made)
    while scheduler.busy:
        for sequence, update in scheduler.step():
            sequence.sink(update)
        scheduler.pages.check()
    return found, made


@pytest.mark.parametrize("name", FEW)
def test_reused_prefixes_give_the_same_tokens(name: str, models: Callable[[str], Model]) -> None:
    """A prompt again, a longer one, and one that leaves it in the middle: found in the cache, and the same tokens."""
    model = models(name)
    turn = np.concatenate([IDS[:90], IDS[5:25]])
    other = np.concatenate([IDS[:70], IDS[:15]])  # leaves the first prompt after 64 shared tokens and 6 more
    alone = [generate(scheduler(model), prompt)[0][0] for prompt in (IDS[:90], turn, other)]
    together = scheduler(model)
    assert generate(together, IDS[:90])[0][0] == alone[0]
    for prompt, expected, cached in ((IDS[:90], alone[0], 64), (turn, alone[1], 64), (other, alone[2], 64)):
        found, (sequence,) = generate(together, prompt)
        assert found[0] == expected and sequence.cached == cached


def test_a_snapshot_is_taken_where_prompts_part(models: Callable[[str], Model]) -> None:
    """The second prompt with the same 32 tokens finds pages and no snapshot; it leaves one there for the third."""
    together = scheduler(models("qwen35"))
    cached = []
    for end in (IDS[40:80], IDS[50:90], IDS[30:70]):
        _, (sequence,) = generate(together, np.concatenate([IDS[:40], end]), n=2)
        cached.append(sequence.cached)
    assert cached == [0, 0, 32]


@pytest.mark.parametrize("name", FEW)
def test_copied_sequences(name: str, models: Callable[[str], Model]) -> None:
    """Several choices of one prompt: all but the first begin at its last page end, and all give its tokens."""
    model = models(name)
    alone = generate(scheduler(model), IDS[:70])[0][0]
    found, made = generate(scheduler(model), *[IDS[:70]] * 4)
    assert found == [alone] * 4
    assert [sequence.cached for sequence in made] == [0, 64, 64, 64]


def test_preempted_sequences(models: Callable[[str], Model]) -> None:
    """Three sequences in a cache for two: some are preempted, and all give the tokens that they give alone."""
    model = models("qwen35")
    prompts = [IDS[i : i + 50] for i in (0, 20, 40)]
    alone = [generate(scheduler(model), prompt, n=30)[0][0] for prompt in prompts]
    found, made = generate(scheduler(model, n_pages=7), *prompts, n=30)
    assert found == alone and sum(sequence.preempted for sequence in made) > 0


def test_snapshots_are_few(models: Callable[[str], Model]) -> None:
    """A sequence keeps one snapshot for each place of its prompt, and one that moves with it."""
    together = scheduler(models("mamba2"), chunk=PAGE)
    assert together.pages.states
    generate(together, IDS[:90], n=80)  # passes the page ends 32, 64, 96, 128 and 160
    assert together.pages.states.snapshots == 2
    together.pages.clear()
    assert together.pages.states.snapshots == 0, "a snapshot is evicted with its page"
    together.pages.check()


def test_a_start_that_does_not_fit_the_state_is_refused(models: Callable[[str], Model]) -> None:
    """Taking tokens back and shifting a context need a state that was never kept; nothing is computed."""
    engine, pages = ReferenceEngine(models("rwkv6"), n_pages=2), np.arange(2, dtype=np.int32)
    engine.forward([Chunk(IDS[:40], 0, pages)])
    for start in (20, 39, 41):
        with pytest.raises(AssayError, match=f"cannot be cut or shifted .found a start of {start}, expected 40"):
            engine.forward([Chunk(IDS[40:41], start, pages)])
    engine.forward([Chunk(IDS[40:41], 40, pages)])


# --- leaks that are planted are found


def probe(model: Model) -> bool:
    """Whether a prompt gives the same tokens alone, after another one, and beside another one.

    The prompt is short: a state forgets, so that after a long one what leaked into its beginning no longer shows.
    """
    alone = generate(scheduler(model), IDS[:3])[0][0]
    after = scheduler(model)
    generate(after, IDS[50:95])
    beside = generate(scheduler(model), IDS[50:95], IDS[:3])[0][1]
    return generate(after, IDS[:3])[0][0] == alone == beside


def test_two_sequences_never_see_each_others_state(models: Callable[[str], Model]) -> None:
    assert all(probe(models(name)) for name in FEW)


def test_a_leak_in_the_allocator_is_found(models: Callable[[str], Model], monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the allocator gives two sequences one slot. Its own check says so, and the engine refuses the batch."""
    monkeypatch.setattr(StateSlots, "_take", lambda self: 0)
    with pytest.raises((AssayError, AssertionError), match=r"named twice|lost or used twice"):
        generate(scheduler(models("qwen35")), IDS[50:95], IDS[:40])


def test_a_state_that_is_not_cleared_is_found(models: Callable[[str], Model], monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a slot keeps the state of the sequence before it. The probe gives other tokens after another prompt."""

    def load_always(self: _PagedCache, name: str, shape: tuple[int, ...], dtype: np.dtype[np.float64]) -> Array:
        return self.state[name] if name in self.state else np.zeros(shape, dtype)

    monkeypatch.setattr(_PagedCache, "load", load_always)
    assert not probe(models("qwen35"))


def test_a_wrong_snapshot_is_found(models: Callable[[str], Model], monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a prefix is resumed with the state of another place. The resumed prompt gives other tokens."""
    model = models("qwen35")
    alone = generate(scheduler(model), IDS[:66])[0][0]
    together = scheduler(model)
    generate(together, IDS[:66])
    assert together.pages.states
    engine = together.engine
    monkeypatch.setattr(together.pages.states, "_copy", lambda source, to: engine.copy_state((source + 1) % 128, to))
    monkeypatch.setattr("assay.engines.reference.check_state_lengths", lambda *_: None)
    assert generate(together, IDS[:66])[0][0] != alone


def test_the_model_file_says_nothing_of_memory_it_does_not_use(models: Callable[[str], Model], tmp_path: Path) -> None:
    """State of a fixed size is counted for each slot, and never in the type of the cache."""
    state = models("qwen35").graph.state
    floats = sum(int(np.prod(kept.shape)) for kept in state.per_sequence)
    assert state.bytes_per_sequence("q8_0") == state.bytes_per_sequence("f32") == 4 * floats
