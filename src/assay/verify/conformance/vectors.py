"""A conformance kit: the values that an engine must compute for one model, as plain files that any language can read.

    DIR/manifest.json          everything but the numbers
    DIR/README.md              how to use it
    DIR/data/*.bin             little-endian float32 (block bytes for weights)

Four sections, and two more where there are pictures (`picture_vectors.py`). `probes` are whole runs with the values of
nodes, and the states before and after each step. `ops` are inputs and output of single operations, with the state
before and after where an operation keeps one. `blocks` are bytes of every block type and the floats that they decode
to. `text` are tokenizer and template cases. Tolerances are the measured noise of each arithmetic on this model, per
tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.engines.reference import ReferenceEngine, evaluate, interpret
from assay.engines.reference.weights import Weights
from assay.errors import AssayError
from assay.gguf import codecs
from assay.gguf.types import TYPES, GGMLType
from assay.graph import Node, Trait, split
from assay.graph.state import KeptState
from assay.models import Model
from assay.system.stages import PERCENT, stage
from assay.text import ChatTemplate, Tokenizer
from assay.text.vocab import NAMELESS
from assay.verify.conformance.kit_files import KitFiles, Limits, new_kit, noise_limits
from assay.verify.conformance.picture_vectors import README as PICTURES_README
from assay.verify.conformance.picture_vectors import KitPictures, picture_sections
from assay.verify.conformance.probes import ProbeSequence, make_probes
from assay.verify.dumps.observation import token_axis
from assay.verify.dumps.tracing import run_steps, take_trace
from assay.verify.judge.run_inputs import run_inputs

Array = NDArray[Any]
OUTPUTS = (
    "embd",
    "l_out",
    "result_norm",
    "result_output",
    "result_embd",
    "result_embd_pooled",
)  # of probes that do not ask for every node
WIDE = 64  # rows of a weight kept in a unit vector
LONG = 16  # probes of more tokens keep the last row only

TEXTS = (
    "Hello world", " leading space", "trailing space ", "two  spaces\tand a tab\n\nlines", "1234567890 3.14 2+2=4",
    "don't I'll we've", "naïve café über", "日本語と中文", "🙂👩‍🚀 emoji", "a\u0301 combining", "<s>[INST]</s>", "",
)  # fmt: skip
CHATS: tuple[list[dict[str, str]], ...] = (
    [{"role": "user", "content": "1"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
    [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}, {"role": "user", "content": "Bye"}],
)


def write_kit(model: Model, tokenizer: Tokenizer, out: Path, seen: KitPictures | None = None) -> dict[str, Any]:
    """Write the kit; the manifest is returned as well. `seen`: pictures, and a prompt that has them."""
    probes = make_probes(model, tokenizer)
    noise = _limits(model, next(p for p in probes if p.id == "prompt"))

    def make(files: KitFiles) -> dict[str, Any]:
        return {
            "model": {
                "file": model.file.path.name,
                "sha256": model.file.sha256,
                "arch": model.hparams.arch,
                "n_layer": model.hparams.n_layer,
                "n_embd": model.hparams.n_embd,
                "n_vocab": model.hparams.n_vocab,
            },
            "graph": [str(node) for node in model.graph],
            "probes": [_probe(model, probe, noise, files, tell) for probe, tell in _told(model, probes)],
            "ops": _ops(model, tokenizer, files),
            "blocks": [_block(kind, files) for kind in TYPES.values()],
            "text": _text(model, tokenizer),
            **({} if seen is None else picture_sections(seen, files, model)),
        }

    return new_kit(out, make, README.format(model=model.file.path.name) + (PICTURES_README if seen else ""))


def _limits(model: Model, probe: ProbeSequence) -> dict[str, Limits]:
    trace = take_trace(ReferenceEngine(model), probe.tokens)
    values = {obs.name: obs.array() for obs in trace.observations}
    return noise_limits(run_inputs(model, probe.tokens, probe.positions), values)


def _kept(model: Model, probe: ProbeSequence) -> list[str]:
    """The nodes whose values the kit holds for a probe."""
    names = [n.name for n in model.graph if probe.every_node or split(n.name)[0] in OUTPUTS]
    return [n for n in names if not model.graph[n].has(Trait.CACHES | Trait.SHOWS_STATE | Trait.INDICES)]


def _told(model: Model, probes: Sequence[ProbeSequence]) -> Iterator[tuple[ProbeSequence, Callable[[int], None]]]:
    """Every probe with a function that counts its computed rows, as one stage."""
    done = 0
    with stage("computing probes", sum(len(_kept(model, p)) * len(p.tokens) for p in probes), PERCENT) as tell:

        def rows(n: int) -> None:
            nonlocal done
            done += n
            tell(done)

        for probe in probes:
            yield probe, rows


def _probe(
    model: Model, probe: ProbeSequence, noise: dict[str, Limits], files: KitFiles, told: Callable[[int], None]
) -> dict[str, Any]:
    graph, engine = model.graph, ReferenceEngine(model)
    names = _kept(model, probe)
    entries: dict[str, dict[str, Any]] = {}
    last_only = len(probe.tokens) > LONG

    states: list[dict[str, Any]] = []
    shown = [n.name for n in graph if n.has(Trait.SHOWS_STATE)] if probe.every_node else []

    def sink(name: str, value: Array, start: int) -> None:
        if name in shown:
            step = sum(state["name"] == name for state in states)
            states.append({"name": name, "step": step, **files.put(f"probe-{probe.id}.bin", value)})
            return
        axis = token_axis(graph, name)
        told(value.shape[axis])
        if last_only:
            value, start = np.take(value, [-1], axis), start + value.shape[axis] - 1
        where = files.put(f"probe-{probe.id}.bin", value)
        rows = [start, start + value.shape[axis]]
        entries.setdefault(name, {"name": name, "axis": axis, "parts": [], "nmse": noise[name]})["parts"].append(
            {"rows": rows, **where}
        )

    run_steps(engine, probe.tokens, probe.steps, [*names, *shown], sink, probe.positions)
    if last_only:
        entries = {n: {**e, "parts": e["parts"][-1:]} for n, e in entries.items()}
    return {
        "id": probe.id,
        "why": probe.why,
        "tokens": probe.tokens,
        "positions": probe.positions,
        "steps": probe.steps,
        "runs": probe.runs,
        "nodes": list(entries.values()),
        **({"states": states} if states else {}),
    }


def _ops(model: Model, tokenizer: Tokenizer, files: KitFiles) -> list[dict[str, Any]]:
    """One unit vector for each operation of the graph, from the first node that uses it."""
    graph, weights = model.graph, Weights(model.file, np.float64, budget=0)
    probe = next(p for p in make_probes(model, tokenizer) if p.id == "two-tokens")
    env: dict[str, Array] = {
        "inp_tokens": np.array(probe.tokens),
        "inp_pos": np.array(probe.positions),
        "inp_kpos": np.array(probe.positions),
    }
    firsts: dict[str, Node] = {}
    for node in graph:
        firsts.setdefault(node.op, node)
    for node in [n for n in firsts.values() if n.has(Trait.CACHES | Trait.SHOWS_STATE)]:
        firsts.pop(node.op)
    wanted = {name for node in firsts.values() for name in node.inputs} - set(env)
    values = {**env, **interpret(graph, weights, env, wanted)}
    found: list[dict[str, Any]] = []
    for op, node in firsts.items():
        inputs = [values[name] for name in node.inputs]
        if op == "embed":
            inputs = [np.arange(len(probe.tokens))]
        operands = {name: _crop(op, weights[name]) for name in node.weights}
        # float32 inputs are what the reader of the kit gets, so they are what the output is computed from
        exact = [x.astype(np.float32).astype(np.float64) if x.dtype.kind == "f" else x for x in inputs]
        small = Weights(
            model.file, np.float64, budget=0, variants={n: partial(np.asarray, w) for n, w in operands.items()}
        )
        entry = {
            "op": op,
            "node": str(node),
            "attrs": node.all_attrs(),
            "inputs": [{"name": n, **files.put("ops.bin", x)} for n, x in zip(node.inputs, inputs, strict=True)],
            "weights": [{"name": n, **files.put("ops.bin", w)} for n, w in operands.items()],
            "nmse": {"f32": 1e-11, "f16": 1e-5},
        }
        if kept := graph.state.by_node.get(node.name):
            found += _ops_with_state(node, kept, exact, small, entry, files)
        else:
            found.append(entry | {"output": files.put("ops.bin", evaluate(node, exact, small))})
    return found


class _OneState:
    """The state of one node, given for a call and kept after it."""

    def __init__(self, value: Array) -> None:
        self.value = value

    def load(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        return self.value.reshape(shape).astype(dtype)

    def store(self, name: str, value: Array) -> None:
        self.value = value

    def stored(self, name: str) -> Array:
        return self.value

    def append(self, name: str, rows: Array) -> Array:
        return rows


def _ops_with_state(
    node: Node, kept: KeptState, inputs: Sequence[Array], weights: Weights, entry: dict[str, Any], files: KitFiles
) -> Iterator[dict[str, Any]]:
    """Two calls of an operation that keeps state: from zero, and on from there with the same inputs.

    Each has the state before and after it. A window or a matrix that is forgotten, or laid out in another way, shows in
    the second.
    """
    cache = _OneState(np.zeros(kept.shape))
    for name in (entry["op"], f"{entry['op']}.next"):
        before = cache.value.astype(np.float32)
        cache.value = before.astype(np.float64)
        output = evaluate(node, inputs, weights, cache)
        yield entry | {
            "op": name,
            "output": files.put("ops.bin", output),
            "state_before": files.put("ops.bin", before.reshape(kept.shape)),
            "state_after": files.put("ops.bin", cache.value.reshape(kept.shape)),
        }


def _crop(op: str, weight: Any) -> Array:
    """A few rows of a matrix: enough to see a wrong stride or order."""
    if op == "expert_linear":
        return np.stack([weight[e][:WIDE] for e in range(weight.shape[0])])
    return np.asarray(weight[:WIDE] if op in ("embed", "linear") else weight[:])


def _block(kind: GGMLType, files: KitFiles) -> dict[str, Any]:
    """Blocks whose bytes are random, rising, and extreme, with the floats they decode to."""
    raw, values = _decoded_blocks(kind)
    return {
        "type": kind.name,
        "id": kind.id,
        "block_size": kind.block_size,
        "type_size": kind.type_size,
        "bytes": files.put("blocks.bin", raw),
        "values": files.put("blocks.bin", values),
        "exact": True,
    }


@cache  # the same in every kit
def _decoded_blocks(kind: GGMLType) -> tuple[NDArray[np.uint8], Array]:
    raw = adversarial_blocks(kind)
    return raw, codecs.decode(kind, raw)


def adversarial_blocks(kind: GGMLType, count: int = 6, seed: int = 0) -> NDArray[np.uint8]:
    """[1, bytes]: blocks with every byte value, tiny and large scales; only such as decode to finite floats."""
    rng = np.random.default_rng([seed, kind.id])
    chosen: list[NDArray[np.uint8]] = []
    rising = np.arange(kind.type_size, dtype=np.uint8)
    pool = [rising, 255 - rising, *rng.integers(0, 256, (400, kind.type_size), dtype=np.uint8)]
    for raw in pool:
        with np.errstate(all="ignore"):
            value = codecs.decode(kind, raw[None])
        if np.isfinite(value).all() and np.abs(value).max() < 1e30 and np.ptp(value) >= 0 and value.any():
            chosen.append(raw)
        if len(chosen) == count:
            break
    return np.concatenate(chosen)[None]


def _text(model: Model, tokenizer: Tokenizer) -> dict[str, Any]:
    if tokenizer.vocab.model == NAMELESS:  # the probes go by ids
        return {"tokenizer": [], "template": []}
    cases = [
        {"text": text, "add_special": special, "ids": tokenizer.encode(text, add_special=special)}
        for text in TEXTS
        for special in (True, False)
    ]
    template = ChatTemplate.from_gguf(model.file, tokenizer)
    chats: list[dict[str, Any]] = []
    for messages in CHATS if template else ():
        assert template is not None
        try:
            text = template.render(messages, add_generation_prompt=True)
        except AssayError as error:
            chats.append({"messages": messages, "refused": str(error)})
        else:
            chats.append({"messages": messages, "text": text})
    return {"tokenizer": cases, "template": chats}


README = """# Conformance kit for {model}

Plain files; `manifest.json` says what is where. Numbers are little-endian float32 at `offset` bytes of `file`, in
row-major `shape` (slowest axis first); block bytes are raw.

1. `blocks`: decode `bytes` as `type`; every float must equal `values` bit for bit.
2. `ops`: compute the operation from `inputs` and `weights`; compare with `output`. An operation that keeps a state
   (windows of convolutions, scans) begins with `state_before` and must leave `state_after`; `OP.next` goes on there.
3. `text`: tokenize each `text`, render each chat; ids and text must be equal.
4. `probes`: feed `tokens` at `positions` in `steps` (the first a prefill, the rest through the cache), `runs` times
   without restarting; compare the nodes you have. `rows` are token rows; `graph` holds the definition of every node.
   `states` has the windows (`cache_r`) and matrices (`cache_s`) of models that keep some, before and after each step.

NMSE = sum((yours - expected)^2) / sum(expected^2). `nmse` gives the limit for each arithmetic: the noise that
float32 (`f32`), float16, quantised activations (`Q8`) or a float16 cache cause on this very model and run.

To be graded, write your results and run `assay kit --score THIS_FOLDER RESULTS`:

    RESULTS/probes/ID.jsonl        (or .npz, .safetensors: any dump assay reads; ID.2.jsonl for a second run)
    RESULTS/ops/OP.bin             float32, the shape of `output`; OP.state.bin has the shape of `state_after`
    RESULTS/blocks/TYPE.bin        float32, the shape of `values`
    RESULTS/text.json              {{"tokenizer": [[ids], ..], "template": ["text", ..]}} in the order of the manifest

What is missing is counted as missing, not as wrong.
"""
