"""Log formats that strangers to the reader wrote, sets of some thirty. What it made of each at first sight is in
`docs/verify.md`."""

from dataclasses import replace

from tests.verify.dumps.strangers import eighth, fifth, first, fourth, second, seventh, sixth, third

SETS = {
    "first": first, "second": second, "third": third, "fourth": fourth, "fifth": fifth, "sixth": sixth,
    "seventh": seventh, "eighth": eighth,
}  # fmt: skip
FORMATS = [replace(form, name=f"{name}: {form.name}") for name, each in SETS.items() for form in each.FORMATS]
UNREAD = {
    "sixth: tinygrad, DEBUG=2 noise and indexed expression labels",
    "sixth: julia @show/display of a column vector",
    "seventh: reddit prose with inline numbers",
    "seventh: top logits listing with residual norms",
    "seventh: wide aligned table, one row per layer, one column per stage (rms)",
    "eighth: c fixed-width rms table on stderr",
    "eighth: c dump_vec helper, first and last elements",
    "eighth: python self-documenting f-strings",
}
