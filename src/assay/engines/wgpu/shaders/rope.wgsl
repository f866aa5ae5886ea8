// Turns the pairs of each head by the step's cosines and sines; the rest of a head is copied.
struct Par { zero : u32, width : u32, dim : u32, n_rot : u32, offset : u32, neox : u32, table : u32, by_output : u32,
             x_at : u32, x_stride : u32, out_stride : u32 }
@group(0) @binding(0) var<storage, read> par : Par;
@group(0) @binding(1) var<storage, read> step : array<u32>;
@group(0) @binding(2) var<storage, read> x : array<u32>;
@group(0) @binding(3) var<storage, read_write> out : array<u32>;
//#include arithmetic
//#include step
fn unturned(at : u32) -> u32 { return x[at]; }
//#include turned
@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) g : vec3<u32>) {
  if (g.x >= par.width) { return; }
  var t = g.y;
  if (par.by_output == 1u) { t = output_token(g.y); }
  out[g.y * par.out_stride + g.x] = turned(par.x_at + g.y * par.x_stride, g.x, g.x % par.dim, t);
}
