"""Drafts of the file's own draft head (`nextn_predict_layers`), with the model's engine and in the model's pages.

The head reads the token at position p and the model's row `result_norm` at p - 1, and guesses the token at p + 1. Its
own row is the next one that it reads, so it can guess several tokens in turn (`models/draft_head.py`). The model's rows
come with every step. The head catches up with the certain tokens before it guesses: one pass over all of them.

Its keys and values lie in pages of the same numbers as the model's. So a prefix that is found in the cache is there for
the head, too. Of such a prefix, the row before its end is kept by page; a row that is not known is zero, as at the
first token. A wrong guess costs time and nothing else, so that is always allowed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from assay.engines.contract import PAGE, Array, Chunk, PagedEngine
from assay.errors import AssayError
from assay.models import Model
from assay.models.draft_head import HIDDEN
from assay.runtime.pages import OutOfPages, Pages
from assay.runtime.sequence import Sequence
from assay.runtime.speculation import Drafter

ROWS = "result_norm"
_BEHIND = 64  # rows of the model that may wait for the head before it is run for them alone


@dataclass
class _Behind:
    """Rows of a sequence that the head has not read: the model's rows from position `length` - 1 to `known` - 1."""

    length: int  # positions whose keys and values the head has
    known: int  # positions whose rows the model has given
    rows: list[Array]


def check_head(model: Model) -> None:
    """Refuse a file that has no draft head, or one that cannot be run."""
    if model.draft is not None:
        return
    key = f"{model.hparams.arch}.nextn_predict_layers"
    found = model.file.metadata.get(key, 0)
    if found:
        why = f"its draft head cannot be run ({model.draft_fault or f'no head is defined for {model.hparams.arch}'})"
    else:
        why = f"it has no draft head (found no {key}, expected 1)"
    raise AssayError(
        f"--draft mtp: {model.file.path.name}: {why}; use a file with a draft head, or --draft MODEL with a small "
        "model of the same vocabulary"
    )


class HeadDrafter(Drafter):
    """The `Drafter` over a draft head. `attach` makes its engine, beside the model's."""

    reads = (ROWS,)
    engine: PagedEngine
    _pages: Pages

    def __init__(self, model: Model) -> None:
        self._model = model
        self._behind: dict[Sequence, _Behind] = {}
        self._ends: dict[int, Array] = {}  # by page: the model's row at the page's last position
        self._open = False

    def attach(self, engine: PagedEngine, pages: Pages) -> None:
        graph = self._model.draft
        if graph is None or engine.beside is None:
            raise AssayError(f"--draft mtp: engine {engine.name} cannot run a draft head; use --engine cpu")
        self.close()  # of an earlier scheduler
        self._behind.clear()
        self._ends.clear()
        self.engine, self._pages, self._open = engine.beside(graph, engine.n_pages), pages, True
        if self.engine.copy_page:
            pages.also_copy(self.engine.copy_page)

    def observe(self, sequence: Sequence, start: int, nodes: Mapping[str, Array]) -> None:
        rows, lease = nodes[ROWS], sequence.lease
        if not len(rows) or lease is None or sequence.job.max_tokens == 0:  # 0: a prompt is scored, none is guessed
            return
        pages, behind = lease.pages, self._behind.get(sequence)
        if behind is None or behind.known != start:  # a new sequence, or one that was preempted and resumed
            behind = self._behind[sequence] = _Behind(start, start, [self._row_before(start, pages)])
        behind.rows.extend(rows)
        behind.known = start + len(rows)
        for end in range(start - start % PAGE + PAGE, behind.known + 1, PAGE):
            self._ends[int(pages[end // PAGE - 1])] = rows[end - 1 - start].copy()
        prompted = behind.known == len(sequence.ids) - 1  # the next step may ask for a draft, which reads these rows
        if behind.known - behind.length > (_BEHIND if prompted else 0):
            self._run([(sequence, behind, behind.known)], "none")

    def _row_before(self, start: int, pages: Array) -> Array:
        """The model's row before a position where it goes on; zeros where it is not known."""
        found = self._ends.get(int(pages[start // PAGE - 1])) if start and start % PAGE == 0 else None
        return np.zeros(self._model.hparams.n_embd, self.engine.dtype) if found is None else found

    def draft(self, wanted: dict[Sequence, int]) -> dict[Sequence, list[int]]:
        ready = [(s, self._behind[s], len(s.ids)) for s, n in wanted.items() if self._can_guess(s, n)]
        if not ready:
            return {}
        drafts, hidden = dict[Sequence, list[int]](), dict[Sequence, Array]()
        for (s, _, _), (token, row) in zip(ready, self._run(ready, "last"), strict=True):
            drafts[s], hidden[s] = [token], row
        for i in range(1, max(wanted[s] for s in drafts)):
            going = [s for s in drafts if wanted[s] > i]
            chunks = [self._chunk(s, drafts[s][-1:], len(s.ids) + i - 1, hidden[s][None], "last") for s in going]
            for s, (token, row) in zip(going, self._forward(chunks), strict=True):
                drafts[s].append(token)
                hidden[s] = row
        return drafts

    def _can_guess(self, sequence: Sequence, n: int) -> bool:
        """Whether the head can guess n tokens: it has the row before the last token, and the pages have room."""
        behind, lease = self._behind.get(sequence), sequence.lease
        if behind is None or lease is None or not behind.rows:
            return False
        if not behind.known == lease.length == len(sequence.ids) - 1:
            return False
        try:
            self._pages.reserve(lease, n)
        except OutOfPages:
            return False
        return True

    def _run(self, work: list[tuple[Sequence, _Behind, int]], outputs: str) -> list[tuple[int, Array]]:
        """Read the tokens up to a position of each sequence, with the model's rows before them."""
        found = self._forward(
            [
                self._chunk(s, s.ids[b.length : end], b.length, np.stack(b.rows[: end - b.length]), outputs)
                for s, b, end in work
            ]
        )
        for _, behind, end in work:
            behind.rows, behind.length = behind.rows[end - behind.length :], end
        return found

    def _chunk(self, sequence: Sequence, ids: list[int], start: int, rows: Array, outputs: str) -> Chunk:
        assert sequence.lease
        given = {HIDDEN: np.ascontiguousarray(rows, self.engine.dtype)}
        return Chunk(np.array(ids, np.int32), start, sequence.lease.pages, outputs, rows=given)

    def _forward(self, chunks: list[Chunk]) -> list[tuple[int, Array]]:
        """The most probable token and the head's own last row of each chunk, if they are wanted."""
        wanted = chunks[0].outputs == "last"
        outputs = self.engine.forward(chunks, self.reads if wanted else ())
        return [(int(o.logits[-1].argmax()), o.nodes[ROWS][-1]) for o in outputs] if wanted else []

    def forget(self, sequence: Sequence) -> None:
        self._behind.pop(sequence, None)

    def close(self) -> None:
        if self._open:
            self._open = False
            self.engine.close()
