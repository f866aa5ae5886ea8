"""Token ids that differ from those of the model's tokenizer and chat template for the same text.

The ids are compared, no value is computed. Wrong ids explain every wrong value after them. A run on another sequence
than the ids of the dump say is found by `by_feeds`.
"""

from __future__ import annotations

from collections.abc import Sequence

from assay.gguf import GGUFFile
from assay.text import ChatTemplate, Tokenizer, encode_chat
from assay.text.compare import Chat, TokenDifference, explain
from assay.verify.diagnosis.result import Cause
from assay.verify.dumps.observation import Dump
from assay.verify.thresholds import SURE_OF_IDS

INPUT = "inp_tokens"


def expected_ids(
    file: GGUFFile, tokenizer: Tokenizer, text: str, *, chat: bool, system: str | None = None
) -> tuple[list[int], Chat | None]:
    """The ids that the file's own tokenizer and template give for the text."""
    if not chat:
        return tokenizer.encode(text), None
    messages = [{"role": "user", "content": text}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    how = Chat(ChatTemplate.choose(file, tokenizer, None), messages)
    return encode_chat(tokenizer, how.template, how.messages), how


def token_causes(
    tokenizer: Tokenizer, dump: Dump, expected: Sequence[int], text: str, chat: Chat | None
) -> list[Cause]:
    """Which token faults explain the ids that were fed. Generated tokens after the prompt are not judged."""
    given = list(dump.tokens)
    if given[: len(expected)] == list(expected):
        return []
    prompt = given[: dump.steps[0]] if len(dump.steps) > 1 else given
    findings = explain(tokenizer, expected, prompt, text=None if chat else text, chat=chat)
    return [cause_of(finding, len(findings)) for finding in findings]


def cause_of(finding: TokenDifference, n: int) -> Cause:
    return Cause(
        fault=finding.fault,
        node=INPUT,
        how=f"at {finding.at}: {finding.message}",
        nodes=(INPUT,),
        confidence=SURE_OF_IDS,
        explains=1.0 / max(n, 1),
        equivalent=(),
        before=float(len(finding.given)),
        after=0.0,
    )
