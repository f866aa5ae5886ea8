"""Servers: audits of the model behind an endpoint, and diagnoses of the engine behind it.

An audit asks whether an endpoint serves the claimed model (`audit_run`):

    dialects           routes of other servers, in the words of OpenAI's
    client, asking     requests and answers; what the server shows
    probe_texts        the texts to ask about, drawn from a seed
    served_text        evidence: places, blocks, losses
    spelled_text       the tokens of an answer of which only the text is known
    claimed_model      predictions of the claim, and of the claim with one thing changed
    float_weights      the claimed file in FP8 and MXFP4
    alternatives       what may be served in its place
    left_over          does a request read what the one before it left?
    wagers, standings  bets with a stated error rate, and where every alternative stands
    token_bets         bets on the tokens that were chosen, where no log-probabilities are shown
    model_search       which alternative explains the answers, once the claim has failed
    fitted_numbers     the base and scale of RoPE, and the numbers of mistakes, searched
    draw_settings      ways to draw a token that were not asked for
    greedy_tokens      tokens that are not the best ones at temperature 0: draws, penalties, other rules
    own_draws          sampling, judged by the server's own log-probabilities
    audit_report       words, data, page

A diagnosis asks which mistake of the catalogue the engine makes (`blackbox`). `prompt_ids` finds the ids that the
server fed, `nucleus_draws` tests top-p, and `simulated` predicts a server with a given fault.

Touch this package to add an alternative or a probe of a server.
"""
