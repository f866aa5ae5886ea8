"""Generators of the grammar for the scope of a mistake: one of the places where the catalogue plants it, some calls.

one role      a mistake of queries and keys in the queries alone, of all norms in one of them
one tensor    a type decoded wrongly in the matrices of one role alone, which another kernel reads
some calls    a mistake in the kernels of the decode steps alone, or of the prompt alone
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from assay.graph import Node, Trait
from assay.verify.faults import FAULTS, FaultKind, Stage, Variant, decode_only, prompt_only
from assay.verify.faults.description import LAYERS, OVERWRITTEN, REPEATED, SKIPPED, TOKEN, Description
from assay.verify.faults.fault import Context, role
from assay.verify.faults.tensors import tensor_type

MOST_WEIGHTS = 1 << 24  # of a matrix that is tried alone: each trial decodes it
_PLAIN = ("F32", "F16", "BF16")

# Operations that a layer has several of, each of which may have its own code.
_SEVERAL = frozenset({"rope", "rms_norm", "layer_norm", "bias", "add", "kq", "kqv"})
# One number for all norms, and what only large values show.
_OF_ALL_ROLES = frozenset({"gguf-default-hparam", "eps-value", "eps-floor-half", "eps-place", "f16-act-overflow"})
_OF_ALL_CALLS = frozenset({TOKEN, LAYERS, SKIPPED, REPEATED, OVERWRITTEN})  # no kernel's mistakes


def one_role(c: Context, nodes: Sequence[Node]) -> Iterator[Description]:
    """The edits of the catalogue that change several roles, in one of them."""
    here = [node for node in nodes if node.op in _SEVERAL]
    alike = [node for node in c.model.graph if node.op in _SEVERAL] if here else []
    for fault in FAULTS.values():
        if FaultKind.PRECISION in fault.kinds or fault.id in _OF_ALL_ROLES:
            continue
        for variant in fault.variants:
            if variant.search is not None or not variant.where.ops or not variant.where.ops <= _SEVERAL:
                continue
            some = [node for node in here if variant.at(c, node) is not None]
            if some and len({role(node) for node in alike if variant.where.matches(node)}) > 1:
                yield from ((fault.id, alone(variant, role(node))) for node in some)


def one_tensor(c: Context, nodes: Sequence[Node]) -> Iterator[Description]:
    """A type of blocks that is decoded wrongly, in the matrices of one role."""
    for node in nodes:
        if not node.has(Trait.MATRIX) or math.prod(c.model.graph.weights[node.weights[0]]) > MOST_WEIGHTS:
            continue
        for fault in FAULTS.values() if tensor_type(c, node.weights[0]) not in _PLAIN else ():
            for variant in fault.variants if fault.stage is Stage.DEQUANTISATION else ():
                if variant.search is None and variant.at(c, node) is not None:
                    yield fault.id, alone(variant, role(node))


def alone(variant: Variant, name: str) -> Variant:
    """The edit at the nodes of one role."""
    where = replace(variant.where, roles=frozenset({name}))
    return replace(variant, where=where, label=f"{variant.label}, in {name} alone")


def in_decode(found: Iterable[Description]) -> Iterator[Description]:
    """The same mistakes in the decode steps alone."""
    return ((fault, decode_only(variant)) for fault, variant in found if fault not in _OF_ALL_CALLS)


def in_prompt(found: Iterable[Description]) -> Iterator[Description]:
    """The same mistakes in the prompt alone."""
    return ((fault, prompt_only(variant)) for fault, variant in found if fault not in _OF_ALL_CALLS)


GENERATORS = (one_role, one_tensor)
