//! Random-weight checkpoints in Hugging Face layout: sharded safetensors in bf16, written by all cores at once, with a
//! tokenizer that has a text for every id. No network, and no model that a machine might not have.

use super::shapes::{ModelShape, Tensor};
use rayon::prelude::*;
use serde_json::{Map, Value, json};
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

/// A shard takes whole tensors up to about this many bytes: small enough to keep every core busy to the end.
const SHARD_BYTES: usize = 512 << 20;

/// Numbers that are generated and written at a time: what fits into a core's cache.
const CHUNK: usize = 1 << 17;

/// Marks a folder as ours: empty while it is written, then it holds the config.
const MARKER: &str = "random-weights";

/// Writes the whole folder, unless it is there already. `threads` 0: one per core.
pub fn write(folder: &Path, shape: &ModelShape, threads: usize) -> io::Result<()> {
    let config = shape.config().to_string();
    let marker = folder.join(MARKER);
    match std::fs::read_to_string(&marker) {
        Ok(finished) if finished == config => return Ok(()),
        Ok(_) => std::fs::remove_dir_all(folder)?,
        Err(_) if folder.exists() => return Err(io::Error::other("there is something else of that name")),
        Err(_) => {}
    }
    std::fs::create_dir_all(folder)?;
    std::fs::write(&marker, "")?;
    std::fs::write(folder.join("config.json"), &config)?;
    std::fs::write(folder.join("tokenizer.json"), tokenizer(shape.vocab).to_string())?;
    std::fs::write(folder.join("tokenizer_config.json"), "{}")?;
    write_weights(folder, &shape.tensors(), threads)?;
    std::fs::write(marker, config)
}

fn write_weights(folder: &Path, tensors: &[Tensor], threads: usize) -> io::Result<()> {
    let shards = shards(tensors);
    let file_name = |i: usize| format!("model-{:05}-of-{:05}.safetensors", i + 1, shards.len());
    let mut weight_map = Map::new();
    for (i, shard) in shards.iter().enumerate() {
        weight_map.extend(shard.iter().map(|tensor| (tensor.name.clone(), json!(file_name(i)))));
    }
    let total: usize = tensors.iter().map(Tensor::byte_len).sum();
    let index = json!({"metadata": {"total_size": total}, "weight_map": weight_map});
    std::fs::write(folder.join("model.safetensors.index.json"), index.to_string())?;

    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().map_err(io::Error::other)?;
    let write = |(i, shard): (usize, &&[Tensor])| write_shard(&folder.join(file_name(i)), shard, i as u64);
    pool.install(|| shards.par_iter().enumerate().try_for_each(write))
}

/// The tensors in order, cut where a shard is full.
fn shards(tensors: &[Tensor]) -> Vec<&[Tensor]> {
    let (mut cuts, mut bytes) = (vec![0], 0);
    for (i, tensor) in tensors.iter().enumerate() {
        if bytes > 0 && bytes + tensor.byte_len() > SHARD_BYTES {
            cuts.push(i);
            bytes = 0;
        }
        bytes += tensor.byte_len();
    }
    cuts.push(tensors.len());
    cuts.windows(2).map(|cut| &tensors[cut[0]..cut[1]]).collect()
}

/// One safetensors file: length of the header, the header, the tensors' bytes.
fn write_shard(path: &Path, tensors: &[Tensor], seed: u64) -> io::Result<()> {
    let (mut header, mut start) = (Map::new(), 0);
    for tensor in tensors {
        let end = start + tensor.byte_len();
        header
            .insert(tensor.name.clone(), json!({"dtype": "BF16", "shape": tensor.shape, "data_offsets": [start, end]}));
        start = end;
    }
    let mut header = Value::Object(header).to_string();
    // the data that follows stays aligned
    header += &" ".repeat(header.len().next_multiple_of(8) - header.len());
    let mut file = File::create(path)?;
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(header.as_bytes())?;
    let mut chunk = vec![0u16; CHUNK];
    let mut counter = seed << 40;
    for tensor in tensors {
        let mut left = tensor.byte_len() / 2;
        while left > 0 {
            let part = &mut chunk[..left.min(CHUNK)];
            fill(part, counter, tensor);
            counter += CHUNK as u64;
            file.write_all(bytemuck::cast_slice(part))?;
            left -= part.len();
        }
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

/// A byte-level tokenizer: the 256 bytes, then an invented word for every further id.
fn tokenizer(vocab_size: usize) -> Value {
    // byte-level BPE writes bytes that print as themselves, and the others as characters from U+0100 on
    let prints = |b: u32| (33..=126).contains(&b) || (161..=172).contains(&b) || (174..=255).contains(&b);
    let mut stand_in = 256;
    let mut vocab = Map::new();
    for byte in 0..256u32 {
        let code = if prints(byte) { byte } else { stand_in };
        stand_in += u32::from(!prints(byte));
        vocab.insert(char::from_u32(code).unwrap_or('?').to_string(), json!(byte));
    }
    vocab.extend((256..vocab_size).map(|id| (format!("word{id}"), json!(id))));
    let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": bytes, "post_processor": null, "decoder": bytes,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                  "vocab": vocab, "merges": []}
    })
}
