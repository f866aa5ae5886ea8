// Writes rows of keys, or of values, or of both to their slots; with `turned`, keys are turned by RoPE on the way. Keys of
// a page and head lie transposed: for each word of a key, the 32 keys side by side. Values lie slot by slot. A word has
// one float32, two 16-bit floats or four codes of q8_0.
struct Par { zero : u32, heads : u32, dim : u32, words : u32, x_at : u32, x_stride : u32, v_at : u32, v_stride : u32,
             only_values : u32, n_rot : u32, offset : u32, neox : u32, table : u32 }
@group(0) @binding(0) var<storage, read> par : Par;
@group(0) @binding(1) var<storage, read> step : array<u32>;
@group(0) @binding(2) var<storage, read> x : array<u32>;
@group(0) @binding(3) var<storage, read> v : array<u32>;
@group(0) @binding(4) var<storage, read_write> keys : array<u32>;
@group(0) @binding(5) var<storage, read_write> values : array<u32>;
//#include arithmetic
//#include step
//#if turned
fn unturned(at : u32) -> u32 { return x[at]; }
//#include turned
//#end
fn value(t : u32, head : u32, d : u32, is_key : bool) -> u32 {
  let i = head * par.dim + d;
  if (!is_key) { return v[par.v_at + t * par.v_stride + i]; }
//#if turned
  return turned(par.x_at + t * par.x_stride, i, d, t);
//#end
//#if still
  return x[par.x_at + t * par.x_stride + i];
//#end
}
fn put(s : u32, head : u32, word : u32, found : u32, is_key : bool) {
  if (is_key) {
    keys[(((s / 32u) * par.heads + head) * par.words + word) * 32u + s % 32u] = found;
  } else {
    values[(s * par.heads + head) * par.words + word] = found;
  }
}
fn to_bfloat(v : u32) -> u32 {
  let a = magnitude(v);
  let s = (v >> 16u) & 0x8000u;
  if (a > INFINITY) { return s | 0x7fc0u; }
  let r = (a + 0x7fffu + ((a >> 16u) & 1u)) >> 16u;
  return s | min(r, 0x7f7fu);
}
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) g : vec3<u32>) {
  let t = g.y;
  let is_key = g.z == 0u && par.only_values == 0u;
//#if q8_0
  let blocks = par.dim / 32u;
  if (g.x >= par.heads * blocks) { return; }
  let head = g.x / blocks;
  let block = g.x % blocks;
  var own : array<u32, 32>;
  var top = 0u;
  for (var j = 0u; j < 32u; j++) {
    own[j] = value(t, head, block * 32u + j, is_key);
    top = max(top, magnitude(own[j]));
  }
  var d = 0u;
  var inverse = 0u;
  if (top >= INFINITY) { d = NAN; } else if (top >= 0x03800000u) {
    d = div(top, 0x42fe0000u);
    inverse = div(0x42fe0000u, top);
  }
  for (var j = 0u; j < 8u; j++) {
    var word = 0u;
    if (inverse != 0u) {
      for (var k = 0u; k < 4u; k++) {
        word |= ((add(mul(own[4u * j + k], inverse), 0x4b400000u) - 0x4b400000u) & 255u) << (8u * k);
      }
    }
    put(slot(t), head, block * 9u + 1u + j, word, is_key);
  }
  put(slot(t), head, block * 9u, from_half(to_half(d)), is_key);
//#end
//#if floats
  if (g.x >= par.heads * par.words) { return; }
  let head = g.x / par.words;
  let word = g.x % par.words;
//#if f32
  put(slot(t), head, word, value(t, head, word, is_key), is_key);
//#end
//#if f16
  var pair = 0u;
  for (var k = 0u; k < 2u && 2u * word + k < par.dim; k++) {
    pair |= to_half(value(t, head, 2u * word + k, is_key)) << (16u * k);
  }
  put(slot(t), head, word, pair, is_key);
//#end
//#if bf16
  var pair = 0u;
  for (var k = 0u; k < 2u && 2u * word + k < par.dim; k++) {
    pair |= to_bfloat(value(t, head, 2u * word + k, is_key)) << (16u * k);
  }
  put(slot(t), head, word, pair, is_key);
//#end
//#end
}
