// The sum of a row, ascending from +0.
struct Par { zero : u32, width : u32, x_at : u32, x_stride : u32, out_stride : u32 }
@group(0) @binding(0) var<storage, read> par : Par;
@group(0) @binding(1) var<storage, read> x : array<u32>;
@group(0) @binding(2) var<storage, read_write> out : array<u32>;
//#include arithmetic
@compute @workgroup_size(1)
fn main(@builtin(workgroup_id) group : vec3<u32>) {
  var sum = 0u;
  for (var i = 0u; i < par.width; i++) { sum = add(sum, x[par.x_at + group.x * par.x_stride + i]); }
  out[group.x * par.out_stride] = sum;
}
