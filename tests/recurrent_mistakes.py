"""Mistakes that authors of recurrent engines make, planted in the second engine for recurrent models.

Like the engine this shares no code with assay. `MIXERS` gives for a model and a mistake the answers that describe it:
ids of faults with a pattern of their words.
"""

from __future__ import annotations

import copy

import numpy as np

from tests.second_recurrent import Recurrent

Answers = dict[str, str]

MIXERS: dict[tuple[str, str], Answers] = {
    ("qwen35", "lengths of all heads together"): {"norm-statistic": "every l2_norm takes the whole row"},
    ("qwen35", "length of k by the first head"): {
        "norm-statistic": "k_conv_predelta divides every head by .* first head"
    },
    ("mamba2", "D times x before the convolution"): {"operand-other": "mamba2_y_add_d reads x_ssm from xBC"},
    ("falcon-h1", "D times x before the activation"): {"operand-other": "reads x_ssm from conv_output_biased"},
    ("qwen35", "decode does not write the state"): {"st-unkept": "do not write states back"},
    ("mamba2", "decode does not write the window"): {"st-unkept": "do not write windows back"},
    ("falcon-h1", "decode does not write state and window"): {"st-unkept": "do not write states and windows back"},
}


class Mixer(Recurrent):
    """The second recurrent engine with one of these mistakes."""

    def __init__(self, path, mistake=""):
        super().__init__(path)
        self.mistake = mistake

    def unit(self, x, which):
        if self.mistake == "lengths of all heads together":
            return x / np.sqrt(np.sum(x * x, (-1, -2), keepdims=True) + self.t(self.eps))
        if self.mistake == "length of k by the first head" and which == "k":
            return x / np.sqrt(np.sum(x * x, -1, keepdims=True) + self.t(self.eps))[:, :1]
        return super().unit(x, which)

    def conv(self, x, i, kernel, bias=None, *more, **named):
        y = super().conv(x, i, kernel, bias, *more, **named)
        self.around = x, y
        return y

    def put(self, name, layer, x):
        if name == "conv_output_biased":
            self.biased = x
        if name == "mamba2_y_add_d" and self.mistake.startswith("D times x"):
            plain, convolved = self.around
            plain = self.biased if self.mistake.endswith("activation") else plain
            d = self.w("ssm_d", layer).reshape(x.shape[1], 1)
            width = x[0].size
            old, new = (v[:, :width].reshape(x.shape) for v in (convolved, plain))
            x = x - d * old + d * new
        return super().put(name, layer, x)

    def call(self, tokens):
        before = copy.deepcopy((self.states, self.windows)) if self.past else None
        found = super().call(tokens)
        if before is not None and self.mistake.startswith("decode does not write"):
            self.states = before[0] if "state" in self.mistake else self.states
            self.windows = before[1] if "window" in self.mistake else self.windows
        return found
