// Rows of floats as int8 blocks, where no kernel before could write them.
struct Par { zero : u32, width : u32, x_at : u32, x_stride : u32, acts_stride : u32, part : u32, parts : u32 }
@group(0) @binding(0) var<storage, read> par : Par;
@group(0) @binding(1) var<storage, read> x : array<u32>;
@group(0) @binding(2) var<storage, read_write> acts : array<u32>;
//#include arithmetic
//#include quantise
@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group : vec3<u32>, @builtin(local_invocation_index) l : u32) {
  let i = group.x * 256u + l;
  let row = group.y;
  if (i < par.width) { shown[l] = x[par.x_at + (row / par.parts) * par.x_stride + (row % par.parts) * par.part + i]; }
  workgroupBarrier();
  quantise(l, min(256u, par.width - group.x * 256u), row * par.acts_stride + group.x * 64u,
           row * par.acts_stride + par.width / 4u + group.x * 8u, par.width / 32u);
}
