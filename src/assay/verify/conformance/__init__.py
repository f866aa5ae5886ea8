"""Tests for an engine that is believed to be right.

    engine_check  `assay check`: runs an engine of this process at several lengths against the definition
    vectors       `assay kit`: writes inputs and expected values as files that an engine in any language can read
    probes        the runs of a kit, each chosen because a mistake shows there; `engine_check` does not use them
    grade         grades an engine's answers to a kit
    two_files     compares two files of one model; `pair_page` shows the result as a page
    sample        the text to measure on, where the user gives none

Touch this package to add a check that a right engine must pass: to `engine_check` for `assay check`, to `probes` for
kits.
"""
