"""`/v1/trace`: summaries of chosen node values for a prompt, and the logit lens.

The logit lens shows the tokens that each layer's output predicts: the final norm and the output head are evaluated on
that output in place of the last layer's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import translate
from re import compile as regex
from typing import Any

import numpy as np

from assay.engines.contract import Array
from assay.engines.reference import interpret
from assay.engines.reference.weights import Weights
from assay.graph import Graph
from assay.graph.names import split
from assay.runtime.image_places import Images
from assay.runtime.sequence import Job
from assay.serve.api import answers as common
from assay.serve.api import request_tokens
from assay.serve.api.schemas import TraceRequest
from assay.serve.api.server_state import HttpCall
from assay.serve.api.texts import pieces
from assay.serve.api_errors import ApiError
from assay.serve.http.exchange import HttpReply, large_reply
from assay.serve.pool.models import ServedModel
from assay.serve.pool.update_queue import Reader

MEMORY = 256 << 20  # bytes of node values in one trace
HEAD = 512 << 20  # bytes of an output head that is decoded whole; a larger one is decoded in blocks
ROWS = 64  # rows of logits the lens holds at a time
DEFAULT = ("embd", "l_out-*", "result_norm", "result_output")
STATISTICS: dict[str, Callable[[Array], Any]] = {
    "rms": lambda x: np.sqrt(np.mean(np.square(x))),
    "mean": np.mean,
    "min": np.min,
    "max": np.max,
    "sum": np.sum,
}


async def trace(call: HttpCall, request: TraceRequest) -> HttpReply:
    state = call.state
    entry = state.models.find(request.model, exact=True)
    ids, images = await _prompt(call, request, entry)
    graph = entry.model.graph
    patterns = request.nodes if request.nodes is not None else () if request.lens else DEFAULT
    names: list[str] = await state.threads.run("text", lambda: _choose(graph, patterns))
    layers = [node.name for node in graph if split(node.name)[0] == "l_out"] if request.lens else []
    keep = tuple(dict.fromkeys((*names, *layers)))
    _check_size(graph, keep, len(ids))
    shown = 10 if request.first is None else request.first
    positions = list(range(max(len(ids) - state.limits.lens_positions, 0), len(ids)))

    def reply(nodes: dict[str, Array]) -> HttpReply:
        return large_reply(
            {
                "model": entry.id,
                "tokens": [max(token, -1) for token in ids],  # -1: a row of a picture
                "pieces": pieces(entry, ids, state.limits.pieces, "prompt"),
                "nodes": [_summary(graph, name, nodes[name], shown) for name in names],
                "lens": _lens(entry, layers, nodes, positions, request.top or 3) if layers else None,
            }
        )

    async with state.tracing:  # each holds up to MEMORY
        nodes = await _values(call, entry, keep, ids, images) if keep else {}
        # One at a time, because the lens holds the output head in float32.
        return await state.threads.run("lens", lambda: reply(nodes))


async def _values(
    call: HttpCall, entry: ServedModel, keep: tuple[str, ...], ids: Sequence[int], images: Images
) -> dict[str, Array]:
    """The values of nodes. Nothing else holds them: a client that reads slowly must not."""
    state = call.state
    worker = await call.stack.enter_async_context(state.models.use(entry))
    job = Job(ids=tuple(ids), keep=keep, deadline=common.deadline(state.limits), images=images)
    with Reader(worker, [job], state.limits.buffer, call.owner, call.pause) as reader:
        async for _ in reader:
            pass
        return {name: rows[0] for name, rows in reader.sequences[0].nodes.items()}


async def _prompt(call: HttpCall, request: TraceRequest, entry: ServedModel) -> tuple[Sequence[int], Images]:
    ids: Sequence[int]
    images: Images = ()
    given = [x for x in (request.prompt, request.messages, request.tokens) if x is not None]
    if len(given) != 1:
        raise ApiError("invalid_value", "give exactly one of prompt, messages and tokens", "prompt")
    if request.messages is not None:
        said = request_tokens.RenderInput(request.messages)
        ids, images = await request_tokens.chat_prompt(call.state, entry, said)
    elif request.prompt is not None:
        ids = await request_tokens.text_ids(call.state, entry, request.prompt)
    else:
        ids = list(request.tokens or ())
    request_tokens.check(ids, entry, room=0, images=images)
    most = min(call.state.limits.trace_tokens, call.state.limits.chunk)
    if len(ids) > most:
        raise ApiError("context_length_exceeded", f"a trace takes at most {most} tokens (found {len(ids)})", "prompt")
    return ids, images


def _choose(graph: Graph, patterns: Sequence[str]) -> list[str]:
    """The nodes that match a pattern, in graph order. Slow with many patterns: do not call it on the event loop."""
    wanted: set[str] = set()
    for pattern in dict.fromkeys(patterns):
        expression = regex(translate(pattern))
        found = [node.name for node in graph if expression.match(node.name)]
        if not found:
            raise ApiError("invalid_value", f"nodes: {pattern!r} matches none of the {len(graph)} nodes", "nodes")
        wanted.update(found)
    return [node.name for node in graph if node.name in wanted]


def _check_size(graph: Graph, names: tuple[str, ...], n_tokens: int) -> None:
    size = sum(
        4 * int(np.prod([n_tokens if isinstance(d, str) else d for d in graph.shapes[name]], dtype=np.int64))
        for name in names
    )
    if size > MEMORY:
        raise ApiError(
            "invalid_value",
            f"nodes: their values take {size >> 20} MiB (at most {MEMORY >> 20}); ask for fewer nodes or tokens",
            "nodes",
        )


def _summary(graph: Graph, name: str, value: Array, n_first: int) -> dict[str, Any]:
    flat = np.asarray(value, np.float64).reshape(-1)
    if not np.isfinite(flat).all():
        flat = np.nan_to_num(flat)
    found: dict[str, Any] = {"name": name, "op": graph[name].op, "shape": list(value.shape)}
    found["first"] = flat[:n_first].tolist()
    found |= {kind: float(function(flat)) for kind, function in STATISTICS.items()}
    found["top"] = None
    if name == graph.output:
        best = np.argsort(-value[-1], kind="stable")[:5]
        found["top"] = [[float(i), float(value[-1, i])] for i in best]
    return found


def _lens(
    entry: ServedModel, layers: list[str], nodes: dict[str, Array], positions: list[int], top: int
) -> dict[str, Any]:
    """The best tokens after each layer at each position: norm and head on rows [layers * positions, n_embd]."""
    graph = entry.model.graph
    weights = Weights(entry.file, np.float32, HEAD)
    rows = np.concatenate([nodes[name][positions] for name in layers]).astype(np.float32)
    guesses: list[list[dict[str, Any]]] = []
    for start in range(0, len(rows), ROWS):
        env = {layers[-1]: rows[start : start + ROWS]}
        logits = interpret(graph, weights, env, {graph.output})[graph.output]
        guesses += [_guesses(entry, row, top) for row in logits]
    n = len(positions)
    grid = [guesses[i * n : (i + 1) * n] for i in range(len(layers))]
    return {"layers": layers, "positions": positions, "grid": grid}


def _guesses(entry: ServedModel, logits: Array, top: int) -> list[dict[str, Any]]:
    p = np.exp(logits - logits.max())
    p /= p.sum()
    best = np.argpartition(-p, top)[:top] if top < len(p) else np.arange(len(p))
    best = best[np.argsort(-p[best], kind="stable")]
    return [
        {"id": int(i), "piece": common.piece_of(entry, int(i)).decode("utf-8", "replace"), "p": float(p[i])}
        for i in best
    ]
