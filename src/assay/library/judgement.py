"""A model judged on a text, alone or against another one: what `LanguageModel.evaluate` gives."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.errors import AssayError
from assay.evaluate.evaluation import Evaluation, Worst, evaluate
from assay.evaluate.page import page
from assay.evaluate.pieces import WINDOW, cut
from assay.evaluate.predictors import EngineSource
from assay.library.notebook import inline
from assay.system.files import write

if TYPE_CHECKING:
    from assay.library.language_model import LanguageModel


@dataclass(frozen=True, repr=False)
class Judgement:
    """Perplexity and, against a base, divergence; the worst tokens in their context. Printing it gives the figures."""

    evaluation: Evaluation
    worst: tuple[Worst, ...]

    @property
    def perplexity(self) -> float:
        return self.evaluation.perplexity.value

    @property
    def kl(self) -> float | None:
        """The mean divergence in nats a token; None without a base."""
        return None if self.evaluation.kl is None else self.evaluation.kl.value

    def __repr__(self) -> str:
        return repr(self.evaluation)

    def to_dict(self) -> dict[str, Any]:
        """Everything, as `assay eval --json` gives it."""
        return {**self.evaluation.to_dict(), "worst": [asdict(w) for w in self.worst]}

    def page(self) -> str:
        """One self-contained page."""
        return page(self.evaluation, self.worst)

    def save_html(self, path: str | Path) -> None:
        """Write the page."""
        write(path, self.page())

    def _repr_html_(self) -> str:
        return inline(self.page())


def judge(
    model: LanguageModel, text: str, against: LanguageModel | None, window: int | None, chunks: int | None, worst: int
) -> Judgement:
    """Both models read the same tokens: the first one's."""
    tokenizer = model.tokenizer
    if against is not None and against.model.hparams.n_vocab != model.model.hparams.n_vocab:
        raise AssayError(f"{against.path.name}: another vocabulary than {model.path.name}'s; nothing can be compared")
    if window is None:
        window = min(WINDOW, model.n_ctx, against.n_ctx if against is not None else WINDOW)
    ids = tokenizer.encode(text, parse_special=False)
    pieces = cut(ids, window, tokenizer.bos if tokenizer.add_bos else None, chunks)
    with model.generator.exclusive() as engine:
        if against is None or against is model:
            found = evaluate(pieces, EngineSource(engine), EngineSource(engine) if against else None)
        else:
            with against.generator.exclusive() as other:
                found = evaluate(pieces, EngineSource(engine), EngineSource(other))
    return Judgement(found, tuple(found.worst(pieces, tokenizer, worst)))
