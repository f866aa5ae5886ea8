"""Mistakes in another program's token ids: each is made on purpose and must be named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from assay.gguf import open_file
from assay.text import ChatTemplate, Tokenizer, encode_chat
from assay.text.compare import Chat, TokenDifference, explain
from assay.text.pretokenize import PRETOKENIZERS
from tests.text.vocabs import CONTROL, bpe, tokenizer

ONE = [{"role": "user", "content": "1"}]
NOTE = [1, 29966, 29989, 1792, 29989, 29958, 13, 29896, 29966, 29989, 465, 22137, 29989, 29958]
TEXT = "Hello wonderful world 🦙 \n antidisestablishmentarianism"


@pytest.fixture(scope="module")
def llama(shared_dir: Path) -> Tokenizer:
    return Tokenizer.from_gguf(open_file(shared_dir / "data" / "vocab" / "ggml-vocab-llama-spm.gguf"))


@pytest.fixture(scope="module")
def chat(llama: Tokenizer) -> Chat:
    return Chat(ChatTemplate.named("zephyr", llama), ONE)


def faults(findings: list[TokenDifference]) -> list[str]:
    return [finding.fault for finding in findings]


def of_chat(llama: Tokenizer, chat: Chat, given: list[int]) -> list[TokenDifference]:
    return explain(llama, encode_chat(llama, chat.template, chat.messages), given, chat=chat)


def of_text(llama: Tokenizer, given: list[int], text: str = TEXT) -> list[TokenDifference]:
    return explain(llama, llama.encode(text), given, text=text)


def test_the_note(llama: Tokenizer, chat: Chat) -> None:
    """`</s>` and the newlines are missing, and the first text token has no space prefix (29966, not 529)."""
    found = of_chat(llama, chat, NOTE)
    assert faults(found) == ["spm-space-prefix", "tmpl-wrong-family", "tmpl-wrong-family", "tmpl-wrong-family"]
    assert found[0].expected == (529,) and found[0].given == (29966,) and found[0].at == 1
    assert "space prefix" in found[0].message
    assert found[1].expected == (2,) and "missing: 2 '</s>' after 29896 '1'" in found[1].message
    assert all(f.expected == (13,) and "missing: a newline" in f.message for f in found[2:])


def test_another_familys_template(llama: Tokenizer, chat: Chat) -> None:
    """What one note took for `<s> <|user|>` reads `<s> [INST] `."""
    (found,) = of_chat(llama, chat, [1, 518, 25580, 29962, 29871])
    assert found.fault == "tmpl-wrong-family" and "llama2 or mistral" in found.message and "[INST]" in found.message


@pytest.mark.parametrize("name", ["chatml", "llama3", "gemma", "phi3", "alpaca", "llama2"])
def test_template_named_exactly(llama: Tokenizer, chat: Chat, name: str) -> None:
    (found,) = of_chat(llama, chat, encode_chat(llama, ChatTemplate.named(name, llama), ONE))
    assert found.fault == "tmpl-wrong-family" and found.message.endswith(f"another template: {name}")


def test_ends(llama: Tokenizer, chat: Chat) -> None:
    right = encode_chat(llama, chat.template, ONE)
    assert of_chat(llama, chat, right) == []
    assert faults(of_chat(llama, chat, right[1:])) == ["bos-missing"]
    assert faults(of_chat(llama, chat, [1, *right])) == ["bos-double"]
    assert faults(of_chat(llama, chat, [0, *right[1:]])) == ["bos-wrong-id"]
    assert faults(of_chat(llama, chat, [*right, 2])) == ["eos-added"]
    assert faults(of_chat(llama, chat, right[:11])) == ["tmpl-genprompt"]
    assert faults(of_chat(llama, chat, [*right, *right[11:]])) == ["tmpl-genprompt"]
    assert faults(of_chat(llama, chat, llama.encode("1"))) == ["tmpl-missing"]


def test_special_token_as_text(llama: Tokenizer, chat: Chat) -> None:
    given = llama.encode(chat.template.render(ONE), parse_special=False)
    (found,) = of_chat(llama, chat, given)
    assert found.fault == "special-as-text" and "2 '</s>'" in found.message
    text = "a</s>b"
    (found,) = explain(llama, llama.encode(text, parse_special=False), llama.encode(text), text=text)
    assert found.fault == "special-as-text" and "taken for the special token" in found.message


def test_text_mistakes(llama: Tokenizer) -> None:
    right = llama.encode(TEXT)
    assert faults(of_text(llama, [1, llama.vocab.ids["Hello"], *right[2:]])) == ["spm-space-prefix"]
    dropped = of_text(llama, [i for i in right if not 3 <= i < 259])
    assert set(faults(dropped)) == {"byte-fallback"} and "'🦙' was dropped" in dropped[0].message
    unknown = of_text(llama, [0 if 3 <= i < 259 else i for i in right])
    assert set(faults(unknown)) == {"byte-fallback"} and "<unk>" in unknown[0].message
    assert faults(of_text(llama, [99999])) == ["vocab-type-mislabel"]
    assert faults(of_text(llama, [1, 3, 4, 5, 6, 7, 3000])) == ["vocab-type-mislabel"]
    template = llama.encode(f"[INST] {TEXT} [/INST]")
    assert faults(of_text(llama, template)) == ["tmpl-on-base"]


def test_longest_match_instead_of_merging(llama: Tokenizer) -> None:
    given, rest = [1], "▁antidisestablishmentarianism"
    while rest:
        n = max(n for n in range(1, len(rest) + 1) if rest[:n] in llama.vocab.ids)
        given.append(llama.vocab.ids[rest[:n]])
        rest = rest[n:]
    (found,) = of_text(llama, given, "antidisestablishmentarianism")
    assert found.fault == "spm-merge-order" and "longest match first" in found.message


def test_superfluous_space_prefix(tmp_path: Path, llama: Tokenizer) -> None:
    plain = Tokenizer(llama._file, replace(llama.vocab, add_space_prefix=False))
    assert faults(explain(plain, plain.encode("Hello"), llama.encode("Hello"), text="Hello")) == ["spm-space-prefix"]


def test_byte_level_mistakes(tmp_path: Path, shared_dir: Path) -> None:
    right = Tokenizer.from_gguf(open_file(shared_dir / "data" / "vocab" / "ggml-vocab-llama-bpe.gguf"))
    text = "It is 12345 today"

    def with_pre(name: str) -> list[int]:
        return right.with_pre(PRETOKENIZERS[name]).encode(text)

    expected = right.encode(text)
    (found,) = explain(right, expected, with_pre("starcoder"), text=text)
    assert found.fault == "bpe-pretok-regex" and "this vocabulary's is 'llama-bpe'" in found.message
    split = [right.vocab.ids[c] for c in "It"]
    assert faults(explain(right, expected, [expected[0], *split, *expected[2:]], text=text)) == ["bpe-ignore-merges"]
    one = right.encode("Hello world", add_special=False)
    letters = [right.vocab.ids[c] for c in "Helloworld"]
    assert faults(explain(right, one, letters, text="Hello world")) == ["byte-unicode-map"]
    llama = right.encode("a 🦙 b", add_special=False)
    assert faults(explain(right, llama, right.encode("a  b", add_special=False), text="a 🦙 b")) == ["byte-fallback"]


def test_token_across_words(tmp_path: Path) -> None:
    found = tokenizer(
        tmp_path / "m.gguf", bpe(["1 2", "12 3", "123 4"], pre="llama-bpe", bos_token_id=0, eos_token_id=1)
    )
    right = found.encode("1234", add_special=False)
    assert faults(explain(found, right, [found.vocab.ids["1234"]], text="1234")) == ["bpe-pretok-regex"]


def test_turn_marker_that_is_also_bos(tmp_path: Path) -> None:
    """SmolLM2's BOS is <|im_start|> and is not added: splitting it is no missing BOS."""
    found = tokenizer(
        tmp_path / "m.gguf",
        bpe(["h i"], {"<|im_start|>": CONTROL, "<|im_end|>": CONTROL}, bos_token_id=257, eos_token_id=258),
    )
    chat = Chat(ChatTemplate.named("chatml", found), [{"role": "user", "content": "hi"}])
    right = encode_chat(found, chat.template, chat.messages)
    given = found.encode(chat.template.render(chat.messages), parse_special=False)
    assert set(faults(explain(found, right, given, chat=chat))) == {"special-as-text"}
    assert faults(explain(found, right, [257, *right], chat=chat)) == ["bos-double"]


def test_very_long_ids_are_judged_at_the_first_difference(llama: Tokenizer) -> None:
    text = "a b c " * 8000
    right = llama.encode(text)
    given = [*right[:5], 3, *right[6:-1], 4]
    (found,) = explain(llama, right, given, text=text)
    assert found.at == 5
