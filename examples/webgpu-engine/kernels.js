// The kernels of a small engine for float32 llamas, and mistakes that can be planted in them.
// Every kernel: binding 0 is a uniform struct, then what it reads, last what it writes. An invocation has one value of a row.

const MAIN = "@compute @workgroup_size(64) fn main(@builtin(workgroup_id) group : vec3<u32>, @builtin(local_invocation_index) lane : u32)";
const PAR = "struct Par { width : u32, columns : u32, heads : u32, kv_heads : u32, keys : u32 }\n@group(0) @binding(0) var<uniform> par : Par;";

function bind(reads, write) {
  return [...reads, write].map((name, i) => {
    const [id, type = "f32"] = name.split(":");
    return `@group(0) @binding(${i + 1}) var<storage, ${i < reads.length ? "read" : "read_write"}> ${id} : array<${type}>;`;
  }).join("\n");
}

export const KERNELS = {
  embed: `${PAR}
${bind(["tokens:u32", "table"], "y")}
${MAIN} {
  let i = group.x * 64u + lane;
  if (i < par.width) { y[group.y * par.width + i] = table[tokens[group.y] * par.width + i]; }
}`,

  // x / sqrt(mean(x²) + 1e-5) * w; a workgroup has a row
  norm: `${PAR}
${bind(["x", "w"], "y")}
var<workgroup> sums : array<f32, 64>;
${MAIN} {
  let row = group.y * par.width;
  var sum = 0.0;
  for (var i = lane; i < par.width; i += 64u) { sum += x[row + i] * x[row + i]; }
  sums[lane] = sum;
  workgroupBarrier();
  sum = 0.0;
  for (var i = 0u; i < 64u; i++) { sum += sums[i]; }
  let factor = 1.0 / sqrt(sum / f32(par.width) + 1e-5);
  for (var i = lane; i < par.width; i += 64u) { y[row + i] = x[row + i] * factor * w[i]; }
}`,

  // y = W x; W is row-major: a row of `columns` weights for each value of y
  product: `${PAR}
${bind(["x", "w"], "y")}
${MAIN} {
  let r = group.x * 64u + lane;
  if (r >= par.width) { return; }
  var sum = 0.0;
  for (var c = 0u; c < par.columns; c++) { sum += w[r * par.columns + c] * x[group.y * par.columns + c]; }
  y[group.y * par.width + r] = sum;
}`,

  // Rotates pairs of neighbours; an invocation has a pair. `columns` is the width of a head. WGSL's sin, cos and pow may be
  // wrong by 2^-11, so the host computes the table: cosine and sine of each pair of a position.
  rope: `${PAR}
${bind(["x", "table"], "y")}
${MAIN} {
  let i = 2u * (group.x * 64u + lane);
  if (i >= par.width) { return; }
  let turn = group.y * par.columns + i % par.columns;
  let at = group.y * par.width + i;
  y[at] = x[at] * table[turn] - x[at + 1u] * table[turn + 1u];
  y[at + 1u] = x[at] * table[turn + 1u] + x[at + 1u] * table[turn];
}`,

  // Scores of a query (group.y) and head (group.z) with every key. `columns` is the width of a head, `width` the number of keys.
  scores: `${PAR}
${bind(["q", "k"], "y")}
${MAIN} {
  let s = group.x * 64u + lane;
  if (s >= par.width) { return; }
  let h = group.z;
  let q0 = (group.y * par.heads + h) * par.columns;
  let k0 = (s * par.kv_heads + h / (par.heads / par.kv_heads)) * par.columns;
  var sum = 0.0;
  for (var c = 0u; c < par.columns; c++) { sum += q[q0 + c] * k[k0 + c]; }
  y[(h * par.width + group.y) * par.width + s] = sum;
}`,

  // Probabilities of the keys up to the query's own. `limits` bound the scaled scores; WGSL aligns a vec2 to 8 bytes.
  softmax: `struct Par { keys : u32, limits : vec2<f32>, scale : f32 }
@group(0) @binding(0) var<uniform> par : Par;
${bind(["x"], "y")}
fn scaled(at : u32) -> f32 { return min(max(x[at] * par.scale, par.limits.x), par.limits.y); }
${MAIN} {
  let s = group.x * 64u + lane;
  if (s >= par.keys) { return; }
  let row = (group.z * par.keys + group.y) * par.keys;
  var most = scaled(row);
  for (var i = 1u; i <= group.y; i++) { most = max(most, scaled(row + i)); }
  var sum = 0.0;
  for (var i = 0u; i <= group.y; i++) { sum += exp(scaled(row + i) - most); }
  y[row + s] = select(0.0, exp(scaled(row + s) - most) / sum, s <= group.y);
}`,

  // `width` values of all heads of a token; `columns` is the width of a head.
  weighted: `${PAR}
${bind(["p", "v"], "y")}
${MAIN} {
  let i = group.x * 64u + lane;
  if (i >= par.width) { return; }
  let h = i / par.columns;
  let v0 = (h / (par.heads / par.kv_heads)) * par.columns + i % par.columns;
  var sum = 0.0;
  for (var s = 0u; s <= group.y; s++) { sum += p[(h * par.keys + group.y) * par.keys + s] * v[s * par.kv_heads * par.columns + v0]; }
  y[group.y * par.width + i] = sum;
}`,

  gated: `${PAR}
${bind(["gate", "up"], "y")}
fn kept(v : f32) -> f32 { return v; }
${MAIN} {
  let i = group.x * 64u + lane;
  if (i >= par.width) { return; }
  let at = group.y * par.width + i;
  y[at] = kept(gate[at] / (1.0 + exp(-gate[at])) * up[at]);
}`,

  add: `${PAR}
${bind(["a", "b"], "y")}
${MAIN} {
  let i = group.x * 64u + lane;
  if (i < par.width) { y[group.y * par.width + i] = a[group.y * par.width + i] + b[group.y * par.width + i]; }
}`,
};

// The mistakes: `edits` change the text of kernels (kernel, what is there, what stands there instead); the others are the host's.
export const FAULTS = {
  barrier: { edits: [["norm", "  workgroupBarrier();\n", ""]] },
  stride: { edits: [["norm", "w : array<f32>", "w : array<vec3<f32>>"], ["norm", "* w[i];", "* w[i / 3u][i % 3u];"]] },
  uniform: { packs: true }, // the fields of softmax's struct one after the other, without the gap that WGSL has
  tail: { roundsDown: "gated" }, // n / 64 workgroups
  overflow: { edits: [["gated", "return v;", "return unpack2x16float(pack2x16float(vec2(v, 0.0))).x;"]] },
  alias: { inPlace: "rope", edits: [["rope", /@group\(0\) @binding\(1\).*\n/, ""], ["rope", /\bx\[/g, "y["]] },
  transposed: { edits: [["product", "w[r * par.columns + c]", "w[c * par.width + r]"]] },
};
