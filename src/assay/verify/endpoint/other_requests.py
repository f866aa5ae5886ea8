"""Does a server answer a prompt in the same way alone, after another request, and beside another request?

Some faults show only so: a state that is not cleared when a sequence begins, sequences that share a state or a row,
rows of padding that enter a state. The prompt is short, because a state forgets. The other prompts are longer, so that
a server which pads has to pad; two of them have the same number of tokens and different words. If the answer beside
both is wrong in the same way, padding is the cause, else the neighbour's tokens are.

`conformance/between_requests.py` tests an engine in the same way.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from assay.engines.reference import interpret
from assay.errors import AssayError
from assay.verify.diagnosis.fault_trials import ObservationFit
from assay.verify.diagnosis.result import Cause
from assay.verify.dumps.observation import inputs_of
from assay.verify.endpoint.client import Client, ServerReply
from assay.verify.endpoint.simulated import Array, SimulatedServer, case_of, cause_of, distance
from assay.verify.thresholds import ALLOWED, FLOOR

Progress = Callable[[str], None]
PROMPT = "The capital"
STEPS = 4  # tokens generated after the prompt
NEIGHBOURS = 3  # requests beside it
_WORDS = "one two three four five six seven eight nine ten"
LONGER = " ".join(["Count", *_WORDS.split() * 3])
OTHER = " ".join(["Count", *_WORDS.split()[::-1] * 3])  # as many tokens, in another order
_LEFT = 0.05  # of a deviation: what earlier requests, which are not known, may leave unexplained
AFTER, BESIDE = "request after another", "request beside another"


@dataclass(frozen=True)
class OddCompany:
    """A situation in which the prompt is answered otherwise than alone, and the cause."""

    situation: str
    cause: Cause

    @property
    def certain(self) -> bool:
        """Whether the answer is the one that this cause predicts."""
        return not self.cause.equivalent


def company(
    server: SimulatedServer, client: Client, allowed: float, say: Progress, notes: list[str]
) -> OddCompany | None:
    """None where the prompt is answered alike; otherwise the situation in which it is not, and why.

    The server's answers are compared with each other: how far they are from the definition is not judged here.
    """
    if len(client.tokenizer.encode(LONGER)) + STEPS > server.model.hparams.n_ctx_train:
        return None
    say("asking for a short prompt after another request")
    alone = client.complete(PROMPT, n=STEPS)
    before = client.complete(LONGER, n=STEPS)
    after = client.complete(PROMPT, n=STEPS)
    if not after.steps or not after.steps[0].scores:
        return None
    asked = _Prompt(server, client, allowed)
    if gap(alone, after) > asked.noise:
        return OddCompany(AFTER, asked.left_over(alone, before, after))
    if not client.is_remote:
        return None  # an engine in this process answers one request at a time
    say("asking for the same prompt beside longer ones")
    try:
        found = _beside(client, LONGER)
        if gap(after, found) <= asked.noise:
            return None
        return OddCompany(BESIDE, asked.mixed(found, _beside(client, OTHER)))
    except AssayError as error:
        notes.append(f"requests at the same time were not tried: {error}")
        return None


def _beside(client: Client, neighbour: str) -> ServerReply:
    """The prompt's answer while longer requests are answered, too."""
    together = threading.Barrier(NEIGHBOURS + 1)
    replies: dict[int, ServerReply | AssayError] = {}

    def ask(number: int) -> None:
        together.wait()
        try:
            replies[number] = client.complete(neighbour if number else PROMPT, n=STEPS)
        except AssayError as error:
            replies[number] = error

    threads = [threading.Thread(target=ask, args=(i,), daemon=True) for i in range(NEIGHBOURS + 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = replies[0]
    if isinstance(found, AssayError):
        raise found
    return found


class _Prompt:
    """The short prompt, and what the definition and known mistakes predict for it."""

    def __init__(self, server: SimulatedServer, client: Client, allowed: float) -> None:
        self.server, self.tokenizer, self.allowed = server, client.tokenizer, allowed
        self.ids = client.tokenizer.encode(PROMPT)
        self.keeps_state = bool(server.model.graph.state.per_sequence)
        self.noise = max(ALLOWED * FLOOR, allowed)  # answers of one server: cached prefixes and batches have kernels

    def fit(self, reply: ServerReply, logits: Callable[[Sequence[int]], Array] | None = None) -> ObservationFit:
        case = case_of("a short prompt", self.ids, reply, None)
        return distance(case.seen, (logits or self.server.logits)(case.tokens))

    def left_over(self, alone: ServerReply, before: ServerReply, reply: ServerReply) -> Cause:
        """The cause of a wrong answer after two other requests: the prompt itself, and the longer one."""
        held: list[int] = []
        for ids, answer in ((self.ids, alone), (self.tokenizer.encode(LONGER), before)):
            held += [*ids, *(step.id for step in answer.steps if step.id is not None)]
        right = self.fit(reply)
        fault, how = _cleared(self.keeps_state)
        # The last token of an answer is sent, and need not have been fed.
        fits = [self.fit(reply, partial(self._with_state_of, fed)) for fed in (held, held[:-1])]
        best = min(fits, key=lambda fit: fit.ratio)
        if self.keeps_state and best.ratio <= min(max(self.allowed, _LEFT * right.ratio), 0.3 * right.ratio):
            return cause_of(fault, AFTER, how, right, best, 1, self.allowed)
        others = ("kv-stale-request", "uninit") if self.keeps_state else ("uninit",)
        cause = cause_of(fault, AFTER, "the answer depends on the request before it", right, right, 1, self.allowed)
        return replace(cause, equivalent=others, confidence=0.9 / (1 + len(others)))

    def _with_state_of(self, held: Sequence[int], ids: Sequence[int]) -> Array:
        """Logits of `ids` where the states begin as `held` left them."""
        graph, weights = self.server.model.graph, self.server.weights
        shown = {node.name: node for node in graph if node.op in ("state_before", "state_after")}
        pairs = {
            before: after
            for before, b in shown.items()
            for after, a in shown.items()
            if b.op == "state_before" and a.op == "state_after" and a.inputs == b.inputs
        }
        env = inputs_of(held, range(len(held)))
        left = interpret(graph, weights, env, list(pairs.values()))
        given = {before: left[after] for before, after in pairs.items()}
        output = graph.output
        return interpret(graph, weights, inputs_of(ids, range(len(ids))) | given, [output])[output]

    def mixed(self, reply: ServerReply, other: ServerReply) -> Cause:
        """The cause of a wrong answer beside another request; `other` is the answer beside another one."""
        right = self.fit(reply)
        names: tuple[str, ...]
        if reply.text == other.text and gap(reply, other) <= self.noise:
            names = ("st-pad-enters", "st-pad-decays", "pos-padding") if self.keeps_state else ("pos-padding",)
            how = "the answer depends on the length of the request beside it: rows of padding enter"
        else:
            names = ("st-leak", "batch-row") if self.keeps_state else ("batch-row",)
            how = "the answer depends on the words of the request beside it"
        cause = cause_of(names[0], BESIDE, how, right, right, 1, self.allowed)
        return replace(cause, equivalent=names[1:], confidence=0.9 / len(names))


def _cleared(keeps_state: bool) -> tuple[str, str]:
    if keeps_state:
        return "st-leak", "the states begin as the request before left them"
    return "kv-stale-request", "the request reads the keys of the one before"


def gap(a: ServerReply, b: ServerReply) -> float:
    """Root mean square difference of the log-probabilities of two answers, as far as their texts agree.

    A token that only one answer lists is at most as probable as the last one that the other lists.
    """
    gaps: list[float] = []
    for mine, yours in zip(a.steps, b.steps, strict=False):
        for one, two in ((mine.scores, yours.scores), (yours.scores, mine.scores)):
            least = min(two.values(), default=0.0)
            gaps += [abs(x - two[i]) if i in two else max(0.0, x - least) for i, x in one.items()]
        if mine.text != yours.text:
            break
    return float(np.sqrt(np.mean(np.square(gaps)))) if gaps else 0.0
