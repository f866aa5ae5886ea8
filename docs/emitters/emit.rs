// Writes an assay dump (JSON lines). Open once, then call `tensor` wherever a value is known.
use std::{fs::File, io::{BufWriter, Result, Write}};

pub struct Dump(BufWriter<File>);

impl Dump {
    pub fn open(path: &str, engine: &str, tokens: &[u32]) -> Result<Dump> {
        let mut out = BufWriter::new(File::create(path)?);
        writeln!(out, r#"{{"assay_dump": 1, "engine": "{engine}", "tokens": {tokens:?}}}"#)?;
        Ok(Dump(out))
    }

    /// `shape` is row-major: slowest axis first, e.g. `[tokens, heads, head_dim]`.
    pub fn tensor(&mut self, name: &str, shape: &[usize], values: &[f32]) -> Result<()> {
        assert_eq!(shape.iter().product::<usize>(), values.len());
        write!(self.0, r#"{{"name": "{name}", "shape": {shape:?}, "values": ["#)?;
        for (i, v) in values.iter().enumerate() {
            let comma = if i > 0 { ", " } else { "" };
            if v.is_finite() { write!(self.0, "{comma}{v:e}")? } else { write!(self.0, "{comma}null")? }
        }
        writeln!(self.0, "]}}")
    }
}

fn main() -> Result<()> {
    let path = std::env::args().nth(1).unwrap_or("dump.jsonl".into());
    let mut dump = Dump::open(&path, "example-rust", &[1, 450])?;
    dump.tensor("embd", &[2, 3], &[0.1, -2.5, 3e-7, 4.0, 5.25, -6.0])
}
