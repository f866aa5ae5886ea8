"""One self-contained HTML page: what to fix, a map of layers and operations, the values behind every cell, the causes.

`content` is the data, which `serve/page/report.js` draws: in this page, and in the Diagnose view of the web page. The
file holds all data and scripts and makes no request. Colour is never the only sign: every cell carries a mark, so that
the page can be read on paper and by people with colour blindness.
"""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.engines.reference.blas import one_thread
from assay.engines.reference.weights import Weights
from assay.graph import Node, split
from assay.models import Model
from assay.system import heap
from assay.system.counting import counted
from assay.system.documents import document, script, style
from assay.system.files import write
from assay.verify.diagnosis.result import Cause, Diagnosis
from assay.verify.diagnosis.wording import words
from assay.verify.dumps.observation import Dump, measure, patch, token_axis
from assay.verify.faults import FAULTS
from assay.verify.judge.compare_nodes import Diff, NodeVerdict
from assay.verify.judge.known import ABSENT, KINDS, NOT_FINITE, Known, sentence, told
from assay.verify.judge.overflow import NonFiniteOrigin
from assay.verify.judge.shared_pass import Last, evaluate_all, sweep

Array = NDArray[Any]
_SHOWN = 12  # values of a node shown side by side


def write_html(path: Path, model: Model, dump: Dump, diff: Diff | None, diagnosis: Diagnosis | None = None) -> None:
    """Write the page."""
    write(path, page(model, dump, diff, diagnosis))


def page(model: Model, dump: Dump, diff: Diff | None, diagnosis: Diagnosis | None = None) -> str:
    """The page as text."""
    return drawn(content(model, dump, diff, diagnosis))


def drawn(data: dict[str, Any]) -> str:
    """The page of this content."""
    parts = {
        "title": html.escape(f"assay: {data['title']}"),
        "style": style("serve/page/report.css"),
        "script": script("figures.js", "nodemap.js", "report.js"),
        "data": json.dumps(data, allow_nan=False).replace("<", "\\u003c").replace("\u2028", "\\u2028"),
    }
    return document("verify/report.html", parts)


def content(
    model: Model, dump: Dump | None, diff: Diff | None, diagnosis: Diagnosis | None = None, source: str = ""
) -> dict[str, Any]:
    """The data that the page shows. Without a dump, `source` names what was judged: a server, by its answers."""
    nodes = diff.nodes if diff is not None else ()
    samples = _samples(model, dump, nodes) if diff is not None and dump is not None else {}
    said = diagnosis if diagnosis is not None else diff
    broken = said.broken if said is not None else None
    verdict = said.verdict if said is not None else ""
    return {
        "title": f"{model.file.path.name} against {source if dump is None else dump.source}",
        "verdict": verdict,
        "wrong": said is not None and not said,
        "told": _told(nodes, broken),
        "kinds": [{"id": kind.id, "mark": kind.mark, "legend": _legend(kind, broken)} for kind in KINDS],
        "broken": {"words": broken.words, "fix": broken.fix, "sure": broken.sure} if broken is not None else None,
        "headline": _headline(model, verdict, diagnosis, diff, broken),
        "engine": "" if dump is None else dump.engine,
        "tokens": [] if dump is None else list(dump.tokens),
        "steps": [] if dump is None else list(dump.steps),
        "arithmetic": diff.arithmetic.name if diff is not None else "",
        "first": diagnosis.first_wrong if diagnosis is not None else diff.first_name if diff is not None else None,
        "roles": _roles(model, [n.name for n in nodes] + ([broken.found.node] if broken is not None else [])),
        "layers": model.hparams.n_layer,
        "nodes": [
            *(_cell(model, n, samples) for n in nodes),
            *([_broken_cell(model, broken)] if broken is not None else []),
        ],
        "causes": [_cause(c, model, diff) for c in diagnosis.causes] if diagnosis is not None else [],
        "unexplained": list(diagnosis.unexplained) if diagnosis is not None else [],
        "relations": [r.text for r in diagnosis.relations] if diagnosis is not None else [],
        "next": diagnosis.next_observation if diagnosis is not None else "",
        "notes": list(dict.fromkeys(said.notes if said is not None else ())),
    }


def _told(nodes: Sequence[NodeVerdict], broken: NonFiniteOrigin | None) -> str:
    if broken is None:
        return told(nodes)
    wrong = any(n.verdict == "wrong" for n in nodes)
    agreeing = f"the {counted(len(nodes), 'node')} before it agree{'s' if len(nodes) == 1 else ''} with the definition"
    before = told(nodes) if wrong else agreeing if nodes else "no node before it was dumped"
    return f"{broken.found.node} is the first that is not finite; {before}"


def _legend(kind: Known, broken: NonFiniteOrigin | None) -> str:
    """Nodes after the first value that is not finite are not judged, so they cannot be told from missing ones."""
    return f"{kind.legend}, or not judged" if kind is ABSENT and broken is not None else kind.legend


def _broken_cell(model: Model, broken: NonFiniteOrigin) -> dict[str, Any]:
    """The first node with a value that is not finite. It has no verdict, because nothing can be computed with it."""
    role, layer = split(broken.found.node)
    return {
        "name": broken.found.node, "role": role, "layer": layer, "verdict": "wrong", "own": None,
        "known": NOT_FINITE.id, "said": broken.words, "nmse": None, "own_nmse": None, "cosine": None, "by": None,
        "formula": _formula(model, broken.found.node), "segment": list(broken.between), "rows": [],
    }  # fmt: skip


def _formula(model: Model, name: str) -> str:
    return model.graph[name].formula if name in model.graph else ""


def _headline(
    model: Model, verdict: str, diagnosis: Diagnosis | None, diff: Diff | None, broken: NonFiniteOrigin | None
) -> str:
    first = diff.first_wrong if diff is not None else None
    if broken is not None:
        return f"{broken.found.node} holds {broken.found.what}"
    if diagnosis is not None and diagnosis.causes:
        c, n = diagnosis.causes[0], len(diagnosis.causes)
        if n > 1:
            return f"{n} known mistakes give these values; the first, {c.fault}, is at {c.node}"
        sure = "a known mistake gives" if words(c, model).title == "cause" else "best guess: a known mistake may give"
        return f"{sure} these values: {c.fault} at {c.node}"
    if first is not None:
        return f"{first.name} is the first wrong node"
    if verdict == "undecided" and diagnosis is not None and diagnosis.because:
        return diagnosis.because
    if verdict == "undecided":
        return "within the noise, and what was dumped cannot tell whether a smaller fault is there"
    return "every node agrees with the definition" if verdict in ("same", "healthy") else "within the noise"


def _roles(model: Model, names: list[str]) -> list[str]:
    """Columns: the operations of a layer in order of computation."""
    seen = {role for role, layer in map(split, names) if layer is not None}
    return list(dict.fromkeys(r for r, i in (split(node.name) for node in model.graph) if i is not None and r in seen))


def _cell(model: Model, n: NodeVerdict, samples: dict[str, Any]) -> dict[str, Any]:
    role, layer = split(n.name)
    e = n.evidence
    return {
        "name": n.name,
        "role": role,
        "layer": layer,
        "verdict": n.verdict,
        "own": n.own,
        "known": n.known.id,
        "said": sentence(n),
        "nmse": _finite(e.nmse),
        "own_nmse": _finite(e.own_nmse),
        "cosine": _finite(e.cosine),
        "by": n.explained_by,
        "formula": _formula(model, n.name),
        "segment": list(e.segment) if len(e.segment) > 1 else [],
        "rows": samples.get(n.name, []),
    }


def _finite(x: float) -> float | None:
    return float(x) if np.isfinite(x) else None


def _cause(c: Cause, model: Model, diff: Diff | None) -> dict[str, Any]:
    fault = FAULTS[c.fault]
    return {
        **c.to_dict(),
        **words(c, model, diff).to_dict(),
        "symptom": fault.symptom,
        "stage": fault.stage,
        "links": [[label, address] for label, address in fault.links],
    }


class _Sampler:
    """Visitor: the definition's value and the recomputation from the dump's own inputs, at the places to show."""

    def __init__(self, model: Model, dump: Dump, nodes: tuple[NodeVerdict, ...]) -> None:
        self.graph, self.dump = model.graph, dump
        self.head_width = model.hparams.n_embd_head
        self.verdicts = {n.name: n for n in nodes}
        self.truth: dict[str, Array] = dump.inputs
        self.theirs: dict[str, Array] = dump.inputs
        self.last = Last(model.graph)
        self.found: dict[str, list[list[Any]]] = {}

    def visit(self, node: Node, weights: Weights) -> None:
        lanes = [[_float(store[i]) for i in node.inputs] for store in (self.truth, self.theirs)]
        truth, own = evaluate_all(node, lanes, weights)
        self.truth[node.name] = truth
        observations = self.dump.by_name.get(node.name, ())
        axis = token_axis(self.graph, node.name)
        self.theirs[node.name] = patch(observations, own, axis) if observations else own
        if node.name in self.verdicts:
            self.found[node.name] = self._rows(node.name, truth, own, axis)
        self.last.forget(node, self.truth, self.theirs)

    def _rows(self, name: str, truth: Array, own: Array, axis: int) -> list[list[Any]]:
        """[place, found, expected, expected from the engine's own inputs]"""
        rows: list[list[Any]] = []
        for obs in self.dump.by_name[name]:
            target = obs.target()
            want, mine = (measure(obs, v, axis, self.head_width) for v in (truth, own))
            where = self.verdicts[name].evidence.where if obs.kind == "values" else ()
            for index in _places(target, where):
                values = [float(f"{a[index]:.9g}") for a in (target, want, mine)]
                if all(np.isfinite(values)):
                    rows.append([_label(obs.kind, index, obs.data), *values])
            if len(rows) >= 2 * _SHOWN:
                break
        return rows


def _float(x: Array) -> Array:
    return x.astype(np.float64, copy=False) if x.dtype.kind == "f" else x


def _places(target: Array, where: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The first values of the row with the largest deviation, and the value that has it."""
    if target.ndim == 1:
        return [(i,) for i in range(min(len(target), _SHOWN))]
    row = where[:-1] if len(where) == target.ndim else tuple(0 for _ in target.shape[:-1])
    places = [(*row, i) for i in range(min(target.shape[-1], _SHOWN - 1))]
    worst = tuple(where)
    return places if not worst or worst in places else [*places, worst]


def _label(kind: str, index: tuple[int, ...], data: Any) -> str:
    if kind == "values":
        return f"[{', '.join(map(str, index))}]"
    if kind in ("at", "top"):
        return f"{kind} {data[index[0]][0]}"
    return f"{kind}[{index[0]}]" if kind in ("first", "last") else kind


def _samples(model: Model, dump: Dump, nodes: tuple[NodeVerdict, ...]) -> dict[str, list[list[Any]]]:
    sampler = _Sampler(model, dump, nodes)
    with one_thread(model.graph), heap.kept():
        sweep(model, [sampler], "writing the report")
    return sampler.found
