//! A checkpoint of random weights in a published shape, to measure a model's speed without the model:
//! `cargo run --release --example random_weights -- llama-3.2-1b[/N|/small] FOLDER`, then `uqac bench -m FOLDER`. `/N`: the first N layers.

use std::path::Path;

#[allow(dead_code)] // the rest is the GPU benchmark's
#[path = "../benches/shapes/mod.rs"]
mod shapes;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let usage = || format!("usage: random_weights SHAPE FOLDER; shapes: {}", shapes::names().join(", "));
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, folder] = &arguments[..] else { return Err(usage().into()) };
    let shape = shapes::find(name).ok_or_else(usage)?;
    eprintln!("{:.1} GB in {folder}", shape.byte_len() as f64 / 1e9);
    Ok(shapes::checkpoint::write(Path::new(folder), &shape, 0)?)
}
