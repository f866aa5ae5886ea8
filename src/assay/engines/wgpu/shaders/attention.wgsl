// Attention of a query row (a token's head) over a block of 256 keys: (m, l, acc) of arithmetic.md. First an invocation
// has a key, then a column of values over a page of 32 keys.
// With `finished` there is one block, so that its acc / l is the result; with `quantised` also as int8 blocks.
// With `turned`, queries are turned by RoPE when they are read. With `by_slot`, a step's words say which slot of its
// sequence a token sees last, in place of the positions: rows of a picture see each other both ways.
struct Par { zero : u32, heads : u32, kv_heads : u32, dim : u32, v_dim : u32, k_words : u32, v_words : u32, scale : u32,
             cap : u32, window : u32, causal : u32, chunk : u32, by_output : u32, q_at : u32, q_stride : u32,
             most_blocks : u32, most_keys : u32, n_rot : u32, offset : u32, neox : u32, table : u32, out_stride : u32,
             acts_stride : u32, width : u32 }
@group(0) @binding(0) var<storage, read> par : Par;
@group(0) @binding(1) var<storage, read> step : array<u32>;
@group(0) @binding(2) var<storage, read> q : array<u32>;
@group(0) @binding(3) var<storage, read> keys : array<u32>;
@group(0) @binding(4) var<storage, read> values : array<u32>;
@group(0) @binding(5) var<storage, read> positions : array<u32>;
//#if parts
@group(0) @binding(6) var<storage, read_write> out : array<u32>;  // [row][head][block]: m, l, acc
//#end
//#if finished
@group(0) @binding(6) var<storage, read_write> out : array<u32>;  // [row][head]: acc / l
//#end
//#if quantised
@group(0) @binding(7) var<storage, read_write> acts : array<u32>;
//#end
//#if traced
@group(0) @binding(7) var<storage, read_write> scores : array<u32>;  // [row][head][key]: kq, capped, scaled
//#end
//#include arithmetic
//#include functions
//#include step
//#if quantised
//#include quantise
//#end
//#if turned
fn unturned(at : u32) -> u32 { return q[at]; }
//#include turned
//#end
const UNSEEN = 0xffffffffu;  // a NaN that no function gives
const SCALED = 0x1p64;  // of the weights of values without tests: products with halves then never leave the range
var<workgroup> e : array<u32, 256>;  // of each key, UNSEEN where the row does not see it
var<workgroup> scaled : array<f32, 256>;  // e * 2^64, 0 where it is not seen
var<workgroup> top : array<u32, 256>;
var<workgroup> some : array<u32, 16>;
var<workgroup> query : array<u32, 256>;
var<workgroup> wild_queries : atomic<u32>;
var<workgroup> nan_scores : atomic<u32>;
//#if columns64
const COLUMNS = 64u;  // at least those of a head's values
//#end
//#if columns128
const COLUMNS = 128u;
//#end
//#if columns256
const COLUMNS = 256u;
//#end
var<workgroup> parts_of_pages : array<u32, 8u * COLUMNS>;
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
// The loads of 32 values are written before their sums, so that they are in flight together.
fn asked(d : u32) -> f32 { return bitcast<f32>(query[d]); }
fn two_products(k : vec2<f32>, d : u32, sum : f32) -> f32 {
  return quick_fma(asked(d + 1u), k.y, quick_fma(asked(d), k.x, sum));
}
//#if f16
fn eight_words(base : u32, word : u32) -> array<u32, 8> {
  return array<u32, 8>(key_word(base, word), key_word(base, word + 1u), key_word(base, word + 2u),
                       key_word(base, word + 3u), key_word(base, word + 4u), key_word(base, word + 5u),
                       key_word(base, word + 6u), key_word(base, word + 7u));
}
fn sixteen_products(k : array<u32, 8>, d : u32, sum : f32) -> f32 {
  var x = two_products(halves(k[0]), d, sum);
  x = two_products(halves(k[1]), d + 2u, x);
  x = two_products(halves(k[2]), d + 4u, x);
  x = two_products(halves(k[3]), d + 6u, x);
  x = two_products(halves(k[4]), d + 8u, x);
  x = two_products(halves(k[5]), d + 10u, x);
  x = two_products(halves(k[6]), d + 12u, x);
  return two_products(halves(k[7]), d + 14u, x);
}
fn quick_score(base : u32) -> u32 {
  var x = 0.0;
  var d = 0u;
  for (; d + 32u <= par.dim; d += 32u) {
    let a = eight_words(base, d / 2u);
    let b = eight_words(base, d / 2u + 8u);
    x = sixteen_products(b, d + 16u, sixteen_products(a, d, x));
  }
  if (d < par.dim) { x = sixteen_products(eight_words(base, d / 2u), d, x); }
  return bitcast<u32>(x);
}
//#end
//#if not_f16
fn quick_score(base : u32) -> u32 {
  var x = 0.0;
  for (var d = 0u; d < par.dim; d += 4u) {
    let a = vec4<u32>(key_value(base, d), key_value(base, d + 1u), key_value(base, d + 2u), key_value(base, d + 3u));
    let k = bitcast<vec4<f32>>(a);
    x = two_products(k.zw, d + 2u, two_products(k.xy, d, x));
  }
  return bitcast<u32>(x);
}
//#end
// Two neighbouring columns over the keys of a page, by scaled weights. `least` is the smallest sum on the way as bits, 0
// counting as the largest: below 2^-62 the true sum would have been subnormal.
struct Pair { sum : vec2<f32>, least : u32 }
fn size(x : f32) -> u32 { return (bitcast<u32>(x) << 1u) - 1u; }
fn weighted(p : Pair, j : u32, v : vec2<f32>) -> Pair {
  let x = scaled[j];
  let sum = vec2<f32>(quick_fma(x, v.x, p.sum.x), quick_fma(x, v.y, p.sum.y));
  return Pair(sum, min(p.least, min(size(sum.x), size(sum.y))));
}
fn two_values(at : u32, d : u32) -> vec2<f32> {
//#if f16
  return halves(values[at + d / 2u]);
//#end
//#if not_f16
  return bitcast<vec2<f32>>(vec2<u32>(value_at(at, d), value_at(at, d + 1u)));
//#end
}
fn quick_page(slot : u32, kv : u32, first : u32, d : u32) -> Pair {  // the 32 keys of a page lie one after the other
  var p = Pair(vec2<f32>(0.0, 0.0), 0xffffffffu);
  let words = par.kv_heads * par.v_words;
  var at = slot * words + kv * par.v_words;
  for (var j = first; j < first + 32u; j += 8u) {
    let v0 = two_values(at, d);
    let v1 = two_values(at + words, d);
    let v2 = two_values(at + 2u * words, d);
    let v3 = two_values(at + 3u * words, d);
    let v4 = two_values(at + 4u * words, d);
    let v5 = two_values(at + 5u * words, d);
    let v6 = two_values(at + 6u * words, d);
    let v7 = two_values(at + 7u * words, d);
    p = weighted(weighted(weighted(weighted(p, j, v0), j + 1u, v1), j + 2u, v2), j + 3u, v3);
    p = weighted(weighted(weighted(weighted(p, j + 4u, v4), j + 5u, v5), j + 6u, v6), j + 7u, v7);
    at += 8u * words;
  }
  return p;
}
fn tame_sum(x : f32) -> bool { return (bitcast<u32>(x) & 0x7f800000u) != 0x7f800000u; }
fn page_sum(t : u32, kv : u32, first : u32, page : u32, d : u32) -> u32 {  // of one column, with tests
  var sum = 0u;
  for (var j = 0u; j < 32u; j++) {
    let weight = e[page * 32u + j];
    if (weight != UNSEEN) {
      sum = fused(weight, value_at((slot_of(t, first + j) * par.kv_heads + kv) * par.v_words, d), sum);
    }
  }
  return sum;
}
// The tree over 32 chains of weights, which are 0 or between 2^-126 and 1, by one invocation.
fn at_chain(i : u32) -> f32 { return bitcast<f32>(top[i]); }
fn four_chains(i : u32) -> f32 {  // the first two levels
  return quick_add(quick_add(at_chain(i), at_chain(i + 16u)), quick_add(at_chain(i + 8u), at_chain(i + 24u)));
}
fn quick_tree() -> u32 {
  let a = quick_add(quick_add(four_chains(0u), four_chains(4u)), quick_add(four_chains(2u), four_chains(6u)));
  let b = quick_add(quick_add(four_chains(1u), four_chains(5u)), quick_add(four_chains(3u), four_chains(7u)));
  let sum = bitcast<u32>(quick_add(a, b));
  return select(sum, NAN, is_nan(sum));
}
fn seen(t : u32, key : u32) -> bool {
  if (key >= key_count(t)) { return false; }
  let p = bitcast<i32>(position(t));
  let k = bitcast<i32>(positions[slot_of(t, key)]);
  let window = i32(par.window);
  if (par.causal == 1u) {
//#if by_slot
    if (key > last_slot(t)) { return false; }
//#end
//#if by_position
    if (k > p) { return false; }
//#end
    if (window > 0 && p - k >= window) { return false; }
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
  if (l == 0u) {  // memory of workgroups is not zeroed everywhere
    atomicStore(&wild_queries, 0u);
    atomicStore(&nan_scores, 0u);
  }
  workgroupBarrier();
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
    if (QUICK && COARSE && par.dim % 16u == 0u && atomicLoad(&wild_queries) == 0u) { x = quick_score(base); }
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
  let is_number = x != UNSEEN && !is_nan(x);
  if (x != UNSEEN && !is_number) { atomicOr(&nan_scores, 1u); }
  top[l] = select(0u, order(x), is_number);
  workgroupBarrier();
  if (l < 16u) {
    var b = 0u;
    for (var i = 0u; i < 16u; i++) { b = max(b, top[l + 16u * i]); }
    some[l] = b;
  }
  workgroupBarrier();
  var best = 0u;
  for (var i = 0u; i < 16u; i++) { best = max(best, some[i]); }
  var m = from_order(best);
  if (best == 0u) { m = 0xff800000u; }  // no key is seen
  if (best <= order(0xff800000u) && atomicLoad(&nan_scores) != 0u) { m = 0xff7fffffu; }  // the lowest finite float
  if (x != UNSEEN) { x = exp_of(minus(x, m)); }
  e[l] = x;
  if (QUICK) { scaled[l] = select(quick_mul(bitcast<f32>(x), SCALED), 0.0, x == UNSEEN); }
  workgroupBarrier();
  if (l < 32u) {
    if (QUICK) {
      var c = 0.0;
      for (var i = 0u; i < 256u; i += 32u) { c = quick_add(c, bitcast<f32>(select(e[l + i], 0u, e[l + i] == UNSEEN))); }
      top[l] = bitcast<u32>(c);
    } else {
      var c = 0u;
      for (var i = l; i < 256u; i += 32u) {
        if (e[i] != UNSEEN) { c = add(c, e[i]); }
      }
      top[l] = c;
    }
  }
  let pages = (min(256u, key_count(t) - min(key_count(t), group.x * 256u)) + 31u) / 32u;
  let columns = (par.v_dim + 1u) / 2u;
  for (var i = l; i < pages * columns; i += 256u) {  // two neighbouring columns of a page
    let page = i / columns;
    let d = 2u * (i % columns);
    let first = group.x * 256u + page * 32u;
    var quick = Pair(vec2<f32>(), 0u);
    if (QUICK && COARSE && par.v_dim % 2u == 0u) { quick = quick_page(slot_of(t, first), kv, page * 32u, d); }
    let good = quick.least >= 0x40ffffffu && tame_sum(quick.sum.x) && tame_sum(quick.sum.y);  // 2^-62
    for (var k = 0u; k < min(2u, par.v_dim - d); k++) {
      var sum = bitcast<u32>(quick_mul(quick.sum[k], 1.0 / SCALED));
      if (!good) { sum = page_sum(t, kv, first, page, d + k); }
      parts_of_pages[page * par.v_dim + d + k] = sum;
    }
  }
  workgroupBarrier();
  if (!QUICK && l == 0u) {
    for (var n = 16u; n > 0u; n = n >> 1u) {
      for (var i = 0u; i < n; i++) { top[i] = add(top[i], top[i + n]); }
    }
  }
  var acc = 0u;
  if (l < par.v_dim) {
    for (var page = 0u; page < pages; page++) { acc = add(acc, parts_of_pages[page * par.v_dim + l]); }
  }
//#if parts
  let at = ((row * par.heads + h) * par.most_blocks + group.x) * (par.v_dim + 2u);
  if (l == 0u) {
    out[at] = m;
    if (QUICK) { out[at + 1u] = quick_tree(); } else { out[at + 1u] = top[0]; }
  }
  if (l < par.v_dim) { out[at + 2u + l] = acc; }
//#end
//#if finished
  if (!QUICK) { workgroupBarrier(); }
  if (l < par.v_dim) {
    var sum = top[0];
    if (QUICK) { sum = quick_tree(); }
    let y = mul(acc, div(ONE, sum));
    out[row * par.out_stride + h * par.v_dim + l] = y;
//#if quantised
    shown[l] = y;
//#end
  }
//#if quantised
  workgroupBarrier();
  quantise(l, par.v_dim, row * par.acts_stride + h * par.v_dim / 4u,
           row * par.acts_stride + par.width / 4u + h * par.v_dim / 32u, par.width / 32u);
//#end
//#end
}
