"""Pictures in the prompt: the graph that takes given rows beside rows that it looks up by token.

The rows of a picture come from a projector (`assay.vision`). A chunk that holds some is computed by the graph that
`pictured` makes from the model's own. Text alone is computed by the model's own graph, with the same bits:

    embd_mixed = embd * inp_is_text + inp_image         inp_is_text [T, 1] is 1 or 0, inp_image is 0 for tokens
    l_out_deepstack-i = l_out-i + inp_deepstack_i       the further parts of a given row, after layer i (deepstack)
    rope(…, inp_tyx)                                    positions t, y, x in place of one (M-RoPE)
    attn_softmax(…, inp_last)                           the last slot that each token sees (gemma: rows of a picture
                                                        see each other both ways)

Given rows are not multiplied by the embedding's scale. Other tables that are looked up by token, such as the per-layer
embeddings of gemma4, take token 0 there. A zero for a token is -0.0, because x + -0.0 has the bits of x for every x.
Touch this when a model takes pictures in a new way.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from assay.errors import AssayError
from assay.graph import Graph, Node
from assay.graph.names import join
from assay.models.arch_keys import ArchKeys

ROWS, IS_TEXT, LAST, POSITIONS = "inp_image", "inp_is_text", "inp_last", "inp_tyx"
AXES = 3  # t, y, x
# What a graph may be given beside token ids. An engine says which of these it takes.
GIVEN_ROWS, GIVEN_POSITIONS, GIVEN_LAST = "rows", "positions of several numbers", "rows that see each other"
EVERYTHING = frozenset({GIVEN_ROWS, GIVEN_POSITIONS, GIVEN_LAST})


@dataclass(frozen=True)
class PictureForm:
    """Which of the given values a graph reads."""

    parts: int  # deepstack parts of a row
    last: bool  # some token sees later ones
    axes: tuple[int, ...]  # M-RoPE: the position that turns each pair; empty: positions have one number

    @property
    def needs(self) -> frozenset[str]:
        """Inputs that an engine must accept."""
        found = {GIVEN_ROWS: True, GIVEN_POSITIONS: bool(self.axes), GIVEN_LAST: self.last}
        return frozenset(name for name, needed in found.items() if needed)


def deepstack_name(i: int) -> str:
    """The value with part i + 1 of the given rows."""
    return f"inp_deepstack_{i}"


def rope_axes(meta: ArchKeys, pairs: int, interleaved: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The axis (t, y, x) that turns each pair, and the pairs of no section or the fourth, whose axis is t here.

    Sections are contiguous, as in Qwen2-VL, or interleaved, as in Qwen3-VL and later ones: pair j belongs to section
    j mod 3 while j < 3 * section, else to the fourth.
    """
    key = "rope.dimension_sections"
    found = np.asarray(meta.values.get(f"{meta.arch}.{key}", []))
    sections = [int(n) for n in found] if found.ndim == 1 and found.dtype.kind in "iu" else []
    if len(sections) != 4 or min(sections) < 0 or not 0 < sum(sections) < 1 << 20:
        raise meta.error(key, sections, "4 whole numbers with a sum above 0")
    at = [j % sum(sections) for j in range(pairs)]
    if interleaved:
        axes = [s % 3 if s < 3 * sections[s % 3] else 3 for s in at]
    else:
        axes = [int(np.searchsorted(np.cumsum(sections), s, side="right")) for s in at]
    still = tuple(j for j, axis in enumerate(axes) if axis == 3)
    return tuple(axis % 3 for axis in axes), still


def pictured(graph: Graph, form: PictureForm) -> Graph:
    """The graph that takes given rows in this form."""
    x = _embedding(graph)
    width = graph.shapes[x][-1]
    given = {**graph.given, ROWS: ("T", width), IS_TEXT: ("T", 1)}
    if form.last:
        given[LAST] = ("T", 1)
    if form.axes:
        given[POSITIONS] = ("T", AXES)
    sums: dict[str, tuple[Node, ...]] = {
        x: (Node("embd_text", "mul", (x, IS_TEXT)), Node("embd_mixed", "add", ("embd_text", ROWS)))
    }
    for i in range(form.parts):
        if (name := join("l_out", i)) not in graph:
            raise AssayError(
                f"picture: rows have {form.parts} parts for further layers, and the model has no layer {i}"
            )
        given[deepstack_name(i)] = ("T", width)
        sums[name] = (Node(join("l_out_deepstack", i), "add", (name, deepstack_name(i))),)
    renamed = {name: nodes[-1].name for name, nodes in sums.items()}

    def change(node: Node) -> tuple[Node, ...]:
        node = replace(node, inputs=tuple(renamed.get(name, name) for name in node.inputs))
        if form.last and node.op == "attn_softmax":
            node = replace(node, inputs=(*node.inputs, LAST))
        if form.axes and node.op == "rope":
            inputs = tuple(POSITIONS if name == "inp_pos" else name for name in node.inputs)
            node = replace(node, inputs=inputs, attrs={**node.attrs, "axes": form.axes})
        return (node, *sums.get(node.name, ()))

    output = renamed.get(graph.output, graph.output)
    return replace(graph.rewrite(change), given=given, output=output).check()


def _embedding(graph: Graph) -> str:
    """The node that gives the rows of tokens, scaled where the model scales them."""
    for node in graph:
        if node.op == "embed" and node.inputs == ("inp_tokens",) and node.weights == ("token_embd.weight",):
            users = [graph[name] for name in graph.users[node.name]]
            return users[0].name if [user.op for user in users] == ["scale"] else node.name
    raise AssayError("picture: the graph looks up no token embeddings; it cannot take pictures")
