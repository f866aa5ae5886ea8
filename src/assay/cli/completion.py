"""`assay completion`: print a shell script that completes verbs, options, models and files."""

from __future__ import annotations

import argparse

from assay.cli import common

HELP = "print the completion script of bash, zsh or fish"
EXAMPLE = """
source <(assay completion bash)                          # in ~/.bashrc; likewise zsh in ~/.zshrc
assay completion fish > ~/.config/fish/completions/assay.fish
"""

_BASH = """\
_assay() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" words=""
    if [[ $COMP_CWORD -eq 1 ]]; then
        COMPREPLY=($(compgen -W "{verbs} --help --version" -- "$word"))
        return
    fi
    case "${{COMP_WORDS[1]}}" in
{cases}
    esac
    if [[ "$word" == -* ]]; then
        COMPREPLY=($(compgen -W "$words" -- "$word"))
    else
        COMPREPLY=($(compgen -W "{models}" -- "$word") $(compgen -f -- "$word"))
    fi
}}
complete -o filenames -o bashdefault -F _assay assay
"""
_ZSH = """\
autoload -Uz bashcompinit compinit
(( $+functions[compdef] )) || compinit
bashcompinit
{bash}"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))
    common.add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    text = {"bash": _bash, "zsh": lambda: _ZSH.format(bash=_bash()), "fish": _fish}[args.shell]()
    common.emit(args, {"shell": args.shell, "script": text}, text, exact=True)
    return 0


def _options(verb: str) -> dict[str, str]:
    """The options of a verb, with their help."""
    from assay.cli import verb_parser

    found = {}
    for action in verb_parser(verb)._actions:
        for option in action.option_strings:
            found[option] = (action.help or "").replace("%(default)s", str(action.default))
    return found


def _families() -> str:
    """Names of models without their tags: bash ends a word at a colon."""
    from assay.runtime.model_names import named_models

    return " ".join(dict.fromkeys(model.family for model in named_models()))


def _bash() -> str:
    from assay.cli import verbs

    cases = "\n".join(f'        {verb}) words="{" ".join(_options(verb))}" ;;' for verb in verbs())
    return _BASH.format(verbs=" ".join(verbs()), cases=cases, models=_families())


def _fish() -> str:
    from assay.cli import load, verbs

    def quoted(text: str) -> str:
        return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"

    lines = []
    for verb in verbs():
        lines.append(f"complete -c assay -n __fish_use_subcommand -f -a {verb} -d {quoted(load(verb).HELP)}")
        for option, text in _options(verb).items():
            kind = (
                f"-l {option[2:]}" if option.startswith("--") else f"-{'s' if len(option) == 2 else 'o'} {option[1:]}"
            )
            lines.append(f"complete -c assay -n '__fish_seen_subcommand_from {verb}' {kind} -d {quoted(text)}")
    models = _families()
    lines.append(f"complete -c assay -n 'not __fish_use_subcommand' -a {quoted(models)}")
    return "\n".join(lines) + "\n"
