// Products of float rows by float activations: two chains in each unit of 256 columns, over even and over odd ones.
struct Par { zero : u32, units : u32, columns : u32, x_at : u32, x_stride : u32, first : u32, column : u32, out_at : u32,
             out_stride : u32, has_bias : u32, has_residual : u32, residual_at : u32, residual_stride : u32,
             experts : u32, expert_tiles : u32, expert_width : u32, shared_rows : u32, idx_at : u32, idx_stride : u32 }
@group(0) @binding(0) var<storage, read> par : Par;
@group(0) @binding(1) var<storage, read> w : array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> x : array<u32>;
@group(0) @binding(3) var<storage, read> bias : array<u32>;
@group(0) @binding(4) var<storage, read> residual : array<u32>;
@group(0) @binding(5) var<storage, read> idx : array<u32>;
@group(0) @binding(6) var<storage, read_write> out : array<u32>;
//#include arithmetic
//#include weights
var<workgroup> part : array<u32, 256>;
@compute @workgroup_size(32, 8)
fn main(@builtin(workgroup_id) group : vec3<u32>, @builtin(local_invocation_id) l : vec3<u32>) {
  let row = group.y;
  var tile = par.first + group.x;
  var x_row = row;
  var x_part = 0u;
  if (par.experts != 0u) {
    let t = row / par.experts;
    tile += u32(bitcast<f32>(idx[par.idx_at + t * par.idx_stride + row % par.experts])) * par.expert_tiles;
    x_row = t;
    if (par.shared_rows == 0u) { x_part = row % par.experts; }
  }
  let x0 = par.x_at + x_row * par.x_stride + x_part * par.columns;
  var total = 0u;
  for (var first = 0u; first < par.units; first += 8u) {
    let u = first + l.y;
    if (u < par.units) {
      let base = (tile * par.units + u) * CHUNKS * 32u + l.x;
      var sums = vec2<u32>(0u, 0u);
      let count = min(256u, (par.columns + 3u) / 4u * 4u - 256u * u);  // zeros follow to a multiple of 4
      for (var i = 0u; i < count; i++) {
        let at = 256u * u + i;
        var a = 0u;
        if (at < par.columns) { a = x[x0 + at]; }
        let s = fused(weight_at(base, i), a, sums[i & 1u]);
        sums[i & 1u] = s;
      }
      part[l.y * 32u + l.x] = add(sums.x, sums.y);
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
  let column = par.column + group.x * 32u + l.x;
  if (l.y == 0u && (par.experts == 0u || column < par.expert_width)) {
    if (par.has_bias != 0u) { total = add(total, bias[column]); }
    if (par.has_residual != 0u) { total = add(total, residual[par.residual_at + row * par.residual_stride + column]); }
    out[par.out_at + row * par.out_stride + column] = total;
  }
}
