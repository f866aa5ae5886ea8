"""Multiple choice: which of a few endings does a model find most probable?

Questions come from a local file, as JSON lines or one JSON list, in one of these forms:

    HellaSwag    ctx_a, ctx_b (or ctx), activity_label, endings, label
    ARC          question, choices {text, label}, answerKey
    MMLU         question, choices [4], answer, perhaps subject
    harness      doc, target, arguments: samples of `lm_eval --log_samples`; asked in exactly the same form
    plain        query (or context), choices (or endings), gold (or label)

Prompts and scores are those of lm-evaluation-harness without examples: `acc` takes the ending with the largest
log-probability, `acc_norm` first divides by the length of the ending in characters.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from assay.engines.contract import PagedEngine
from assay.errors import AssayError
from assay.evaluate.continuations import loglikelihoods, pair
from assay.evaluate.evaluation import Mean
from assay.system.stages import each
from assay.system.text_files import read_text
from assay.text import Tokenizer

LETTERS = "ABCDEFGHIJ"
MOST = 64 << 20  # largest file of questions in bytes

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Question:
    """A question: its context, the endings with their leading space, and the index of the right one."""

    context: str
    endings: tuple[str, ...]
    gold: int
    letters: bool = False  # the endings are letters of the choices, so lengths have no meaning


@dataclass(frozen=True)
class QuestionAnswer:
    """The answer of a model to a question."""

    logprobs: tuple[float, ...]
    gold: int
    choice: int
    choice_norm: int


@dataclass(frozen=True)
class ChoiceResult:
    answers: tuple[QuestionAnswer, ...]

    @property
    def acc(self) -> Mean:
        return Mean.of(np.array([a.choice == a.gold for a in self.answers], np.float64))

    @property
    def acc_norm(self) -> Mean:
        return Mean.of(np.array([a.choice_norm == a.gold for a in self.answers], np.float64))

    def to_dict(self) -> dict[str, Any]:
        both = {
            key: asdict(m) | {"interval": m.interval} for key, m in (("acc", self.acc), ("acc_norm", self.acc_norm))
        }
        return {"questions": len(self.answers), **both, "answers": [asdict(a) for a in self.answers]}

    def __str__(self) -> str:
        return f"acc      {self.acc}\nacc_norm {self.acc_norm}\n{len(self.answers)} questions; ± is one standard error"


def read(path: str | Path) -> list[Question]:
    """The questions of a file."""
    path = Path(path)
    if path.stat().st_size > MOST:
        raise AssayError(f"{path}: {path.stat().st_size >> 20} MiB of questions (expected at most {MOST >> 20})")
    text = read_text(path, "questions; give JSON lines or a JSON list")
    items = []
    for i, row in enumerate(_rows(path, text)):
        try:
            items.append(item(row))
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            what = f"{type(error).__name__}: {error}"
            raise AssayError(f"{path}: question {i}: unknown form ({what}); see docs/reference/eval.md") from None
    if not items:
        raise AssayError(f"{path}: no questions in it")
    return items


def _rows(path: Path, text: str) -> list[Row]:
    try:
        found = json.loads(text) if text.lstrip()[:1] == "[" else None
        if found is None:
            lines = [json.loads(line) for line in text.splitlines() if line.strip()]
            found = lines[0]["rows"] if len(lines) == 1 and "rows" in lines[0] else lines
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        raise AssayError(f"{path}: not JSON ({error}); expected JSON lines or a JSON list") from None
    rows = [row["row"] if isinstance(row, dict) and set(row) >= {"row_idx", "row"} else row for row in found]
    if not all(isinstance(row, dict) for row in rows):
        raise AssayError(f"{path}: a question is not an object; expected JSON lines or a JSON list")
    return rows


def item(row: Row) -> Question:
    """The question of a row in any of the forms."""
    if "arguments" in row and "doc" in row:
        return _harness(row)
    if "endings" in row and ("ctx" in row or "ctx_a" in row):
        return _hellaswag(row)
    if "answerKey" in row:
        return _arc(row)
    if "question" in row and isinstance(row["choices"], list):
        return _mmlu(row)
    context = row["query"] if "query" in row else row["context"]
    endings = row["choices"] if "choices" in row else row["endings"]
    return _checked(str(context), [f" {e}" for e in endings], int(row["gold"] if "gold" in row else row["label"]))


def _checked(context: str, endings: Sequence[str], gold: int, letters: bool = False) -> Question:
    if len(endings) < 2 or not 0 <= gold < len(endings):
        raise ValueError(f"right answer {gold} of {len(endings)} endings")
    if not all(endings):
        raise ValueError("an ending is empty")
    return Question(context, tuple(endings), gold, letters)


def _hellaswag(row: Row) -> Question:
    """HellaSwag. WikiHow's section marks are removed, as in the task."""

    def clean(text: str) -> str:
        text = re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". "))
        return text.replace("  ", " ")

    begin = f"{row['ctx_a']} {str(row['ctx_b']).capitalize()}" if "ctx_a" in row else str(row["ctx"])
    context = clean(f"{row['activity_label']}: {begin}" if "activity_label" in row else begin)
    return _checked(context, [f" {clean(e)}" for e in row["endings"]], int(row["label"]))


def _arc(row: Row) -> Question:
    choices = row["choices"]
    gold = list(choices["label"]).index(row["answerKey"])
    return _checked(f"Question: {row['question']}\nAnswer:", [f" {t}" for t in choices["text"]], gold)


def _mmlu(row: Row) -> Question:
    choices = row["choices"]
    names = LETTERS[: len(choices)]
    answer = row["answer"]
    gold = names.index(answer) if isinstance(answer, str) and answer in names else int(answer)
    about = str(row.get("subject", "")).replace("_", " ")
    head = f"The following are multiple choice questions (with answers) about {about}.\n\n" if about else ""
    lines = "".join(f"\n{name}. {text}" for name, text in zip(names, choices, strict=True))
    context = f"{head}{str(row['question']).strip()}{lines}\nAnswer:"
    return _checked(context, [f" {name}" for name in names], gold, letters=True)


def _harness(row: Row) -> Question:
    """A sample of lm-evaluation-harness: its requests and its target."""
    found = row["arguments"]
    if isinstance(found, dict):  # {"gen_args_0": {"arg_0": context, "arg_1": ending}, …}
        found = [found[key] for key in sorted(found, key=lambda k: int(k.rsplit("_", 1)[1]))]
    pairs = [(one["arg_0"], one["arg_1"]) if isinstance(one, dict) else (one[0], one[1]) for one in found]
    contexts = {context for context, _ in pairs}
    if len(contexts) != 1:
        raise ValueError("the endings have different contexts")
    return _checked(str(pairs[0][0]), [str(ending) for _, ending in pairs], int(row["target"]))


def answer_all(
    engine: PagedEngine,
    tokenizer: Tokenizer,
    items: Sequence[Question],
) -> ChoiceResult:
    """Answer every question. Questions are independent of each other."""
    asked = each(items, "answering", "questions")
    return ChoiceResult(tuple(answer(engine, tokenizer, it) for it in asked))


def answer(engine: PagedEngine, tokenizer: Tokenizer, it: Question) -> QuestionAnswer:
    requests = [pair(tokenizer, it.context, ending) for ending in it.endings]
    logprobs = np.array([found.logprob for found in loglikelihoods(engine, requests)])
    lengths = np.ones(len(logprobs)) if it.letters else np.array([len(e.removeprefix(" ")) or 1 for e in it.endings])
    norm = int(np.argmax(logprobs / lengths))
    return QuestionAnswer(tuple(logprobs.tolist()), it.gold, int(np.argmax(logprobs)), norm)
