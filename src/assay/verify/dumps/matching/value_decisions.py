"""Values decide what words leave open: which reading, which node, which row.

Touch this module when a printed line has several meanings, and values choose the wrong one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from assay.models import Model
from assay.verify.dumps.matching.ambiguities import choose_readings
from assay.verify.dumps.matching.by_values import by_values, choose_alternatives, overrule_words
from assay.verify.dumps.matching.confirmed_later import Definition
from assay.verify.dumps.matching.heads import names_only_a_head
from assay.verify.dumps.matching.statement_nodes import assign_nodes
from assay.verify.dumps.matching.token_statistics import split_by_token
from assay.verify.dumps.observation import Observation

_HEAD = re.compile(r"(?<!\w)(?:h|head|hd) \d")


def decide_by_values(
    named: Sequence[Observation],
    unread: Sequence[Observation],
    model: Model,
    n: int,
    truth: Definition,
) -> tuple[list[Observation], set[str], list[str]]:
    """Decide by values what words leave open: readings, nodes, rows. Also the places of lines named by values."""
    named, by_token = split_by_token(named, model, n, truth)
    named, chosen = choose_alternatives(named, model, n, truth)
    open_ = [o for o in named if o.vague and o.kind != "values"]
    clear = [o for o in named if not (o.vague and o.kind != "values")]
    whole, places, first = assign_nodes(open_, unread, model, n, truth, complete=False)
    open_ = [o for o in whole if o.vague]
    clear += [o for o in whole if not o.vague]
    unread = [o for o in unread if o.where not in places]
    done, notes = by_values([*open_, *unread], model, n, truth) if open_ or unread else ([], [])
    found, note = choose_readings([*clear, *_confirmed(done, clear)], model, n, truth)
    found, more = overrule_words(found, model, n, truth)
    found, more_places, last = assign_nodes(found, [o for o in done if not o.name], model, n, truth)
    places |= more_places
    notes = [*by_token, *chosen, *first, *notes, *more, *last]
    return found, {o.where for o in done[len(open_) :] if o.name} | places, notes + note


def _confirmed(done: Sequence[Observation], clear: Sequence[Observation]) -> list[Observation]:
    """The observations that have a node. Two numbers below a layer are not its values, if other lines give these; nor
    are numbers below a layer and a head, of which the line does not say what they are."""
    known = {o.name for o in (*clear, *(o for o in done if not o.vague)) if o.kind == "first"}
    done = [o for o in done if not (o.vague and _HEAD.search(o.template) and names_only_a_head(o.template))]
    return [o for o in done if o.name and not (o.vague and o.kind == "first" and len(o.data) < 3 and o.name in known)]
