"""Pictures: from the bytes of a file to the rows that a language model reads.

`picture.py` decodes, `preprocess.py` makes the pixels that a tower wants, `encode.py` runs the tower
(`models/vision`), and `rows.py` holds the result.
"""
