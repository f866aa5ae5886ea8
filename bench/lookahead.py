"""Speed with lookahead over without, interleaved: rewriting a text, answering over one, free chat.

    python bench/lookahead.py smollm2 --turns 5 --tokens 160

    python bench/lookahead.py smollm2 --equal 200

compares ids, bytes and log-probabilities of that many answers, greedy and sampled, with and without lookahead. The
texts of the first table are compared as well.
"""

from __future__ import annotations

import argparse
import statistics

import assay

TEXT = (
    "The harbour master keeps a log of every ship that enters the bay. On Monday the Aurora brought timber from the "
    "north and left with salt. On Tuesday the Meridian came in with a broken mast and stayed for repairs. On Wednesday "
    "two fishing boats collided in the fog, but nobody was hurt. On Thursday the Aurora returned, empty, because the "
    "river had frozen and the mills were closed. On Friday the harbour master counted the week's fees and found that "
    "the Meridian had not paid."
)
TASKS = {
    "rewriting": f"Repeat this text word for word, and change nothing:\n\n{TEXT}",
    "document": f"{TEXT}\n\nList every ship with what happened to it, quoting the sentences of the text.",
    "chat": "Tell me a story about a lighthouse keeper who learns to paint.",
}


def alike(plain: assay.LanguageModel, ahead: assay.LanguageModel, n: int, tokens: int) -> int:
    """How many of n answers are the same to the last bit of every log-probability."""
    sentences = TEXT.split(". ")
    asks = ("Repeat: {}", "Shorten this: {}", "{} What happened next?", "Write a list of the words in: {}", "{}")
    same = 0
    for i in range(n):
        prompt = asks[i % len(asks)].format(". ".join(sentences[i % 4 : i % 4 + 1 + i % 3]))
        params = assay.SamplerParams(temp=(0.0, 0.8, 1.2)[i % 3], seed=i, repeat_penalty=(1.0, 1.1)[i % 2])
        told = [
            (found.ids, found.text, [(c.id, c.logprob, c.top) for c in found.logprobs or []])
            for found in (
                model.chat(prompt, params=params, max_tokens=tokens, logprobs=3, ignore_eos=i % 4 == 0)
                for model in (plain, ahead)
            )
        ]
        same += told[0] == told[1]
    return same


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--temp", type=float, default=0.0)
    parser.add_argument("--draft", help="a small model that guesses, too")
    parser.add_argument("-t", "--threads", type=int)
    parser.add_argument("--equal", type=int, metavar="N", help="compare N answers instead of their speed")
    args = parser.parse_args()
    plain = assay.load(args.model, threads=args.threads, lookahead=False)
    ahead = assay.load(args.model, threads=args.threads, draft=args.draft)
    if args.equal:
        print(f"{alike(plain, ahead, args.equal, args.tokens)} of {args.equal} answers are equal")
        return
    print("| task | without, tok/s | with, tok/s | ratio | equal |\n|---|---|---|---|---|")
    for name, prompt in TASKS.items():
        rates: dict[bool, list[float]] = {False: [], True: []}
        ratios, equal = [], True
        for turn in range(args.turns + 1):
            texts = {}
            for with_it in (False, True) if turn % 2 else (True, False):
                model = ahead if with_it else plain
                messages = [{"role": "user", "content": prompt}]
                params = assay.SamplerParams(temp=args.temp, seed=turn)
                result = model.chat(messages, params=params, max_tokens=args.tokens, ignore_eos=True)
                texts[with_it] = result.ids
                rates[with_it].append(result.timing.rate)
            equal &= texts[False] == texts[True]
            ratios.append(rates[True][-1] / rates[False][-1])
        speeds = [f"{statistics.median(rates[key][1:]):.1f}" for key in (False, True)]
        print(f"| {name} | {' | '.join(speeds)} | {statistics.median(ratios[1:]):.2f} | {equal} |", flush=True)


if __name__ == "__main__":
    main()
