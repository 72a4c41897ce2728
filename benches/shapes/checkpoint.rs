//! Random-weight checkpoints in Hugging Face layout: sharded bf16 safetensors, written on all cores, and a tokenizer
//! with text for every id.

use super::Shape;
use rayon::prelude::*;
use serde_json::{Map, Value, json};
use std::io::{self, Write};
use std::path::Path;
use uqac::internals::{byte_of_char, range};

/// Number of values generated and written at a time; they fit in a core's cache.
const CHUNK: usize = 1 << 17;

/// Marks a folder as written by this module: empty until the folder is complete, then a copy of the config.
const MARKER: &str = "random-weights";

/// Writes the folder unless it is already complete. `threads` 0: one per core.
pub fn write(folder: &Path, shape: &Shape, threads: usize) -> io::Result<()> {
    let config = shape.config.to_string();
    let marker = folder.join(MARKER);
    match std::fs::read_to_string(&marker) {
        Ok(finished) if finished == config => return Ok(()),
        Ok(_) => std::fs::remove_dir_all(folder)?,
        Err(_) if folder.exists() => return Err(io::Error::other("it exists and was not written by this program")),
        Err(_) => {}
    }
    std::fs::create_dir_all(folder)?;
    std::fs::write(&marker, "")?;
    std::fs::write(folder.join("config.json"), &config)?;
    std::fs::write(folder.join("tokenizer.json"), tokenizer(shape.spec.vocab_size).to_string())?;
    std::fs::write(folder.join("tokenizer_config.json"), "{}")?;
    write_weights(folder, shape, threads)?;
    std::fs::write(marker, config)
}

/// One file per tensor, to spread the work over the cores; value ranges keep activations finite.
fn write_weights(folder: &Path, shape: &Shape, threads: usize) -> io::Result<()> {
    let (tensors, offset) = (shape.tensors(), shape.spec.family.norm_weight_offset);
    let file_name = |i: usize| format!("model-{:05}-of-{:05}.safetensors", i + 1, tensors.len());
    let names = tensors.iter().enumerate().map(|(i, (name, _))| (name.clone(), json!(file_name(i))));
    let index = json!({"metadata": {"total_size": shape.byte_len()}, "weight_map": names.collect::<Map<_, _>>()});
    std::fs::write(folder.join("model.safetensors.index.json"), index.to_string())?;

    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().map_err(io::Error::other)?;
    let write = |(i, (name, shape)): (usize, &(String, Vec<usize>))| {
        write_tensor(&folder.join(file_name(i)), (name, shape), range(name, shape, offset), i as u64)
    };
    pool.install(|| tensors.par_iter().enumerate().try_for_each(write))
}

/// A safetensors file: header length, header (padded to align the data), the tensor's bytes.
fn write_tensor(path: &Path, (name, shape): (&str, &[usize]), range: (f32, f32), seed: u64) -> io::Result<()> {
    let (mut counter, mut left) = (seed << 40, shape.iter().product::<usize>());
    let entry = json!({"dtype": "BF16", "shape": shape, "data_offsets": [0, 2 * left]});
    let mut header = json!({name: entry}).to_string().into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');
    let mut file = std::fs::File::create(path)?;
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(&header)?;
    let mut chunk = vec![0u16; CHUNK];
    while left > 0 {
        let part = &mut chunk[..left.min(CHUNK)];
        fill(part, counter, range);
        counter += CHUNK as u64;
        file.write_all(bytemuck::cast_slice(part))?;
        left -= part.len();
    }
    Ok(())
}

/// Uniform bf16 values in `center ± half_width`, four per random word.
fn fill(chunk: &mut [u16], counter: u64, (center, half_width): (f32, f32)) {
    let step = half_width / 32768.0;
    for (i, four) in (counter..).zip(chunk.chunks_mut(4)) {
        let mut word = i.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        word = (word ^ (word >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        word ^= word >> 32;
        for (lane, out) in four.iter_mut().enumerate() {
            let x = center + step * f32::from((word >> (16 * lane)) as i16);
            *out = ((x.to_bits() + 0x8000) >> 16) as u16;
        }
    }
}

/// A byte-level tokenizer: the 256 bytes, then a made-up word for each further id.
fn tokenizer(vocab_size: usize) -> Value {
    let bytes = ('\0'..='\u{143}').filter_map(|c| Some((c.to_string(), json!(byte_of_char(c)?))));
    let words = (256..vocab_size).map(|id| (format!("word{id}"), json!(id)));
    let vocab: Map<String, Value> = bytes.chain(words).collect();
    let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": bytes, "post_processor": null, "decoder": bytes,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                  "vocab": vocab, "merges": []}
    })
}
