// Turns the pairs of each head by cosines and sines that are given for each row; the rest of a head is copied.
struct Par { zero : u32, width : u32, dim : u32, n_rot : u32, offset : u32, neox : u32, table : u32,
             x_at : u32, x_stride : u32, given_at : u32, given_stride : u32, out_stride : u32 }
@group(0) @binding(0) var<storage, read> par : Par;
@group(0) @binding(1) var<storage, read> x : array<u32>;
@group(0) @binding(2) var<storage, read> given : array<u32>;
@group(0) @binding(3) var<storage, read_write> out : array<u32>;
//#include arithmetic
fn turn(table : u32, row : u32, width : u32, i : u32) -> u32 {
  return given[par.given_at + row * par.given_stride + i];
}
fn unturned(at : u32) -> u32 { return x[at]; }
//#include turned
@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) g : vec3<u32>) {
  if (g.x >= par.width) { return; }
  out[g.y * par.out_stride + g.x] = turned(par.x_at + g.y * par.x_stride, g.x, g.x % par.dim, g.y);
}
