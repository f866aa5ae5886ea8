// Tier 2: integers alone. WGSL leaves them no freedom, so these bits need no probe.
fn add(x : u32, y : u32) -> u32 { return int_add(x, y); }
fn mul(x : u32, y : u32) -> u32 { return int_mul(x, y); }
fn fused(x : u32, y : u32, z : u32) -> u32 { return int_fma(x, y, z); }
