"""Speed with lookahead over without, interleaved: rewriting a text, answering over one, free chat, code.

    python bench/lookahead.py smollm2 --turns 5 --tokens 160

    python bench/lookahead.py smollm2 --equal 200

compares ids, bytes and log-probabilities of that many answers, greedy and sampled, with and without lookahead. The
texts of the first table are compared as well.

    python bench/lookahead.py model.gguf --draft mtp --head 1

lets the draft head alone guess, one token in every step, and shows what each part costs. With a accepted tokens a step,
a head that takes h, and a step of 1 + n tokens that takes r, both in steps of one token: speed <= (1 + a) / (h + r).
`--right 0.8` replaces the head's guesses: each is right with that probability. The head is run all the same. So a file
with random or crude weights shows the speed that a trained head would have.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time

import assay
from assay.runtime.scheduler import Meter
from assay.runtime.sequence import Sequence
from assay.runtime.speculation import Drafter, Speculator

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
    "code": "Write a Python class for a bank account with deposit, withdraw and transfer, and tests for it.",
}


class Always(Speculator):
    """The drafter guesses n tokens in every step, whether or not that pays; times are kept.

    With `right`, guesses are taken from `answer`, the ids without lookahead, and each is right with that probability.
    """

    def __init__(self, drafter: Drafter, n: int, right: float | None) -> None:
        super().__init__(drafter)
        self.n, self.right, self.head_seconds = n, right, list[float]()
        self.answer: list[int] = []
        self._random = random.Random(1)

    def choose(self, room: dict[Sequence, int]) -> dict[Sequence, list[int]]:
        started = time.perf_counter()
        assert self.drafter
        found = self.drafter.draft({s: min(n, self.n) for s, n in room.items() if n})
        self.head_seconds.append(time.perf_counter() - started)
        if self.right is not None:
            found = {sequence: self._replaced(sequence, len(tokens)) for sequence, tokens in found.items()}
        return {sequence: tokens for sequence, tokens in found.items() if tokens}

    def _replaced(self, sequence: Sequence, n: int) -> list[int]:
        tokens = self.answer[sequence.generated :][:n]
        return [token if self._random.random() < (self.right or 0) else (token + 1) % 1000 for token in tokens]


class Counts(Meter):
    """Tokens and seconds of the steps that only decode."""

    def __init__(self) -> None:
        self.steps = self.drafted = self.accepted = 0
        self.seconds: dict[int, list[float]] = {}

    def step(self, n_tokens: int, n_sequences: int, engine_s: float, sampling_s: float) -> None:
        self.seconds.setdefault(n_tokens, []).append(engine_s)

    def speculated(self, drafted: int, accepted: int) -> None:
        self.steps, self.drafted, self.accepted = self.steps + 1, self.drafted + drafted, self.accepted + accepted

    def cost(self, n: int) -> float:
        """The median seconds of a step of n tokens."""
        return statistics.median(self.seconds.get(n, [float("nan")]))


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
    parser.add_argument("--draft", help="a small model that guesses, too; mtp: the file's own draft head")
    parser.add_argument("--head", type=int, metavar="N", help="the drafter alone guesses, N tokens in every step")
    parser.add_argument("--right", type=float, metavar="P", help="with --head: guesses are right with probability P")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("-t", "--threads", type=int)
    parser.add_argument("--equal", type=int, metavar="N", help="compare N answers instead of their speed")
    args = parser.parse_args()
    plain = assay.load(args.model, threads=args.threads, lookahead=False)
    ahead = assay.load(args.model, threads=args.threads, draft=args.draft)
    if args.equal:
        print(f"{alike(plain, ahead, args.equal, args.tokens)} of {args.equal} answers are equal")
        return
    counts = {False: Counts(), True: Counts()}
    always: Always | None = None
    for with_it, model in ((False, plain), (True, ahead)):
        model.generator.scheduler.meter = counts[with_it]
    scheduler = ahead.generator.scheduler
    if args.head and scheduler.speculator and scheduler.speculator.drafter:
        always = Always(scheduler.speculator.drafter, args.head, args.right)
        scheduler.speculator = scheduler._planner._speculator = always
    titles = ["task", "without, tok/s", "with, tok/s", "ratio", "equal"]
    titles += ["accepted a step", "head", "step", "bound"] if always else []
    print(f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}")
    for name in args.tasks:
        prompt = TASKS[name]
        for count in counts.values():
            count.__init__()  # type: ignore[misc]
        if always:
            always.head_seconds.clear()
        rates: dict[bool, list[float]] = {False: [], True: []}
        ratios, equal = [], True
        for turn in range(args.turns + 1):
            texts = {}
            for with_it in (False, True) if turn % 2 or args.right else (True, False):
                model = ahead if with_it else plain
                messages = [{"role": "user", "content": prompt}]
                params = assay.SamplerParams(temp=args.temp, seed=turn)
                result = model.chat(messages, params=params, max_tokens=args.tokens, ignore_eos=True)
                texts[with_it] = result.ids
                if always and not with_it:
                    always.answer = result.ids
                rates[with_it].append(result.timing.rate)
            equal &= texts[False] == texts[True]
            ratios.append(rates[True][-1] / rates[False][-1])
        speeds = [f"{statistics.median(rates[key][1:]):.1f}" for key in (False, True)]
        line = f"| {name} | {' | '.join(speeds)} | {statistics.median(ratios[1:]):.2f} | {equal} |"
        if always:
            count, one = counts[True], counts[False].cost(1)
            accepted = count.accepted / max(count.steps, 1)
            head, step = statistics.median(always.head_seconds) / one, count.cost(1 + args.head) / one
            line += f" {accepted:.2f} | {head:.2f} | {step:.2f} | {(1 + accepted) / (head + step):.2f} |"
        print(line, flush=True)


if __name__ == "__main__":
    main()
