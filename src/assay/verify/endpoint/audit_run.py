"""An audit: can this endpoint be read, does it serve the claimed model, and if not, what does it serve?

Texts are asked until the claim is rejected, until every first alternative is excluded, or until the budget of tokens is
spent. Then come a repeated request, a few conversations and a few draws. A claim that fails is held against more
alternatives, the cheap ones first. docs/explanation/audit.md has the method.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from assay.errors import AssayError
from assay.models import Model
from assay.system.stages import note
from assay.text import ChatTemplate
from assay.verify.endpoint import probe_texts
from assay.verify.endpoint.alternatives import (
    Alternative,
    beginnings,
    chat_prompts,
    cut_prompts,
    first_alternatives,
    longer_beginning,
    other_feeds,
    penalties,
    temperatures,
    tokenizer_faults,
)
from assay.verify.endpoint.asking import Interviewer
from assay.verify.endpoint.audit_findings import AuditFinding, AuditOptions, AuditResult, AuditVerdict
from assay.verify.endpoint.claimed_model import ClaimedModel, coarse_companion
from assay.verify.endpoint.client import Client
from assay.verify.endpoint.draw_settings import DrawnToken
from assay.verify.endpoint.greedy_tokens import (
    FACT,
    NO_CHANCE,
    NOT_BEST,
    Again,
    asked_again,
    below_best,
    is_default,
    judged_greedy,
)
from assay.verify.endpoint.left_over import PAIRS, ask_in_pairs
from assay.verify.endpoint.model_search import MORE_TEXTS, ModelSearch, explained, usual
from assay.verify.endpoint.own_draws import TOKENS as DRAWN
from assay.verify.endpoint.own_draws import Repeat, judged_draws, judged_repeats, repeats
from assay.verify.endpoint.served_text import Place, ServedText, differences, place_losses
from assay.verify.endpoint.spelled_text import respelled, spelled_repeats
from assay.verify.endpoint.standings import LIKELY, Scoreboard
from assay.verify.endpoint.wagers import distance_path
from assay.verify.endpoint.wire import Unanswered

Say = Callable[[str], None]
TOKENS = 480  # generated tokens to spend with log-probabilities
TOKENS_ALONE = 3000  # and without
EACH, EACH_ALONE = 12, 32  # generated tokens of a text
MOST_PROMPT = 128  # tokens of a text that was drawn
SHORT_PROMPT = 24  # the same where the server's context has no room for more
NO_ROOM = ("context", "too long", "maximum")  # words of its refusal
LEAST_TEXTS, LEAST_TEXTS_ALONE = 4, 8
NAMING_TEXTS = 6  # texts on which alternatives are compared, once the claim has failed
MOST_GAPS, MOSTLY = 20, 0.75  # answers with hidden tokens, and their share, that make an endpoint unreadable
CHATS, CHAT_TOKENS = 3, 12
PLAIN = 0.8  # share of the places of conversations that have to come again as plain texts, to show that these are right
FOREIGN = 0.3  # share of tokens that are not of the claimed vocabulary
FOREIGN_LEAST = 10  # tokens before that share counts
COUNTED = (
    0.5  # in a hidden change of the prompt that shows in the server's count of tokens alone: servers count otherwise
)
PROVEN_DRAWS = 2  # greedy tokens below the server's own best that prove a temperature
SEED_TEXTS = 8  # texts that two seeds continue at most
SAME_REQUESTS = 3  # that are all answered otherwise where tokens are drawn
SAME_TEXTS = 3  # texts of such requests at most; with text alone, some answers are too short to differ
AS_FAR = 1.5  # a server is as far from the claim as an alternative within this factor
BY_SIZE = 0.3  # confidence in a name that rests on the size of errors alone
EIGHT_BITS = "the file is in floats: weights in 8 bits are within the noise that is allowed, and not told from it"
LEAST_NAME = 0.05  # a name that does not fit, with less confidence, is not given


def audit_endpoint(
    model: Model, client: Client, options: AuditOptions | None = None, progress: Say | None = None
) -> AuditResult:
    """Ask the server at `client` and say whether it serves `model`."""
    options = options or AuditOptions()
    with ClaimedModel(model, threads=options.threads, engine=options.compute) as claimed, np.errstate(all="ignore"):
        return _Audit(model, client, claimed, options, progress or note).run()


@dataclass
class _Audit:
    """The state of an audit."""

    model: Model
    client: Client
    claimed: ClaimedModel
    options: AuditOptions
    say: Say
    findings: list[AuditFinding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    asked: list[ServedText] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tokenizer = self.client.tokenizer
        self.template = ChatTemplate.from_gguf(self.model.file, self.tokenizer)
        self.interviewer = Interviewer(self.client, self.template)
        self.board = Scoreboard(self.claimed, self.options.alpha, coarse=coarse_companion(self.model))
        self.search = ModelSearch(self.model, self.claimed, self.options, self.say, self.notes)
        self.started = time.monotonic()

    def run(self) -> AuditResult:
        for alternative in first_alternatives(self.model, self.tokenizer):
            self.board.register(alternative)
        self._texts()
        if self.client.unanswered and not self._alarm():
            return self._result()
        self._temperature()
        if self._other_vocabulary():
            return self._result()
        if self._alarm():
            self._what_is_it()
            return self._result()
        self._again()
        if self.findings:
            return self._result()
        if self.options.chat and self.interviewer.reading.completions:
            self._conversations()
        reading = self.interviewer.reading
        if self.options.draws and not self.findings and reading.top and reading.completions:
            self.say("drawing tokens at temperature 1")
            self.findings += judged_draws(self.client, self._drawn, reading.top, self.options.alpha, self.notes)
        elif self.options.draws and not self.findings and reading.completions:
            self.say("drawing tokens with two seeds")
            self._seeds()
        return self._result()

    # --- texts

    def _texts(self) -> None:
        """Ask until the question is decided or the budget is spent."""
        each, budget = self._begin()
        for i in self._more_texts():
            spent = self.interviewer.reading.tokens
            if spent >= budget or self._decided():
                break
            self.say(f"asking for a continuation ({spent} of at most {budget} tokens)")
            try:
                self._add(self._answer_to(i, each))
            except Unanswered as error:
                self.notes.append(f"no more texts: {error}")
                break
            except AssayError as error:
                if not self.options.prompts:
                    raise
                self.notes.append(f"a given text was refused: {error}")
            if self._mostly_foreign() or self._unreadable():
                break
        else:
            if self.options.prompts and not self._decided():
                self.notes.append("all given texts were asked about; more of them would decide")

    def _begin(self) -> tuple[int, int]:
        self.say("asking for a continuation and its log-probabilities")
        drawn = probe_texts.texts(self.options.seed, 120)
        self._drawn = self.options.prompts or tuple(self._fitted(text, MOST_PROMPT) for text in drawn)
        first = self._answer_to(0, EACH, self.interviewer.begin)
        reading = self.interviewer.reading
        self._add(first)
        if reading.top and reading.completions and len(self._drawn) > 1:
            self._add_echo(self.interviewer.try_echo(self._drawn[1]))
        budget = self.options.tokens or (TOKENS if reading.top else TOKENS_ALONE)
        each = EACH if reading.top else EACH_ALONE
        most = -(-budget // each)
        self.say(
            f"the answers show {reading.mode}: at most {budget} tokens in {most} requests, and a few for chat and draws"
        )
        return each, budget

    def _answer_to(self, i: int, n: int, ask: Callable[[str, int], ServedText] | None = None) -> ServedText:
        """The answer to a text that was drawn. If the server has no room for it, all texts get shorter."""
        ask = ask or self.interviewer.text
        try:
            return ask(self._drawn[i], n)
        except Unanswered:
            raise
        except AssayError as error:
            shorter = self.options.prompts or tuple(self._fitted(text, SHORT_PROMPT) for text in self._drawn)
            if shorter == self._drawn or not any(word in str(error) for word in NO_ROOM):
                raise
            self.notes.append(f"texts were cut to {SHORT_PROMPT} tokens, because one was refused: {error}")
            self._drawn = shorter
            return ask(self._drawn[i], n)

    def _fitted(self, text: str, most: int) -> str:
        """The last words of a text that fit into a quarter of the context; vocabularies of bytes make many tokens."""
        most = min(most, self.model.hparams.n_ctx_train // 4)
        words = text.split(" ")
        while len(words) > 2 and len(self.tokenizer.encode(" ".join(words))) > most:
            words = words[max(1, len(words) // 5) :]
        return " ".join(words)

    def _more_texts(self) -> Iterator[int]:
        """Those after the first; the second one may have been echoed."""
        yield from range(2 if self.interviewer.reading.echo else 1, len(self._drawn))

    def _add(self, given: ServedText) -> None:
        served = respelled(given, self.claimed, self.tokenizer)
        self.asked.append(served)
        self.board.extra_noise = max(self.board.extra_noise, self.interviewer.reading.rounding)
        if served.places and not self._mostly_foreign():
            self.board.add(served)

    def _add_echo(self, served: ServedText | None) -> None:
        """Some servers show the scores of a prompt one place too early; both readings are tried."""
        if served is None:
            return
        later = [Place(p.row + 1, p.scores, None) for p in served.places if p.row + 1 <= len(served.ids)]
        moved = ServedText(served.ids, served.n_prompt, tuple(later), label=served.label)
        plain, shifted = (float(np.nanmean(place_losses(t, self.claimed.rows(t)))) for t in (served, moved))
        if shifted < 0.25 * plain:
            self.interviewer.reading.echo_shift = 1
            self.notes.append("the server's echo shows the scores of a prompt one place too early; they were moved")
            served = moved
        self._add(served)

    def _unreadable(self) -> bool:
        gaps = sum(not served.places for served in self.asked)
        return gaps > MOST_GAPS and gaps > MOSTLY * len(self.asked)

    def _alarm(self) -> bool:
        path = self.board.evidence_path()
        return bool(path) and max(path) >= self.board.goal

    def _decided(self) -> bool:
        if self._alarm():
            return len(self.board.texts) >= NAMING_TEXTS
        if self.board.suspicious:
            return False
        states = [self.board.standing(name).state for name in self.board.registered]
        least = LEAST_TEXTS_ALONE if self.board.alone else LEAST_TEXTS
        return len(self.board.texts) >= least and "undecided" not in states and "nearer" not in states

    # --- facts that no model explains

    def _temperature(self) -> None:
        """Tokens that are not the best ones, and whether they come again."""
        chosen = self.interviewer.reading.chosen
        if sum(below_best(step) > NOT_BEST for step in chosen) < PROVEN_DRAWS:
            return
        chosen, again = chosen[:], Again()
        texts = [text for text in self.asked if text.places and not text.chat]
        self.say("asking for the same continuations again")
        with suppress(AssayError):
            if not self.client.unanswered:
                again = asked_again(chosen, [text.ids for text in texts], lambda i: self._second(texts[i]))
        found = judged_greedy(chosen, again)
        off = sum(below_best(step) > NOT_BEST for step in chosen) / len(chosen)
        by_chance = again.drawn and off * SAME_TEXTS * EACH < -math.log(NO_CHANCE)  # draws may all be the best ones
        if by_chance or not self._by_default(texts, chosen):
            self.findings.append(found)
            return
        self.notes.append(f"by default, and not where a request switches it off: {found.words}")

    def _by_default(self, texts: Sequence[ServedText], chosen: Sequence[DrawnToken]) -> bool:
        try:
            return is_default(self.client, texts, chosen, EACH, self.interviewer.reading.top)
        except AssayError:
            return False

    def _second(self, text: ServedText) -> tuple[int, ...]:
        return self.interviewer.text(text.label, len(text.places)).ids

    def _mostly_foreign(self) -> bool:
        seen = self.interviewer.reading
        return seen.readable >= FOREIGN_LEAST and seen.foreign > FOREIGN * seen.readable

    def _other_vocabulary(self) -> bool:
        seen = self.interviewer.reading
        if not self._mostly_foreign():
            return False
        words = f"another model: {seen.foreign} of {seen.readable} tokens are not of the claimed vocabulary"
        self.findings.append(AuditFinding("model", words, FACT))
        return True

    # --- what is it?

    def _what_is_it(self) -> None:
        self.say("the answers are not those of the claimed model; trying alternatives")
        if self.board.alone and self._differs_each_time():
            for alternative in temperatures():
                self.board.consider(alternative)
        if self.board.alone:
            self.search.consider(penalties(), self.board)
        self.search.consider(self._other_prompts(), self.board)
        if not explained(self.board) and self._left_over():
            return
        self.search.try_models(self.board)
        self._name(self.board, "model")

    def _differs_each_time(self) -> bool:
        """Is one text continued in a new way each time? Noise gives a second way; more of them point at draws.

        Only then are temperatures tried: draws are so uncertain that they fit every other model as well.
        """
        try:
            for first in [served for served in self.asked if served.places][:SAME_TEXTS]:
                again = [self.interviewer.text(first.label, EACH_ALONE) for _ in range(SAME_REQUESTS)]
                if len({served.ids for served in again}) == SAME_REQUESTS:
                    return True
        except AssayError as error:
            self.notes.append(f"the same request again: {error}")
        return False

    def _other_prompts(self) -> Iterator[Alternative]:
        yield from beginnings(self.tokenizer)
        counts = self.interviewer.reading.counts
        more = {found - expected for expected, found in counts}
        yield from longer_beginning(self.tokenizer, min(more) if len(more) == 1 else 0)
        yield from tokenizer_faults(self.model, self.tokenizer, self.board.texts)
        yield from cut_prompts(self.tokenizer, [t for t in self.board.texts if not t.chat], counts)
        if not self.interviewer.reading.completions and self.template is not None:
            talks = [[{"role": "user", "content": t.label}] for t in self.board.texts if t.chat]
            yield from chat_prompts(self.tokenizer, self.template, talks)
        yield from other_feeds()

    def _left_over(self) -> bool:
        """Name a cache that still holds the request before, if that explains what follows it."""
        self.say("asking for texts after others")
        fresh = self._drawn[-2 * PAIRS :]  # not asked for yet, unless there are few
        try:
            served, alternative = ask_in_pairs(self.interviewer, self.claimed, fresh, EACH)
        except AssayError as error:
            self.notes.append(f"texts after others: {error}")
            return False
        board = self._board()
        for text in served:
            board.add(text)
        board.consider(alternative)
        if not explained(board):
            return False
        self._name(board, "requests")
        return True

    def _board(self) -> Scoreboard:
        """A board for other texts, with the same noise of printed numbers."""
        return Scoreboard(self.claimed, self.options.alpha, self.board.extra_noise, self.board.coarse)

    def _name(self, board: Scoreboard, area: str) -> None:
        """Add the finding that the standings support."""
        odds = max(board.evidence_path(), default=0.0)
        for near in board.best()[:1]:
            if not board.fits(near.name):
                board.add_companion(near.name, MORE_TEXTS if near.alternative.slow else None)
        likely = board.likely()
        if not likely and not board.alone and self._name_by_size(board, area, odds):
            return
        if not likely:
            self.findings.append(AuditFinding(area, self._unexplained(board), 0.0, evidence=odds, fits=False))
            return
        lead, confidence = likely[0]
        tied = [s for s, other in likely[1:] if other >= LIKELY * confidence]
        fits, found = board.fits(lead.name), lead.alternative
        if not fits and confidence < LEAST_NAME:
            words = f"{self._unexplained(board)}; nearest to {found.words}, which does not fit"
            self.findings.append(AuditFinding(area, words, 0.0, evidence=max(odds, lead.favour), fits=False))
            return
        self.findings.append(
            AuditFinding(
                found.family if found.family in ("prompt", "requests", "sampling") else area,
                found.words if fits else f"nearest to {found.words}, which does not fit",
                confidence, found.fault, max(odds, lead.favour), tuple(s.alternative.words for s in tied),
                tuple(s.alternative.fault for s in tied if s.alternative.fault), fits,
            )
        )  # fmt: skip

    def _name_by_size(self, board: Scoreboard, area: str, odds: float) -> bool:
        """Name a cache in few bits by how far it is from the claim, where its errors are no more than chance.

        Rounding to four bits turns a small difference of arithmetic into a step, so no simulation gives a server's own
        errors. Their size is the same.
        """
        coarse = [a for a in board.alternatives.values() if a.family == "cache" and not a.honest]
        found = []
        for alternative in coarse:
            board.add_companion(alternative.name, MORE_TEXTS)
            size = board.size_of(alternative.name)
            if size.unsteady and 1 / AS_FAR < size.ratio < AS_FAR:
                found.append((abs(math.log(size.ratio)), alternative, size))
        if not found:
            return False
        found.sort(key=lambda row: row[0])
        _, lead, size = found[0]
        words = (
            f"as far from the claim as {lead.words} would be ({size.served:.2f} nats; expected {size.expected:.2f}); "
            "other coarse arithmetic or a fine-tune may be as far"
        )
        others = tuple(a.words for _, a, _ in found[1:])
        self.findings.append(AuditFinding(area, words, BY_SIZE, lead.fault, odds, others, fits=False))
        return True

    def _unexplained(self, board: Scoreboard) -> str:
        """Words for answers that nothing in the list explains; fluent ones point at another model."""
        gaps = [
            float(row.max() - row[place.token])
            for text in board.texts
            for place, row in zip(text.places, self.claimed.rows(text), strict=True)
            if place.token is not None
        ]
        usual = float(np.median(gaps)) if gaps else math.inf
        more = {found - expected for expected, found in self.interviewer.reading.counts}
        if len(more) == 1 and min(more) > 0:
            return (
                f"the server counts {_more(min(more))} tokens than every text has: something is put in front of it, "
                "or another tokenizer cuts it"
            )
        if len(more) > 1 and max(more) <= 0:
            return (
                "the server counts fewer tokens than some texts have: prompts are cut, or its tokenizer is another one"
            )
        if len(more) > 1:
            return "not the claimed model; the server counts the tokens of texts otherwise, so another model is likely"
        if usual < 1.0:
            whole = all(t.type.block_size == 1 for t in self.model.file.tensors.values())
            rounded = "" if whole else "weights of the same original rounded in another way or to more bits, "
            return (
                f"not the claimed model; its answers are fluent, so another model, a fine-tune of it, {rounded}or "
                "coarser arithmetic is likely, such as keys and values in four bits"
            )
        return "not the claimed model; its answers are not fluent, so a mistake of the engine is likely"

    # --- the same request again

    def _again(self) -> None:
        """Equal requests may differ within noise: prefix caches and batches change sums. More than that is a fault.

        The bets on the second answer begin with a capital of their own: this is another statement than the claim.
        """
        first = self.asked[0]
        try:
            second = self.interviewer.text(first.label, len(first.places))
        except AssayError as error:
            self.notes.append(f"the same request again: {error}")
            return
        gaps = differences(first, second)
        if gaps:
            usual = math.sqrt(float(np.mean(np.square(gaps))))
            if usual > 1e-4:
                self.notes.append(
                    f"two equal requests differ by {usual:.2g} nats, as with a prefix cache or other batches"
                )
        path = self._alone_again(second) if self.board.alone else self._bets_on(second)
        if max(path, default=0.0) >= self.board.goal and not self._left_over():
            words, evidence = "the second of two equal requests is answered otherwise", max(path)
            self.findings.append(
                AuditFinding("requests", words, 1 - math.exp(-evidence), evidence=evidence, fits=False)
            )

    def _bets_on(self, second: ServedText) -> list[float]:
        known = len(self.board.ratios())
        self._add(second)
        return distance_path(self.board.ratios()[known:])

    def _alone_again(self, second: ServedText) -> list[float]:
        """The same text has the same near ties, so it is no new evidence against the claim."""
        board, served = self._board(), respelled(second, self.claimed, self.tokenizer)
        if not served.places:
            return []
        board.add(served)
        return board.evidence_path()

    def _seeds(self) -> None:
        """Do two seeds draw the same tokens? Without log-probabilities this is all that draws show.

        Texts are drawn until one seed parts from the other, or until that is no chance.
        """
        pairs = list[list[Repeat]]()
        try:
            for text in self._drawn[:SEED_TEXTS]:
                first, second = (self.interviewer.drawn(text, DRAWN, seed) for seed in (1001, 1002))
                if first.spelling is not None and second.spelling is not None:
                    pairs.append(spelled_repeats(first, second, self.claimed, self.tokenizer))
                else:
                    pairs.append(repeats(first, second, self.claimed))
                found = judged_repeats(pairs, self.options.alpha, filtered=not self.interviewer.unfiltered)
                if found or not all(repeat.same for pair in pairs for repeat in pair):
                    self.findings += found
                    return
        except AssayError as error:
            self.notes.append(f"drawing was not tried: {error}")

    # --- conversations

    def _conversations(self) -> None:
        if self.template is None:
            return
        drawn = [self._fitted(q, MOST_PROMPT) for q in probe_texts.questions(self.options.seed, CHATS)]
        talks = [[{"role": "user", "content": q}] for q in drawn]
        board = self._board()
        self.say("asking for answers to a few messages")
        try:
            for messages in talks:
                served = respelled(self.interviewer.chat(messages, CHAT_TOKENS), self.claimed, self.tokenizer)
                if served.places:
                    board.add(served)
        except AssayError as error:
            self.notes.append(f"chat was not tried: {error}")
            return
        self.interviewer.reading.chat = True
        counts = self.interviewer.reading.chat_counts
        extra = {found - expected for expected, found in counts}
        plain = {found - expected for expected, found in self.interviewer.reading.counts}
        far = bool(board.evidence_path()) and max(board.evidence_path()) >= board.goal
        if not far and (not extra or extra == plain or extra == {0}):
            self._stopping(board.texts)
            return
        as_long = list[Alternative]()
        for alternative in chat_prompts(self.tokenizer, self.template, talks):
            if counts and not _right_length(alternative, counts):
                continue
            as_long.append(alternative)
            board.consider(alternative)
            best = [] if board.alone else board.best()  # tokens alone may fit several prompts of one length
            if best and board.fits(best[0].name) and best[0].distance < 0.5 * (usual(board.claim) or 1.0):
                break
        self._name_prompt(board, extra, far, as_long)

    def _name_prompt(self, board: Scoreboard, extra: set[int], far: bool, as_long: Sequence[Alternative]) -> None:
        """Name the prompt of the conversations. `extra` tokens are more than the claimed template makes; `as_long` are
        the listed prompts of the right length."""
        odds = max(board.evidence_path(), default=0.0)
        likely = [(s, c) for s, c in board.likely() if board.fits(s.name)]
        more = f"; the server counts {_more(min(extra))} tokens than the claimed template makes" if extra - {0} else ""
        if likely:
            lead, confidence = likely[0]
            tied = tuple(s.alternative.words for s, other in likely[1:] if other >= LIKELY * confidence)
            words, fault = f"chat prompt: {lead.alternative.words}{more}", lead.alternative.fault
            self.findings.append(AuditFinding("prompt", words, confidence, fault, odds, tied))
        elif far and extra <= {0} and self._not_the_prompt(board):
            return
        elif far or extra - {0}:
            words = f"chat prompt: changed in a way that is not in the list, such as a hidden system message{more}"
            confidence, tied = (1 - math.exp(-odds) if far else COUNTED), tuple[str, ...]()
            if as_long and (board.alone or not far):  # without log-probabilities, the right prompt need not fit
                confidence = COUNTED
                words, *tied_words = (f"chat prompt: as long as with {a.words}{more}" for a in as_long)
                tied = tuple(tied_words)
            self.findings.append(AuditFinding("prompt", words, confidence, "", odds, tied, fits=False))

    def _model_in(self, chats: Scoreboard) -> bool:
        """Name another model that conversations show and texts did not: their prompts have the claimed length."""
        board = self._board()
        for text in (*chats.texts, *self.board.texts):
            board.add(text)
        self.search.try_models(board)
        if explained(board):
            self._name(board, "model")
        return explained(board)

    def _not_the_prompt(self, chats: Scoreboard) -> bool:
        """Ask for the same prompts as plain texts, which no template changes: what differs then is the model's.

        If the server cannot be asked so, the place stays open, and the finding says that.
        """
        board = self._board()
        try:
            for text in chats.texts:
                served = self._as_text(text)
                if served is not None:
                    board.add(served)
        except AssayError as error:
            self.notes.append(f"conversations as plain texts: {error}")
        reached = max(board.evidence_path(), default=0.0) if board.texts else 0.0
        if board.places >= PLAIN * chats.places and reached < board.goal / 2:
            return False
        differs = reached >= board.goal
        if self._model_in(board if differs else chats):
            return True
        if differs:
            self._name(board, "model")
            return True
        words = (
            "answers to conversations are not those of the claimed model with its template; the template or the "
            "engine may be at fault: the same prompts as plain texts could not be asked for, or do not decide"
        )
        odds = max(chats.evidence_path(), default=0.0)
        self.findings.append(AuditFinding("prompt", words, 0.0, evidence=odds, fits=False))
        return True

    def _as_text(self, chat: ServedText) -> ServedText | None:
        """The answer to a conversation whose prompt is sent as a text; None if the server makes other tokens of it."""
        assert self.template is not None
        text = self.template.render([{"role": "user", "content": chat.label}])
        bos = self.tokenizer.bos
        if self.tokenizer.add_bos and bos is not None:
            text = text.removeprefix(self.tokenizer.piece(bos).decode("utf-8", "replace"))
        if tuple(self.tokenizer.encode(text)) != chat.ids[: chat.n_prompt]:
            return None
        counts = self.interviewer.reading.counts
        known = len(counts)
        served = respelled(self.interviewer.text(text, CHAT_TOKENS), self.claimed, self.tokenizer)
        told = counts[known:]
        del counts[known:]
        return None if any(a != b for a, b in told) or not served.places else served

    def _stopping(self, texts: Iterable[ServedText]) -> None:
        """An answer that goes on after a token that ends it."""
        for text in texts:
            ends = [i for i, place in enumerate(text.places) if place.token in self.tokenizer.eog]
            if ends and ends[0] + 1 < len(text.places):
                self.findings.append(
                    AuditFinding("sampling", "goes on after a token that ends the answer", FACT, "gen-eos-set")
                )
                return

    # --- the answer

    def _result(self) -> AuditResult:
        board, reading = self.board, self.interviewer.reading
        path = board.evidence_path()
        standings = board.standings() if board.texts else []
        undecided = [s for s in standings if s.name in board.registered and s.state in ("undecided", "nearer")]
        is_open = bool(undecided) or board.suspicious or self.client.unanswered > 0
        verdict: AuditVerdict = "as claimed"
        if self.findings:
            verdict = "differs"
        elif is_open or not any(s.state == "excluded" for s in standings):
            verdict = "inconclusive"
        noise = board.noise()
        return AuditResult(
            verdict=verdict,
            findings=tuple(sorted(self.findings, key=lambda f: -f.confidence)),
            standings=tuple(standings),
            reading=reading,
            alpha=self.options.alpha,
            evidence=max(path, default=0.0),
            path=tuple(path),
            places=board.places,
            blocks=len(board.claim),
            noise=float(np.median(noise)) if noise else math.nan,
            distance=usual(board.claim) ** 0.5 if board.claim else math.nan,
            requests=self.client.requests,
            generated=self.client.generated,
            seconds=time.monotonic() - self.started,
            more_tokens=board.more_tokens() if verdict == "inconclusive" and board.texts else None,
            notes=(*reading.notes, *self.notes, *self._kept(), *([EIGHT_BITS] if board.coarse is not None else [])),
            unanswered=self.client.unanswered,
            area=self.findings[0].area if self.findings else "",
        )

    def _kept(self) -> list[str]:
        kept = self.client.kept
        return [f"{kept.used} of the answers are those of {kept.path}"] if kept is not None and kept.used else []


def _more(n: int) -> str:
    return f"{n} more" if n > 0 else f"{-n} fewer"


def _right_length(alternative: Alternative, counts: Sequence[tuple[int, int]]) -> bool:
    """Does the alternative make as many prompt tokens as the server counts?"""
    given = dict(counts)
    return all(given.get(len(right), len(other)) == len(other) for right, other in alternative.prompts.items())
