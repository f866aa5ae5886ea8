"""Makes docs/reference/dump-format.md: what `assay diff` and `assay diagnose` read.

Touch it when a format is added; the pattern language of log lines comes from `assay.verify.dumps.patterns`.
"""

from __future__ import annotations

HEAD = """\
# The dump format

assay compares any values that you can get out of your engine. The best dump is every node of a short prompt, as JSON
lines. A useful one is ten printed values and an RMS after each layer. Feed a few tokens (five or six, two of them
different) and write down their ids: the ids are the one thing that must be in the dump.

```
{"assay_dump": 1, "engine": "mine", "tokens": [1, 450, 7483]}
{"name": "embd", "shape": [3, 2048], "values": [0.0012, -0.0031, ...]}
{"name": "Qcur-0", "shape": [3, 32, 64], "values": [...]}
{"name": "l_out-0", "row": 2, "first": [0.0047, -0.00001, -0.0019], "rms": 0.014175}
{"name": "result_output", "row": 2, "top": [[3681, 17.37], [278, 14.88]]}
```

```
assay diff tinyllama dump.jsonl
assay diagnose tinyllama dump.jsonl
```

## Header

The first line. `tokens` are the ids that were fed; `positions` their positions where they are not 0, 1, 2, …;
`phase` is `prefill` (all at once) or `decode`. A sequence fed in several steps has one header a step, each with
that step's tokens: a prompt, then tokens one by one through the cache. Faults of the cache show only there.

## One line an observation

`name` is llama.cpp's name of the node ([names.md](names.md)), and `shape` is row-major: the slowest axis first, as in
NumPy. Then come the values, or statistics of them:

| key | is |
|---|---|
| `values` | all of them, flat, in the order of `shape` |
| `file`, `dtype` | all of them as raw little-endian `f32`, `f16` or `f64` in a file beside the dump |
| `first`, `last` | the values at that end |
| `at` | pairs `[index, value]`, the index counting flat |
| `top` | pairs `[token id, logit]` of the largest logits |
| `rms`, `mean`, `min`, `max`, `sum`, `std`, `norm`, `absmax`, `absmean`, `abssum` | one number |

With `row`, they describe the row of one token. One line may have several of these keys.

NaN, infinities and `null` for either are evidence. Everything computed before the first of them is judged. The answer
names the node that holds it and the operation that made it: an overflow of half precision, 0/0 in a norm, a softmax row
in which every key is masked, exp without the maximum subtracted, memory that was never written. Masked scores may be
-inf.

Layouts are recognised: `[tokens, features]`, `[heads, tokens, dim]`, the last token only, and fastest axis first. A
note says which layout was assumed.

## Emitters

Twenty lines each: [C](../emitters/emit.c), [Rust](../emitters/emit.rs),
[Go](../emitters/emit.go), [Zig](../emitters/emit.zig),
[JavaScript](../emitters/emit.js), [Python](../emitters/emit.py).

## Other formats

- `.npz`, `.safetensors`, or a folder of `.npy`, by NumPy, MLX or others: one array a node, and the ids as an array
  `tokens` or `input_ids`. bfloat16 is read.
- `.pt`, `.pth`, `.pkl`, or a folder of them, by `torch.save` or `pickle.dump`: tensors and arrays in dicts, lists and
  tuples, of every type, stride and offset. The pickle is read as data: no code of it runs.
- A folder with one log, `.jsonl` or `.npz` in it: that file. Where a folder has several, name the one to read.
- Folders of sglang's dumper (`step=0___rank=0___name=….pt`): steps are joined by their `input_ids`; rank 0 is read.
- Folders of AWS Neuron's tensor capture (`captured_tensors_cte_step_1_module_….pt`): if the prompt was padded to a
  power of two, the rows of the tokens are read.
- The trees of transformers' `model_addition_debugger` (`…_debug_tree_FULL_TENSORS.json`, `…_SUMMARY.json`): printed
  values, statistics, or safetensors files beside the tree.
- ONNX Runtime's dump of node outputs: a folder of `.tensorproto` or `.pb` files, or the SQLite file. Names of PyTorch's
  exporter are understood; other nodes are matched by value.
- ExecuTorch's `calculate_numeric_gap`, saved as CSV or TSV: the runtime's values, matched by value. Print them whole.
- Intermediate outputs of a compiler (coremltools' `MLModelInspector`), saved as `.npz`: names such as
  `var_12_cast_fp16` are matched by value.
- Raw numbers (`.bin`, `.raw`, `.f32`, `.f16`, `.bf16`, …) with a manifest: JSON, JSON lines, TOML, YAML, CSV, or a line
  for each array, such as `layers.0.q f32 [8, 576] 18432`. It gives a name and a shape or size; offsets, types, byte
  order, files, layers, tokens' rows and steps are read in common spellings. Offsets may count bytes or elements; the
  file's size decides. Without offsets the arrays follow each other. Name the data, the manifest or their folder.
- Raw numbers behind a text in one file: the text is such a manifest. Offsets count from the first number or from the
  beginning of the file; the reading that ends where the file ends is taken.
- A folder of raw files whose names hold the tensor and its shape (`blk0_q_13x8x8.f32`), or with a `.json` or `.txt`
  beside each; `tokens.txt` or `tokens.bin` gives the ids.
- A table of numbers as CSV, TSV or columns: a row for each position (`pos,token,logit_0,…`), a column for each
  position (`token_id,pos0,…`), rows of any node (`layer,name,v0,…`), with or without heads. Lists as long as the
  vocabulary are logits.
- Logits of the last prompt token and of generated tokens in one array, with the ids as `prompt_ids` and `generated`.
- The text that `llama-eval-callback` and `llama-debug` print, of all versions since 2024; and `llamacpp-MODEL.bin` with
  `-tokens.bin`, which `llama-debug --save-logits` writes.
- JSON lines with one whole array each (`{"call": 0, "node": "mixer.3", "shape": [7, 32], "data": [...]}`). `call` or
  `step` counts the calls; a line without an array may list the ids of the prompt, and those fed after it.
- Printed text: any line with a word for a node and numbers.

An array with a row for each token and fewer columns than any node has is read as the first columns of its rows.

Names of modules may carry a class, a scope or `output` (`LlamaForCausalLM.model.layers.0.mlp_output`). Of a tuple, the
first value is the module's. A layer may return two values of one shape (vLLM, sglang, or `hidden_states` and `residual`
saved by nnsight). They are the parts of the residual stream and are added. Files of PyTorch, transformers, the onnx
package and MLX are in the tests; the folders of sglang and Neuron and the table of ExecuTorch are made there by their
documented structure.

## Printed text

Print what you have; no format is required. Lines like these are understood:

```
layer 0: [-0.147467, 0.233105, 0.018274]            Layer 0 output first 5 values: [..., ...]
[engine] after block 0: -0.147467 0.233105          l_out-0 = tensor([-0.1475,  0.2331, ...], device='cuda:0')
blk.0.attn_norm rms=1.0312 min=-4.1 max=3.9         {"layer": 0, "rms": 1.0312, "values": [-0.1475, 0.2331]}
12:30:01 INFO layer 0 last token: [-0.147467, ...]  | layer | rms | mean |
```

A heading with the token of a decode step ("--- decode step 1, token 64") begins that step; "token #2 (id 99)" names the
row. Positions behind the prompt are decode steps, too, if the log gives their ids: beside the position, as sampled or
chosen ids, as a list (`generated ids: [281, 401]`), or as the best logit of the row before.

JSON lines with a name, a layer, a token and data are read, and JSON or YAML documents of any depth: the keys that lead
to a record name it. Values of one head ("L0 H4 q", `[head][pos][dim]` arrays, attention weights) are placed within
their node. Tables may be Markdown, boxes, CSV, or columns whose heads stand above the numbers' right ends. Hexadecimal
floats (`%a`) and hexdumps of float32 are read. Of a comparison with `-` and `+` lines, the engine's own are read.

Columns that measure the engine (times, sizes, rates, addresses), units behind numbers, and columns that count the rows
are left out. Matrices in parts, `Columns 1 through 9` or `[,1] [,2]`, are joined.

Colours, times, log levels and source locations before a line are ignored, and what all lines begin with. A heading
("Layer 3:") applies to the lines
below it. Arrays may run over several lines and omit the middle. Lists and columns are values; `rms`, `mean`, `min`,
`max`, `sum`, `std`, `norm`, `absmax`, `absmean`, `abssum` are statistics; ids with logits are logits. A printed number
stands for all numbers that round to it.

If the text does not say which token's row was printed, or which of two nodes a word means, the values decide. They also
decide for a statement whose words are unknown, or are printed several times in a layer: it is the node whose values its
lines have in the first layers, in lists or in statistics of all tokens. The same words with other numbers are then the
same node of other layers, and of decode steps. Words that name a node are overruled only where no fault could give that
node these values. A prefix whose numbers count up (`b00/q`, `[0] u`, `l=0 s->xb`) is the layer. The report shows first
what was understood.

A text that holds no values of nodes (a loader's log, a benchmark, a profile) is refused. So is one that states the
width, the layers or the shapes of another model. The message says what was found and what to print.

If a line was not understood, the message quotes it with a `--pattern` that would match it.

"""

TAIL = """\

```
assay diff tinyllama run.log --tokens 1,450,7483 --pattern "layer {{layer}} out: rms={{rms}} head=[{{first}}]"
```

If a log shows two engines' values, `--side NAME` says which engine is judged.

## Names

llama.cpp's names are understood without translation, with the operation where it gives several values one name. Names
of Hugging Face modules (`model.layers.0.self_attn.q_proj`) and of Meta's and llama2.c's code are translated, including
the order of rotary rows. For any other names give `--map names.json`, an object from your names to node names. Names
that are still unknown are matched by value if exactly one node fits; the match is shown with its evidence.
"""


def dump_page() -> str:
    from assay.verify.dumps.printed import patterns

    first, language, table, _ = (patterns.__doc__ or "").split("\n\n")
    table = "\n".join(line.removeprefix("  ") for line in table.splitlines())
    return HEAD + f"{first}\n\n{language}\n\n```\n{table}\n```\n" + TAIL.format()
