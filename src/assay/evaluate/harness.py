"""assay as a model in lm-evaluation-harness.

    python -m assay.evaluate.harness --model assay --model_args pretrained=smollm2 --tasks hellaswag --limit 200

or `import assay.evaluate.harness` before `lm_eval.simple_evaluate(model="assay", …)`. `model_args` are `pretrained`
(the MODEL of the command line), `engine`, `precision`, `threads`, `ctx_size` and `add_bos_token`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from lm_eval.api.model import LM  # type: ignore[import-not-found,import-untyped,unused-ignore]
from lm_eval.api.registry import register_model  # type: ignore[import-not-found,import-untyped,unused-ignore]
from lm_eval.utils import (  # type: ignore[import-not-found,import-untyped,unused-ignore]
    get_rolling_token_windows,
    make_disjoint_window,
)

from assay.errors import AssayError
from assay.evaluate.continuations import loglikelihoods, pair
from assay.runtime.generate import Generator
from assay.runtime.opening import OpenOptions, open_model
from assay.runtime.params import SamplerParams
from assay.text import encode_chat

MAX_GEN = 256  # maximum tokens of an answer, if the task sets no limit


@register_model("assay")
class AssayLM(LM):  # type: ignore[misc,unused-ignore]
    """The three request types of the harness, on an assay engine."""

    def __init__(
        self,
        pretrained: str | None = None,
        engine: str | None = None,
        precision: str | None = None,
        threads: int | None = None,
        ctx_size: int | None = None,
        add_bos_token: bool | None = None,
        batch_size: int
        | str
        | None = None,  # always passed by the harness; unused, because requests run one context at a time
        device: str | None = None,
        **_: Any,
    ) -> None:
        super().__init__()
        threads, ctx_size = (None if n is None else int(n) for n in (threads, ctx_size))
        self.opened = open_model(pretrained, OpenOptions(engine, precision, threads, ctx_size=ctx_size, cache_size=0))
        self.engine, self._tokens = self.opened.engine(), self.opened.tokenizer
        self.generator = Generator(self.engine, self._tokens, n_ctx=self.opened.n_ctx)
        self.add_bos = add_bos_token

    @property
    def tokenizer_name(self) -> str:
        return self.opened.file.path.name

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        return "its own" if chat_template and self.opened.template else ""

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        if self.opened.template is None:
            raise AssayError(f"{self.opened.file.path.name}: has no chat template; leave --apply_chat_template out")
        ids = encode_chat(self._tokens, self.opened.template, chat_history)
        return self._tokens.decode(ids)

    def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Consecutive requests with the same context are one question, whose context is computed once."""
        found = []
        for _, group in groupby((r.args for r in requests), key=lambda args: args[0]):
            pairs = [pair(self._tokens, context, ending, self.add_bos) for context, ending in group]
            with self.generator.exclusive() as engine:
                found += [(one.logprob, one.greedy) for one in loglikelihoods(engine, pairs)]
        return found

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        found = []
        first = self._tokens.bos if self._tokens.bos is not None else self._tokens.eos
        for (text,) in (r.args for r in requests):
            ids = self._tokens.encode(text, add_special=False, parse_special=False)
            windows = map(
                make_disjoint_window,
                get_rolling_token_windows(ids, prefix_token=first, max_seq_len=self.opened.n_ctx - 1, context_len=1),
            )
            with self.generator.exclusive() as engine:
                parts = [loglikelihoods(engine, [(tuple(context), tuple(ending))])[0] for context, ending in windows]
            found.append(sum(part.logprob for part in parts))
        return found

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Generate all answers together, in batched steps."""
        prepared = [self._generation(text, dict(options)) for text, options in (r.args for r in requests)]
        return [one.result.text for one in self.generator.together(prepared)]

    def _generation(self, text: str, options: Mapping[str, Any]) -> Any:
        until = options.get("until") or ()
        stop = (until,) if isinstance(until, str) else tuple(until)
        sampled = bool(options.get("do_sample")) and float(options.get("temperature") or 0) > 0
        params = SamplerParams(
            temp=float(options["temperature"]) if sampled else 0.0,
            top_p=float(options.get("top_p", 1.0)),
            top_k=int(options.get("top_k", 0)),
            min_p=0.0,
            seed=int(options.get("seed", 0)),
        )
        most = int(options.get("max_gen_toks", options.get("max_new_tokens", MAX_GEN)))
        ids = self._tokens.encode(text)[-(self.opened.n_ctx - most) :]
        return self.generator.generate(ids, params, max_tokens=most, stop=stop)


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate  # type: ignore[import-not-found,import-untyped,unused-ignore]

    cli_evaluate()
