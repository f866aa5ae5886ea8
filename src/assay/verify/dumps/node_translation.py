"""Foreign names of observations become nodes of the model's graph, by the caller's map or by the words.

Touch this module when a name with a meaning ends up among the unknown ones, or at a node that it does not mean.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from assay.errors import AssayError
from assay.graph import join
from assay.models import Model
from assay.verify.dumps.naming.foreign_names import ignored, translate
from assay.verify.dumps.observation import Observation
from assay.verify.dumps.unknown_names import same_role

_FINAL = {"final", "fin", "last", "end", "finished"}
_LETTER_ALONE = re.compile(r"(?:^|[._/])(?:q|k|query|key)$", re.IGNORECASE)


def translate_names(
    observations: list[Observation], model: Model, map: Mapping[str, str]
) -> tuple[list[Observation], list[Observation]]:
    """The observations that have a node of the model, and those that have none."""
    named, unknown = [], []
    for obs in observations:
        name = obs.name
        if name in map or obs.foreign in map:
            target = map.get(name) or map[obs.foreign]
            if target not in model.graph:
                raise AssayError(f"--map: {name}: {target} is no node of the model; `assay inspect --graph` lists them")
            named.append(replace(obs, name=target))
        elif found := candidates(obs, model):
            named.append(_renamed(obs, found, model))
        elif second := [other for other in obs.alternatives if candidates(other, model)]:
            named += [
                _renamed(other, candidates(other, model), model) for other in second
            ]  # the model has no such layer
        elif not ignored(name, obs.op):
            unknown.append(obs)
    return named, unknown


def _renamed(obs: Observation, nodes: tuple[str, ...], model: Model) -> Observation:
    """The observation, and those of its second reading, with nodes of this model."""
    second = ((other, candidates(other, model)) for other in obs.alternatives)
    alternatives = tuple(replace(other, name=found[0], others=found[1:]) for other, found in second if found)
    if (obs.name, obs.others, obs.alternatives) == (nodes[0], nodes[1:], alternatives):
        return obs
    return replace(obs, name=nodes[0], others=nodes[1:], alternatives=alternatives)


def candidates(obs: Observation, model: Model) -> tuple[str, ...]:
    """The nodes of this model that the observation's words may mean."""
    last = str(model.hparams.n_layer - 1)
    for several in ((obs.name, *obs.others), obs.fallbacks):
        names = [name.replace("-last", "-" + last) for name in several]
        if obs.template and not obs.fallbacks:  # words, not a name
            also = {name: [join(role, layer) for role, layer in same_role(name)] for name in names}
            # A node that the model lacks gives its place to the one that is so called in this architecture.
            names = [x for name in names for x in (name, *(also[name] if name not in model.graph else ()))]
            names += [x for name in also for x in also[name]]
        nodes = tuple(dict.fromkeys(f[0] for name in names if (f := translate(name, obs.op, model.graph))))
        if nodes and several is not obs.fallbacks and _LETTER_ALONE.search(obs.name) and obs.kind != "values":
            turned = tuple(name for name in obs.fallbacks if name in model.graph and name not in nodes)
            return (*nodes, *turned)  # layers.0.q: before or after the rotation
        if nodes:
            return nodes
    words = {*obs.template.split()}
    named = bool(_FINAL & words) and "norm" not in words  # rows of a final norm may be numbered as layers are
    behind = join("l_out", model.hparams.n_layer) in (obs.name, *obs.others) and named
    return ("result_norm", join("l_out", model.hparams.n_layer - 1)) if behind else ()  # x_final, one layer further
