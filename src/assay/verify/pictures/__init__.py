"""Judging an engine that sees: what it made of a picture, from the pixels to the rows for the language model.

    picture_dump      a dump's arrays, sorted into pixels and nodes of each image
    pixel_verdict     are the pixels right, and if not, which habits make them?
    tower_trials      the judge on the tower's graph, and every mistake tried on the dump's own values
    diagnose_picture  the answer
    difference_image  a PNG of expected pixels, found pixels, and the difference
    picture_report    the page

The mistakes are `faults/vision`. Touch this package when a right engine is called wrong, or a wrong one right.
"""
