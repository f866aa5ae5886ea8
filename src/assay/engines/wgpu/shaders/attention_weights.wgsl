// For a trace: the softmax of a query row, exp(s - m) / l of all keys, +0 where a key is not seen.
struct Par { zero : u32, heads : u32, most_keys : u32 }
@group(0) @binding(0) var<storage, read> par : Par;
@group(0) @binding(1) var<storage, read> ends : array<u32>;
@group(0) @binding(2) var<storage, read_write> scores : array<u32>;
//#include arithmetic
//#include functions
@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group : vec3<u32>, @builtin(local_invocation_index) l : u32) {
  let key = group.x * 256u + l;
  let head = group.z * par.heads + group.y;
  if (key < par.most_keys) {
    let at = (head * par.most_keys + key) * 3u + 2u;
    if (scores[at] != 0xffffffffu) {
      scores[at] = div(exp_of(minus(scores[at], ends[2u * head])), ends[2u * head + 1u]);
    } else {
      scores[at] = 0u;
    }
  }
}
