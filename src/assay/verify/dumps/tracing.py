"""Tracing: run an engine on a sequence and keep every node's value, in memory or streamed to a file.

A trace is a dump that assay writes. Each node's name holds the values of all tokens, in the engine's float type. The
metadata name the model's hash, the tokens, positions and steps, the engine and its precision.
"""

from __future__ import annotations

import json
import re
import tempfile
import zipfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from assay.engines.contract import PAGE, Chunk, Engine, pages_for
from assay.errors import AssayError
from assay.graph import Graph, Trait, split
from assay.system.files import NewFile
from assay.system.stages import stage
from assay.verify.dumps.formats.safetensors import TensorWriter, read_safetensors
from assay.verify.dumps.observation import STATISTICS, Dump, Observation, rows_of, token_axis
from assay.version import __version__

Array = NDArray[Any]
FORMATS = ("", ".safetensors", ".npz")  # endings of a trace's name
Sink = Callable[[str, Array, int], None]  # name, value, first token row it describes


def choose(graph: Graph, pattern: str | None, unseen: Collection[str] = ()) -> list[str]:
    """The nodes whose name the pattern matches, in the graph's order, without the roles in `unseen`."""
    try:
        wanted = re.compile(pattern or "")
    except re.error as error:
        raise AssayError(f"--nodes {pattern!r}: not a regular expression ({error})") from None
    names = [n.name for n in graph if wanted.search(n.name) and split(n.name)[0] not in unseen]
    if not names:
        raise AssayError(
            f"--nodes {pattern!r}: matches none of the {len(graph)} nodes; `assay inspect --graph` lists them"
        )
    return names


def steps_of(n_tokens: int, decode: int) -> tuple[int, ...]:
    """Tokens of each step: all but the last `decode` tokens in one step, then one token a step."""
    if not 0 <= decode < n_tokens:
        raise AssayError(f"--decode {decode}: must leave at least one of the {n_tokens} tokens for the prompt")
    return (n_tokens - decode, *(1,) * decode)


def shape_of(graph: Graph, name: str, n_tokens: int) -> tuple[int, ...]:
    """The shape over the whole sequence: `T` and `S` are both its length."""
    return tuple(n_tokens if isinstance(d, str) else d for d in graph.shapes[name])


def run_steps(
    engine: Engine,
    tokens: Sequence[int],
    steps: Sequence[int],
    names: Sequence[str],
    sink: Sink,
    positions: Sequence[int] | None = None,
    prompts: bool = True,
) -> None:
    """Feed the tokens step by step and hand each node's rows to `sink`.

    With `prompts` an engine in precision mixed computes the prompt in the arithmetic of prompts.
    """
    graph = engine.model.graph
    ids = np.asarray(tokens, np.int32)
    pages = np.arange(pages_for(len(ids)), dtype=np.int32)
    if len(pages) > engine.n_pages:
        raise AssayError(f"{len(ids)} tokens: more than the engine's cache of {engine.n_pages * PAGE}; trace fewer")
    start = 0
    for n in steps:
        at = None if positions is None else np.asarray(positions[start : start + n], np.int32)
        prompt = max(0, min(len(ids) - 1 - start, n)) if prompts and at is None else 0
        chunk = Chunk(ids[start : start + n], start, pages[: pages_for(start + n)], "none", at, prompt=prompt)

        def take(name: str, value: Array, start: int = start) -> None:
            sink(name, value, 0 if "T" not in graph.shapes[name] else start)

        engine.forward([chunk], names, lambda _i, name, value, take=take: take(name, value))  # type: ignore[misc]
        start += n


@contextmanager
def _counted(engine: Engine, total: int, sink: Sink) -> Iterator[Sink]:
    """The sink, with a stage of progress that counts its calls."""
    done = 0
    with stage(f"tracing on {engine.name}", total, "nodes") as tell:

        def counted(name: str, value: Array, start: int) -> None:
            nonlocal done
            sink(name, value, start)
            done += 1
            tell(done)

        yield counted


def provenance(engine: Engine) -> dict[str, str]:
    file = engine.model.file
    return {
        "assay": __version__,
        "model": str(file.path.resolve()),
        "model_sha256": file.sha256,
        "precision": engine.dtype.name,
    }


def take_trace(
    engine: Engine,
    tokens: Sequence[int],
    *,
    decode: int = 0,
    nodes: str | None = None,
    positions: Sequence[int] | None = None,
    prompts: bool = True,
) -> Dump:
    """The trace in memory; `prompts` as in `run_steps`."""
    graph = engine.model.graph
    names, steps = choose(graph, nodes, engine.cannot_keep), steps_of(len(tokens), decode)
    kept: dict[str, Array] = {}

    def sink(name: str, value: Array, start: int) -> None:
        if len(steps) == 1:
            kept[name] = value
            return
        whole = kept.setdefault(name, np.zeros(shape_of(graph, name, len(tokens)), value.dtype))
        axis = token_axis(graph, name)
        rows_of(whole, axis, (start, start + value.shape[axis]))[tuple(slice(0, n) for n in value.shape)] = value

    run_steps(engine, tokens, steps, names, sink, positions, prompts)
    return Dump(
        engine=engine.name,
        tokens=tuple(map(int, tokens)),
        positions=tuple(map(int, positions if positions is not None else range(len(tokens)))),
        steps=steps,
        # A witness engine keeps only the nodes that it names.
        observations=tuple(
            Observation(n, "values", kept[n], shape=kept[n].shape, foreign=n) for n in names if n in kept
        ),
        source=f"{engine.model.file.path.name}@{engine.name}",
        provenance=provenance(engine),
    )


def write_trace(
    path: Path,
    engine: Engine,
    tokens: Sequence[int],
    *,
    decode: int = 0,
    nodes: str | None = None,
    positions: Sequence[int] | None = None,
) -> None:
    """Write the trace as safetensors, or as .npz if the path ends so; memory holds a few nodes at a time."""
    if path.suffix not in FORMATS:
        raise AssayError(
            f"{path}: a trace is written as .safetensors or .npz (found {path.suffix}); --summary writes JSON lines"
        )
    if path.suffix == ".npz":
        with NewFile(path) as out, tempfile.TemporaryDirectory(dir=path.parent, prefix=".trace-") as folder:
            whole = Path(folder) / "trace.safetensors"
            write_trace(whole, engine, tokens, decode=decode, nodes=nodes, positions=positions)
            _archive(whole, out)
        return
    graph = engine.model.graph
    names, steps = choose(graph, nodes, engine.cannot_keep), steps_of(len(tokens), decode)
    at = list(positions if positions is not None else range(len(tokens)))
    floats = engine.dtype
    tensors = [
        (name, np.dtype(np.int32) if graph[name].has(Trait.INDICES) else floats, shape_of(graph, name, len(tokens)))
        for name in names
    ]
    metadata = {
        "assay_trace": "1",
        "engine": engine.name,
        "positions": json.dumps([int(p) for p in at]),
        "steps": json.dumps(steps),
        "phase": "decode" if decode else "prefill",
        **provenance(engine),
    }
    tensor_file = TensorWriter(path, [("tokens", np.dtype(np.int32), (len(tokens),)), *tensors], metadata)
    done = False
    try:
        tensor_file.put("tokens", np.asarray(tokens, np.int32))
        put = lambda name, value, start: tensor_file.put(name, value, token_axis(graph, name), start)  # noqa: E731
        with _counted(engine, len(names) * len(steps), put) as sink:
            run_steps(engine, tokens, steps, names, sink, positions)
        done = True
    finally:
        tensor_file.close(keep=done)


def _archive(trace: Path, out: NewFile) -> None:
    """Copy the trace into an .npz, one array at a time, with `tokens`, `positions` and `steps`."""
    readers, _, metadata = read_safetensors(trace)
    listed: dict[str, Callable[[], Array]] = {
        key: partial(np.array, json.loads(metadata[key]), np.int32) for key in ("positions", "steps")
    }
    with zipfile.ZipFile(out, "w") as archive:
        for name, read in {**listed, **readers}.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, read(), allow_pickle=False)


def write_summary(
    out: TextIO,
    engine: Engine,
    tokens: Sequence[int],
    *,
    decode: int = 0,
    nodes: str | None = None,
) -> None:
    """The trace as a dump in JSON lines: a header for each step, then one line of observations for each node."""
    graph = engine.model.graph
    names, steps = choose(graph, nodes, engine.cannot_keep), steps_of(len(tokens), decode)
    begun = -1

    def line(name: str, value: Array, start: int) -> None:
        nonlocal begun
        while begun < start and "T" in graph.shapes[name]:
            begun = start
            n = value.shape[token_axis(graph, name)]
            head: dict[str, Any] = {"assay_dump": 1, "engine": engine.name, "tokens": list(tokens[start : start + n])}
            at = list(range(start, start + n))
            out.write(json.dumps(head | {"positions": at, "phase": "decode" if start else "prefill"}) + "\n")
        out.write(summarise(name, value) + "\n")

    with _counted(engine, len(names) * len(steps), line) as sink:
        run_steps(engine, tokens, steps, names, sink)


def summarise(name: str, value: Array, n_first: int = 10) -> str:
    """One line: the tensor's statistics and first values; for logits also the best five of the last row."""
    flat = value.reshape(-1).astype(np.float64)
    line: dict[str, Any] = {"name": name, "shape": list(value.shape), "first": flat[:n_first].tolist()}
    line |= {kind: STATISTICS[kind](flat) for kind in ("rms", "mean", "min", "max", "sum")}
    if name == "result_output":
        best = np.argsort(-value[-1], kind="stable")[:5]
        line["top"] = [[int(i), float(value[-1, i])] for i in best]
    return json.dumps(line)
