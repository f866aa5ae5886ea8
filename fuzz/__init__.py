"""Fuzzers for every reader of foreign bytes, fed with inputs that are nearly right. Touch it when a reader is added.

    make fuzz                          two minutes over all readers
    make fuzz MINUTES=60               longer
    python -m fuzz --reader dump --seed 7 --inputs 1000

A reader may accept an input or refuse it with its own error. Any other exception, a signal, more than ten seconds or
more than a gigabyte is a finding.
"""
