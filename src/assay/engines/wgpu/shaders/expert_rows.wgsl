// A vector or a number of the chosen expert, added to its row or multiplied with it.
struct Par { zero : u32, width : u32, each : u32, w_each : u32, x_at : u32, x_stride : u32, idx_at : u32,
             idx_stride : u32, out_stride : u32 }
@group(0) @binding(0) var<storage, read> par : Par;
@group(0) @binding(1) var<storage, read> x : array<u32>;
@group(0) @binding(2) var<storage, read> idx : array<u32>;
@group(0) @binding(3) var<storage, read> w : array<u32>;
@group(0) @binding(4) var<storage, read_write> out : array<u32>;
//#include arithmetic
@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) g : vec3<u32>) {
  if (g.x >= par.width) { return; }
  let expert = u32(bitcast<f32>(idx[par.idx_at + g.y * par.idx_stride + g.x / par.each]));
  let A = x[par.x_at + g.y * par.x_stride + g.x];
  let B = w[expert * par.w_each + (g.x % par.each) % par.w_each];
  out[g.y * par.out_stride + g.x] = EXPRESSION;
}
