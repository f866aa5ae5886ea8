"""Options may stand anywhere on a command line: before, between and after the positional words.

argparse gives a positional with `nargs="?"` or `"*"` its words at the first option and refuses later ones. Here the
options are put first and the positional words last, behind `--`, so that argparse meets all positionals together.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence


def options_first(parser: argparse.ArgumentParser, words: Sequence[str]) -> list[str]:
    """The same command line with all options before all positional words."""
    options: list[str] = []
    positionals: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == "--":
            positionals += rest
            break
        if not _is_option(parser, word):
            positionals.append(word)
            continue
        options += _with_values(parser, word, rest)
    return [*options, "--", *positionals] if positionals else options


def _is_option(parser: argparse.ArgumentParser, word: str) -> bool:
    """Whether argparse reads a word as an option. It takes `-`, `-5` and words with a space as values."""
    return bool(word) and parser._parse_optional(word) is not None


def _with_values(parser: argparse.ArgumentParser, word: str, rest: list[str]) -> list[str]:
    """An option and its values, which are taken from `rest`. A value that begins with `-` is joined to its option."""
    known = parser._option_string_actions
    action = known.get(word) or _last_of_cluster(known, word)
    if action is None or action.nargs == 0 or not rest:
        return [word]
    if action.nargs is None:
        if rest[0] in known or rest[0] == "--":  # argparse says which option lacks its value
            return [word]
        value = rest.pop(0)
        if not value.startswith("-"):
            return [word, value]
        return [f"{word}={value}" if word.startswith("--") else f"{word}{value}"]
    found = [word]
    most = action.nargs if isinstance(action.nargs, int) else 1 if action.nargs == "?" else len(rest)
    while rest and len(found) <= most and rest[0] != "--" and not _is_option(parser, rest[0]):
        found.append(rest.pop(0))
    return found


def _last_of_cluster(known: dict[str, argparse.Action], word: str) -> argparse.Action | None:
    """The last option of `-vn`, if it stands for `-v -n`; else None."""
    if word.startswith("--") or len(word) < 3:
        return None
    actions = [known.get(f"-{letter}") for letter in word[1:]]
    flags, last = actions[:-1], actions[-1]
    return last if all(action is not None and action.nargs == 0 for action in flags) else None
