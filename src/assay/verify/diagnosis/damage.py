"""A weight that is damaged in one place: which row and which bit, solved from the wrong values of a product.

A flipped bit in a file changes one number, or the scale of one block, of one row of one matrix. There are too many rows
to try all of them. But the product that uses the row is wrong in one feature, and the feature gives the row. Each bit
of the row, if flipped, changes the feature by a known amount for every token; the bit that fits is the damaged one. A
bad sector that was read as zeros is one more guess.

Where only a layer's output was dumped, the deviation lies along one feature of one of the last two products, or along
one column of the last matrix. A few printed values show the same: one value is off, or all along a column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.engines.reference.functions import ACTIVATIONS, linear
from assay.gguf import codecs
from assay.graph import Node, Trait, split
from assay.verify.diagnosis.fault_trials import EvidenceUnit, FaultTrials, Hypothesis
from assay.verify.faults import Change, Context, Variant
from assay.verify.judge.arithmetic import UNIT
from assay.verify.judge.evidence import deviation
from assay.verify.thresholds import FIRST_OBSERVED, FLOAT32_LEFT, FLOOR_UNITS

Array = NDArray[Any]
DAMAGE = "weight-damaged"
_ALONG = 0.7  # Share of the squared deviation that must lie along one direction.
_STANDS_OUT = 0.98  # The same, of a few printed values.
_FEWEST = 3  # Fewer printed values cannot show that one of them stands out.
_MOST = 3  # Bits that are compared with the observations: those that fit the feature best.
_WIDEST = 1 << 16  # The widest row whose bits are tried.
_LAST = ("ffn_out", "ffn_down")
_BETWEEN_TOKENS = Trait.MIXES_TOKENS | Trait.POSITIONAL  # the answer of one token alone cannot be computed there
_BENT = 0.5  # The same for one token through nonlinear nodes, of which only the tangent is known.
_MOST_FEATURES = 4096
_TOKENS, _POINTS, _HALVINGS = 3, 33, 6  # Tokens that are solved for; points of a search, and how often it is narrowed.


def damaged(trials: FaultTrials, unit: EvidenceUnit, *, bent: bool = True) -> Iterator[Hypothesis]:
    """Damage that the deviation of the unit's target points to; with `bent`, also through nonlinear nodes."""
    found = trials.dump.values(unit.target)
    if found is None or found.ndim != 2 or trials.graph.shapes[unit.target][0] != "T":
        return
    error = found - trials.base(unit)[unit.target]
    if not np.isfinite(error).all() or not error.any():
        return
    if len(unit.segment) == 1:
        yield from _along_a_feature(trials, unit, trials.graph[unit.target], error)
    elif split(unit.target)[0] == "l_out":
        for node in (trials.graph[name] for name in unit.segment):
            if split(node.name)[0] in (*_LAST, "attn_out"):
                yield from _along_a_feature(trials, unit, node, error)
            elif split(node.name)[0] in ("ffn_gate", "ffn_up"):
                yield from _along_a_column(trials, unit, node, error)
        for node in (trials.graph[name] for name in unit.segment if bent):
            yield from _by_response(trials, unit, node, error)


def glimpsed(trials: FaultTrials, unit: EvidenceUnit, targets: Sequence[str]) -> Iterator[Hypothesis]:
    """Damage that the first wrong printed values point to, where no tensor was dumped whole."""
    products = 0
    for name in targets:
        node, base = trials.graph[name], trials.base(unit)[name]
        for obs in trials.dump.by_name[name]:
            if obs.kind != "first" or obs.row is None or len(obs.data) < _FEWEST or obs.order != "gguf":
                continue
            if not _product(trials, node) or trials.graph.shapes[name][0] != "T":
                continue
            found = deviation(obs, base, 0, trials.model.hparams.n_embd_head, None)[0]
            noise = trials.evidence[name].noise_carried.rms[0, obs.row]
            size = float(np.sqrt(np.mean(np.square(base[obs.row], dtype=np.float64))))
            limit = FLOAT32_LEFT * FLOOR_UNITS * (noise + UNIT["f32"] * size) + np.asarray(obs.printed or 0.0)
            if np.isfinite(found).all() and (np.abs(found) > limit).any():
                some = list(_glimpsed(trials, unit, node, obs.row, found))
                products += bool(some)
                yield from some
        if products >= FIRST_OBSERVED:
            return


def _glimpsed(trials: FaultTrials, unit: EvidenceUnit, node: Node, token: int, error: Array) -> Iterator[Hypothesis]:
    energy = error * error
    row = int(energy.argmax())
    if energy[row] >= _STANDS_OUT * energy.sum():
        yield from _flips(trials, unit, node, row, lambda change: change[token : token + 1] - error[row])
        return
    joint = _gated(trials, node)
    if joint is None:
        return
    columns = np.asarray(trials.weights[node.weights[0]][: len(error)])
    size = np.sum(columns * columns, axis=0) + 1e-300
    along = error @ columns
    row = int((along * along / size).argmax())
    if along[row] ** 2 / size[row] < _STANDS_OUT * float(energy.sum()):
        return
    gate, up = (trials.base(unit)[name][token, row] for name in joint.inputs)
    act = ACTIVATIONS[joint.attr("act")]
    wanted = act(gate) * up + along[row] / size[row]
    for part, first in zip(joint.inputs, (True, False), strict=True):
        if part in trials.graph.by_name and _product(trials, trials.graph[part]):

            def left(change: Array, first: bool = first) -> Array:
                d = change[token : token + 1]
                return np.asarray((act(gate + d) * up if first else act(gate) * (up + d)) - wanted)

            yield from _flips(trials, unit, trials.graph[part], row, left)


def _along_a_feature(trials: FaultTrials, unit: EvidenceUnit, node: Node, error: Array) -> Iterator[Hypothesis]:
    energy = np.sum(error * error, axis=0)
    row = int(energy.argmax())
    if _product(trials, node) and energy[row] >= _ALONG * energy.sum():
        yield from _flips(trials, unit, node, row, lambda change: change - error[:, row, None])


def _along_a_column(trials: FaultTrials, unit: EvidenceUnit, node: Node, error: Array) -> Iterator[Hypothesis]:
    """A wrong row of gate or up: the deviation lies along the column of the last matrix that reads its feature."""
    last = next((trials.graph[name] for name in unit.segment if split(name)[0] in _LAST), None)
    joint = None if last is None else _gated(trials, last)
    if last is None or joint is None or not _product(trials, node) or not _product(trials, last):
        return
    if last.name not in trials.graph[unit.target].inputs:  # a norm between them turns the columns
        return
    columns = np.asarray(trials.weights[last.weights[0]][:])
    size = np.sum(columns * columns, axis=0) + 1e-300
    along = error @ columns
    energy = np.sum(along * along, axis=0) / size
    row = int(energy.argmax())
    if energy[row] < _ALONG * float(np.sum(error * error)):
        return
    gate, up = (trials.base(unit)[name][:, row, None] for name in joint.inputs)
    act, first = ACTIVATIONS[joint.attr("act")], node.name == joint.inputs[0]
    wanted = act(gate) * up + along[:, row, None] / size[row]
    yield from _flips(
        trials, unit, node, row, lambda d: (act(gate + d) * up if first else act(gate) * (up + d)) - wanted
    )


def _by_response(trials: FaultTrials, unit: EvidenceUnit, node: Node, error: Array) -> Iterator[Hypothesis]:
    """A wrong feature whose effect later nodes bend. Each feature is moved a little, and the answer at the target is
    computed for one token. The direction of the deviation gives the feature, a search over a few tokens its size."""
    if not _product(trials, node) or node.name == unit.target or len(trials.graph.weights[node.weights[0]]) != 2:
        return
    after = _after(trials, unit, node)
    if unit.target not in after or any(trials.graph[name].has(_BETWEEN_TOKENS) for name in after):
        return
    y, target = trials.base(unit)[node.name], trials.base(unit)[unit.target]
    if y.ndim != 2 or y.shape[1] > _MOST_FEATURES:
        return
    tokens = np.argsort(-np.sum(error * error, axis=1))[:_TOKENS]
    token, step = int(tokens[0]), 1e-3 * float(np.sqrt(np.mean(y * y)))
    moved = trials.carry_on(unit, after, node, token, y[token] + step * np.eye(y.shape[1]), rounded=False)
    still = trials.carry_on(unit, after, node, token, y[token : token + 1], rounded=False)
    answers = moved - still
    size = np.sum(answers * answers, axis=1) + 1e-300
    along = answers @ error[token]
    row = int((along * along / size).argmax())
    if along[row] ** 2 / size[row] < _BENT * float(np.sum(error[token] ** 2)):
        return
    found: list[float] = []
    for t in tokens:
        middle = float(step * along[row] / size[row]) if t == token else 0.0
        width = 2 * abs(middle) if t == token else 4 * max(abs(d) for d in found)
        for _ in range(_HALVINGS):
            grid = middle + width * np.linspace(-1, 1, _POINTS)
            rows = np.repeat(y[t : t + 1], _POINTS, axis=0)
            rows[:, row] += grid
            rest = trials.carry_on(unit, after, node, int(t), rows, rounded=True) - target[t] - error[t]
            middle, width = float(grid[np.nansum(rest * rest, axis=1).argmin()]), width * 4 / _POINTS
        found.append(middle)
    wanted = np.array(found)[:, None]
    yield from _flips(trials, unit, node, row, lambda change: change[tokens] - wanted)


def _after(trials: FaultTrials, unit: EvidenceUnit, node: Node) -> list[str]:
    """The nodes of the segment that depend on a node, in order."""
    found = [node.name]
    for name in unit.segment:
        if name != node.name and any(i in found for i in trials.graph[name].inputs):
            found.append(name)
    return found[1:]


def _gated(trials: FaultTrials, node: Node) -> Node | None:
    """The node that a product reads, where it is act(gate) * up of two nodes."""
    joint = trials.graph.by_name.get(node.inputs[0])
    return joint if joint is not None and joint.op == "glu" else None


def _product(trials: FaultTrials, node: Node) -> bool:
    """Is it a product with one matrix? A gate whose weight is a vector is not."""
    return node.has(Trait.PRODUCT) and len(trials.graph.weights[node.weights[0]]) == 2


def _flips(
    trials: FaultTrials, unit: EvidenceUnit, node: Node, row: int, left: Callable[[Array], Array]
) -> Iterator[Hypothesis]:
    """The flipped bits with the smallest residual; `left` gives it for changes of the feature, [tokens, bits]."""
    inputs = trials.base(unit) if node.inputs[0] in unit.segment else trials.theirs
    x = trials.operand(node, inputs[node.inputs[0]].reshape(len(trials.dump.tokens), -1))
    info = trials.model.file.tensors[node.weights[0]]
    width, size = info.type.block_size, info.type.type_size
    if x.shape[1] > _WIDEST:
        return
    raw = np.ascontiguousarray(trials.model.file.raw(info.name)[row]).view(np.uint8).reshape(-1, size)
    right = codecs.decode(info.type, raw).reshape(len(raw), width)
    yield _changed(node, row, slice(None), -right.reshape(-1), "zero")
    found: list[tuple[float, int, int, Array]] = []
    bits = np.arange(8 * size)
    for block, (old, own) in enumerate(zip(raw, right, strict=True)):
        flipped = np.repeat(old[None], len(bits), axis=0)
        flipped[bits, bits // 8] ^= (1 << (bits % 8)).astype(np.uint8)
        with np.errstate(all="ignore"):
            change = codecs.decode(info.type, flipped).reshape(len(bits), width) - own
            rest = left(x[:, block * width : (block + 1) * width] @ change.T)
            squares = np.nan_to_num(np.sum(rest * rest, axis=0), nan=np.inf)
        found += [(float(squares[i]), block, int(i), change[i]) for i in np.argsort(squares)[:_MOST]]
    for squares_left, block, bit, change in sorted(found, key=lambda f: f[0])[:_MOST]:
        if np.isfinite(squares_left):
            part = slice(block * width, (block + 1) * width)
            where = f"with bit {bit % 8} of byte {bit // 8} flipped in block {block}"
            yield _changed(node, row, part, change, where)


def _changed(node: Node, row: int, part: slice, change: Array, how: str) -> Hypothesis:
    """Other numbers in a part of one row of the node's matrix."""

    def edit(c: Context, here: Node, p: float) -> Change | None:
        if here.name != node.name:
            return None

        def run(x: Array, W: Array) -> Array:
            value = linear(x, W).copy()
            value[:, row] += x.reshape(len(x), -1)[:, part] @ change.astype(x.dtype)
            return value

        return Change(here, run)

    return Hypothesis(DAMAGE, Variant(f"row {row} {how}", edit))
