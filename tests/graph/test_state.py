"""What a graph keeps: the declaration of real architectures, and a kind that an outside package adds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from assay.engines.contract import PAGE, Array, Chunk
from assay.engines.cpu import CpuEngine
from assay.engines.plan import state_layout
from assay.engines.plan.batching import in_turns
from assay.engines.plan.state_layout import (
    LEAST_SLOTS,
    STATE_SLOTS,
    cache_pools,
    page_bytes,
    state_memory,
    state_slots,
)
from assay.engines.reference import ReferenceEngine, functions
from assay.errors import AssayError
from assay.gguf import open_file
from assay.graph import KINDS, OPS, Graph, Kind, Node, Op, Trait, register
from assay.graph.state import POSITION, SEQUENCE, GraphState
from assay.models import Model, load
from assay.runtime.opening import Opened, OpenOptions
from assay.runtime.params import GREEDY
from assay.runtime.scheduler import Scheduler
from assay.runtime.sequence import Job, Update
from assay.runtime.speculation import Speculator
from assay.text import Tokenizer
from tests.models import others
from tests.tiny import make

PROMPT = tuple(int(t) for t in np.random.default_rng(6).integers(259, 290, 90))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load(open_file(make(tmp_path_factory.mktemp("state") / "m.gguf", n_embd=32, n_ff=32, n_ctx=512)))


def test_every_kind_answers_what_its_readers_ask() -> None:
    for name, kind in KINDS.items():
        assert kind.name == name and kind.words and kind.per in (POSITION, SEQUENCE)
        assert all(role.startswith("cache_") for role in kind.roles)
        assert kind.zeroed == (kind.per == SEQUENCE), "rows by position are written before they are read"
        assert kind.cuttable == (kind.per == POSITION), "a fixed size forgets what a token replaced"
        assert not kind.evicts or kind.per == POSITION
    assert {role for kind in KINDS.values() for role in kind.roles} == {"cache_k", "cache_v", "cache_r", "cache_s"}
    assert all(KINDS[op.keeps] for op in OPS.values() if op.traits & Trait.STATE)


def test_keys_and_values_of_a_llama(model: Model) -> None:
    state = model.graph.state
    assert [(k.node, k.layer, k.kind.name, k.shape, k.keys) for k in state.kept] == [
        ("cache_k_l0", 0, "rows", (2, 8), True), ("cache_v_l0", 0, "rows", (2, 8), False),
        ("cache_k_l1", 1, "rows", (2, 8), True), ("cache_v_l1", 1, "rows", (2, 8), False),
    ]  # fmt: skip
    assert state.cuttable and state.windows == () and state.per_sequence == ()
    assert state.bytes_per_position("f16") == 4 * 16 * 2 and state.bytes_per_position("q8_0") == 4 * 16 * 8.5 / 8
    assert state.bytes_per_sequence("f16") == 0
    assert page_bytes(model.graph, "f32") == PAGE * (4 * 16 * 4 + 4)


@pytest.mark.parametrize(("arch", "kinds"), [("gemma2", {"rows", "window"}), ("deepseek2", {"latent"})])
def test_kinds_of_architectures(arch: str, kinds: set[str], tmp_path: Path) -> None:
    others.make(arch, tmp_path / arch)
    state = load(open_file(tmp_path / arch)).graph.state
    assert {kept.kind.name for kept in state.kept} == kinds
    assert bool(state.windows) == ("window" in kinds)
    assert all(bool(kept.window) == kept.kind.evicts for kept in state.kept)


def test_recurrent_kinds_are_float32_and_of_fixed_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of the table that no architecture uses yet, on a toy graph."""
    for name, keeps in (("toy_scan", "recurrent"), ("toy_conv", "convolution")):
        row = Op(name, "", ("x",), (), {"state": ()}, lambda a, ins, w: ins[0], Trait.STATE, keeps=keeps)
        monkeypatch.setitem(OPS, name, row)
    nodes = (
        Node("embd", "embed", ("inp_tokens",), ("E",)),
        Node("cache_r_l0", "toy_conv", ("embd",), (), {"state": (3, 8)}),
        Node("cache_s_l0", "toy_scan", ("cache_r_l0",), (), {"state": (2, 4, 4)}),
        Node("Kcur-1", "cache", ("cache_s_l0",), (), {"n_head": 2}),
    )
    state = Graph(nodes, {"E": (10, 8)}, "cache_s_l0").check().state
    assert [(k.node, k.layer, k.kind.name, k.shape) for k in state.kept] == [
        ("cache_r_l0", 0, "convolution", (3, 8)), ("cache_s_l0", 0, "recurrent", (2, 4, 4)),
        ("Kcur-1", 1, "rows", (2, 4)),
    ]  # fmt: skip
    assert not state.cuttable and not state.windows
    assert [kept.type("q8_0") for kept in state.kept] == ["f32", "f32", "q8_0"]
    assert state.bytes_per_sequence("f16") == 4 * (24 + 32) and state.bytes_per_position("f16") == 16
    assert GraphState(state.rows).cuttable and not GraphState(state.per_sequence).cuttable
    assert [*cache_pools(Graph(nodes, {"E": (10, 8)}, "cache_s_l0"))] == ["Kcur-1"]


# --- a kind of another package: a row of KINDS, an operation that keeps it, and its textbook function


def running_sum(x: Array, total: Array) -> tuple[Array, Array]:
    """y[t] = total + sum of x up to t, halved each time; the new total is the last row."""
    rows = []
    for row in x:
        total = total / 2 + row
        rows.append(total)
    return np.stack(rows), total


@pytest.fixture
def toy(model: Model) -> Iterator[Model]:
    """The model with a running sum behind the embedding, kept for each sequence."""
    KINDS["toy"] = Kind("toy", "a fading sum of the rows so far", ("cache_t",), SEQUENCE,
                        lambda shape, node: tuple(node.attr("state")),
                        follows_cache_type=False, zeroed=True, cuttable=False)  # fmt: skip
    register(Op("running_sum", "s = s/2 + x[t]; y[t] = s", ("x",), (), {"state": ()}, lambda a, ins, w: ins[0],
                Trait.STATE | Trait.MIXES_TOKENS, keeps="toy"))  # fmt: skip
    functions.register("running_sum", running_sum)

    def change(node: Node) -> list[Node] | None:
        if node.inputs != ("inp_tokens",):
            return None
        return [
            Node("embd_rows", node.op, node.inputs, node.weights, node.attrs),
            Node("cache_t_l0", "running_sum", ("embd_rows",), (), {"state": (32,)}),
            Node(node.name, "add", ("embd_rows", "cache_t_l0")),
        ]

    yield replace(model, graph=model.graph.rewrite(change).check())
    del KINDS["toy"], OPS["running_sum"], functions.FUNCTIONS["running_sum"]


def generate(scheduler: Scheduler, *prompts: tuple[int, ...]) -> tuple[list[list[int]], list[int]]:
    """Tokens of each prompt, and how many tokens of it were found in the cache."""
    found: list[list[int]] = [[] for _ in prompts]

    def sink(update: Update, ids: list[int]) -> None:
        assert update.error is None, update.error
        if update.choice:
            ids.append(update.choice.id)

    made = [
        scheduler.make(Job(prompt, GREEDY, 12, ignore_eos=True), lambda update, ids=ids: sink(update, ids))
        for prompt, ids in zip(prompts, found, strict=True)
    ]
    scheduler.add(made)
    while scheduler.busy:
        for sequence, update in scheduler.step():
            sequence.sink(update)
        scheduler.pages.check()
    return found, [sequence.cached for sequence in made]


def test_a_new_kind_is_allocated_and_resumed(toy: Model) -> None:
    """Alone, in company, in chunks and from a snapshot: the same tokens. Nothing else had to be edited."""
    tokenizer = Tokenizer.from_gguf(toy.file)
    shorter = PROMPT[:70]

    def scheduler(**limits: int) -> Scheduler:
        return Scheduler(ReferenceEngine(toy, n_pages=64), tokenizer, speculator=Speculator(), **limits)

    alone = [generate(scheduler(), prompt)[0][0] for prompt in (PROMPT, shorter)]
    together = scheduler(chunk=PAGE)
    assert together.speculator is None, "the reference engine drafts only where a drafter is asked for"
    assert together.pages.states and not together.pages.copies
    assert generate(together, PROMPT, shorter)[0] == alone
    again, cached = generate(together, PROMPT, shorter)
    assert again == alone
    assert all(n and n % PAGE == 0 for n in cached), "a prefix is resumed at a page end with a snapshot"


def test_a_new_kind_is_counted_in_estimates_of_memory(model: Model, toy: Model) -> None:
    opened = Opened(model.file, OpenOptions(engine="reference"))
    before = opened.cache_bytes
    opened.model = toy
    assert opened.cache_bytes == before + 2 * STATE_SLOTS * 32 * 4
    assert toy.graph.state.by_node["cache_t_l0"].layer == 0


def test_what_needs_a_cut_is_refused(toy: Model) -> None:
    engine = ReferenceEngine(toy, n_pages=8)
    chunk = Chunk(np.array(PROMPT[:5], np.int32), 0, np.arange(1, dtype=np.int32))
    engine.forward([chunk])
    with pytest.raises(AssayError, match="no state after 4 tokens is kept"):
        engine.cut_state(0, 4)
    engine.forward([replace(chunk, drafted=2)])
    engine.cut_state(0, 4)
    keep = [node.name for node in toy.graph]
    assert list(in_turns(toy.graph, keep, [chunk] * 1000)) == [keep], "a trace runs the step once"
    other = replace(chunk, pages=np.array([1], np.int32))
    with pytest.raises(AssayError, match="chunk 1 of the batch: state slot outside the cache or named twice"):
        engine.forward([chunk, other])
    with pytest.raises(AssayError, match="state slot outside"):
        engine.forward([replace(chunk, state_slot=STATE_SLOTS)])


def test_an_engine_without_state_slots_says_so(toy: Model) -> None:
    """And one that has slots, but no kernel that would use them, names the operation."""
    chunk = Chunk(np.array(PROMPT[:5], np.int32), 0, np.arange(1, dtype=np.int32))
    engine = ReferenceEngine(toy, n_pages=4)
    engine.state_slots = 0
    with pytest.raises(AssayError, match="engine reference: it keeps no toy state"):
        engine.forward([chunk])
    with pytest.raises(AssayError, match="does not know the operation running_sum"):
        CpuEngine(toy, threads=1, n_pages=4).forward([chunk])


def test_state_slots_are_bounded(toy: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """By memory, by what is asked for, and never fewer than a few."""
    each = toy.graph.state.bytes_per_sequence("f16")
    assert state_slots(toy.graph) == STATE_SLOTS and state_slots(toy.graph, 5) == 5
    monkeypatch.setattr(state_layout, "STATE_BYTES", 20 * each)
    assert state_slots(toy.graph) == 20 and state_memory(toy.graph).bytes == 2 * 20 * each
    monkeypatch.setattr(state_layout, "STATE_BYTES", each)
    assert state_slots(toy.graph) == LEAST_SLOTS
    assert ReferenceEngine(toy, n_pages=4, state_slots=3).state_slots == 3
    engine = Opened(toy.file, OpenOptions(engine="reference", state_slots=7))
    engine.model = toy
    assert engine.engine().state_slots == 7


def test_state_starts_at_zero_and_survives_a_failed_step(toy: Model) -> None:
    engine, pages = ReferenceEngine(toy, n_pages=8), np.arange(2, dtype=np.int32)
    ids = np.array(PROMPT[:40], np.int32)
    whole = engine.forward([Chunk(ids, 0, pages)])[0].logits
    again = engine.forward([Chunk(ids, 0, pages)])[0].logits  # the slot holds the state of the run before
    assert np.array_equal(whole, again)
    engine.forward([Chunk(ids[:30], 0, pages)])
    rest = Chunk(ids[30:], 30, pages)

    def fail(_i: int, _name: str, _value: Array) -> None:
        raise AssayError("stop")

    with pytest.raises(AssayError, match="stop"):
        engine.forward([rest], [toy.graph.output], fail)
    assert np.allclose(engine.forward([rest])[0].logits, whole, rtol=1e-10, atol=1e-12)
    engine.copy_state(0, 5)
    token = ids[:1]
    one, other = (engine.forward([Chunk(token, 40, pages, state_slot=slot)])[0].logits for slot in (0, 5))
    assert np.array_equal(one, other)
