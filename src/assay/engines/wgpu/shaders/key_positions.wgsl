// Notes the position of each slot that this step writes: masks compare positions, which need not be slots.
struct Par { zero : u32 }
@group(0) @binding(0) var<storage, read> par : Par;
@group(0) @binding(1) var<storage, read> step : array<u32>;
@group(0) @binding(2) var<storage, read_write> positions : array<u32>;
//#include step
@compute @workgroup_size(1)
fn main(@builtin(workgroup_id) group : vec3<u32>) { positions[slot(group.x)] = position(group.x) + par.zero; }
