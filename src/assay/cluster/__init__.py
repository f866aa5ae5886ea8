"""Beyond one machine: replicas behind a router, layers on several hosts, sweeps over many.

    frames     the wire: authenticated frames over TCP
    jobs       a job and its updates as frames
    fingerprint  who gives the same bits
    places     where processes run: here, or on the nodes of a Ray cluster
    replica    a scheduler and its engine behind frames
    fleet      the router: streams on replicas, and their move when one dies
    stages     layers elsewhere, as an engine
    sweep      many independent tasks, resumable

A stream is a function of its prompt, its settings and its seed. So whoever has these and the tokens so far can go on
with it, and nothing that dies takes more with it than time.
"""
