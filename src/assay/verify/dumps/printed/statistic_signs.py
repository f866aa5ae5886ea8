"""Statistics written in signs instead of words: `‖x‖₂`, `|.|`, `max|x|`, `Σx²`, `√⟨x²⟩`, `ℓ2`, `x̄`.

A row is a kind of statistic and what people write for it. `LEXEMES` are the groups of the lexer's pattern, in the order
in which they are tried: a longer notation stands before the shorter one that it begins with. `WORDS` are the words that
the lexer gives instead.
"""

from __future__ import annotations

_X = r"(?:\w{1,12}|[.·∙•⋅◦*_-])"  # what stands between the bars: a name, or a mark for "any vector"
_BAR = r"(?:\|\||[|‖∥])"
_ABS = rf"{_BAR}\s?{_X}\s?{_BAR}"
_OF = r"(?:\s?\w{1,3}(?:_\w)?)"  # x, x_i
_SQUARE = r"(?:²|\^2|\*\*2|\*\w{1,3}(?!\w))"
_SUM_OF_SQUARES = rf"(?:[Σ∑]\s?[(\[]?\s?{_OF}{_SQUARE}[)\]]?|(?<![\w.])sum\(\s?{_OF}\s?{_SQUARE}\s?\))"
_MEAN_OF_SQUARES = (
    rf"(?:[⟨<]\s?{_OF}{_SQUARE}\s?[⟩>]|(?:mean|avg|E)[(\[]\s?{_OF}\s?{_SQUARE}\s?[)\]]"
    rf"|[Σ∑]\s?{_OF}{_SQUARE}\s?/\s?[nNdD]\b)"
)
_ROOT = r"(?:√\s?|(?<![\w.])sqrt\s?)"
_VALUE = r"(?=\s{0,4}[=:])"
_VALUE_OR_NUMBER = r"(?=\s{0,4}[=:]|\s{1,8}[-+]?\d)"

LEXEMES = {
    "most": (
        rf"\|max\||[mM]ax\s?{_BAR}{_X}{_BAR}|[mM]ax\(\s?{_BAR}{_X}{_BAR}\s?\)|{_BAR}{_X}{_BAR}_?(?:max|inf|∞)"
        r"|(?<!\w)[Llℓ](?:_?∞|_inf)(?!\w)"
    ),
    "average": (
        rf"\|(?:mean|avg)\||(?:mean|avg)\s?{_BAR}{_X}{_BAR}|(?:mean|avg)\(\s?{_BAR}{_X}{_BAR}\s?\)"
        rf"|{_BAR}{_X}{_BAR}_?(?:mean|avg)|⟨{_BAR}{_X}{_BAR}⟩"
    ),
    "root_mean": rf"{_ROOT}\(?\s?{_MEAN_OF_SQUARES}\s?\)?",
    "root_sum": rf"{_ROOT}\(?\s?{_SUM_OF_SQUARES}\s?\)?",
    "squares": rf"{_SUM_OF_SQUARES}(?!\s?/)|{_ABS}(?:_?2|₂)?(?:²|\^2){_VALUE}",
    "sizes": rf"(?:[Σ∑]|(?<![\w.])sum)\s?\(?{_ABS}\)?|{_ABS}(?:_1(?!\w)|₁)|(?<!\w)[lℓ](?:_1|₁|1(?<=ℓ1))(?!\w)",
    "norm": (
        rf"\|\s?[\w ]{{1,40}}\s?\|(?:_?2|₂)?{_VALUE}"
        rf"|(?<![^\s(\[,;])\|\s?[.·∙•⋅◦*-]\s?\|(?:_?2|₂)?{_VALUE_OR_NUMBER}"
        r"|\|\w{1,12}\|₂"
        r"|‖[^‖]{1,80}‖(?:_?2(?!\w)|₂|_?F(?!\w))?"
        r"|∥[^∥]{1,80}∥(?:_?2(?!\w)|₂|_?F(?!\w))?"
        r"|\|\|\s?(?:\w{1,12}|[.·∙•⋅◦*])(?:\[[\w,:. -]{1,16}\])?\s?\|\|(?:_?2(?!\w)|₂|_?F(?!\w))?"
        r"|(?<!\w)(?:ℓ_?2|[lLℓ]₂)(?!\w)"
    ),
    "variance": rf"(?<!\w)σ(?:²|\^2)|(?<!\w)[Vv]ar[(\[]{_OF}[)\]]",
    "middle": rf"(?<!\w)\w[\u0304\u0305]|⟨\w{{1,3}}⟩|(?<!\w)E\[{_OF}\]|(?<!\w)[Øø⌀](?!\w)",
    "sum": r"[Σ∑](?:\s?\w{1,3}(?=\s{0,3}[=:]))?",
}

BARRED = ("most", "average", "sizes", "norm")  # kinds whose signs have bars

WORDS = {
    "most": "absmax", "average": "absmean", "norm": "nrm2", "sum": "sum", "root_sum": "nrm2", "root_mean": "rmsq",
    "squares": "sumsq", "sizes": "abssum", "variance": "var", "middle": "mean",
}  # fmt: skip
