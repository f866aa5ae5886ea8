"""Chat templates: the recorded cases, the limits, and BOS exactly once."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from assay.errors import AssayError
from assay.gguf import open_file
from assay.text import ChatTemplate, Tokenizer, encode_chat
from assay.text import template as module
from assay.text.builtin import TEMPLATES
from tests.text.vocabs import CONTROL, bpe, spm, tokenizer

HELLO = [{"role": "user", "content": "Hello"}]
TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello."},
    {"role": "user", "content": "Bye"},
]


def render(source: str, messages: list[dict[str, str]] | None = None, **arguments: Any) -> str:
    return ChatTemplate(source, name="t", bos="<s>", eos="</s>").render(messages or HELLO, **arguments)


def test_recorded_cases(shared_dir: Path) -> None:
    """36 real templates. One is not as recorded, and should not be: GigaChat's uses a variable that only its
    own tokenizer class provides, which llama.cpp does not run as Jinja either but replaces by built-in code."""
    recorded = json.loads((shared_dir / "data" / "golden" / "chat_template_cases.json").read_text())
    refused = []
    for case in recorded["cases"]:
        talk = [*recorded["conversation"], *case.get("extra_conversation", [])]
        messages = [{"role": role, "content": content} for role, content in talk]
        found = ChatTemplate(
            case["template_str"], name=case["name"], bos=case.get("bos_token", ""), eos=case.get("eos_token", "")
        )
        try:
            text = found.render(messages, add_generation_prompt=recorded["add_generation_prompt"])
        except AssayError as error:
            refused.append(str(error))
            continue
        assert text == (case.get("expected_output_jinja") or case["expected_output"]), case["name"]
    assert len(refused) == 1 and "'additional_special_tokens' is undefined" in refused[0]


HOSTILE = {
    "endless loop": ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "no result"),
    "string times a number": ("{{ 'a' * 10**10 }}", "too much memory"),
    "doubling": (
        "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "too much memory",
    ),
    "doubling by capture": (
        "{% set x = 'aaaaaaaa' %}" + "{% set x %}{{ x }}{{ x }}{% endset %}" * 60,
        "too much memory",
    ),
    "wide format": ("{{ '%999999999999d' | format(1) }}", "."),
    "padding": ("{{ 'a'.ljust(10**11) }}", "."),
    "endless output": (
        "{% for a in range(99999) %}{% for b in range(999) %}" + "x" * 99 + "{% endfor %}{% endfor %}",
        "too long",
    ),
    "recursion": ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recurses without end"),
    "deep nesting": ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "recurses without end"),
    "python": ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "may not"),
    "globals": ("{{ cycler.__init__.__globals__.os.popen('id').read() }}", "may not"),
    "attr filter": ("{{ ''|attr('__class__')|attr('__mro__') }}{{ (''|attr('__class__')).x }}", "."),
    "changing the messages": ("{{ messages.clear() }}", "may not"),
    "include": ("{% include '/etc/passwd' %}", "."),
    "import": ("{% import 'os' as os %}", "."),
    "syntax": ("{% for", "not valid Jinja"),
    "undefined": ("{{ x.y }}", "undefined variable"),
    "refusal": ("{{ raise_exception('only\npoems') }}", r"rejects these messages \(only poems\)"),
    "division": ("{{ 1 / 0 }}", "failed"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_template(name: str) -> None:
    source, words = HOSTILE[name]
    with pytest.raises(AssayError, match=words) as caught:
        render(source, timeout=60.0 if words == "too much memory" else 2.0)  # memory fills slowly beside other work
    assert "\n" not in str(caught.value) and "--raw" in str(caught.value)


def test_the_next_template_is_served_after_a_killed_one() -> None:
    with pytest.raises(AssayError, match="no result within"):
        render(HOSTILE["endless loop"][0], timeout=0.2)
    assert render("{{ messages[0].content }}") == "Hello"


def test_a_process_that_died_idle_is_replaced() -> None:
    module._box._quick._all[0].start().kill()
    assert render("a") == "a"


def test_threads_get_their_own_answers() -> None:
    found: dict[int, str] = {}

    def work(i: int) -> None:
        found[i] = render("{{ messages[0].content }}!", [{"role": "user", "content": str(i)}])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {i: f"{i}!" for i in range(16)}


def test_arguments_cannot_replace_the_callers_own() -> None:
    for name in ("messages", "bos_token", "eos_token"):
        extra: dict[str, Any] = {name: []}
        with pytest.raises((AssayError, TypeError)):
            ChatTemplate("{{ messages }}", name="t").render(HELLO, **extra)
    assert render("{{ mood }}{{ messages[0].content }}", mood="glad ") == "glad Hello"


def test_arguments_must_be_plain_data() -> None:
    with pytest.raises(AssayError, match="plain data"):
        render("a", thing=object())


def test_second_template_for_tools(tmp_path: Path) -> None:
    metadata = spm({"a": -1.0}) | {
        "tokenizer.chat_template": "plain",
        "tokenizer.chat_template.tool_use": "{{ tools[0].x }}",
    }
    found = tokenizer(tmp_path / "m.gguf", metadata)
    template = ChatTemplate.from_gguf(open_file(tmp_path / "m.gguf"), found)
    assert template is not None
    assert (template.render(HELLO), template.render(HELLO, tools=[{"x": 7}])) == ("plain", "7")


def test_too_long_a_template(tmp_path: Path) -> None:
    with pytest.raises(AssayError, match="too long"):
        ChatTemplate("x" * (module.MAX_TEMPLATE + 1), name="t")


def test_what_templates_expect_to_find() -> None:
    assert render("{{ bos_token }}{{ eos_token }}") == "<s></s>"
    assert render("{{ {'a': 'ü<'} | tojson }}") == '{"a": "ü<"}'
    assert render("{{ [1] | tojson(indent=2) }}") == "[\n  1\n]"
    assert render("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}") == "01"
    assert render("  {% if true %}\nx\n  {% endif %}\ny") == "x\ny"
    assert len(render("{{ strftime_now('%Y') }}")) == 4
    assert render("{% generation %}a{% endgeneration %}") == "a"
    assert render("{{ tools is none }}{{ add_generation_prompt }}", add_generation_prompt=False) == "TrueFalse"
    assert render("{{ messages[0].content }}", [{"role": "user", "content": "🦙\n\u2028"}]) == "🦙\n\u2028"


BUILTIN = {
    "chatml": "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello."
    "<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n",
    "llama2": "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHi [/INST] Hello. </s><s>[INST] Bye [/INST]",
    "llama3": "<s><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nHello.<|eot_id|><|start_header_id|>user"
    "<|end_header_id|>\n\nBye<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
    "zephyr": "<|system|>\nBe brief.</s>\n"
    "<|user|>\nHi</s>\n<|assistant|>\nHello.</s>\n<|user|>\nBye</s>\n<|assistant|>\n",
    "mistral": "<s>[INST] Be brief.\n\nHi [/INST] Hello.</s>[INST] Bye [/INST]",
    "phi3": "<|system|>\nBe brief.<|end|>\n<|user|>\nHi<|end|>\n<|assistant|>\nHello.<|end|>\n<|user|>\nBye<|end|>\n"
    "<|assistant|>\n",
    "gemma": "<s><start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n<start_of_turn>model\nHello.<end_of_turn>\n"
    "<start_of_turn>user\nBye<end_of_turn>\n<start_of_turn>model\n",
    "alpaca": "Be brief.\n\n"
    "### Instruction:\nHi\n\n### Response:\nHello.</s>\n\n### Instruction:\nBye\n\n### Response:\n",
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_builtin_template(name: str) -> None:
    assert render(TEMPLATES[name], TALK) == BUILTIN[name]


def test_template_by_name_or_file(tmp_path: Path) -> None:
    found = tokenizer(tmp_path / "m.gguf", spm({"a": -1.0}))
    assert ChatTemplate.named("zephyr", found).render(HELLO) == "<|user|>\nHello</s>\n<|assistant|>\n"
    (tmp_path / "own.jinja").write_text("{{ bos_token }}!")
    assert ChatTemplate.named(str(tmp_path / "own.jinja"), found).render(HELLO) == "<s>!"
    with pytest.raises(AssayError, match=r"no such template .*chatml"):
        ChatTemplate.named("nonsense", found)
    file = open_file(tmp_path / "m.gguf")
    assert ChatTemplate.from_gguf(file, found) is None
    with pytest.raises(AssayError, match=r"--raw .*zephyr"):
        ChatTemplate.choose(file, found)


@pytest.mark.parametrize(
    "source", ["{{ messages[0].content }}", "<s>{{ messages[0].content }}", "<s><s>{{ bos_token }}a"]
)
@pytest.mark.parametrize("add_bos", [True, False])
def test_bos_at_most_once(tmp_path: Path, source: str, add_bos: bool) -> None:
    found = tokenizer(tmp_path / "m.gguf", spm({"a": -1.0}, add_bos_token=add_bos, add_eos_token=True))
    ids = encode_chat(found, ChatTemplate(source, name="t", bos="<s>", eos="</s>"), HELLO)
    assert ids.count(1) == (1 if add_bos or "s>" in source else 0) and ids[-1] != found.eos


def test_no_bos_where_there_is_none(tmp_path: Path) -> None:
    found = tokenizer(tmp_path / "m.gguf", bpe(["H e"], {"<|im_start|>": CONTROL}))
    template = ChatTemplate.named("chatml", found)
    ids = encode_chat(found, template, HELLO)
    assert ids[0] == found.vocab.ids["<|im_start|>"] and found.decode(ids) == template.render(HELLO)


def test_recorded_chat_prompts(shared_dir: Path, smollm2: Path) -> None:
    file = open_file(smollm2)
    found = Tokenizer.from_gguf(file)
    template = ChatTemplate.from_gguf(file, found)
    assert template is not None
    golden = json.loads((shared_dir / "data" / "golden" / "smollm2_greedy.json").read_text())
    for case in golden["raw"]:
        assert found.encode(case["prompt"]) == case["prompt_ids"]
    for case in golden["chat"]:
        assert found.encode(case["prompt"]) == case["prompt_ids"]
        said = case["prompt"].split("<|im_start|>user\n")[1].split("<|im_end|>")[0]
        assert encode_chat(found, template, [{"role": "user", "content": said}]) == case["prompt_ids"]
