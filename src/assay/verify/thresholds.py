"""Every number that decides a verdict, with its reason. Two numbers that mean different things have different names.

Ratios are deviation over simulated noise (`judge.noise`), shares are of a squared deviation, counts are of nodes.
Touch this module to change how strict a verdict is; run `make score` afterwards.
"""

from __future__ import annotations

# -- dumps: an unknown name is matched by its values ------------------------------------------------------------------

MATCHED = (
    0.05  # nmse below which a tensor may be a node's value: coarse arithmetic stays below, other nodes are near 1.
)
RIVAL = 10.0  # The nmse of every other node must be larger by this factor, or the name stays open.
COPY = 1e-8  # nmse up to which an unknown name may be a second dump of a node that was dumped by name as well.

# -- judge: what is excused as noise -----------------------------------------------------------------------------------

# Measured on llama.cpp, deviation over simulated noise: up to 1.7 for one step from the same values. After 17 to 30
# layers it is up to 3.2 as rms, and 10 at a single value where one different rounding has tipped a softmax.
STEP, RUN = 3.0, 5.0
PEAK = {STEP: 3.0, RUN: 20.0}  # For single values.
SHORT = 4  # A segment of up to this number of nodes counts as one step.
TOO_GOOD = 0.05  # times the noise: an engine this near at its first observation does not compute so coarsely.
DISTURBS = 100.0  # times float32's noise: a node that an arithmetic changes by this much is not exact by chance.
FEW_DISTURBED = 3  # Up to this number of such nodes proves nothing.
LUCK = 0.5  # times the noise of a row: the least that is allowed for a few printed values of it.
MISPRINTS = 3  # After this number of nodes in a row contradict it, a faulty input is no misprint.
CLEARLY_OWN = 3.0  # times the allowed deviation of one step: wrong even where the noise of the whole run would hide it.

OUTLIER = 2.0  # times the allowed deviation of one node: the most that one of many printed numbers may have.
OUTLIERS = 50  # nodes for each such number: two deviations beyond the limit are rare, but not among hundreds.

# -- diagnosis: when a fault explains a deviation ----------------------------------------------------------------------

ACCEPT = 3.0  # times the allowed noise that may be left: a fault may amplify noise.
GAIN = 0.25  # Largest share left: a fault that leaves more explains nothing.
AMPLIFIED = 1e-4  # Share left at which a deviation is explained although the fault has amplified the noise.
# The same needs a relative error of at most this: half-units of the arithmetic, or a number with Q8 operands.
NEAR_UNITS, NEAR_Q8 = 64, 0.02
TIE = 3.0  # Residuals within this factor, or both below the noise, cannot be told apart.
A_GUESS = 0.5  # Highest confidence in a fault that leaves more than noise and more than COARSE.
CONTRADICTED = 0.3  # Share of a log's prints, contradicted by its others, from which on it is not called healthy.
CUT_SHORT = 0.85  # Highest confidence where the time was up before every alternative was tried.
SECONDS, THOROUGH_SECONDS = 30.0, 60.0  # of computing that a user waits for, without and with --thorough.
BUSY = 10.0  # Seconds on the wall that count as one of computing, where the machine does other work.
READING_LEFT = 0.5  # Share of the time that the search has at least, however long reading took.
SMALL_FIRST = 0.2  # Share of the time for small faults, while a deviation larger than any noise is unexplained.
COARSE = 0.05  # Share that a fault may leave where the engine's arithmetic is coarse.
ONE_BIT = 0.01  # Share that a flipped bit may leave: one of thousands of bits is near any deviation.
NARROW = 0.01  # of the squared size: a narrow type in one place changes less, even after some layers.
ENOUGH = 1e-4  # Share left at which costly and unlikely hypotheses are not tried any more.
CLOSE = 1e-3  # Relative residual (rms) up to which a simple relation is said to hold.
TWO_AT_ONCE = 0.95  # Confidence below which a pair of faults is not named: two faults can fit many deviations.
FEW_OPERATIONS = 6  # Longest segment in which two faults are searched for together.
SURE_OF_IDS = 0.95  # Ids are compared exactly; only the name of the mistake is uncertain.
FEW = 8  # If more hypotheses than this fit equally well, none is named.
MOST_CAUSES = 5  # Ports with one fault usually have three.
MOST_UNEXPLAINED = 12  # The search ends after this number of nodes that no fault explains.

# -- diagnosis: when a small fault is significant (`hypothesis_score`), in nats of the log likelihood ratio ------------

FIRST_OBSERVED = 3  # A hypothesis is scored at this number of nodes first, in a run from the tokens.
MOST_HINTS = 4  # Best hypotheses that are scored under every rounding rule, where each trial is a run of the model.
HINT_NATS = 3.0  # On a few nodes: enough to score the hypothesis on all of them.
SIGNIFICANT_NATS = 12.0  # Beyond the logarithm of the number of trials: chance gives this once in 100,000.
MOST_REFINED, STEPS_REFINED = 2, 32  # Families whose parameter is solved on all nodes at once, and steps of that.
PARAMETER_NATS = 5.0  # Cost of a solved parameter.
ALIKE_NATS = 3.0  # Hypotheses this near cannot be told apart.
MAINLY = 0.5  # of the highest score: from here on an exact hypothesis precedes a likelier one.
COEFFICIENT = (0.8, 1.25)  # Multiple of the predicted change in the deviation: a fault happens whole or not at all.
LEAVES = 0.9  # of the deviation: a fault that leaves more is not its cause.
RULE_LEAVES = 0.5  # The same under a rounding rule: one token's other expert, by luck, is a tenth of all.
ITSELF = 0.5  # of its own change, or its inverse, beside other roundings: chance gives 0.1 and less.
MOSTLY = 0.7  # Share of the touched rows that must be nearer with the fault.
DAMAGE_LEFT = 1 / 400  # of the deviation, with one wrong bit: half of it is the deviation of a neighbouring bit.
DAMAGED_ROWS = 3  # Tokens in which a damaged weight shows under a rounding rule: one alone may be a rounding edge.
MOST_OF_A_ROW = 64  # Values of a row that count: neighbours are not independent.
FLOOR_UNITS = 2.0  # times float32's simulated noise: a smaller deviation is no evidence.
CLEARER_NATS = 0.05  # a value: a rounding rule must be likelier than none by this.
RULE_NATS = 0.4  # a value: rules this near stay possible. Roundings as large as the deviation double it.
FLOAT32_LEFT = 4.0  # times that floor: the rest is float32's noise.
LOUD = 0.6  # of what float32 is allowed in a step or layer: right engines stay below 0.45, so more is suspicious.
QUIET_LEFT = 1.0  # times the floor, in a run of many layers that passes for float32: right ones leave a quarter.
FAR_OFF = 100.0  # times the rms of all roundings of a rule: no value is off by so much at a rounding edge.
ON_AN_EDGE = 0.9  # Quantile of a row: the values above it may have been rounded the other way.
# Of thousands of roundings in a layer some fall the other way, in one row of twenty (SmolLM2 by layers, Q8 operands).
FEW_EDGES = 1 / 4  # of the rows of a node, and of the nodes for a token: a fault shows in more.
AN_EDGE = 1 / 2  # of the noise of all roundings together: the most that one of them makes (there: 0.01 to 0.28).
SHAKEN = 2.0  # half-units of a row's size: the error of float32's sums in another order.
DRAWS = 3  # Runs with other such errors: a prediction that moves in one of them depends on a rounding edge.
FIRM_LEFT = 2.0  # times float32's noise and these moves: the most that a real fault leaves.
FIRM_SHARE = 1 / 40  # of the deviation, where that is more: three draws miss some edges.
FIRM_ROWS = 2  # Rows in which the fault shows: one alone may be a rounding edge.
HARDLY_LEFT = 1 / 4  # of the deviation, with a fault of precision: a coarse engine rounds in other places too.

# How well the arithmetic is known, by the number of nodes that were dumped whole.
ARITHMETIC_GUESSED = 20  # With fewer, about a layer's worth, a coarser arithmetic than the inferred one stays possible.

# How long a segment is, in nodes.
ONE_KERNEL = 10  # Attention or the experts of a layer: an engine that fuses them dumps no value inside.
FEEDS_FIRST = 40  # Above two layers every hypothesis is a run, so the six other feeds of the tokens are tried first.
LONG_RUN = 150  # Many layers: a run of the first rows pays before a run of all.

# -- diagnosis: what the search may cost -------------------------------------------------------------------------------

HEAD = 3  # Tokens of the short run: position 0, the first that is rotated, and one more.
RULED_OUT = 3.0  # times ACCEPT on the first rows: neither float64 nor the other rows would bring it back.
ROUGH = 0.1  # Share that may be left on the first rows where the arithmetic is a guess.
AROUND = 0.03  # Relative distance within which a parameter found on the first rows is refined on all.
A_LAYERS_WORTH = 24  # Places in a file that are tried at once: two in each tensor of a layer.
PROMISING = 0.95  # Share left after a rough scan: above it, a refinement finds nothing.
LARGE_LAYER = 40_000_000  # Weights of a segment: decoding them takes a second, so misread weights are tried last.
SMALL_SEGMENT = 1_000_000  # Weights of a segment: above it, a trial in float32 comes first.
LARGE_MODEL = 200_000_000  # Weights of a model that takes more than 5 s to judge whole; its first layers come first.
FIRST_WEIGHTS = 60_000_000  # Weights of the layers that are judged first.
JUDGED_A_SECOND = 20_000_000  # Weights. A model that takes longer than the search is compared with the native engine.
NATIVE_NMSE = (
    5e-3  # of a right engine against the native one, whose operands are rounded to eight bits, after 16 layers.
)
MOST_DECODED = 150_000_000  # Elements decoded in one scan of a weight's layout.

# -- endpoint: log-probabilities, in nats ------------------------------------------------------------------------------

ALLOWED = 4.0  # times the noise of the coarsest arithmetic: a server may choose any.
FLOOR = 0.02  # Smaller differences are never called a fault.
PRINTED = 0.001  # Precision of the numbers that servers print.
CHANCE = 1e-7  # Probability that right draws look wrong.
RARE = 0.08  # A token with a smaller share of the draws is too rare to wait for.
SWAPPED = 0.1  # Two tokens this near may change places by a server's noise.
FILTERED = 0.5  # A log-probability this far from the definition's was taken after a sampling filter.
