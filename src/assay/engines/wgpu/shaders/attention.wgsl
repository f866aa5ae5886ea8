// Attention of a query row (a token's head) over a block of 256 keys: (m, l, acc) of arithmetic.md. First an invocation
// has a key, then a column of values over a page of 32 keys.
// With `turned`, queries are turned by RoPE when they are read.
struct Par { zero : u32, heads : u32, kv_heads : u32, dim : u32, v_dim : u32, k_words : u32, v_words : u32, scale : u32,
             cap : u32, window : u32, causal : u32, chunk : u32, by_output : u32, q_at : u32, q_stride : u32,
             most_blocks : u32, most_keys : u32, n_rot : u32, offset : u32, neox : u32, table : u32 }
@group(0) @binding(0) var<storage, read> par : Par;
@group(0) @binding(1) var<storage, read> step : array<u32>;
@group(0) @binding(2) var<storage, read> q : array<u32>;
@group(0) @binding(3) var<storage, read> keys : array<u32>;
@group(0) @binding(4) var<storage, read> values : array<u32>;
@group(0) @binding(5) var<storage, read> positions : array<u32>;
@group(0) @binding(6) var<storage, read_write> out : array<u32>;  // [row][head][block]: m, l, acc
//#if traced
@group(0) @binding(7) var<storage, read_write> scores : array<u32>;  // [row][head][key]: kq, capped, scaled
//#end
//#include arithmetic
//#include functions
//#include step
//#if turned
fn unturned(at : u32) -> u32 { return q[at]; }
//#include turned
//#end
const UNSEEN = 0xffffffffu;  // a NaN that no function gives
var<workgroup> e : array<u32, 256>;
var<workgroup> top : array<u32, 256>;
var<workgroup> some : array<u32, 16>;
var<workgroup> query : array<u32, 256>;
var<workgroup> wild_queries : atomic<u32>;
var<workgroup> faint_weights : atomic<u32>;  // below 2^-76, where a product with a half can be subnormal
var<workgroup> parts_of_pages : array<u32, 2048>;  // 8 pages of up to 256 columns
fn larger(a : u32, b : u32) -> u32 {  // of two orders; -inf beside a NaN counts as a NaN
  let most = max(a, b);
  return select(most, 1u, min(a, b) == 1u && most == order(0xff800000u));
}
fn key_word(base : u32, word : u32) -> u32 { return keys[base + word * 32u]; }
fn float16(word : u32, i : u32) -> u32 { return from_half((word >> (16u * (i & 1u))) & 0xffffu); }
fn bfloat(word : u32, i : u32) -> u32 { return (word >> (16u * (i & 1u))) << 16u; }
fn code(word : u32, i : u32) -> u32 { return bitcast<u32>(f32(i32(word << (24u - 8u * (i & 3u))) >> 24u)); }
fn key_value(base : u32, d : u32) -> u32 {
//#if f32
  return key_word(base, d);
//#end
//#if f16
  return float16(key_word(base, d / 2u), d);
//#end
//#if bf16
  return bfloat(key_word(base, d / 2u), d);
//#end
//#if q8_0
  let block = (d / 32u) * 9u;
  return mul(code(key_word(base, block + 1u + (d % 32u) / 4u), d), key_word(base, block));
//#end
}
fn value_at(base : u32, d : u32) -> u32 {
//#if f32
  return values[base + d];
//#end
//#if f16
  return float16(values[base + d / 2u], d);
//#end
//#if bf16
  return bfloat(values[base + d / 2u], d);
//#end
//#if q8_0
  let block = (d / 32u) * 9u;
  return mul(code(values[base + block + 1u + (d % 32u) / 4u], d), values[base + block]);
//#end
}
// Halves and codes of q8_0 are multiples of 2^-24, so products with tame queries and weights stay in the normal range.
//#if f16
const COARSE = true;
//#end
//#if q8_0
const COARSE = true;
//#end
//#if f32
const COARSE = false;
//#end
//#if bf16
const COARSE = false;
//#end
// Eight values are loaded before they are added, so that the loads are in flight together; a loop over them would not be
// unrolled by every driver.
fn four_products(a : vec4<u32>, b : vec4<u32>, sum : f32) -> f32 {
  let x = bitcast<vec4<f32>>(a);
  let y = bitcast<vec4<f32>>(b);
  return quick_fma(x.w, y.w, quick_fma(x.z, y.z, quick_fma(x.y, y.y, quick_fma(x.x, y.x, sum))));
}
fn four_of_key(base : u32, d : u32) -> vec4<u32> {
  return vec4<u32>(key_value(base, d), key_value(base, d + 1u), key_value(base, d + 2u), key_value(base, d + 3u));
}
fn four_of_query(d : u32) -> vec4<u32> { return vec4<u32>(query[d], query[d + 1u], query[d + 2u], query[d + 3u]); }
fn quick_score(base : u32) -> u32 {
  var x = 0.0;
  for (var d = 0u; d < par.dim; d += 8u) {
    let a = four_of_key(base, d);
    let b = four_of_key(base, d + 4u);
    x = four_products(four_of_query(d + 4u), b, four_products(four_of_query(d), a, x));
  }
  return bitcast<u32>(x);
}
fn four_weights(first : u32) -> vec4<u32> { return vec4<u32>(e[first], e[first + 1u], e[first + 2u], e[first + 3u]); }
fn four_values(slot : u32, kv : u32, d : u32) -> vec4<u32> {
  let words = par.kv_heads * par.v_words;
  let at = slot * words + kv * par.v_words;
  return vec4<u32>(value_at(at, d), value_at(at + words, d), value_at(at + 2u * words, d), value_at(at + 3u * words, d));
}
fn quick_page(slot : u32, kv : u32, first : u32, d : u32) -> u32 {  // the 32 keys of a page lie one after the other
  const none = vec4<u32>(0u);
  var sum = 0.0;
  for (var j = 0u; j < 32u; j += 8u) {
    let v = four_values(slot + j, kv, d);
    let w = four_values(slot + j + 4u, kv, d);
    let a = four_weights(first + j);
    let b = four_weights(first + j + 4u);
    let no_a = a == vec4<u32>(UNSEEN);
    let no_b = b == vec4<u32>(UNSEEN);
    sum = four_products(select(a, none, no_a), select(v, none, no_a), sum);
    sum = four_products(select(b, none, no_b), select(w, none, no_b), sum);
  }
  return bitcast<u32>(sum);
}
fn seen(t : u32, key : u32) -> bool {
  if (key >= key_count(t)) { return false; }
  let p = bitcast<i32>(position(t));
  let k = bitcast<i32>(positions[slot_of(t, key)]);
  let window = i32(par.window);
  if (par.causal == 1u) {
    if (k > p || (window > 0 && p - k >= window)) { return false; }
  } else if (window > 0 && abs(p - k) > window / 2) {
    return false;
  }
  return par.chunk == 0u || k / i32(max(par.chunk, 1u)) >= p / i32(max(par.chunk, 1u));
}
@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group : vec3<u32>, @builtin(local_invocation_index) l : u32) {
  let h = group.y;
  let row = group.z;
  var t = row;
  if (par.by_output == 1u) { t = output_token(row); }
  let key = group.x * 256u + l;
  let kv = h / (par.heads / par.kv_heads);
  if (l < par.dim) {
//#if turned
    let own = turned(par.q_at + row * par.q_stride, h * par.dim + l, l, t);
//#end
//#if still
    let own = q[par.q_at + row * par.q_stride + h * par.dim + l];
//#end
    query[l] = own;
    if (wild(own)) { atomicOr(&wild_queries, 1u); }
  }
  workgroupBarrier();
  var x = UNSEEN;
//#if untraced
  let wanted = seen(t, key);
//#end
//#if traced
  let wanted = key < key_count(t);  // a trace shows the products of masked keys too
//#end
  if (wanted) {
    let s = slot_of(t, key);
    let base = ((s / 32u) * par.kv_heads + kv) * par.k_words * 32u + s % 32u;
    x = NAN;
    if (QUICK && COARSE && par.dim % 8u == 0u && atomicLoad(&wild_queries) == 0u) { x = quick_score(base); }
    if (magnitude(x) >= INFINITY) {
      x = 0u;
      for (var d = 0u; d < par.dim; d++) { x = fused(query[d], key_value(base, d), x); }
    }
//#if traced
    let at = ((row * par.heads + h) * par.most_keys + key) * 3u;
    scores[at] = x;
//#end
//#if capped
    x = mul(par.cap, tanh_of(div(x, par.cap)));
//#if traced
    scores[at + 1u] = x;
//#end
//#end
    x = mul(x, par.scale);
//#if traced
    if (!seen(t, key)) { x = UNSEEN; }
    scores[at + 2u] = x;
//#end
  }
  top[l] = select(select(order(x), 1u, is_nan(x)), 0u, x == UNSEEN);  // 1 stands for a NaN
  workgroupBarrier();
  if (l < 16u) {
    var b = 0u;
    for (var i = 16u * l; i < 16u * l + 16u; i++) { b = larger(b, top[i]); }
    some[l] = b;
  }
  workgroupBarrier();
  var best = 0u;
  for (var i = 0u; i < 16u; i++) { best = larger(best, some[i]); }
  var m = from_order(best);
  if (best == 0u) { m = 0xff800000u; }  // no key is seen
  if (best == 1u) { m = 0xff7fffffu; }  // the lowest finite float
  if (x != UNSEEN) { x = exp_of(minus(x, m)); }
  e[l] = x;
  let lost = ((x >> 23u) & 255u) - 51u > 100u && magnitude(x) != 0u;
  if (x != UNSEEN && lost) { atomicOr(&faint_weights, 1u); }
  workgroupBarrier();
  if (l < 32u) {
    var c = 0u;
    for (var i = l; i < 256u; i += 32u) {
      if (e[i] != UNSEEN) { c = add(c, e[i]); }
    }
    top[l] = c;
  }
  let pages = (min(256u, key_count(t) - min(key_count(t), group.x * 256u)) + 31u) / 32u;
  for (var i = l; i < pages * par.v_dim; i += 256u) {
    let page = i / par.v_dim;
    let d = i % par.v_dim;
    let first = group.x * 256u + page * 32u;
    var sum = NAN;
    if (QUICK && COARSE && atomicLoad(&faint_weights) == 0u) { sum = quick_page(slot_of(t, first), kv, page * 32u, d); }
    if (magnitude(sum) >= INFINITY) {
      sum = 0u;
      for (var j = 0u; j < 32u; j++) {
        let weight = e[page * 32u + j];
        if (weight != UNSEEN) {
          sum = fused(weight, value_at((slot_of(t, first + j) * par.kv_heads + kv) * par.v_words, d), sum);
        }
      }
    }
    parts_of_pages[i] = sum;
  }
  workgroupBarrier();
  let at = ((row * par.heads + h) * par.most_blocks + group.x) * (par.v_dim + 2u);
  if (l == 0u) {
    for (var n = 16u; n > 0u; n = n >> 1u) {
      for (var i = 0u; i < n; i++) { top[i] = add(top[i], top[i + n]); }
    }
    out[at] = m;
    out[at + 1u] = top[0];
  }
  if (l < par.v_dim) {
    var acc = 0u;
    for (var page = 0u; page < pages; page++) { acc = add(acc, parts_of_pages[page * par.v_dim + l]); }
    out[at + 2u + l] = acc;
  }
}
