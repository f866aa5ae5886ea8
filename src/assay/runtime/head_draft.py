"""Drafts of a draft head: a block that guesses the next tokens from rows that the model computes in any case.

The head reads the token at position p and a row of the model at p - 1, and guesses the token at p + 1. Its own row is
the next one that it reads, so it can guess several tokens in turn. The model's rows come with every step. The head
catches up with the certain tokens before it guesses: one pass over all of them.

Its keys and values lie in pages of the same numbers as the model's. So a prefix that is found in the cache is there for
the head, too. Of such a prefix, the row before its end is kept by page; a row that is not known is zero. A wrong guess
costs time and nothing else, so that is always allowed.

`DraftHead` says how a head is fed. `own_head` is the head in the model's own file (`models/draft_head.py`);
`head_alone.py`, `eagle_draft.py` and `assistant_draft.py` have heads in a file of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from assay.engines.contract import PAGE, Array, Chunk, PagedEngine, pages_for
from assay.errors import AssayError
from assay.gguf import GGUFFile
from assay.graph import Graph
from assay.graph.names import split
from assay.models import Model
from assay.models.draft_head import HIDDEN
from assay.runtime.pages import OutOfPages, Pages
from assay.runtime.sequence import Sequence
from assay.runtime.speculation import Drafter

_ROWS = "result_norm"
_BEHIND = 64  # rows of the model that may wait for the head before it is run for them alone


@dataclass(frozen=True)
class DraftHead:
    """A head and how it is fed. With `shift` 1, the pair of token p and row p - 1 has position p - 1 in the head; the
    first token of a sequence is not read. With 0 it has position p; the first token is read with a row of zeros. RoPE
    positions are `ahead` of the slots. The last `kept` numbers of a row stay the model's while the head guesses, and so
    does the place: they are keys and values, of which a guess has none."""

    name: str  # as given to --draft
    graph: Graph
    reads: tuple[str, ...]  # nodes of the model; their rows side by side are one row
    width: int  # of such a row
    given: str  # the value of `graph` that takes a row
    own: str  # its node whose row is given while it guesses
    model: Model | None = None  # the file with its weights; None: the model's own
    fuse: Graph | None = None  # applied to the model's rows first
    fuse_given: str = ""
    shift: int = 0
    tokens: Array | None = None  # the model's id of each of its logits; None: they are the same
    ahead: int = 0
    kept: int = 0


@dataclass
class _Behind:
    """Rows of a sequence that the head has not read: the model's rows from position `length` - 1 to `known` - 1."""

    length: int  # tokens that the head has read
    known: int  # positions whose rows the model has given
    rows: list[Array]


def own_head(model: Model) -> DraftHead:
    """The draft head of the model's own file. A file without one, or one that cannot be run, is refused."""
    if model.draft is not None:
        return DraftHead("mtp", model.draft, (_ROWS,), model.hparams.n_embd, HIDDEN, _ROWS)
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


def joined_with(file: GGUFFile, model: GGUFFile, taken: Mapping[str, str], where: str) -> GGUFFile:
    """A head's tensors, and those of its model that it takes: the name in the head's graph, and the model's."""
    if file.byteorder != model.byteorder:
        raise AssayError(f"{where}: has another byte order than the model ({file.byteorder}); convert it again")
    parts = list(file.parts)
    for name, source in taken.items():
        info = model.tensors[source]
        parts.append(replace(model.parts[info.part], tensors=(replace(info, name=name, part=len(parts)),)))
    return GGUFFile(file.path, tuple(parts))


class HeadDrafter(Drafter):
    """The `Drafter` over a draft head. `attach` makes its engines, beside the model's."""

    engine: PagedEngine
    _pages: Pages

    def __init__(self, head: DraftHead) -> None:
        self.head = head
        self.reads = head.reads
        self._behind: dict[Sequence, _Behind] = {}
        self._ends: dict[int, Array] = {}  # by page: the model's row at the page's last position
        self._fuse: PagedEngine | None = None
        self._open = False

    def attach(self, engine: PagedEngine, pages: Pages) -> None:
        head = self.head
        if engine.beside is None or {split(name)[0] for name in head.reads} & set(engine.cannot_keep):
            raise AssayError(f"--draft {head.name}: engine {engine.name} cannot run a draft head; use --engine cpu")
        self.close()  # of an earlier scheduler
        self._behind.clear()
        self._ends.clear()
        self.engine, self._pages, self._open = engine.beside(head.graph, engine.n_pages, head.model), pages, True
        if head.fuse:
            assert self.engine.beside
            self._fuse = self.engine.beside(head.fuse, 1, None)
        if self.engine.copy_page:
            pages.also_copy(self.engine.copy_page)

    def observe(self, sequence: Sequence, start: int, nodes: Mapping[str, Array]) -> None:
        lease = sequence.lease
        if not len(nodes[self.reads[0]]) or lease is None or sequence.job.max_tokens == 0:  # 0: a prompt is only scored
            return
        rows = np.concatenate([nodes[name].reshape(len(nodes[name]), -1) for name in self.reads], axis=1)
        pages, behind = lease.pages, self._behind.get(sequence)
        if behind is None or behind.known != start:  # a new sequence, or one that was preempted and resumed
            behind = self._behind[sequence] = self._begin(start, pages)
        behind.rows.extend(rows)
        behind.known = start + len(rows)
        for end in range(start - start % PAGE + PAGE, behind.known + 1, PAGE):
            self._ends[int(pages[end // PAGE - 1])] = rows[end - 1 - start].copy()
        prompted = behind.known == len(sequence.ids) - 1  # the next step may ask for a draft, which reads these rows
        if behind.known - behind.length > (_BEHIND if prompted else 0):
            self._run([(sequence, behind, behind.known)], "none")

    def _begin(self, start: int, pages: Array) -> _Behind:
        """Where a sequence begins or goes on, with the model's row before that position; zeros where it is unknown."""
        if not start and self.head.shift:
            return _Behind(1, 0, [])
        found = self._ends.get(int(pages[start // PAGE - 1])) if start and start % PAGE == 0 else None
        return _Behind(start, start, [np.zeros(self.head.width, self.engine.dtype) if found is None else found])

    def draft(self, wanted: dict[Sequence, int]) -> dict[Sequence, list[int]]:
        ready = [(s, self._behind[s], len(s.ids)) for s, n in wanted.items() if self._can_guess(s, n)]
        if not ready:
            return {}
        drafts, hidden = dict[Sequence, list[int]](), dict[Sequence, Array]()
        kept = {s: b.rows[end - b.length - 1][self.head.width - self.head.kept :] for s, b, end in ready}
        for (s, _, _), (token, row) in zip(ready, self._run(ready, "last"), strict=True):
            drafts[s], hidden[s] = [token], row
        for i in range(1, max(wanted[s] for s in drafts)):
            going, moved = [s for s in drafts if wanted[s] > i], 0 if self.head.kept else i
            chunks = [
                self._chunk(s, drafts[s][-1:], len(s.ids) - 1 + moved, np.append(hidden[s], kept[s])[None], "last")
                for s in going
            ]
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
        rows = self._fused([np.stack(b.rows[: end - b.length]) for _, b, end in work])
        found = self._forward(
            [
                self._chunk(s, s.ids[b.length : end], b.length, r, outputs)
                for (s, b, end), r in zip(work, rows, strict=True)
            ]
        )
        for _, behind, end in work:
            behind.rows, behind.length = behind.rows[end - behind.length :], end
        return found

    def _fused(self, rows: list[Array]) -> list[Array]:
        """The rows as the head's block takes them."""
        if self._fuse is None:
            return rows
        together = np.ascontiguousarray(np.concatenate(rows), self.engine.dtype)
        pages = np.zeros(pages_for(len(together)), np.int32)  # nothing is cached, so one page serves all positions
        chunk = Chunk(np.empty(0, np.int32), 0, pages, "all", rows={self.head.fuse_given: together})
        found = self._fuse.forward([chunk])[0].logits
        return np.split(found, np.cumsum([len(r) for r in rows])[:-1])

    def _chunk(self, sequence: Sequence, ids: list[int], place: int, rows: Array, outputs: str) -> Chunk:
        """Tokens from `place` of a sequence on, with a row before each."""
        assert sequence.lease
        given = {self.head.given: np.ascontiguousarray(rows, self.engine.dtype)}
        start = place - self.head.shift
        ahead = np.arange(start, start + len(ids), dtype=np.int32) + np.int32(self.head.ahead)
        positions = ahead if self.head.ahead else None
        return Chunk(np.array(ids, np.int32), start, sequence.lease.pages, outputs, positions, given)

    def _forward(self, chunks: list[Chunk]) -> list[tuple[int, Array]]:
        """The most probable token and the head's own last row of each chunk, if they are wanted."""
        if chunks[0].outputs != "last":
            self.engine.forward(chunks)
            return []
        own, tokens = self.head.own, self.head.tokens
        found = [(int(o.logits[-1].argmax()), o.nodes[own][-1]) for o in self.engine.forward(chunks, (own,))]
        return found if tokens is None else [(int(tokens[token]), row) for token, row in found]

    def forget(self, sequence: Sequence) -> None:
        self._behind.pop(sequence, None)

    def close(self) -> None:
        if self._open:
            self._open = False
            if self._fuse:
                self._fuse.close()
                self._fuse = None
            self.engine.close()
