// The rows of a token's experts, added ascending in order of choice.
struct Par { zero : u32, width : u32, experts : u32, x_at : u32, x_stride : u32, out_stride : u32 }
@group(0) @binding(0) var<storage, read> par : Par;
@group(0) @binding(1) var<storage, read> x : array<u32>;
@group(0) @binding(2) var<storage, read_write> out : array<u32>;
//#include arithmetic
@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) g : vec3<u32>) {
  if (g.x >= par.width) { return; }
  let row = par.x_at + g.y * par.x_stride + g.x;
  var sum = x[row];
  for (var j = 1u; j < par.experts; j++) { sum = add(sum, x[row + j * par.width]); }
  out[g.y * par.out_stride + g.x] = sum;
}
