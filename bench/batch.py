"""Many prompts together against the same ones one after the other: `LanguageModel.generate` on a list, and in a loop.

    python bench/batch.py [MODEL] [--prompts 200] [--tokens 32] [--rounds 3] [--plain] [--engine cpu]

Rounds alternate and start from an empty cache; the answers must be the same ids. The figure is the median ratio.
"""

from __future__ import annotations

import argparse
import statistics
import time

import assay

SUBJECTS = (
    "a river",
    "an engine",
    "the moon",
    "a violin",
    "a bakery",
    "a glacier",
    "a spider",
    "a market",
    "a bridge",
    "an oak",
)
QUESTIONS = (
    "Write one sentence about {}.", "What would a child ask about {}?", "Name three colours of {}.",
    "Describe {} at night.", "Why do people like {}?", "How old can {} be?", "What is the sound of {}?",
    "Tell a short story about {}.",
    "What is the opposite of {}?", "Compare {} with a clock.", "Who takes care of {}?", "Where would one find {}?",
    "Draw {} in words.", "What does {} cost?", "Translate '{}' into French.", "Is {} alive?", "Sell {} to a stranger.",
    "What will become of {}?", "Measure {}.", "Write a haiku about {}.",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--plain", action="store_true", help="texts, not chats: for a file without a chat template")
    parser.add_argument("--engine", default="cpu", help="default: %(default)s, also where there is a GPU")
    args = parser.parse_args()
    pairs = [(question, subject) for question in QUESTIONS for subject in SUBJECTS]
    prompts = [question.format(subject) for question, subject in pairs][: args.prompts]
    chats = prompts if args.plain else [[{"role": "user", "content": prompt}] for prompt in prompts]
    ratios = []
    with assay.load(args.model, args.engine) as model:
        chosen = {"max_new_tokens": args.tokens, "temperature": 0, "ignore_eos": True}
        model.generate(chats[:2], **chosen)  # the first pays for memory that is touched for the first time
        for _ in range(args.rounds):
            model.generator.pages.clear()
            start = time.perf_counter()
            alone = [model.generate(chat, **chosen) for chat in chats]
            between = time.perf_counter()
            model.generator.pages.clear()
            resumed = time.perf_counter()
            together = model.generate(chats, **chosen)
            end = time.perf_counter()
            if [result.ids for result in alone] != [result.ids for result in together]:
                raise SystemExit("the answers differ")
            n = len(prompts) * args.tokens
            ratios.append((between - start) / (end - resumed))
            print(
                f"one by one {n / (between - start):.0f} tokens/s, together {n / (end - resumed):.0f}: {ratios[-1]:.2f}"
            )
    print(f"{len(prompts)} prompts, {args.tokens} tokens each: {statistics.median(ratios):.2f} times as fast together")


if __name__ == "__main__":
    main()
