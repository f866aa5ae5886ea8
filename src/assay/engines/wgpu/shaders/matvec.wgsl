// Products of quantised rows by int8 activations. A workgroup has 32 rows (a tile) and one token, or 8 or 16 rows,
// which keeps a large GPU busy with a small matrix. An invocation has 256 columns (a unit) of a row at a time; partial
// sums of units are added ascending. With `gated` a workgroup has a tile of
// the gate and one of up: EXPRESSION of A, the gate's product, and B, also as a block of int8.
struct Par { zero : u32, units : u32, blocks : u32, x_stride : u32, first : u32, column : u32, out_at : u32,
             out_stride : u32, has_bias : u32, has_residual : u32, residual_at : u32, residual_stride : u32,
             experts : u32, expert_tiles : u32, shared_rows : u32, idx_at : u32, idx_stride : u32,
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
const DEPTH = 256u / R;  // units at once
const SPAN = 2048u / R;  // units between two barriers
var<workgroup> part : array<u32, 2048>;  // of SPAN units
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
fn quick_unit(base : u32, x0 : u32, at : u32) -> Sum {
  let c0 = codes(base, 0u);
  let c1 = codes(base, 1u);
  let c2 = codes(base, 2u);
  let c3 = codes(base, 3u);
  let c4 = codes(base, 4u);
  let c5 = codes(base, 5u);
  let c6 = codes(base, 6u);
  let c7 = codes(base, 7u);
  let s = unit_scales(base);
  let list = (par.blocks + 3u) / 4u;
  let lists = x0 + 2u * par.blocks + at / 4u;
  let a = bitcast<vec4<f32>>(x[lists + list]);
  let b = bitcast<vec4<f32>>(x[lists + list + 1u]);
  let m = bitcast<vec4<f32>>(x[lists + 2u * list]);
  let n = bitcast<vec4<f32>>(x[lists + 2u * list + 1u]);
  let q = x0 + 2u * at;
  var sum = quick_block(Sum(0.0, false), c0, s, 0u, x[q], x[q + 1u], a.x, m.x);
  sum = quick_block(sum, c1, s, 1u, x[q + 2u], x[q + 3u], a.y, m.y);
  sum = quick_block(sum, c2, s, 2u, x[q + 4u], x[q + 5u], a.z, m.z);
  sum = quick_block(sum, c3, s, 3u, x[q + 6u], x[q + 7u], a.w, m.w);
  sum = quick_block(sum, c4, s, 4u, x[q + 8u], x[q + 9u], b.x, n.x);
  sum = quick_block(sum, c5, s, 5u, x[q + 10u], x[q + 11u], b.y, n.y);
  sum = quick_block(sum, c6, s, 6u, x[q + 12u], x[q + 13u], b.z, n.z);
  return quick_block(sum, c7, s, 7u, x[q + 14u], x[q + 15u], b.w, n.w);
}
fn unit_product(tile : u32, u : u32, x0 : u32, row : u32) -> u32 {
  let base = (tile * par.units + u) * CHUNKS * 32u + row;
  let count = min(8u, par.blocks - 8u * u);
  if (QUICK && count == 8u) {
    let s = quick_unit(base, x0, 8u * u);
    let acc = bitcast<u32>(s.acc);
    if (!s.wild && magnitude(acc) < INFINITY) { return acc; }
  }
  var acc = 0u;
  for (var b = 0u; b < count; b++) { acc = block(base, b, x0, 8u * u + b, acc); }
  if (QUICK && count == 8u) { atomicOr(&some_wild, 1u); }
  return acc;
}
// The sum of `count` partial sums from `first` on, ascending after `total`.
fn summed(total : u32, first : u32, count : u32, l : vec3<u32>) -> u32 {
  var t = total;
  if (QUICK && par.blocks % 8u == 0u && atomicLoad(&some_wild) == 0u) {  // no sum of tame products leaves the range
    var sum = bitcast<f32>(t);
    for (var k = 0u; k < count; k++) { sum = quick_add(sum, bitcast<f32>(part[(first + k) * R + l.x])); }
    t = bitcast<u32>(sum);
  } else {
    for (var k = 0u; k < count; k++) { t = add(t, part[(first + k) * R + l.x]); }
  }
  return t;
}
// The row's product in invocations with l.y 0; all 256 call it. `row` is the row of the tile.
fn row_product(tile : u32, x0 : u32, row : u32, l : vec3<u32>) -> u32 {
  var total = 0u;
  for (var first = 0u; first < par.units; first += SPAN) {
    let end = min(first + SPAN, par.units);
    for (var u = first + l.y; u < end; u += DEPTH) { part[(u - first) * R + l.x] = unit_product(tile, u, x0, row); }
    workgroupBarrier();
    if (l.y == 0u) {
      if (first == 0u) { total = summed(part[l.x], 1u, end - 1u, l); } else { total = summed(total, 0u, end - first, l); }
    }
    workgroupBarrier();
  }
  return total;
}
//#if gated
var<workgroup> second : array<u32, 32>;
// The row's products with gate and up in invocations with l.y 0: all units of both before a barrier, if there is room.
fn two_products(gate : u32, up : u32, x0 : u32, row : u32, l : vec3<u32>) -> vec2<u32> {
  if (2u * par.units > SPAN) { return vec2<u32>(row_product(gate, x0, row, l), row_product(up, x0, row, l)); }
  for (var v = l.y; v < 2u * par.units; v += DEPTH) {
    let of_up = v >= par.units;
    part[v * R + l.x] = unit_product(select(gate, up, of_up), select(v, v - par.units, of_up), x0, row);
  }
  workgroupBarrier();
  var total = 0u;
  if (l.y < 2u) {
    let first = l.y * par.units;
    total = summed(part[first * R + l.x], first + 1u, par.units - 1u, l);
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
  let row = group.y;
  var tile = par.first + group.x * R / 32u;
  let tile_row = (group.x * R) % 32u + l.x;
//#if gated
  let both = two_products(tile, tile + par.up_tiles, row * par.x_stride, tile_row, l);
  let A = both.x;
  let B = both.y;
  if (l.y == 0u) {
    let y = EXPRESSION;
    out[par.out_at + row * par.out_stride + group.x * 32u + l.x] = y;
    shown[l.x] = y;
  }
  workgroupBarrier();
  let acts_row = row * par.acts_stride;
  quantise(index, 32u, acts_row + group.x * 8u, acts_row + par.width / 4u + group.x, par.width / 32u);
//#end
//#if alone
  var x_row = row;
  if (par.experts != 0u) {
    let t = row / par.experts;
    tile += u32(bitcast<f32>(idx[par.idx_at + t * par.idx_stride + row % par.experts])) * par.expert_tiles;
    if (par.shared_rows != 0u) { x_row = t; }
  }
  var total = row_product(tile, x_row * par.x_stride, tile_row, l);
  if (l.y == 0u) {
    let column = par.column + group.x * R + l.x;
    if (par.has_bias != 0u) { total = add(total, bias[column]); }
    if (par.has_residual != 0u) { total = add(total, residual[par.residual_at + row * par.residual_stride + column]); }
    out[par.out_at + row * par.out_stride + column] = total;
  }
//#end
}
