"""Options of llama.cpp, Ollama, vLLM, transformers and OpenAI: what they are called here, or why they are not needed.

IGNORED and HINTS are written by reason. A name is followed by `=` if the option has a value.
"""

from __future__ import annotations

# The same option under another name.
RENAMED = {
    "--max-tokens": "-n", "--max-new-tokens": "-n", "--num-predict": "-n", "--num-ctx": "-c", "--ctx": "-c",
    "--num-thread": "-t", "--repetition-penalty": "--repeat-penalty", "-r": "--stop", "--reverse-prompt": "--stop",
    "-no-cnv": "--raw", "--no-cnv": "--raw", "--no-conversation": "--raw", "--no-chat-template": "--raw",
    "--system-prompt": "--system", "--chat-template-file": "--template", "--chat-template": "--template",
    "-hf": "-m", "-hfr": "-m", "--hf-repo": "-m", "--cache-type-k": "--kv-type", "-ctk": "--kv-type",
    "--key": "--api-key", "-np": "--parallel", "--show-timings": "--stats", "--perf": "--stats", "-md": "--draft",
    "--model-draft": "--draft", "-hfd": "--draft", "--hf-repo-draft": "--draft", "--n-cpu-moe": "--cpu-experts",
    "-ncmoe": "--cpu-experts", "--kl-divergence-base": "--kl", "--nowordwrap": "--no-wrap", "-a": "--alias",
    "--served-model-name": "--alias", "--max-model-len": "-c", "--max-num-seqs": "--parallel",
    "--max-num-batched-tokens": "--chunk", "--kv-cache-dtype": "--kv-type", "--prompt-file": "-f",
    "--allowed-origins": "--cors", "--slot-save-path": "--cache-dir", "--sleep-idle-seconds": "--sleep-idle",
    "-to": "--timeout", "--ssl-cert-file": "--tls-cert", "--ssl-certfile": "--tls-cert", "--ssl-key-file": "--tls-key",
    "--ssl-keyfile": "--tls-key",
}  # fmt: skip
HUB = {"-hf", "-hfr", "--hf-repo", "-hfd", "--hf-repo-draft"}  # options whose value is a Hugging Face repository
SWITCHES = {"-fa", "--flash-attn"}  # flags in older versions, which had no value

_IGNORED = {
    "colour is used on terminals": "--color -co --log-colors",
    "templates are always rendered by Jinja": "--jinja --no-jinja",
    "the prompt is never shown": "--no-display-prompt",
    "`assay tokenize --chat` shows the tokens of a prompt": "--verbose-prompt",
    "a pipe always gets plain text": "--simple-io",
    "control tokens are never printed": "-sp --special",
    "that is the default": "--no-escape --no-context-shift",
    "there is no warm-up": "--warmup --no-warmup",
    "files are always memory-mapped": "--mmap --no-mmap --direct-io -dio",
    "memory is not locked": "--mlock",
    "attention has only one implementation": "-fa= --flash-attn=",
    "one GPU computes a model; --cluster and --split share it among processes":
        "--tensor-parallel-size= -tp= --enable-expert-parallel --disable-custom-all-reduce",
    "--cache-size sets the size of the KV cache in tokens": "--gpu-memory-utilization= --cache-ram= -cram=",
    "a GGUF file states its types; --precision chooses the arithmetic": "--dtype=",
    "a GGUF file states its types": "--quantization= -q=",
    "files are GGUF": "--load-format= --config-format=",
    "the file has its tokenizer": "--tokenizer= --tokenizer-mode= --tokenizer-pool-size=",
    "no code of a repository is run": "--trust-remote-code",
    "adapters are given with --lora FILE": "--enable-lora --max-loras= --max-lora-rank=",
    "the engine chooses":
        "--enforce-eager --max-seq-len-to-capture= --compilation-config= -O= --async-scheduling "
        "--distributed-executor-backend= --block-size=",
    "how many tokens are drafted follows from how many are accepted":
        "--draft-max= --draft-n= --draft-min= --draft-n-min= --draft-p-min= --draft-p-split= --spec-type=",
    "a draft model runs where the model runs":
        "-ngld= --gpu-layers-draft= -devd= --device-draft= -cd= --ctx-size-draft= -ctkd= -ctvd= -td= -tbd=",
    "prefixes are always cached":
        "--enable-prefix-caching --no-enable-prefix-caching --cache-prompt --no-cache-prompt --cache-reuse= "
        "--ctx-checkpoints= --swa-checkpoints= -sps= --slot-prompt-similarity=",
    "prompts are always computed in chunks": "--enable-chunked-prefill",
    "tool calls are always read": "--enable-auto-tool-choice",
    "the format of tool calls is that of the template": "--tool-call-parser=",
    "the format of thoughts is that of the template": "--reasoning-parser= --reasoning-format= --enable-reasoning",
    "both forms of content are read": "--chat-template-content-format=",
    "a request says it with continue_final_message": "--no-prefill-assistant",
    "requests are not logged":
        "--disable-log-requests --enable-log-requests --no-enable-log-requests --disable-log-stats --max-log-len=",
    "there is no log":
        "--log-file= -lv= --log-verbosity= --verbosity= --log-verbose --log-disable --log-prefix --log-timestamps "
        "--uvicorn-log-level= -v --verbose",
    "nothing is swapped to the CPU": "--swap-space=",
    "models come over https or from files": "--insecure",
    "a model that is here is not asked for again": "--offline",
    "all sequences share one cache": "--kv-unified -kvu",
    "the cache of a window holds the window": "--swa-full",
    "CUDA_VISIBLE_DEVICES chooses the GPU": "--main-gpu= -mg=",
    "--engine cpu or cuda chooses": "--device= -dev=",
    "an engine runs all layers on one device":
        "-sm= --split-mode= -ts= --tensor-split= -ot= --override-tensor= --fit= -fit= --no-op-offload",
    "an engine runs all layers; --engine cuda uses a GPU": "-ngl= --n-gpu-layers= --gpu-layers=",
    "--cpu-experts N computes the experts of N layers on the cpu": "--cpu-moe -cmoe",
    "the cache is where the engine is": "--kv-offload --no-kv-offload -nkvo",
    "the tower is where the engine is": "--mmproj-offload --no-mmproj-offload",
    "a tower is used only for pictures": "--no-mmproj --mmproj-auto --no-mmproj-auto",
    "the cpu engine packs weights when they fit": "--repack --no-repack -nr",
    "/props is always available": "--props",
    "/metrics is always available": "--metrics",
    "/slots is always available": "--slots --no-slots",
    "/v1/embeddings is always available": "--embedding --embeddings",
    "/v1/rerank is always available": "--rerank --reranking",
    "the route of a request decides": "--task= --runner= --convert=",
    "a request may ask for 20": "--max-logprobs=",
    "a request may have 16 pictures": "--limit-mm-per-prompt=",
    "grammars and schemas are always available": "--guided-decoding-backend= --structured-outputs-config=",
    "--cors decides": "--allow-credentials --allowed-methods= --allowed-headers=",
    "the page is only loaded on request": "--no-webui --webui",
    "one event loop serves all connections": "--threads-http= --disable-frontend-multiprocessing",
    "the scheduler chooses batch sizes": "-b= --batch-size= -ub= --ubatch-size=",
    "--kv-type sets keys and values": "-ctv= --cache-type-v=",
    "a model stays loaded while the command runs": "--keepalive=",
    "one prompt gives one answer": "-st --single-turn",
    'put """ around several lines': "-mli --multiline-input",
    "use --kl": "--kl-divergence",
    "it is always computed": "--perplexity",
    "-t applies to prompts and answers": "-tb= --threads-batch=",
    "only `assay serve` shifts a context": "--keep= --context-shift",
    "use --stats to print it": "--no-perf",
    "the system places threads":
        "--numa= -C= --cpu-mask= -Cr= --cpu-range= --cpu-strict= -Cb= -Crb= --cpu-strict-batch=",
    "the system sets priorities": "--prio= --prio-batch= --poll= --poll-batch=",
    "continuous batching is always on": "-cb --cont-batching -nocb --no-cont-batching",
    "a file is checked when it is opened; `assay inspect` says more": "--check-tensors",
}  # fmt: skip

_HINTS = {
    "use `assay chat`": "-cnv --conversation -i --interactive",
    "download the file and give its path": "-mu --model-url -mmu --mmproj-url -dr --docker-repo",
    "download the files of that revision and give the path": "--revision --tokenizer-revision -hfv --hf-repo-v",
    "write hf:owner/repo:FILE": "-hff --hf-file",
    "set HF_TOKEN": "-hft --hf-token",
    "set HF_HUB_CACHE for models of the hub": "--download-dir",
    "`assay serve --alias NAME` names a served model": "-a --alias",
    "the prefix cache lives as long as the process; `assay serve` keeps it between prompts":
        "--prompt-cache --prompt-cache-all --prompt-cache-ro",
    "mirostat is not available; see --top-p, --min-p and --typical": "--mirostat --mirostat-lr --mirostat-ent",
    "the temperature is the same for every token; see --temp": "--dynatemp-range --dynatemp-exp",
    "the order is that of llama.cpp and cannot be changed": "--samplers --sampling-seq --sampler-seq",
    "samplers are options of `assay run` and fields of a request; `assay serve --presets FILE` sets defaults":
        "--temp --temperature --top-k --top-p --min-p --typical --top-nsigma --top-n-sigma --xtc-probability "
        "--xtc-threshold --repeat-penalty --repeat-last-n --presence-penalty --frequency-penalty --dry-multiplier -s "
        "--seed --ignore-eos -l --logit-bias -n --predict --n-predict --generation-config "
        "--override-generation-config",
    "they are options of `assay run` and fields of a request":
        "--grammar --grammar-file -j --json-schema -e --escape -p --prompt --pooling",
    "use --json-schema \"$(cat FILE)\"": "-jf --json-schema-file",
    "use --system \"$(cat FILE)\"": "-sysf --system-prompt-file",
    "the template decides what stands around a message; --raw leaves it out":
        "--in-prefix --in-suffix --in-prefix-bos",
    "the value of the file is used":
        "--rope-freq-base --rope-freq-scale --rope-scale --rope-scaling --yarn-orig-ctx --yarn-ext-factor "
        "--yarn-attn-factor --yarn-beta-slow --yarn-beta-fast --override-kv --hf-overrides --image-min-tokens "
        "--image-max-tokens",
    "control vectors are not available": "--control-vector --control-vector-scaled --control-vector-layer-range",
    "`assay doctor` lists engines and devices": "--list-devices",
    "there are no Modelfiles; `assay show MODEL` prints what the file has": "--modelfile",
    "give each adapter as --lora FILE; requests choose with `lora`": "--lora-modules",
    "give --lora FILE=SCALE": "--lora-scaled --lora-init-without-apply",
    "use --draft MODEL; --lookahead needs no draft model": "--speculative-config",
    "use --cluster with --split N": "--pipeline-parallel-size -pp --rpc",
    "use --cluster with --replicas N": "--data-parallel-size -dp",
    "use --cpu-experts N": "--cpu-offload-gb",
    "give the models as MODEL; without one, every model of `assay list` is served": "--models-dir",
    "use --presets FILE, in TOML": "--models-preset",
    "put a reverse proxy before the server that takes the prefix off": "--api-prefix --root-path",
    "serve other files with a web server of their own": "--path",
    "pictures come in requests as data, or from addresses with --allow-media-urls": "--media-path",
    "the context is that of the file; see -c": "--grp-attn-n --grp-attn-w",
    "thoughts are shown; --template-arg enable_thinking=false leaves them out": "--hidethinking",
    "use --template-arg enable_thinking=false": "--reasoning-budget",
    "use --json-schema '{}' for an answer that is a JSON object": "--format",
    "use --template-arg enable_thinking=true, or =false": "--think",
}  # fmt: skip

# Options without meaning here: the number of their values, and the reason.
IGNORED: dict[str, tuple[int, str]] = {
    name.rstrip("="): (int(name.endswith("=")), why) for why, names in _IGNORED.items() for name in names.split()
}
# Options that end in an error: what to do instead.
HINTS: dict[str, str] = {name: what for what, names in _HINTS.items() for name in names.split()}
