"""Verification: is an engine right, and if not, which mistake did its author make?

*The definition* is the reference engine (`assay.engines.reference`): exact weights, then float64, one textbook function
an operation. Every verdict compares with its values.

The packages, in the order of their imports. In brackets: the functions that a caller uses.

    dumps        another engine's run as observations [load.load_dump, resolve.resolve, tracing.take_trace]
    judge        is a node right on its own inputs [verdict.judge, verdict.compare]
    faults       the catalogue of mistakes, and how to plant each [FAULTS, planted, register_fault]
    witness      other engines that are run for comparison [engines_by_name.open_engine]
    diagnosis    which fault gives these very values [diagnose_dump.diagnose, by_tokens.token_causes, answer.text]
    conformance  tests for an engine: runs, kits of files, two files [engine_check.check_engine, vectors.write_kit,
                 grade.score_kit, two_files]
    endpoint     a diagnosis from a server's log-probabilities alone [blackbox.diagnose_endpoint]
    report       one HTML page of a verdict and its values [write_html]

    load_dump(source, model) -> Dump                the observations, in the model's names and layouts
    judge(model, dump) -> Diff                      one verdict a node; true when nothing is wrong
    diagnose(model, dump) -> Diagnosis              the causes, ranked; true when no fault was found
    check_engine(make, model, tokens) -> Check …    an engine against the definition, one check at a time

Nothing here prints or parses arguments. Results are frozen; `to_dict` gives them as plain data. Every number that
decides a verdict is in `thresholds`.
"""
