"""From the plan of a graph to launches: for one shape of a step, which kernels run on which memory.

A program holds no data of a batch: tokens, slots, page tables and positions are tables in device memory, written
before each run. So it is made once a shape, and the launches of a small step are kept as one CUDA graph.

Beside the groups of engines/plan/fuse.py, three things are folded where nobody else reads them:

    a norm before products            into the quantisation of their input
    RoPE of q and k, cache writes     into attention, when every sequence has one token; in a walk norms of heads
                                      and a factor of q as well
    take the rows of the outputs      into nothing, when every row is one
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from assay.engines.cuda import structs
from assay.engines.cuda.attention import AttentionSteps
from assay.engines.cuda.device import Launch
from assay.engines.cuda.experts import ExpertSteps
from assay.engines.cuda.layout import Tensors
from assay.engines.cuda.program import ACTS, MAP, Folded, Memory, Program, Value, WalkNorm
from assay.engines.cuda.shapes import CacheLayout, Shape
from assay.engines.cuda.walk import ROWS
from assay.engines.plan.batching import External
from assay.engines.plan.fuse import Attention, Gated, Products, Single, fuse
from assay.errors import AssayError
from assay.graph import Graph, Node

_UNARY = {"scale": "factor", "softcap": "cap", "clamp_min": "lo"}


def compile_program(
    graph: Graph,
    tensors: Tensors,
    layout: CacheLayout,
    shape: Shape,
    keep: frozenset[str],
    shared: int,
    cuts: tuple[tuple[int, int], ...],
    place: Callable[[int], Memory],
) -> Program:
    """The program for a shape; `place` gives the addresses once the arena's size is known."""
    if shape.one and shape.tokens <= ROWS and not keep and tensors.device.together:
        program = _Compiler(graph, tensors, layout, shape, keep, shared, cuts, walks=True).compile(place)
        if program:
            return program
    program = _Compiler(graph, tensors, layout, shape, keep, shared, cuts).compile(place)
    assert program
    return program


class _Compiler(ExpertSteps, AttentionSteps):
    def compile(self, place: Callable[[int], Memory]) -> Program | None:
        """The program; none where walks were asked for and do not fit the graph."""
        if self.walks and self.shape.tokens > 1 and not self._few_possible():
            return None
        self.plan = fuse(self.graph, self.keep, self.tensors.format)
        self.fused_norms = self._norms()
        self.fused_attention = self._attentions() if self.shape.one else {}
        skip = set(self.fused_norms.values()).union(*(f.names for f in self.fused_attention.values()))
        if self.walks:
            self.sliced, self.gatings = self._slices(), self._gated_codes()
            skip |= {n.name for nodes in self.sliced.values() for n in nodes} | self.gatings.keys()
            self.walk_norms = self._single_norms(skip)
            skip |= {name for norms in self.walk_norms.values() for n in norms for name in n.folded}
        for name in self.graph.given:
            self._bring(name)
        if self.walks:  # tables come first, so that no walk ends for them
            for rope in (f.rope for f in self.fused_attention.values() if f.rope):
                self._turn(self._turn_key(rope), "tokens")
        for group in self.plan.groups:
            match group:
                case Single(node):
                    if node.name in self.walk_norms:
                        self._walk_norm(self.walk_norms[node.name])
                    elif node.name not in skip and self._wanted(node):
                        self._emit(node)
                case Products(products):
                    if self._wanted(products[0].linear):
                        self._products(group)
                case Gated():
                    if self._wanted(group.glu):
                        self._gated(group)
                case Attention():
                    if self._wanted(group.kqv):
                        self._attention(group)
        if self.shape.best:
            self._best(self.shape.best)
        if self.walks and not (self.fits and self._join()):
            return None
        size = self._assign()
        self.memory = place(size)
        launches = self._launches()
        results = [(e, v.offset) for e, v in self.results]
        if all(e.node != self.graph.output for e, _ in results):  # nobody asked for it
            results.append((External(self.graph.output, "outputs", self._width(self.graph.output)), 0))
        return Program(self.shape, launches, size, results, self.aliases)

    def _best(self, k: int) -> None:
        """The largest values of the output and their indices in the place of the output."""
        rows, width = self._rows("tokens"), self._width(self.graph.output)
        x = self.values[self.graph.output, "tokens"]
        x.pinned = False
        n = -(-width // 512)
        lists, out = Value(8 * rows * n * k), Value(8 * rows * k, pinned=True)
        self.results = [(External(self.graph.output, "outputs", 2 * k), out)]

        def args() -> Any:
            rows = [self._table(t) if k == 1 else 0 for t in ("tokens", "positions", "slots", "left")]
            return structs.BestArgs(self._at(x), self._at(lists), self._at(out), *rows, width, n, k)

        self._step([x, lists], lambda: Launch("best_lists", (-(-n // 8), rows, 1), 256, args()))
        self._step([lists, out], lambda: Launch("best_of_lists", (rows, 1, 1), 32, args(), 4 * n))

    # -- what is folded ------------------------------------------------------------------------------------------

    def _readers(self, name: str) -> list[str]:
        return list(self.graph.users.get(name, ()))

    def _norms(self) -> dict[str, str]:
        """For the first linear of a group: the norm before it, if only products read it."""
        firsts: dict[str, str] = {}  # of each linear, the first of its group
        for group in self.plan.groups:
            if isinstance(group, Products):
                firsts |= {p.linear.name: group.products[0].linear.name for p in group.products}
            elif isinstance(group, Gated):
                firsts |= {n.name: group.gate.name for n in (group.gate, group.up)}
        found: dict[str, str] = {}
        for norm in self.graph:
            if norm.op != "rms_norm" or norm.attr("n_head") or norm.name in self.keep or not norm.weights:
                continue
            if len(self.graph.shapes[norm.name]) != 2 or norm.name == self.graph.output:
                continue
            readers = self._readers(norm.name)
            if all(name in firsts for name in readers):
                found |= {firsts[name]: norm.name for name in readers}
        return found

    def _attentions(self) -> dict[str, Folded]:
        """For a kqv: what attention does itself."""
        found = {}
        for group in self.plan.groups:
            if not isinstance(group, Attention) or self.keep & group.inner:
                continue
            k, v = self.graph[group.kq.inputs[1]], self.graph[group.kqv.inputs[1]]
            q, turned = (self.graph.by_name.get(n) for n in (group.kq.inputs[0], k.inputs[0]))
            if not q or not turned or self.keep & {k.name, v.name} or k.op != "cache" or v.op != "cache":
                continue
            if self._readers(k.name) != [group.kq.name] or self._readers(v.name) != [group.kqv.name]:
                continue
            folded = Folded(frozenset((k.name, v.name)), q.name, turned.name, v.inputs[0])
            factor, rope = 1.0, q
            if self.walks and q.op == "scale":
                factor, rope = float(q.attr("factor")), self._before(q) or q
            from_start = rope.op == turned.op == "rope" and not (rope.attr("offset") or turned.attr("offset"))
            if from_start and self._turn_key(rope) == self._turn_key(turned):
                names = {q.name, rope.name, turned.name}
                readers = self._readers(q.name), self._readers(turned.name)
                if self.keep & names or readers != ([group.kq.name], [k.name]):
                    continue
                names |= folded.names
                folded = Folded(frozenset(names), rope.inputs[0], turned.inputs[0], folded.v, rope, None, factor)
                folded = self._head_norms(folded, turned)
            found[group.kqv.name] = folded
        return found

    def _before(self, node: Node) -> Node | None:
        """What a node reads first, if nobody else does."""
        found = self.graph.by_name.get(node.inputs[0])
        return found if found and self._readers(found.name) == [node.name] else None

    def _head_norms(self, folded: Folded, k_rope: Node) -> Folded:
        """With norms of the heads of q and k, which a walk has, too."""
        assert folded.rope
        q, k = self._before(folded.rope), self._before(k_rope)
        if not (self.walks and q and k and q.op == k.op == "rms_norm" and q.attr("eps") == k.attr("eps")):
            return folded
        for norm, rope in ((q, folded.rope), (k, k_rope)):
            each = self._width(norm.name) // int(rope.attr("n_head"))
            weights = [math.prod(int(n) for n in self.graph.weights[w]) for w in norm.weights]
            if norm.attr("n_head") != rope.attr("n_head") or weights != [each]:
                return folded
        names = folded.names | {q.name, k.name}
        return replace(folded, names=names, q=q.inputs[0], k=k.inputs[0], norms=(q, k))

    def _single_norms(self, skip: set[str]) -> dict[str, list[WalkNorm]]:
        """Norms that are a step of a walk; two that follow each other are one step."""
        found: dict[str, list[WalkNorm]] = {}
        last: list[WalkNorm] = []
        before: Node | None = None  # an add that the norm reads next
        done = set(skip)
        for group in self.plan.groups:
            node = group.node if isinstance(group, Single) else None
            if node and node.name in done:
                continue
            if not node or not self._is_walk_norm(node):
                last, before = [], node if node and node.op == "add" and len(set(node.inputs)) == 2 else None
                continue
            norm = WalkNorm(node, before if before and before.name == node.inputs[0] else None, self._add_behind(node))
            done |= norm.folded
            alone = len(norm.folded) == 1 and node.inputs[0] != (last[0].norm.name if last else "")
            if alone and len(last) == 1 and len(last[0].folded) == 1:
                last.append(norm)
            else:
                last = found[node.name] = [norm]
            before = None
        return found

    def _slices(self) -> dict[str, list[Node]]:
        """Of products that only slices read: these, if each begins with a group of the matrix's rows."""
        found = {}
        for p in (p for group in self.plan.groups if isinstance(group, Products) for p in group.products):
            readers = [self.graph[n] for n in self._readers(p.last.name)]
            group = self.tensors.matrix(p.linear.weights[0]).group
            if not p.add and readers and all(
                n.op == "slice" and not n.attr("n_head") and n.attr("start") % group == 0 for n in readers
            ):  # fmt: skip
                found[p.last.name] = readers
        return found

    def _gated_codes(self) -> dict[str, Node]:
        """Activations and gates of halves of a row that only products with quantised weights read."""
        nodes = [g.node for g in self.plan.groups if isinstance(g, Single) and g.node.op in ("act", "glu_split")]
        return {
            n.name: n
            for n in nodes
            if len(self.graph.shapes[n.name]) == 2 and self._readers(n.name) and self._read_as("q8", n.name)
            and str(n.attr("act")) in ACTS
        }  # fmt: skip

    def _is_walk_norm(self, node: Node) -> bool:
        if node.op not in ("rms_norm", "layer_norm") or node.attr("n_head") or not node.weights:
            return False
        return len(self.graph.shapes[node.name]) == 2 and self._width(node.name) % 8 == 0

    def _add_behind(self, norm: Node) -> Node | None:
        """The add that alone reads a norm, if its other operand is there before."""
        readers, order = [self.graph[n] for n in self._readers(norm.name)], self.graph.order
        if len(readers) != 1 or readers[0].op != "add" or len(set(readers[0].inputs)) != 2:
            return None
        there = all(order.get(name, -1) <= order[norm.name] for name in readers[0].inputs)
        return readers[0] if there else None

    # -- single nodes --------------------------------------------------------------------------------------------

    def _emit(self, node: Node) -> None:
        special: dict[str, Callable[[Node], None]] = {
            "embed": self._embed,
            "rms_norm": self._norm,
            "layer_norm": self._norm,
            "rope": self._rope,
            "cache": self._cache,
            "merge_heads": self._relabel,
            "split_heads": self._relabel,
            "head_linear": self._expert_linear,
            "pos_scale": self._pos_scale,
            "pool": self._pool_rows,
            "group_mask": self._by_row,
            "expert_linear": self._expert_linear,
            "kq": self._kq,
            "attn_softmax": self._attn_softmax,
            "kqv": self._kqv,
            "bias": lambda n: self._map(n, [n.inputs[0]], vector=n.weights[0]),
            "mul_weight": lambda n: self._map(n, [n.inputs[0]], vector=n.weights[0]),
            "slice": lambda n: self._map(n, n.inputs, integer=int(n.attr("start")), parts=self._parts(n, n.inputs[0])),
            "concat": self._concat,
            "topk": lambda n: self._map(n, n.inputs, op="slice"),
            "glu": lambda n: self._map(n, n.inputs, integer=self._act(n)),
            "act": lambda n: self._map(n, n.inputs, integer=self._act(n)),
            "glu_split": lambda n: self._map(n, n.inputs, integer=self._act(n), parts=self._parts(n, n.inputs[0])),
            "glu_oai": lambda n: self._map(n, n.inputs, number=float(n.attr("alpha")), second=float(n.attr("limit"))),
            "clamp": lambda n: self._map(n, n.inputs, number=float(n.attr("lo")), second=float(n.attr("hi"))),
            "add_row": lambda n: self._map(n, n.inputs, op="bias", vector=n.weights[0], row=int(n.attr("row"))),
            "expert_bias": lambda n: self._map(n, n.inputs, table=n.weights[0]),
            "expert_gain": lambda n: self._map(n, n.inputs, table=n.weights[0]),
        }
        if node.op in special:
            special[node.op](node)
        elif node.op in ("softmax", "argsort"):
            self._by_row(node)
        elif node.op in _UNARY:
            self._map(node, node.inputs, number=float(node.attr(_UNARY[node.op])))
        elif node.op in MAP:
            self._map(node, node.inputs)
        else:
            raise AssayError(f"node {node.name}: the cuda engine has no operation {node.op}; use --engine cpu")

    def _parts(self, node: Node, name: str) -> int:
        """How many heads (or experts) a row of the operand has: by its own axis, or as the operation cuts it."""
        shape = self.graph.shapes[name]
        return int(shape[1]) if len(shape) == 3 else int(node.all_attrs().get("n_head") or 1)

    def _concat(self, node: Node) -> None:
        alone = [self._parts(node, name) == 1 for name in node.inputs]
        self._map(node, node.inputs, integer=alone[0] + 2 * alone[1], parts=int(node.attr("n_head")))

    def _by_row(self, node: Node) -> None:
        domain = self._domain(node.name)
        if domain in ("keys", "scores") or len(self.graph.shapes[node.inputs[0]]) != 2:
            raise AssayError(f"node {node.name}: the cuda engine has {node.op} for rows only; use --engine cpu")
        x, out, width = self._get(node.inputs[0], domain), self._new(node.name), self._width(node.name)
        threads = structs.KERNELS[node.op][1]
        groups, used = (int(node.all_attrs().get(key, 1)) for key in ("groups", "used"))

        def make() -> Launch:
            args = structs.RowArgs(x=self._at(x), out=self._at(out), width=width, parts=groups, w_step=used)
            return Launch(node.op, (self._rows(domain), 1, 1), threads, args)

        self._step([x, out], make)
