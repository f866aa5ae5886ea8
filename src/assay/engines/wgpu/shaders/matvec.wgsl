// Products of quantised rows by int8 activations. A workgroup has 32 rows (a tile) and one token; or 16 rows, or 8 and
// half the invocations, which keeps a large GPU busy with a small matrix. An invocation has 256 columns (a unit) of a row at a time; partial
// sums of units are added ascending. With `tokens8` it has eight tokens, which share what is loaded of the weights. With `gated` a workgroup has a tile of
// the gate and one of up: EXPRESSION of A, the gate's product, and B, also as a block of int8.
struct Par { zero : u32, units : u32, blocks : u32, x_stride : u32, first : u32, column : u32, out_at : u32,
             out_stride : u32, has_bias : u32, has_residual : u32, residual_at : u32, residual_stride : u32,
             experts : u32, expert_tiles : u32, expert_width : u32, shared_rows : u32, idx_at : u32, idx_stride : u32,
             up_tiles : u32, acts_stride : u32, width : u32,
             book0 : u32, book1 : u32, book2 : u32, book3 : u32 }
@group(0) @binding(0) var<storage, read> par : Par;
@group(0) @binding(1) var<storage, read> w : array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> x : array<vec4<u32>>;  // a row: codes, then lists of floats (quantise.wgsl)
//#if alone
@group(0) @binding(3) var<storage, read> bias : array<u32>;
@group(0) @binding(4) var<storage, read> residual : array<u32>;
@group(0) @binding(5) var<storage, read> idx : array<u32>;
@group(0) @binding(6) var<storage, read_write> out : array<u32>;
//#end
//#if gated
@group(0) @binding(3) var<storage, read_write> out : array<u32>;
@group(0) @binding(4) var<storage, read_write> acts : array<u32>;
//#end
//#include arithmetic
//#if gated
//#include functions
//#include quantise
//#end
//#include weights
//#if rows32
const R = 32u;  // rows of a workgroup
//#end
//#if rows16
const R = 16u;
//#end
//#if rows8
const R = 8u;
//#end
//#if tokens1
const TOKENS = 1u;  // of a workgroup
//#end
//#if tokens8
const TOKENS = 8u;
//#end
//#if rows8
const SIZE = 128u;  // invocations of a workgroup
//#end
//#if rows16
const SIZE = 256u;
//#end
//#if rows32
const SIZE = 256u;
//#end
const DEPTH = SIZE / R;  // units at once
const SPAN = SUMS / (R * TOKENS);  // units between two barriers
var<workgroup> part : array<u32, SUMS>;  // of SPAN units
var<workgroup> some_wild : atomic<u32>;
fn dot16(a : vec4<u32>, b : vec4<u32>) -> i32 {
  return dot4I8Packed(a.x, b.x) + dot4I8Packed(a.y, b.y) + dot4I8Packed(a.z, b.z) + dot4I8Packed(a.w, b.w);
}
fn float(i : i32) -> u32 { return bitcast<u32>(f32(i)); }  // exact: |i| < 2^24
//#if minima
const ONES = vec4<u32>(0x01010101u);
//#end
fn block(base : u32, b : u32, x0 : u32, at : u32, sum : u32) -> u32 {
  let a0 = x[x0 + 2u * at];
  let a1 = x[x0 + 2u * at + 1u];
  let da = x[x0 + 2u * par.blocks + at / 4u][at % 4u];
  let c = codes(base, b);
  var acc = sum;
  var s0 = dot16(low(c), a0);
  var s1 = dot16(high(c), a1);
//#if minima
  let n0 = dot16(ONES, a0);
  let n1 = dot16(ONES, a1);
//#end
//#if sixteenths
  acc = fused(fused(float(s1), scale(base, b, 1u), mul(float(s0), scale(base, b, 0u))), da, acc);
//#if minima
  acc = fused(minimum(base, b, 0u), mul(da, float(n0)), acc);
  acc = fused(minimum(base, b, 1u), mul(da, float(n1)), acc);
//#end
//#end
//#if whole
  let d = scale(base, b, 0u);
//#if centred
  s0 -= 16 * (n0 + n1);
//#end
  acc = fused(mul(float(s0 + s1), d), da, acc);
//#if minima
  var m = minimum(base, b, 0u);
//#if centred
  m = fused(0x41800000u, d, m);
//#end
  acc = fused(m, mul(da, float(n0 + n1)), acc);
//#end
//#end
  return acc;
}
// The same for tame scales, without branches, so that the loads of a unit are in flight together. `da` and `dn`, the
// block's scale and its product with the sum of codes, are NaN where the scale is wild.
struct Sum { acc : f32, wild : bool }
fn odd(x : f32) -> bool { return !TAME && wild(bitcast<u32>(x)); }
fn quick_block(sum : Sum, c : Codes, s : Scales, b : u32, a0 : vec4<u32>, a1 : vec4<u32>, da : f32, dn : f32) -> Sum {
  var s0 = dot16(low(c), a0);
  let s1 = dot16(high(c), a1);
  let d = quick_scale(s, b, 0u);
  var out = sum.wild | odd(d);
  var acc = sum.acc;
//#if sixteenths
  let e = quick_scale(s, b, 1u);
  out = out | odd(e);
  acc = quick_fma(quick_fma(f32(s1), e, quick_mul(f32(s0), d)), da, acc);
//#if minima
  let m = quick_minimum(s, b, 0u);
  let k = quick_minimum(s, b, 1u);
  out = out | odd(m) | odd(k);
  acc = quick_fma(m, quick_mul(da, f32(dot16(ONES, a0))), acc);
  acc = quick_fma(k, quick_mul(da, f32(dot16(ONES, a1))), acc);
//#end
//#end
//#if whole
//#if centred
  s0 -= 16 * (dot16(ONES, a0) + dot16(ONES, a1));
//#end
  acc = quick_fma(quick_mul(f32(s0 + s1), d), da, acc);
//#if minima
  var m = quick_minimum(s, b, 0u);
  out = out | odd(m);
//#if centred
  m = quick_fma(16.0, d, m);
  out = out | wild(bitcast<u32>(m));
//#end
  acc = quick_fma(m, dn, acc);
//#end
//#end
  return Sum(acc, out);
}
struct Unit { c0 : Codes, c1 : Codes, c2 : Codes, c3 : Codes, c4 : Codes, c5 : Codes, c6 : Codes, c7 : Codes, s : Scales }
fn loaded_unit(base : u32) -> Unit {
  return Unit(codes(base, 0u), codes(base, 1u), codes(base, 2u), codes(base, 3u), codes(base, 4u), codes(base, 5u),
              codes(base, 6u), codes(base, 7u), unit_scales(base));
}
fn quick_unit(w : Unit, x0 : u32, at : u32) -> Sum {
  let list = (par.blocks + 3u) / 4u;
  let lists = x0 + 2u * par.blocks + at / 4u;
  let a = bitcast<vec4<f32>>(x[lists + list]);
  let b = bitcast<vec4<f32>>(x[lists + list + 1u]);
  let m = bitcast<vec4<f32>>(x[lists + 2u * list]);
  let n = bitcast<vec4<f32>>(x[lists + 2u * list + 1u]);
  let q = x0 + 2u * at;
  var sum = quick_block(Sum(0.0, false), w.c0, w.s, 0u, x[q], x[q + 1u], a.x, m.x);
  sum = quick_block(sum, w.c1, w.s, 1u, x[q + 2u], x[q + 3u], a.y, m.y);
  sum = quick_block(sum, w.c2, w.s, 2u, x[q + 4u], x[q + 5u], a.z, m.z);
  sum = quick_block(sum, w.c3, w.s, 3u, x[q + 6u], x[q + 7u], a.w, m.w);
  sum = quick_block(sum, w.c4, w.s, 4u, x[q + 8u], x[q + 9u], b.x, n.x);
  sum = quick_block(sum, w.c5, w.s, 5u, x[q + 10u], x[q + 11u], b.y, n.y);
  sum = quick_block(sum, w.c6, w.s, 6u, x[q + 12u], x[q + 13u], b.z, n.z);
  return quick_block(sum, w.c7, w.s, 7u, x[q + 14u], x[q + 15u], b.w, n.w);
}
fn careful_unit(base : u32, u : u32, x0 : u32) -> u32 {
  var acc = 0u;
  for (var b = 0u; b < min(8u, par.blocks - 8u * u); b++) { acc = block(base, b, x0, 8u * u + b, acc); }
  return acc;
}
// Unit u of a row by all tokens, into part `slot`. A unit's weights are loaded once.
fn unit_products(tile : u32, u : u32, x0 : u32, row : u32, slot : u32, lane : u32) {
  let base = (tile * par.units + u) * CHUNKS * 32u + row;
  if (QUICK && par.blocks - 8u * u >= 8u) {
    let unit = loaded_unit(base);
    for (var t = 0u; t < TOKENS; t++) {
      let s = quick_unit(unit, x0 + t * par.x_stride, 8u * u);
      var acc = bitcast<u32>(s.acc);
      if (s.wild || magnitude(acc) >= INFINITY) {
        acc = careful_unit(base, u, x0 + t * par.x_stride);
        atomicOr(&some_wild, 1u);
      }
      part[(t * SPAN + slot) * R + lane] = acc;
    }
  } else {
    for (var t = 0u; t < TOKENS; t++) {
      part[(t * SPAN + slot) * R + lane] = careful_unit(base, u, x0 + t * par.x_stride);
    }
  }
}
fn shared_sum(i : u32, lane : u32) -> f32 { return bitcast<f32>(part[i * R + lane]); }
// The sum of `count` partial sums from `first` on, ascending after `total`.
fn summed(total : u32, first : u32, count : u32, lane : u32) -> u32 {
  var t = total;
  if (QUICK && par.blocks % 8u == 0u && atomicLoad(&some_wild) == 0u) {  // no sum of tame products leaves the range
    var sum = bitcast<f32>(t);
    var k = 0u;
    for (; k + 8u <= count; k += 8u) {  // loaded together
      let i = first + k;
      let low = vec4<f32>(shared_sum(i, lane), shared_sum(i + 1u, lane), shared_sum(i + 2u, lane), shared_sum(i + 3u, lane));
      let high = vec4<f32>(shared_sum(i + 4u, lane), shared_sum(i + 5u, lane), shared_sum(i + 6u, lane), shared_sum(i + 7u, lane));
      sum = quick_add(quick_add(quick_add(quick_add(sum, low.x), low.y), low.z), low.w);
      sum = quick_add(quick_add(quick_add(quick_add(sum, high.x), high.y), high.z), high.w);
    }
    for (; k < count; k++) { sum = quick_add(sum, shared_sum(first + k, lane)); }
    t = bitcast<u32>(sum);
  } else {
    for (var k = 0u; k < count; k++) { t = add(t, part[(first + k) * R + lane]); }
  }
  return t;
}
// The row's product in invocations with l.y < TOKENS, a token each; all call it. `row` is the row of the tile.
fn row_product(tile : u32, x0 : u32, row : u32, l : vec3<u32>) -> u32 {
  var total = 0u;
  for (var first = 0u; first < par.units; first += SPAN) {
    let end = min(first + SPAN, par.units);
    for (var u = first + l.y; u < end; u += DEPTH) { unit_products(tile, u, x0, row, u - first, l.x); }
    workgroupBarrier();
    if (l.y < TOKENS) {
      let own = l.y * SPAN;
      if (first == 0u) {
        total = summed(part[own * R + l.x], own + 1u, end - 1u, l.x);
      } else {
        total = summed(total, own, end - first, l.x);
      }
    }
    workgroupBarrier();
  }
  return total;
}
//#if gated
var<workgroup> second : array<u32, 32>;
// The row's products with gate and up: for one token all units of both before a barrier, if there is room.
fn two_products(gate : u32, up : u32, x0 : u32, row : u32, l : vec3<u32>) -> vec2<u32> {
  if (TOKENS > 1u || 2u * par.units > SPAN) {
    return vec2<u32>(row_product(gate, x0, row, l), row_product(up, x0, row, l));
  }
  for (var v = l.y; v < 2u * par.units; v += DEPTH) {
    let of_up = v >= par.units;
    unit_products(select(gate, up, of_up), select(v, v - par.units, of_up), x0, row, v, l.x);
  }
  workgroupBarrier();
  var total = 0u;
  if (l.y < 2u) {
    let first = l.y * par.units;
    total = summed(part[first * R + l.x], first + 1u, par.units - 1u, l.x);
    if (l.y == 1u) { second[l.x] = total; }
  }
  workgroupBarrier();
  return vec2<u32>(total, second[l.x]);
}
//#end
@compute @workgroup_size(R, DEPTH)
fn main(@builtin(workgroup_id) group : vec3<u32>, @builtin(local_invocation_id) l : vec3<u32>,
        @builtin(local_invocation_index) index : u32) {
  if (index == 0u) { atomicStore(&some_wild, 0u); }  // memory of workgroups is not zeroed everywhere
  workgroupBarrier();
  let row = group.y * TOKENS + l.y;  // of invocations that have a token
  var tile = par.first + group.x * R / 32u;
  let tile_row = (group.x * R) % 32u + l.x;
//#if gated
  let both = two_products(tile, tile + par.up_tiles, group.y * TOKENS * par.x_stride, tile_row, l);
  let A = both.x;
  let B = both.y;
  if (l.y < TOKENS) {
    let y = EXPRESSION;
    out[par.out_at + row * par.out_stride + group.x * 32u + l.x] = y;
    shown[l.y * 32u + l.x] = y;
  }
  workgroupBarrier();
  let acts_row = group.y * TOKENS * par.acts_stride;
  quantise_apart(index, 32u * TOKENS, acts_row + group.x * 8u, acts_row + par.width / 4u + group.x, par.width / 32u,
                 par.acts_stride, par.acts_stride);
//#end
//#if alone
  var x_row = group.y * TOKENS;
  if (par.experts != 0u) {  // then a workgroup has one token
    let t = group.y / par.experts;
    tile += u32(bitcast<f32>(idx[par.idx_at + t * par.idx_stride + group.y % par.experts])) * par.expert_tiles;
    if (par.shared_rows != 0u) { x_row = t; }
  }
  let column = par.column + group.x * R + l.x;
  var plus = 0u;
  if (par.has_residual != 0u && l.y < TOKENS) {  // loaded while the product is computed
    plus = residual[par.residual_at + row * par.residual_stride + column];
  }
  var total = row_product(tile, x_row * par.x_stride, tile_row, l);
  // the last tile of an expert may have fewer rows than 32; the next expert's values follow
  if (l.y < TOKENS && (par.experts == 0u || column < par.expert_width)) {
    if (par.has_bias != 0u) { total = add(total, bias[column]); }
    if (par.has_residual != 0u) { total = add(total, plus); }
    out[par.out_at + row * par.out_stride + column] = total;
  }
//#end
}
