"""Judging an engine that sees: what it made of a picture, from the pixels to the rows for the language model.

    picture_dump      a dump's arrays, sorted into pixels and nodes of each image
    pixel_verdict     are the pixels right, and if not, which habits make them?
    tower_trials      the judge on the tower's graph, and every mistake tried on the dump's own values
    picture_question  what is asked: plain data that the passes share
    dumped_pixels     the pixels of a dump, judged
    dumped_images     the images of a dump on the tower, judged
    mistake_search    mistakes tried on the wrong nodes, and ranked
    diagnose_picture  the answer
    prompt_trials     a prompt with pictures, fed rightly or with a mistake
    diagnose_prompt   the answer about a run of such a prompt
    difference_image  a PNG of expected pixels, found pixels, and the difference
    picture_report    the page

The mistakes are `faults/vision`. Touch this package when a right engine is called wrong, or a wrong one right.
"""
