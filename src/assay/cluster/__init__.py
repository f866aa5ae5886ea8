"""Beyond one machine: replicas behind a router, layers split over several hosts, sweeps over many workers.

    frames            the wire: authenticated frames over TCP
    jobs              a job and its updates as frames, between the router and a replica
    chunk_frames      a chunk of a batch as frames, between the stages of a split model
    fingerprint       which replicas compute the same bits
    launchers         start processes on this machine; `ray_cluster` starts actors on the nodes of a Ray cluster
    service           a process that listens for frames; `service_process` is its command
    local_model       a replica or a stage opens its own host's copy of the model file
    replica           a scheduler and its engine behind frames
    fleet             the router: placement, failover and autoscaling; `replica_link` is its end of one connection
    affinity          the cost of placing a stream on a replica
    audit             compares the answers of replicas bit for bit
    replicated_model  a model of the server that is computed by replicas
    split, stage      pipeline parallelism: a model whose layers are in several processes, as one engine
    sweep             many independent tasks, resumable; `worker_pool` has the workers, `tasks` has the functions

A *job* is a request for one sequence (a prompt and its answer). A *stream* is a sequence as the router sees it: the
job, the tokens so far, and the replica that computes it. A *chunk* is the tokens of one sequence in one engine step.

A stream is a function of its prompt, its settings and its seed. A replica that has these and the tokens so far can
continue the stream with the same bits. So the loss of a process costs time and never an answer.
"""
