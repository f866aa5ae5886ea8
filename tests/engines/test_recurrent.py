"""The cpu engine on models with a state: llama.cpp's values, and the same bits however a sequence is run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from assay import _native
from assay.engines.contract import Chunk, pages_for
from assay.engines.cpu import CpuEngine
from assay.errors import AssayError
from tests.models import recurrent
from tests.models.test_architectures import has_gelu
from tests.models.test_recurrent import AFTER_GELU, FROM_TOKENS

ISAS = [isa for isa in _native.isas() if isa != "amx"]


def cpu(calls: recurrent.Calls, **options: Any) -> CpuEngine:
    return CpuEngine(calls.model, **{"precision": "exact", "threads": 2, "n_pages": 16, **options})


@pytest.mark.parametrize("name", recurrent.NAMES)
def test_llamacpps_values(name: str) -> None:
    """Prompt, two further tokens, states after each, and rows of a long prompt."""
    calls = recurrent.calls(name)
    bound = AFTER_GELU if has_gelu(calls.model) else FROM_TOKENS
    assert not {node: error for node, error in calls.errors(cpu(calls)).items() if not error <= bound}
    if "long_tokens" in calls.recorded.files:
        assert calls.long_error(cpu(calls)) < bound


@pytest.mark.parametrize("name", recurrent.DRAFTS)
def test_draft_heads(name: str) -> None:
    calls = recurrent.calls(name)
    errors = calls.draft_errors(cpu(calls, graph=calls.model.draft))
    assert len(errors) == 4 and max(errors.values()) < FROM_TOKENS


def prompt(calls: recurrent.Calls, count: int) -> np.ndarray:
    vocabulary = calls.model.hparams.n_vocab
    return np.random.default_rng(3).integers(0, vocabulary, count).astype(np.int32)


def sequence(ids: np.ndarray, start: int, slot: int, **options: Any) -> Chunk:
    """Tokens start.. of the sequence with this state slot; it has three pages of its own."""
    pages = np.arange(3 * slot, 3 * slot + pages_for(len(ids)), dtype=np.int32)
    return Chunk(ids[start:], start, pages, **{"outputs": "all", "state_slot": slot, **options})


@pytest.mark.parametrize("precision", ["exact", "fast"])
@pytest.mark.parametrize("name", recurrent.STATEFUL)
def test_every_cut_gives_the_same_bits(name: str, precision: str) -> None:
    """Two pieces cut at every token of 40, token by token, one thread, and other instruction sets."""
    calls = recurrent.calls(name)
    ids, engine = prompt(calls, 40), cpu(calls, precision=precision)
    base = engine.forward([sequence(ids, 0, 0)])[0].logits
    for cut in range(1, len(ids)):
        first = engine.forward([sequence(ids[:cut], 0, 1)])[0].logits
        rest = engine.forward([sequence(ids, cut, 1)])[0].logits
        assert np.array_equal(np.concatenate([first, rest]), base), cut
    singly = [engine.forward([sequence(ids[: at + 1], at, 2)])[0].logits for at in range(len(ids))]
    assert np.array_equal(np.concatenate(singly), base)
    for isa in ISAS:
        other = cpu(calls, precision=precision, threads=1, isa=isa)
        assert np.array_equal(other.forward([sequence(ids, 0, 0)])[0].logits, base), isa


@pytest.mark.parametrize("name", ["lfm2", "qwen35", "mamba", "granitehybrid", "kimi-linear", "rwkv6", "rwkv7"])
def test_a_batch_changes_no_bit(name: str) -> None:
    """1, 3 and 17 sequences of other lengths and at other places, in one step."""
    calls = recurrent.calls(name)
    engine = cpu(calls, n_pages=64)
    texts = [prompt(calls, 40)[i : i + 3 + 2 * i % 23] for i in range(17)]
    alone = [engine.forward([sequence(ids, 0, 0)])[0].logits for ids in texts]
    for count in (3, 17):
        for cut in (0, 2):
            if cut:
                engine.forward([sequence(ids[:cut], 0, i) for i, ids in enumerate(texts[:count])])
            found = engine.forward([sequence(ids, cut, i) for i, ids in enumerate(texts[:count])])
            for output, expected in zip(found, alone, strict=False):
                assert np.array_equal(output.logits, expected[cut:])


def test_copies_are_independent() -> None:
    calls = recurrent.calls("qwen35")
    ids, engine = prompt(calls, 30), cpu(calls)
    whole = engine.forward([sequence(ids, 0, 0)])[0].logits
    engine.forward([sequence(ids[:12], 0, 0)])
    engine.copy_state(0, 1)
    engine.copy_page(0, 3)
    first = engine.forward([sequence(ids, 12, 0)])[0].logits
    second = engine.forward([sequence(ids, 12, 1)])[0].logits
    assert np.array_equal(first, whole[12:]) and np.array_equal(second, whole[12:])


def test_a_failed_step_leaves_the_state() -> None:
    """The receiver of kept nodes fails in the middle of a step; the sequence goes on as if that step had not been."""
    calls = recurrent.calls("granitehybrid")
    ids, engine = prompt(calls, 30), cpu(calls)
    whole = engine.forward([sequence(ids, 0, 0)])[0].logits
    engine.forward([sequence(ids[:10], 0, 1)])

    def fail(_chunk: int, _name: str, _value: object) -> None:
        raise RuntimeError("no room")

    for _ in range(200):  # the spare places must come back
        with pytest.raises(RuntimeError, match="no room"):
            engine.forward([sequence(ids, 10, 1)], ["l_out-0"], fail)
    assert np.array_equal(engine.forward([sequence(ids, 10, 1)])[0].logits, whole[10:])


def test_slots_are_checked() -> None:
    calls = recurrent.calls("mamba")
    engine, ids = cpu(calls), prompt(calls, 4)
    for slots in ([-1], [engine.state_slots], [1, 1]):
        with pytest.raises(AssayError, match="state slot"):
            engine.forward([sequence(ids, 0, 0, state_slot=slot) for slot in slots])


def test_long_prompts_and_single_tokens() -> None:
    """A prompt of 1,000 tokens is cut by the engine itself; a prompt of one token begins from zero."""
    calls = recurrent.calls("mamba2")
    ids, engine = prompt(calls, 1000), cpu(calls, n_pages=40)
    pages = np.arange(40, dtype=np.int32)
    whole = engine.forward([Chunk(ids, 0, pages, "all")])[0].logits
    assert np.isfinite(whole).all()
    assert np.array_equal(engine.forward([Chunk(ids[:1], 0, pages, "all", state_slot=1)])[0].logits, whole[:1])
    rest = engine.forward([Chunk(ids[1:], 1, pages, "last", state_slot=1)])[0].logits
    assert np.array_equal(rest, whole[-1:])


@pytest.mark.parametrize("precision", ["exact", "fast"])
def test_the_type_of_the_cache_never_touches_a_state(precision: str) -> None:
    """A model without attention has the same bits in every type. The states before the first attention of a hybrid
    have them, too, and states take the same memory."""
    for name, keeps_all in (("mamba2", True), ("rwkv7", True), ("qwen35", False)):
        calls = recurrent.calls(name)
        ids, found = prompt(calls, 40), []
        for kv_type in ("f32", "f16", "bf16", *(["q8_0"] if keeps_all else [])):  # q8_0 needs wider heads
            engine = cpu(calls, precision=precision, kv_type=kv_type)
            output = engine.forward([sequence(ids, 0, 0)], ["cache_r_l0", "cache_s_l0"])[0]
            found.append((output.logits, list(output.nodes.values()), engine.memory.states))
        (logits, states, size), *rest = found
        assert states[0].dtype == np.float32 and all(other[2] == size for other in rest)
        for other in rest:
            assert all(np.array_equal(a, b) for a, b in zip(states, other[1], strict=True)), name
            assert np.array_equal(logits, other[0]) == keeps_all, name
