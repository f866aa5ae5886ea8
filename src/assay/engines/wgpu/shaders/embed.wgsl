// The rows of a table that tokens (or positions) name. A table may lie in slices.
struct Par { zero : u32, width : u32, units : u32, by_position : u32, first : u32, tiles : u32, stride : u32,
             book0 : u32, book1 : u32, book2 : u32, book3 : u32 }
@group(0) @binding(0) var<storage, read> par : Par;
@group(0) @binding(1) var<storage, read> step : array<u32>;
@group(0) @binding(2) var<storage, read> w : array<vec4<u32>>;
@group(0) @binding(3) var<storage, read_write> out : array<u32>;
//#include arithmetic
//#include step
//#include weights
@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group : vec3<u32>, @builtin(local_invocation_index) l : u32) {
  let t = group.y;
  let i = group.x * 256u + l;
  var row = token_id(t);
  if (par.by_position == 1u) { row = position(t); }
  let tile = row / 32u;
  if (i < par.width && tile >= par.first && tile < par.first + par.tiles) {
    let base = ((tile - par.first) * par.units + group.x) * CHUNKS * 32u + row % 32u;
    out[t * par.stride + i] = weight_at(base, l);
  }
}
