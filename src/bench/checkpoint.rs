//! Random-weight checkpoints in Hugging Face layout: sharded bf16 safetensors, written on all cores, and a tokenizer that
//! has a text for every id.

use super::shapes::{Shape, Tensor};
use crate::model::tokenizer::byte_of_char;
use crate::model::weights::file_header;
use rayon::prelude::*;
use serde_json::{Map, Value, json};
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

/// Numbers generated and written at a time; they fit a core's cache.
const CHUNK: usize = 1 << 17;

/// Marks a folder as written here: empty until the folder is complete, then a copy of the config.
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
    write_weights(folder, &shape.tensors(), threads)?;
    std::fs::write(marker, config)
}

/// One file per tensor, so that the cores share the work.
fn write_weights(folder: &Path, tensors: &[Tensor], threads: usize) -> io::Result<()> {
    let file_name = |i: usize| format!("model-{:05}-of-{:05}.safetensors", i + 1, tensors.len());
    let names = tensors.iter().enumerate().map(|(i, tensor)| (tensor.name.clone(), json!(file_name(i))));
    let total: usize = tensors.iter().map(Tensor::byte_len).sum();
    let index = json!({"metadata": {"total_size": total}, "weight_map": names.collect::<Map<_, _>>()});
    std::fs::write(folder.join("model.safetensors.index.json"), index.to_string())?;

    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().map_err(io::Error::other)?;
    let write = |(i, tensor): (usize, &Tensor)| write_tensor(&folder.join(file_name(i)), tensor, i as u64);
    pool.install(|| tensors.par_iter().enumerate().try_for_each(write))
}

/// A safetensors file: header length, header, the tensor's bytes.
fn write_tensor(path: &Path, tensor: &Tensor, seed: u64) -> io::Result<()> {
    let entry = json!({"dtype": "BF16", "shape": tensor.shape, "data_offsets": [0, tensor.byte_len()]});
    let mut file = File::create(path)?;
    file.write_all(&file_header(Map::from_iter([(tensor.name.clone(), entry)])))?;
    let mut chunk = vec![0u16; CHUNK];
    let (mut counter, mut left) = (seed << 40, tensor.byte_len() / 2);
    while left > 0 {
        let part = &mut chunk[..left.min(CHUNK)];
        fill(part, counter, tensor);
        counter += CHUNK as u64;
        file.write_all(bytemuck::cast_slice(part))?;
        left -= part.len();
    }
    Ok(())
}

/// Uniform bf16 numbers in the tensor's range, four to a random word.
fn fill(chunk: &mut [u16], counter: u64, tensor: &Tensor) {
    let (center, step) = (tensor.center, tensor.half_width / 32768.0);
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

/// A byte-level tokenizer: the 256 bytes, then an invented word for each further id.
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
