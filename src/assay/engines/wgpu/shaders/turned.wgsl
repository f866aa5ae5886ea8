// RoPE: value i of a row, d of its head, turned by the cosine and sine of its pair. Other values stay as they are.
// `unturned` is the value at a word, and belongs to the kernel.
fn turned(row : u32, i : u32, d : u32, t : u32) -> u32 {
  let y = unturned(row + i);
  if (d < par.offset || d >= par.offset + par.n_rot) { return y; }
  let half = par.n_rot / 2u;
  let r = d - par.offset;
  let neox = par.neox == 1u;  // pairs (r, r + half), else (2r, 2r + 1)
  let pair = select(r / 2u, r % half, neox);
  let second = select(r % 2u == 1u, r >= half, neox);
  let apart = select(1u, half, neox);
  let z = unturned(row + select(i + apart, i - apart, second));
  // (a cos - b sin, a sin + b cos): y is a in the first of a pair, b in the second
  let own = mul(y, turn(par.table, t, par.n_rot, pair));
  let cross = mul(z, turn(par.table, t, par.n_rot, half + pair));
  return add(select(own, cross, second), select(negated(cross), own, second));
}
