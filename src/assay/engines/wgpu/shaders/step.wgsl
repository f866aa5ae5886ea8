// The words of a step (step_words.py): a header of 16, then 8 for each token, then lists that the header points to.
fn token_id(t : u32) -> u32 { return step[16u + 8u * t]; }
fn position(t : u32) -> u32 { return step[17u + 8u * t]; }
fn slot(t : u32) -> u32 { return step[18u + 8u * t]; }  // of the cache
fn key_count(t : u32) -> u32 { return step[19u + 8u * t]; }  // slots of its sequence, those of this step included
fn slot_of(t : u32, key : u32) -> u32 { return step[step[20u + 8u * t] + key / 32u] * 32u + key % 32u; }
fn last_slot(t : u32) -> u32 { return step[21u + 8u * t]; }  // of its sequence, that it sees
fn output_token(row : u32) -> u32 { return step[step[2] + row]; }
fn turn(table : u32, t : u32, width : u32, i : u32) -> u32 { return step[step[4u + table] + t * width + i]; }
// State of a fixed size, of piece p of the step: its first token, its tokens, where to read and to write its state, and
// whether its sequence begins.
fn piece(p : u32, field : u32) -> u32 { return step[step[3] + 5u * p + field]; }
