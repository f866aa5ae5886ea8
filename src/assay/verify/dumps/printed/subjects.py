"""Finds the subject of a statement: node, layer and row, from its own words first, then from the headings above.

`SUBJECT_RULES` decide how the headings complete the line's words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from assay.verify.dumps.naming.layer_and_row import LAYERS, of_each_layer
from assay.verify.dumps.naming.phrases import VALUES, Meaning, has_unknown, meaning, split_words
from assay.verify.dumps.naming.statistic_names import statistic
from assay.verify.dumps.printed.headings import ENDS, HeadingStack
from assay.verify.dumps.printed.rule_rows import Rule, RuleTable
from assay.verify.dumps.printed.statements import Statement

VAGUE = {"norm", "rmsnorm", "out", "output", "proj", "result", "in", "input"}
EITHER_NORM = ("attn_norm-", "ffn_norm-")


@dataclass
class SubjectSite:
    """A statement under its headings: its label, and the meanings of the label and of the heading."""

    statement: Statement
    context: HeadingStack

    @cached_property
    def label(self) -> Sequence[str]:
        """The words for the node: those before the first list, if they say enough."""
        statement, context = self.statement, self.context
        before = (
            statement.label[: statement.words_before_list]
            if statement.words_before_list is not None
            else statement.label
        )
        known = meaning(before)
        label = before if known.role or known.layer is not None or statement.layer is not None else statement.label
        if statement.side and not meaning([statement.side]).role:
            label = [w for w in label if w != statement.side]
        if "plus" in label:
            at = label.index("plus")
            added = next((context.variables.get(w, "") for w in label[at + 1 : at + 2]), "")
            if added:
                label = [*label[: at + 1], added, *label[at + 2 :]]
            else:  # "+ residual", "h = x + r"
                label = [*label, {"attn_out": "attn", "ffn_out": "mlp"}.get(context.last_node, "")]
        if [w.lower() for w in label if w != VALUES] == ["values"] and context.last_node[:4] in ("Qcur", "Kcur"):
            label = ["v"]  # behind "queries" and "keys"
        return label

    @cached_property
    def spoken(self) -> Meaning:
        """The meaning of all words of the line."""
        return meaning(self.statement.label)

    @cached_property
    def own(self) -> Meaning:
        """The meaning of the label, with a layer or a remark behind the values."""
        statement, label, spoken = self.statement, self.label, self.spoken
        own = meaning(label)
        if own.layer is None and spoken.layer is not None and own.role and not own.verbatim and own.nodes not in ENDS:
            own = replace(meaning([*label, "layer", str(spoken.layer)]), row=own.row)  # …|layer=0 behind the values
        if statement.layer is not None and own.layer is None and not own.verbatim:
            own = replace(meaning([*label, "layer", str(statement.layer)]), row=own.row)
        if statement.words_before_list is not None and own.layer is not None and (own.bare or own.vague):
            behind = meaning(
                [*statement.label[statement.words_before_list + 1 :], "layer", str(own.layer)], generic=False
            )
            if own.bare and behind.nodes and "plus" in statement.label:  # h: [...]  # x + attn(norm(x))
                own = replace(own, nodes=behind.nodes, bare=False)
            if own.vague and behind.nodes:  # L0 xb 1.5 2.5  (after att rmsnorm)
                own = replace(own, nodes=behind.nodes, vague=False)
        above = self.context.subject
        if own.layer is None and above.layer is None and not own.verbatim and own.nodes not in ENDS:
            own = _led(label, own)
        return own

    @property
    def above(self) -> Meaning:
        """The meaning of the heading."""
        return self.context.subject


def subject_of(statement: Statement, context: HeadingStack) -> Meaning:
    """The subject of the statement. The headings supply what its own words leave open."""
    site = SubjectSite(statement, context)
    found = SUBJECT_RULES.first(site) or site.own
    own, spoken, above = site.own, site.spoken, site.above
    row = next((r for r in (statement.row, own.row, spoken.row, above.row) if r is not None), None)
    maybe = (
        None if context.each else statement.possible_row,
        own.possible_row,
        spoken.possible_row,
        above.possible_row,
        context.possible_row,
    )
    return replace(found, row=row, possible_row=next((p for p in maybe if p is not None), None))


def _no_node_of_its_own(site: SubjectSite) -> Meaning | None:
    own, above, label, context = site.own, site.above, site.label, site.context
    if own.role:
        return None
    layer = above.layer if own.layer is None else own.layer
    nodes = above.nodes
    if own.layer is None and above.layer is not None and set(split_words(label)) & LAYERS:
        nodes = inside_layer(label, context).nodes or nodes  # "block output" below "feed forward"
    if layer is not None and own.layer is None and not above.role:
        nodes = ("l_out-",)
    if not nodes and layer is None and of_each_layer(split_words(label)):  # "layer: …", once for each
        each = meaning([*label, "layer", "0"])
        nodes = each.nodes if each.nodes and each.nodes[0].endswith("-") else ()
    strange = has_unknown(w for w in split_words(label) if not statistic([w]))
    return Meaning(nodes, layer, verbatim=above.verbatim, vague=above.vague or (strange and above.bare))


def _layer_below_a_node(site: SubjectSite) -> Meaning | None:
    own, above = site.own, site.above
    if not (own.bare or own.vague) or set(split_words(site.label)) & {"out", "output", "outputs"}:
        return None
    titled = above.nodes and above.layer is None and above.nodes[0].endswith("-") and not above.bare
    if not titled or not (site.context.sections[-1].marked or site.context.each):
        return None
    return Meaning(above.nodes, own.layer, vague=above.vague)


def _norm_told_by_its_heading(site: SubjectSite) -> Meaning | None:
    own = site.own
    if own.nodes != EITHER_NORM or own.verbatim or site.above.layer != own.layer or not site.context.words:
        return None
    return meaning([*site.context.words, *site.label, "layer", str(own.layer)], generic=False)


def _node_below_a_layer(site: SubjectSite) -> Meaning | None:
    own, above = site.own, site.above
    if own.layer is not None or own.verbatim or above.layer is None:
        return None
    inside = inside_layer(site.label, site.context)
    if inside.nodes and own.nodes not in ENDS and (inside.nodes != EITHER_NORM or own.nodes != ("result_norm",)):
        return replace(inside, layer=above.layer)
    if own.nodes == ("result_norm",):  # "norm" below a layer: the values decide which norm
        return replace(own, nodes=("result_norm", *EITHER_NORM), layer=above.layer)
    return None


SUBJECT_RULES: RuleTable[SubjectSite, Meaning] = RuleTable(
    "subject",
    Rule("no node of its own", 40, "final norm:\n[0.5, 1.5]\n", ("result_norm first 0.5 1.5",), _no_node_of_its_own),
    Rule(
        "layer below a node",
        30,
        "attention outputs:\nlayer 0: [0.5, 1.5]\n",
        ("attn_out-0|kqv_out-0|ffn_inp-0 first 0.5 1.5",),
        _layer_below_a_node,
    ),
    Rule(
        "norm told by its heading",
        20,
        "layer 0 pre-attention norm\nlayer 0 rmsnorm: [0.5, 1.5]\n",
        ("attn_norm-0 first 0.5 1.5",),
        _norm_told_by_its_heading,
    ),
    Rule(
        "node below a layer", 10, "layer 1:\n  ffn_out: [0.5, 1.5]\n", ("ffn_out-1 first 0.5 1.5",), _node_below_a_layer
    ),
)


def _led(label: Sequence[str], own: Meaning) -> Meaning:
    """A layer's number before the node's name: "[0] attn: …", `(0, "attn_out", [...])`."""
    if len(label) < 2 or not label[0].isdecimal() or len(label[0]) > 4:
        return own
    found = meaning([*label[1:], "layer", label[0]], generic=False)
    if not found.nodes or found.layer is None or (found.nodes == EITHER_NORM and own.nodes):
        return own
    return replace(found, row=own.row, possible_row=own.possible_row)


def inside_layer(label: Sequence[str], context: HeadingStack) -> Meaning:
    """The meaning of the words inside the layer of the heading; too few words are joined with the heading's."""
    number = ("layer", str(context.subject.layer))
    found = meaning([*label, *number], generic=False)
    if not found.nodes or found.nodes == EITHER_NORM or set(split_words(label)) <= VAGUE | {"pre", "post", "rms"}:
        found = meaning([*context.words, *label, *number], generic=False)  # "norm:" below "attn:"
    return found
