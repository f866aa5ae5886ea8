// The rows of the tokens whose output is wanted.
struct Par { zero : u32, width : u32, x_at : u32, x_stride : u32, out_stride : u32 }
@group(0) @binding(0) var<storage, read> par : Par;
@group(0) @binding(1) var<storage, read> step : array<u32>;
@group(0) @binding(2) var<storage, read> x : array<u32>;
@group(0) @binding(3) var<storage, read_write> out : array<u32>;
//#include arithmetic
//#include step
@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) g : vec3<u32>) {
  if (g.x < par.width) {
    out[g.y * par.out_stride + g.x] = x[par.x_at + output_token(g.y) * par.x_stride + g.x];
  }
}
