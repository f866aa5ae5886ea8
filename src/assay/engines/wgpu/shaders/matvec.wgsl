// Products of quantised rows by int8 activations. A workgroup has 32 rows (a tile) and one token. An invocation has 256
// columns (a unit) of a row at a time; partial sums of units are added ascending. With `gated` a workgroup has a tile of
// the gate and one of up: EXPRESSION of A, the gate's product, and B, also as a block of int8.
struct Par { zero : u32, units : u32, blocks : u32, x_stride : u32, first : u32, column : u32, out_at : u32,
             out_stride : u32, has_bias : u32, has_residual : u32, residual_at : u32, residual_stride : u32,
             experts : u32, expert_tiles : u32, shared_rows : u32, idx_at : u32, idx_stride : u32,
             up_tiles : u32, acts_stride : u32, width : u32,
             book0 : u32, book1 : u32, book2 : u32, book3 : u32 }
@group(0) @binding(0) var<storage, read> par : Par;
@group(0) @binding(1) var<storage, read> w : array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> x : array<vec4<u32>>;  // a row: codes, then float32 scales
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
var<workgroup> part : array<u32, 256>;  // 8 units of 32 rows
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
// The same for tame scales, without branches, so that the loads of a unit are in flight together.
struct Sum { acc : f32, wild : bool }
fn quick_block(sum : Sum, c : Codes, base : u32, b : u32, x0 : u32, at : u32) -> Sum {
  let a0 = x[x0 + 2u * at];
  let a1 = x[x0 + 2u * at + 1u];
  let da = x[x0 + 2u * par.blocks + at / 4u][at % 4u];
  let fa = bitcast<f32>(da);
  var s0 = dot16(low(c), a0);
  var s1 = dot16(high(c), a1);
//#if minima
  let n0 = dot16(ONES, a0);
  let n1 = dot16(ONES, a1);
//#end
  let d = scale(base, b, 0u);
  var out = sum.wild | wild(da) | wild(d);
  var acc = sum.acc;
//#if sixteenths
  let e = scale(base, b, 1u);
  out = out | wild(e);
  acc = quick_fma(quick_fma(f32(s1), bitcast<f32>(e), quick_mul(f32(s0), bitcast<f32>(d))), fa, acc);
//#if minima
  let m = minimum(base, b, 0u);
  let k = minimum(base, b, 1u);
  out = out | wild(m) | wild(k);
  acc = quick_fma(bitcast<f32>(m), quick_mul(fa, f32(n0)), acc);
  acc = quick_fma(bitcast<f32>(k), quick_mul(fa, f32(n1)), acc);
//#end
//#end
//#if whole
//#if centred
  s0 -= 16 * (n0 + n1);
//#end
  acc = quick_fma(quick_mul(f32(s0 + s1), bitcast<f32>(d)), fa, acc);
//#if minima
  let m = minimum(base, b, 0u);
  out = out | wild(m);
  var least = bitcast<f32>(m);
//#if centred
  least = quick_fma(16.0, bitcast<f32>(d), least);
  out = out | wild(bitcast<u32>(least));
//#end
  acc = quick_fma(least, quick_mul(fa, f32(n0 + n1)), acc);
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
  var s = quick_block(Sum(0.0, false), c0, base, 0u, x0, at);
  s = quick_block(s, c1, base, 1u, x0, at + 1u);
  s = quick_block(s, c2, base, 2u, x0, at + 2u);
  s = quick_block(s, c3, base, 3u, x0, at + 3u);
  s = quick_block(s, c4, base, 4u, x0, at + 4u);
  s = quick_block(s, c5, base, 5u, x0, at + 5u);
  s = quick_block(s, c6, base, 6u, x0, at + 6u);
  return quick_block(s, c7, base, 7u, x0, at + 7u);
}
// The row's product in invocations with l.y 0; all 256 call it.
fn row_product(tile : u32, x0 : u32, l : vec3<u32>) -> u32 {
  var total = 0u;
  for (var first = 0u; first < par.units; first += 8u) {
    let u = first + l.y;
    if (u < par.units) {
      let base = (tile * par.units + u) * CHUNKS * 32u + l.x;
      let count = min(8u, par.blocks - 8u * u);
      var s = Sum(0.0, true);
      if (QUICK && count == 8u) { s = quick_unit(base, x0, 8u * u); }
      var acc = bitcast<u32>(s.acc);
      if (s.wild) {
        acc = 0u;
        for (var b = 0u; b < count; b++) { acc = block(base, b, x0, 8u * u + b, acc); }
      }
      part[l.y * 32u + l.x] = acc;
    }
    workgroupBarrier();
    if (l.y == 0u) {
      for (var k = 0u; k < min(8u, par.units - first); k++) {
        let p = part[k * 32u + l.x];
        if (first + k == 0u) { total = p; } else { total = add(total, p); }
      }
    }
    workgroupBarrier();
  }
  return total;
}
@compute @workgroup_size(32, 8)
fn main(@builtin(workgroup_id) group : vec3<u32>, @builtin(local_invocation_id) l : vec3<u32>,
        @builtin(local_invocation_index) index : u32) {
  let row = group.y;
  var tile = par.first + group.x;
//#if gated
  let A = row_product(tile, row * par.x_stride, l);
  let B = row_product(tile + par.up_tiles, row * par.x_stride, l);
  if (l.y == 0u) {
    let y = EXPRESSION;
    out[par.out_at + row * par.out_stride + group.x * 32u + l.x] = y;
    shown[l.x] = y;
  }
  workgroupBarrier();
  let acts_row = row * par.acts_stride;
  quantise(index, 32u, acts_row + group.x * 8u, acts_row + par.width / 4u + group.x);
//#end
//#if alone
  var x_row = row;
  if (par.experts != 0u) {
    let t = row / par.experts;
    tile += u32(bitcast<f32>(idx[par.idx_at + t * par.idx_stride + row % par.experts])) * par.expert_tiles;
    if (par.shared_rows != 0u) { x_row = t; }
  }
  var total = row_product(tile, x_row * par.x_stride, l);
  if (l.y == 0u) {
    let column = par.column + group.x * 32u + l.x;
    if (par.has_bias != 0u) { total = add(total, bias[column]); }
    if (par.has_residual != 0u) { total = add(total, residual[par.residual_at + row * par.residual_stride + column]); }
    out[par.out_at + row * par.out_stride + column] = total;
  }
//#end
}
