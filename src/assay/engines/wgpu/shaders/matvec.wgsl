// Products of quantised rows by int8 activations. A workgroup has 32 rows (a tile) and one token. An invocation has 256
// columns (a unit) of a row at a time; partial sums of units are added ascending.
struct Par { zero : u32, units : u32, blocks : u32, x_stride : u32, first : u32, column : u32, out_at : u32,
             out_stride : u32, has_bias : u32, has_residual : u32, residual_at : u32, residual_stride : u32,
             experts : u32, expert_tiles : u32, shared_rows : u32, idx_at : u32, idx_stride : u32,
             book0 : u32, book1 : u32, book2 : u32, book3 : u32 }
@group(0) @binding(0) var<storage, read> par : Par;
@group(0) @binding(1) var<storage, read> w : array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> x : array<vec4<u32>>;  // a row: codes, then float32 scales
@group(0) @binding(3) var<storage, read> bias : array<u32>;
@group(0) @binding(4) var<storage, read> residual : array<u32>;
@group(0) @binding(5) var<storage, read> idx : array<u32>;
@group(0) @binding(6) var<storage, read_write> out : array<u32>;
//#include arithmetic
//#include weights
var<workgroup> part : array<u32, 256>;  // 8 units of 32 rows
fn dot16(a : vec4<u32>, b : vec4<u32>) -> i32 {
  return dot4I8Packed(a.x, b.x) + dot4I8Packed(a.y, b.y) + dot4I8Packed(a.z, b.z) + dot4I8Packed(a.w, b.w);
}
fn float(i : i32) -> u32 { return bitcast<u32>(f32(i)); }  // exact: |i| < 2^24
fn block(base : u32, b : u32, x0 : u32, at : u32, sum : u32) -> u32 {
  let a0 = x[x0 + 2u * at];
  let a1 = x[x0 + 2u * at + 1u];
  let da = x[x0 + 2u * par.blocks + at / 4u][at % 4u];
  var acc = sum;
  var s0 = dot16(low(base, b), a0);
  var s1 = dot16(high(base, b), a1);
//#if minima
  const ones = vec4<u32>(0x01010101u);
  let n0 = dot16(ones, a0);
  let n1 = dot16(ones, a1);
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
@compute @workgroup_size(32, 8)
fn main(@builtin(workgroup_id) group : vec3<u32>, @builtin(local_invocation_id) l : vec3<u32>) {
  let row = group.y;
  var tile = par.first + group.x;
  var x_row = row;
  if (par.experts != 0u) {
    let t = row / par.experts;
    tile += u32(bitcast<f32>(idx[par.idx_at + t * par.idx_stride + row % par.experts])) * par.expert_tiles;
    if (par.shared_rows != 0u) { x_row = t; }
  }
  let x0 = x_row * par.x_stride;
  var total = 0u;
  for (var first = 0u; first < par.units; first += 8u) {
    let u = first + l.y;
    if (u < par.units) {
      let base = (tile * par.units + u) * CHUNKS * 32u + l.x;
      var acc = 0u;
      for (var b = 0u; b < min(8u, par.blocks - 8u * u); b++) { acc = block(base, b, x0, 8u * u + b, acc); }
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
  if (l.y == 0u) {
    let column = par.column + group.x * 32u + l.x;
    if (par.has_bias != 0u) { total = add(total, bias[column]); }
    if (par.has_residual != 0u) { total = add(total, residual[par.residual_at + row * par.residual_stride + column]); }
    out[par.out_at + row * par.out_stride + column] = total;
  }
}
