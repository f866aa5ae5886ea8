"""Every number that decides, with its reason. Two that look alike and mean different things have different names.

Ratios are deviation over simulated noise (`judge.noise`), shares are of a squared deviation, counts are of nodes.
"""

from __future__ import annotations

# -- dumps: a name that nobody knows is matched by its values ---------------------------------------------------------

MATCHED = 0.05  # nmse below which a tensor may be a node's value: coarse arithmetic stays below, other nodes lie near 1
RIVAL = 10.0  # no other node may come within this factor of the best, or the name stays open
COPY = 1e-8  # nmse up to which an unknown name may hold the value of a node that was dumped by name as well

# -- judge: what is excused as noise -----------------------------------------------------------------------------------

# Measured on llama.cpp, deviation over simulated noise: up to 1.7 for one step from the same values; after 17 to 30
# layers up to 3.2 as rms and 10 at a single value, where a rounding that fell otherwise has tipped a softmax.
STEP, RUN = 3.0, 5.0
PEAK = {STEP: 3.0, RUN: 20.0}  # for single values
SHORT = 4  # nodes of a segment that still count as one step
TOO_GOOD = 0.05  # times the noise: a first observation this near was not computed so coarsely
DISTURBS = 100.0  # times float32's noise: a node that an arithmetic disturbs so much is not exact by chance
FEW_DISTURBED = 3  # such nodes that say nothing yet
LUCK = 0.5  # times the noise of a row: the least that is allowed to the few values that were printed of it
MISPRINTS = 3  # nodes in a row that do not follow from what a faulty input should have been: it is not the print
CLEARLY_OWN = 3.0  # times what one step is allowed: wrong even where the noise of the whole run would hide it

# -- diagnosis: when a fault explains a deviation ----------------------------------------------------------------------

ACCEPT = 3.0  # times the allowed noise that may be left: a fault may amplify noise
GAIN = 0.25  # of the squared deviation at most, or it explains nothing that was not nearly right before
AMPLIFIED = 1e-4  # of the squared deviation left: so much is explained even where the fault has amplified the noise,
NEAR_UNITS, NEAR_Q8 = (
    64,
    0.02,
)  # up to this relative error: so many half-units of the arithmetic, or this with Q8 operands
TIE = 3.0  # residuals within this factor, or both below the noise, cannot be told apart
A_GUESS = 0.5  # how sure of a fault at most that leaves more than noise, and more than COARSE
COARSE = 0.05  # of the squared deviation that a fault may leave where the engine's arithmetic is coarse
ONE_BIT = 0.01  # of the squared deviation that a flipped bit may leave: one of thousands is near anything
NARROW = 0.01  # of the squared size: more than a narrow type in one place makes, even after some layers
ENOUGH = 1e-4  # of the squared deviation left: no need to try what is costly and unlike
CLOSE = 1e-3  # relative residual (rms) up to which a simple relation is said to hold
TWO_AT_ONCE = 0.95  # two faults in one operation can bend its values to much: below this they are not named
FEW_OPERATIONS = 6  # in which two faults are looked for together
SURE_OF_IDS = 0.95  # ids are compared exactly; what may be wrong is the name of the mistake
FEW = 8  # more hypotheses than this that fit equally well name nothing
MOST_CAUSES = 5  # ports with one fault usually have three
MOST_UNEXPLAINED = 12  # nodes that nothing explains before the search ends

# When a small fault speaks (`likelihood`): logarithms of likelihood ratios, in nats.
FIRST_OBSERVED = 3  # nodes of a run from the tokens that a hypothesis is held against first
MOST_HINTS = 4  # the loudest, that are held against every rule where each try is a run of the model
HINT_NATS = 3.0  # on a few nodes: worth holding against all of them
SIGNIFICANT_NATS = 12.0  # beyond the number of hypotheses tried: chance gives this once in 100,000
MOST_REFINED, STEPS_REFINED = 2, 32  # families whose parameter is solved for everywhere at once, and in how many steps
PARAMETER_NATS = 5.0  # what a solved parameter costs
ALIKE_NATS = 3.0  # hypotheses this near cannot be told apart
MAINLY = 0.5  # of the loudest's nats: what leaves nothing where it shows comes before what is so much louder
COEFFICIENT = (0.8, 1.25)  # of the predicted change that the deviation holds: a fault happens whole or not at all
LEAVES = 0.9  # of the deviation at most: a fault that leaves more of it is not what happened
RULE_LEAVES = 0.5  # the same under a rule of rounding: one token's other expert, got by luck, is a tenth of all
ITSELF = 0.5  # of its own change, or twice as much, beside roundings that fell otherwise: chance gives 0.1 and less
MOSTLY = 0.7  # share of the touched rows that must be nearer with the fault
DAMAGE_LEFT = 1 / 400  # of the deviation, beside one wrong bit: half of it is one of the nearest bits' deviation
DAMAGED_ROWS = 3  # tokens in which a damaged weight shows, where an engine rounds by a rule: one is an edge
MOST_OF_A_ROW = 64  # values of a row that count: neighbours share their luck
FLOOR_UNITS = 2.0  # times float32's simulated noise: below, nothing is evidence
CLEARER_NATS = 0.05  # a value: by so much must a rule of rounding be likelier than none
RULE_NATS = (
    0.4  # a value: rules this near stay possible; roundings of another run, as large as the deviation, double it
)
FLOAT32_LEFT = 4.0  # times that floor: what is left is float32's noise
LOUD = 0.6  # of what float32 is allowed in a step or a layer: right engines stay below 0.45, so what is it?
QUIET_LEFT = 1.0  # the same, in a run of many layers that passes for float32's: right ones leave a quarter, or less
ON_AN_EDGE = 0.9  # of the values of a row: the others may have been rounded the other way
# Of thousands of roundings in a layer some fall the other way, in one row of twenty (SmolLM2 by layers, Q8 operands).
FEW_EDGES = 1 / 4  # of the rows of a node, and of the nodes for a token: a fault shows in more
AN_EDGE = 1 / 2  # of the noise of all the roundings: so large is what one of them makes (there: 0.01 to 0.28)
SHAKEN = 2.0  # half-units of a row's size: by so much float32's sums in another order are off
DRAWS = 3  # runs of a prediction with other such errors: what moves in one of them hangs on an edge
FIRM_LEFT = 2.0  # times float32's noise and these moves, beside a fault that did happen
FIRM_SHARE = 1 / 40  # of the deviation, where that is more: so few draws miss an edge here and there
FIRM_ROWS = 2  # in which it shows: one is an edge
HARDLY_LEFT = 1 / 4  # of the deviation, beside a fault of precision: a coarse engine rounds in other places too

# How well the arithmetic is known. Both count nodes that were dumped whole.
ARITHMETIC_GUESSED = 20  # below: a layer's worth of nodes; a coarser arithmetic than the inferred one stays possible

# How long a segment is. All count its nodes.
ONE_KERNEL = 10  # up to here: attention or the experts of a layer, of which an engine that fuses them shows no more
FEEDS_FIRST = 40  # above: two layers or more, every hypothesis is a run; six other feeds of the tokens are the cheapest
LONG_RUN = 150  # from here: many layers, and a run of the first rows pays before one of all

# -- diagnosis: what the search may cost -------------------------------------------------------------------------------

HEAD = 3  # tokens of the short run: one at position 0, one that turns, one more
RULED_OUT = 3.0  # times ACCEPT on the first rows: float32 and other rows do not bring it back
ROUGH = 0.1  # of the squared deviation that may be left on the first rows where the arithmetic is a guess
AROUND = 0.03  # relative: where a parameter found on the first rows is looked for on all
A_LAYERS_WORTH = 24  # places in a file that are tried at once: two in each tensor of a layer
PROMISING = 0.95  # of the squared deviation left after a rough scan: more, and a refinement finds nothing
LARGE_LAYER = 40_000_000  # weights of a segment: misreading them, a second a try, is tried after all else
MOST_DECODED = 150_000_000  # elements decoded in one scan of a weight's layout

# -- endpoint: log-probabilities, in nats ------------------------------------------------------------------------------

ALLOWED = 4.0  # times the noise of the coarsest arithmetic: a server rounds as it likes
FLOOR = 0.02  # nats: what nobody calls a fault
PRINTED = 0.001  # nats: digits that servers print
CHANCE = 1e-7  # that right draws look wrong
RARE = 0.08  # share of draws below which a token is too rare to wait for
SWAPPED = 0.1  # nats: two tokens this near may change places by a server's noise
FILTERED = 0.5  # nats: a log-probability this far from the definition's was taken after a filter, not before
