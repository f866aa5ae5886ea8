"""Ground truth: traces, foreign dumps, noise, verdicts, faults and their diagnosis.

Rooms, each importing only what stands before it; in brackets the door that a caller comes in by:

    dumps        somebody's run as observations [load.load_dump, resolve.resolve, trace.take_trace]
    judge        is a node right on its own inputs [verdict.judge, verdict.compare]
    faults       the catalogue of what goes wrong, and how to commit it [FAULTS, planted]
    witness      other people's engines [open_engine]
    diagnosis    which fault gives these very values [diagnose.diagnose, by_tokens.token_causes, answer.text]
    conformance  the healthy path [check.check_engine, kit.write_kit, grade.score_kit, two_files]
    endpoint     a server's log-probabilities alone [blackbox.diagnose_endpoint]
    report       one page of a verdict and its values [write_html]

    load_dump(source, model) -> Dump                what was observed, in the model's names and layouts
    judge(model, dump) -> Diff                      a verdict a node; true when nothing is wrong
    diagnose(model, dump) -> Diagnosis              the causes, ranked; true when nothing is wrong
    check_engine(make, model, tokens) -> Check …    an engine against the definition, as the checks are done

Nothing here prints or parses arguments. Results are frozen; `to_dict` gives them as plain data. Every number that
decides stands in `thresholds`.
"""
