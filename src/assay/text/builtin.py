"""Built-in chat templates by name, for files without one: `--template NAME`.

Each is the published form of its family for system, user and assistant turns. `bos_token` and `eos_token` come
from the vocabulary; families whose turn markers are fixed texts name them.
"""

from __future__ import annotations

_TURNS = "{% for message in messages %}"
_END = "{% endfor %}"

# Families without a system role put the system message in front of the first user message.
_FOLD_SYSTEM = (
    "{% set first = messages[0] if messages and messages[0]['role'] == 'system' else none %}"
    "{% set turns = messages[1:] if first else messages %}"
)

TEMPLATES: dict[str, str] = {
    "chatml": (
        f"{_TURNS}{{{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}}}{_END}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
    ),
    "llama2": (
        f"{_FOLD_SYSTEM}"
        "{% for message in turns %}"
        "{% if message['role'] == 'user' %}"
        "{{ bos_token + '[INST] ' }}"
        "{% if loop.first and first %}{{ '<<SYS>>\\n' + first['content'] + '\\n<</SYS>>\\n\\n' }}{% endif %}"
        "{{ message['content'] + ' [/INST]' }}"
        "{% else %}{{ ' ' + message['content'] + ' ' + eos_token }}{% endif %}"
        f"{_END}"
    ),
    "llama3": (
        "{{ bos_token }}"
        f"{_TURNS}{{{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim"
        f" + '<|eot_id|>' }}}}{_END}"
        "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
    ),
    "zephyr": (
        f"{_TURNS}{{{{ '<|' + message['role'] + '|>\\n' + message['content'] + eos_token + '\\n' }}}}{_END}"
        "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"
    ),
    "mistral": (
        f"{_FOLD_SYSTEM}"
        "{{ bos_token }}"
        "{% for message in turns %}"
        "{% if message['role'] == 'user' %}"
        "{{ '[INST] ' + (first['content'] + '\\n\\n' if loop.first and first else '') + message['content']"
        " + ' [/INST]' }}"
        "{% else %}{{ ' ' + message['content'] + eos_token }}{% endif %}"
        f"{_END}"
    ),
    "phi3": (
        f"{_TURNS}{{{{ '<|' + message['role'] + '|>\\n' + message['content'] + '<|end|>\\n' }}}}{_END}"
        "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"
    ),
    "gemma": (
        f"{_FOLD_SYSTEM}"
        "{{ bos_token }}"
        "{% for message in turns %}"
        "{{ '<start_of_turn>' + ('model' if message['role'] == 'assistant' else message['role']) + '\\n'"
        " + (first['content'] + '\\n\\n' if loop.first and first else '') + message['content'] | trim"
        " + '<end_of_turn>\\n' }}"
        f"{_END}"
        "{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"
    ),
    "alpaca": (
        f"{_TURNS}"
        "{% if message['role'] == 'system' %}{{ message['content'] + '\\n\\n' }}"
        "{% elif message['role'] == 'user' %}{{ '### Instruction:\\n' + message['content'] + '\\n\\n' }}"
        "{% else %}{{ '### Response:\\n' + message['content'] + eos_token + '\\n\\n' }}{% endif %}"
        f"{_END}"
        "{% if add_generation_prompt %}{{ '### Response:\\n' }}{% endif %}"
    ),
}
