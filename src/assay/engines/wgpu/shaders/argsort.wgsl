// Indices of a row, largest value first, ties to the lower index, NaN last; as floats. Each value counts those before it.
struct Par { zero : u32, width : u32, x_at : u32, x_stride : u32, out_stride : u32 }
@group(0) @binding(0) var<storage, read> par : Par;
@group(0) @binding(1) var<storage, read> x : array<u32>;
@group(0) @binding(2) var<storage, read_write> out : array<u32>;
//#include arithmetic
fn rank(v : u32) -> u32 {  // -0 counts as +0
  if (is_nan(v)) { return 0u; }
  return order(select(v, 0u, magnitude(v) == 0u));
}
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) g : vec3<u32>) {
  if (g.x >= par.width) { return; }
  let row = par.x_at + g.y * par.x_stride;
  let own = rank(x[row + g.x]);
  var before = 0u;
  for (var i = 0u; i < par.width; i++) {
    let r = rank(x[row + i]);
    before += u32(r > own || (r == own && i < g.x));
  }
  out[g.y * par.out_stride + before] = bitcast<u32>(f32(g.x));
}
