"""Which ids a server fed for a text or a conversation: those of the file, or others that predict its answers better."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from assay.errors import AssayError
from assay.text import ChatTemplate, Tokenizer, encode_chat
from assay.text.builtin import TEMPLATES
from assay.text.compare import explain as explain_ids
from assay.text.unigram import Unigram
from assay.text.vocab import SENTENCEPIECE
from assay.verify.diagnosis.fault_trials import ObservationFit
from assay.verify.diagnosis.result import Cause
from assay.verify.endpoint.client import Client, ServerReply
from assay.verify.endpoint.simulated import SeenDistribution, SimulatedServer, case_of, cause_of, distance

Progress = Callable[[str], None]
TEXT = "The capital of France is Paris. The capital of Italy is"
CHAT = "Name the capital of France."
GREEDY = 6


def scored_prompt(client: Client, say: Progress, notes: list[str]) -> ServerReply | None:
    """The prompt, scored by the server; None if it cannot."""
    say("asking for the prompt's own log-probabilities")
    for n in (0, 1):
        try:
            reply = client.complete(TEXT, n=n, echo=True)
        except AssayError:
            continue
        if reply.n_prompt > 1:
            return reply
    notes.append("the server does not score prompts; only what it generates was seen")
    return None


def text_prompt(
    server: SimulatedServer, tokenizer: Tokenizer, reply: ServerReply, scored: ServerReply | None, allowed: float
) -> tuple[Cause | None, list[int]]:
    """The ids that the server fed for the text: the file's, or others that predict its answers better."""
    right = tokenizer.encode(TEXT)
    count = scored.n_prompt if scored is not None else reply.prompt_tokens
    given = [s.id for s in scored.steps[: scored.n_prompt]] if scored is not None else []
    if given and None not in given:
        ids = [i for i in given if i is not None]
        findings = explain_ids(tokenizer, right, ids, text=TEXT)
        if findings:
            f = findings[0]
            return cause_of(
                f.fault, "inp_tokens", f.message, ObservationFit(8.0, 1.0, 8), ObservationFit(0.0, 0.0, 8), 1
            ), ids
        return None, right
    before = distance(case_of("", right, reply, scored).seen, server.logits(case_of("", right, reply, scored).tokens))
    if before.ratio <= allowed and count in (None, len(right)):
        return None, right
    for fault, how, ids in _other_ids(server, tokenizer, right):
        if count is None or count == len(ids):
            case = case_of("", ids, reply, scored)
            after = distance(case.seen, server.logits(case.tokens))
            if after.ratio <= allowed:
                return cause_of(fault, "inp_tokens", how, before, after, 4, allowed), ids
    return None, right


def _other_ids(server: SimulatedServer, tokenizer: Tokenizer, right: list[int]) -> Iterator[tuple[str, str, list[int]]]:
    bos = tokenizer.bos
    if tokenizer.vocab.model == SENTENCEPIECE and tokenizer.vocab.scores is not None:
        begin = right[:1] if right[:1] == [bos] else []
        cut = begin + Unigram(server.model.file, tokenizer.vocab).encode(TEXT)
        how = f"by the best sum of scores, as unigram does: {len(cut)} tokens, not {len(right)}"
        yield "spm-merge-order", how, cut
    if bos is not None and right[:1] == [bos]:
        yield "bos-missing", "no BOS", right[1:]
        yield "bos-double", "BOS twice", [bos, *right]
    elif bos is not None:
        yield "bos-wrong-id", "a BOS that the file does not ask for", [bos, *right]
    yield "spm-space-prefix", "no space before the first word", tokenizer.encode(f"\n{TEXT}")[:1] + right[1:]


def chat_prompt(
    server: SimulatedServer, client: Client, allowed: float, say: Progress, notes: list[str]
) -> list[Cause] | None:
    """Causes in the prompt that the server built from a conversation."""
    tokenizer = client.tokenizer
    template = ChatTemplate.from_gguf(server.model.file, tokenizer)
    if template is None:
        return None
    say("asking for an answer to a chat")
    messages = [{"role": "user", "content": CHAT}]
    try:
        reply = client.chat(messages, n=GREEDY)
    except AssayError as error:
        notes.append(f"chat was not tried: {error}")
        return None
    if not reply.steps or not reply.steps[0].scores:
        return None
    seen = (SeenDistribution(1, dict(reply.steps[0].scores)),)

    def fit(ids: Sequence[int]) -> ObservationFit:
        return distance(seen, server.logits(ids)[-1:])

    right = encode_chat(tokenizer, template, messages)
    before = fit(right)
    if before.ratio <= allowed:
        return _stopping(tokenizer, reply)
    found = []
    for fault, how, ids in _other_prompts(tokenizer, template, messages, right):
        if ids != right and (reply.prompt_tokens is None or reply.prompt_tokens == len(ids)):
            after = fit(ids)
            if after.ratio <= allowed:
                found.append(cause_of(fault, "chat prompt", how, before, after, 12, allowed))
    return found[:1]


def _other_prompts(
    tokenizer: Tokenizer, template: ChatTemplate, messages: list[dict[str, str]], right: list[int]
) -> Iterator[tuple[str, str, list[int]]]:
    text = template.render(messages)
    yield "tmpl-missing", "the bare text without a template", tokenizer.encode(CHAT)
    yield (
        "tmpl-genprompt",
        "without the assistant's header",
        encode_chat(tokenizer, template, messages, add_generation_prompt=False),
    )
    if tokenizer.bos is not None:
        yield "bos-double", "BOS twice", [tokenizer.bos, *right]
        if right[:1] == [tokenizer.bos]:
            yield "bos-missing", "no BOS", right[1:]
    yield "special-as-text", "markers split like text", tokenizer.encode(text, parse_special=False)
    for name in TEMPLATES:
        try:
            other = encode_chat(tokenizer, ChatTemplate.named(name, tokenizer), messages)
        except AssayError:
            continue
        yield "tmpl-wrong-family", f"the template of {name}", other


def _stopping(tokenizer: Tokenizer, reply: ServerReply) -> list[Cause] | None:
    """The cause of tokens after one that ends the answer."""
    ids = [s.id for s in reply.steps]
    ends = [i for i, token in enumerate(ids) if token in tokenizer.eog]
    if ends and ends[0] + 1 < len(ids):
        how = f"went on after {tokenizer.show(ids[ends[0]] or 0)}"
        return [cause_of("gen-eos-set", "sampled", how, ObservationFit(100, 1, 8), ObservationFit(0, 0, 8), 1)]
    return None
