"""The Python API behind `import assay`: models that generate, and verdicts on engines and dumps.

Touch it to change the public interface. It has no options of the command line and no HTTP.
"""
