"""States that hold something else than the rows of the dump left in them, whatever it was.

`by_calls` knows some of the calls that an engine may have made unseen. Three tests work for any other call. If the dump
shows states before its calls that explain everything, these were left by other tokens. If one start state explains
every row of a recurrence, the state was not cleared. If a call follows from the state that the dump shows, but not from
the rows before it, other tokens have entered that state. Without such evidence, `settled_by` says what to dump.

Touch this module to tell more from dumped states. `judge` decides whether a state is right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.engines.reference import evaluate
from assay.graph import Graph, Node
from assay.verify.diagnosis.by_calls import compare_calls, dumped_calls
from assay.verify.diagnosis.by_feeds import cause_of, comparable
from assay.verify.diagnosis.candidates import confidence
from assay.verify.diagnosis.fault_trials import EvidenceUnit, FaultTrials, ObservationFit
from assay.verify.diagnosis.result import Cause
from assay.verify.dumps.observation import Dump
from assay.verify.judge.compare_nodes import Diff

Array = NDArray[Any]
_UNNAMED = 0.8  # highest confidence: the tokens that entered the state are not known
_EQUATIONS = 2  # rows for each unknown of a start state: fewer fit anything
# Inputs that write to the state; with these at zero the result is linear in the start state.
_WRITES = {"delta_rule": (2,), "ssm_scan": (0,), "wkv6": (2, 3), "wkv7": (2, 3)}


def strange_state(trials: FaultTrials, diff: Diff) -> Cause | None:
    """A state that was not cleared, or that further tokens have entered, if that explains every wrong operation."""
    graph = trials.graph
    own = [n for n in diff.nodes if n.own]
    keepers = {kept.node for kept in graph.state.per_sequence}
    if not own or any(n.name not in keepers or n.name not in trials.theirs for n in own):
        return None
    for fault, same, how, predict in _READINGS:
        fits: dict[str, ObservationFit] = {}
        for n in own:
            unit = EvidenceUnit(n.name, (n.name,))
            value = predict(trials, graph[n.name])
            if value is None or not (fit := trials.after(unit, n.name, value)).explained:
                break
            fits[n.name] = fit
        if len(fits) == len(own):
            first = own[0].name
            before = trials.before(EvidenceUnit(first, (first,)))
            after = fits[first]
            shared = confidence(before, after, len(_READINGS), True, len(own), rivals=len(same), most=_UNNAMED)
            return Cause(
                fault, first, how, tuple(fits), shared, 1.0, same, before.ratio, after.ratio, exact=after.exact
            )
    return None


# -- what the dump shows before a call ------------------------------------------------------------------------------


def left_in_states(trials: FaultTrials, diff: Diff, *, between: bool = False) -> Cause | None:
    """States that the dump shows before its calls, if the definition explains everything observed from them on.

    A state that is not zero before the first call is another sequence's. With `between`, those before later calls are
    tried. Their origin is unknown: a draft, padding, or a mistake in keeping states that no row of the catalogue
    has. So the catalogue is tried before.
    """
    shown = _shown_before(trials)
    if not between:
        shown = {0: shown[0]} if 0 in shown else {}
    names = comparable(trials, diff)
    wrong = [n for n in diff.nodes if n.verdict == "wrong" and n.name in names]
    if not shown or not wrong:
        return None
    trials = trials.on(replace(trials.terms, carried=True))
    calls = dumped_calls(trials.dump.tokens, trials.dump.steps)
    plain, fits = compare_calls(trials, calls, names), compare_calls(trials, calls, names, shown)
    first = next(iter(shown[min(shown)]))
    if 0 in shown:
        label = f"{first} is not zero before the first call, so the sequence begins with another one's state"
        return cause_of(trials, "st-leak", label, plain, fits, wrong, 1)
    label = f"from {first} and the other states before the later calls on, all is right: other tokens have entered them"
    return cause_of(trials, "st-rollback", label, plain, fits, wrong, 1, ("st-pad-enters", "st-pad-decays"))


def _shown_before(trials: FaultTrials) -> dict[int, dict[str, Array]]:
    """By call: the states before it; before the first call, those that are not zero."""
    graph, dump = trials.graph, trials.dump
    found: dict[int, dict[str, Array]] = {}
    for obs in dump.states:
        call = (obs.rows or (0, 1))[0]
        if obs.kind == "values" and graph[obs.name].op == "state_before":
            value = obs.array().astype(np.float64)
            if call or (value.any() and _begins(dump)):
                found.setdefault(call, {})[obs.name] = value
    return found


def _begins(dump: Dump) -> bool:
    """Whether the dump's first token is the first of its sequence, as far as it says."""
    return dump.positions is None or not len(dump.positions) or int(np.ravel(dump.positions)[0]) == 0


def settled_by(graph: Graph, dump: Dump, later: bool | None) -> str:
    """Evidence that settles whether other tokens entered a state. `later`: the first call is right, or unknown."""
    state = next(n.name for n in graph if n.op == "state_before")
    own = f"dump {state} and the like of every layer before each call"
    leak = (
        "a state that another request left gives such values, too, and a dump does not name that request: run this "
        f"prompt alone in a new process; if it is right there, the state is not cleared (st-leak). Or {own}: it is "
        "zero where a sequence begins"
    )
    between = (
        "drafted tokens or padding that stayed in a state give such values, too, and a dump does not name them: run "
        f"without speculation and with one sequence (st-rollback, st-pad-enters). Or {own}, and after it: nothing "
        "changes a state between two calls"
    )
    return between if later else leak if later is False or len(dump.steps) < 2 else f"{leak}; {between}"


# -- a state that was there before ----------------------------------------------------------------------------------


def _from_start(trials: FaultTrials, node: Node) -> Array | None:
    """The node's value with the start state that fits its rows best; None where any rows could be fitted."""
    if not all(name in trials.theirs for name in (node.name, *node.inputs)):
        return None  # an operand was not dumped whole
    seen, inputs = trials.theirs[node.name], [trials.theirs[i] for i in node.inputs]
    right = evaluate(node, inputs, trials.weights)
    if node.op in ("causal_conv", "shift"):
        rows = 1 if node.op == "shift" else int(node.attr("state")[1])
        found = right.copy()
        found[:rows] = seen[:rows]  # as many unknown rows as equations
        return found if len(seen) > rows + 1 else None
    answer = _response(trials, node, inputs)  # [T, H, unknowns]
    if answer is None or len(answer) < _EQUATIONS * answer.shape[2]:
        return None
    off = (seen - right).reshape(len(seen), answer.shape[1], -1)
    found = right.reshape(off.shape).copy()
    for h in range(answer.shape[1]):
        start = np.linalg.lstsq(answer[:, h], off[:, h], rcond=None)[0]
        found[:, h] += answer[:, h] @ start
    return found.reshape(right.shape)


class _Start:
    """A cache with one start state."""

    def __init__(self, state: Array) -> None:
        self.state = state

    def append(self, name: str, rows: Array) -> Array:
        raise NotImplementedError(f"{name} keeps rows, not a state")

    def load(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        return self.state.reshape(shape).astype(dtype)

    def store(self, name: str, value: Array) -> None:
        self.state = value

    def stored(self, name: str) -> Array:
        return self.state


def _response(trials: FaultTrials, node: Node, inputs: list[Array]) -> Array | None:
    """The result for a start state of one element, [T, heads, elements]; every row of a state acts alike."""
    heads, rows, width = _rows_of(node)
    unknown = rows if node.op == "wkv6" else width
    quiet = [0 * x if i in _WRITES[node.op] else x for i, x in enumerate(inputs)]
    found = np.zeros((len(inputs[0]), heads, unknown))
    for i in range(unknown):
        start = np.zeros((heads, rows, width))
        if node.op == "wkv6":
            start[:, i, 0] = 1
        else:
            start[:, 0, i] = 1
        value = evaluate(node, quiet, trials.weights, _Start(start))
        found[:, :, i] = value.reshape(len(value), heads, -1)[:, :, 0]
    return found


def _rows_of(node: Node) -> tuple[int, int, int]:
    """Heads, rows and width of a state; Mamba-1 has one row for each channel."""
    shape = tuple(node.attr("state"))
    return (shape[0], 1, shape[1]) if len(shape) == 2 else (shape[0], shape[1], shape[2])


# -- a state that further tokens have entered -----------------------------------------------------------------------


def _from_dumped(trials: FaultTrials, node: Node) -> Array | None:
    """The node's value, every call but the first from the state that the dump shows after the call before."""
    dump, states = trials.dump, _dumped_states(trials.graph, trials, node.name)
    calls = dumped_calls(dump.tokens, dump.steps)
    if len(calls) < 2 or any(i not in states for i in range(len(calls) - 1)):
        return None
    parts = []
    for i, call in enumerate(calls):
        cache = _Start(states[i - 1]) if i else None
        rows = slice(call.start, call.start + len(call.tokens))
        parts.append(evaluate(node, [trials.theirs[name][rows] for name in node.inputs], trials.weights, cache))
    return np.concatenate(parts)


def _dumped_states(graph: Graph, trials: FaultTrials, keeper: str) -> Mapping[int, Array]:
    """The state of a node after each call, by the number of the call."""
    found: dict[int, Array] = {}
    for node in graph:
        if node.op != "state_after" or keeper not in node.inputs:
            continue
        sizes = [int(np.prod(graph[name].attr("state"))) for name in node.inputs]
        at = sum(sizes[: node.inputs.index(keeper)])
        for obs in trials.dump.states:
            if obs.name == node.name and obs.kind == "values" and obs.row is not None:
                flat = np.asarray(obs.array(), np.float64).reshape(-1)
                found[obs.row] = flat[at : at + sizes[node.inputs.index(keeper)]]
    return found


_Reading = tuple[str, tuple[str, ...], str, Callable[[FaultTrials, Node], Array | None]]
_READINGS: tuple[_Reading, ...] = (
    ("st-rollback", ("st-pad-enters",), "other tokens entered the state between two calls", _from_dumped),
    ("st-leak", (), "the state was not zero at the start", _from_start),
)
