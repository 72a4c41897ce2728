//! GGUF files, as llama.cpp has them: unpacked once into a model folder in the cache (`config.json`, `tokenizer.json`,
//! `model.safetensors`), which is from there on a model like any other. Quantized weights become f16.
//!
//! Format: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>

mod container;
mod quants;
mod tokenizer;

use super::weights::file_header;
use crate::{cache, units};
use container::{Container, Tensor};
use memmap2::Mmap;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// Part of the folder's name: files unpacked by another version are unpacked again.
const VERSION: u32 = 1;

/// A GGUF file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum GgufError {
    #[error("{}{fault}", path.display())]
    File { path: PathBuf, fault: Fault },
    #[error("no cache folder to unpack a GGUF file into: set UQAC_CACHE")]
    NoFolder,
}

/// Why a file cannot be used, in words that follow its path.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    #[error(": {0}")]
    Io(#[from] io::Error),
    #[error(" is damaged: {0}")]
    Damaged(String),
    #[error(": {0} of GGUF files is not supported; download the model's own repository (safetensors)")]
    Unsupported(String),
    #[error(" is a part of a model; join the parts first: llama-gguf-split --merge FIRST_PART OUTPUT")]
    Part,
}

fn damaged<T>(what: impl Into<String>) -> Result<T, Fault> {
    Err(Fault::Damaged(what.into()))
}

/// Differences of a family's files from its repository.
struct Family {
    /// `general.architecture`
    name: &'static str,
    /// `architectures[0]` and `model_type` of its repository.
    architecture: &'static str,
    model_type: &'static str,
    /// Whether rows of queries and keys interleave the two halves of a rotation.
    interleaved: bool,
    /// Whether 1 is added to norm weights.
    norms_plus_one: bool,
    /// The name of `ffn_norm`.
    ffn_norm: &'static str,
    /// Layers of the size whose query scale is not that of head_dim but of hidden_size / heads.
    wide_query_layers: Option<u64>,
}

const LLAMA: Family = Family {
    name: "llama",
    architecture: "LlamaForCausalLM",
    model_type: "llama",
    interleaved: true,
    norms_plus_one: false,
    ffn_norm: "post_attention_layernorm",
    wide_query_layers: None,
};
const GEMMA: Family = Family {
    name: "gemma",
    architecture: "GemmaForCausalLM",
    model_type: "gemma",
    interleaved: false,
    norms_plus_one: true,
    ..LLAMA
};
const FAMILIES: [Family; 6] = [
    LLAMA,
    Family { name: "qwen2", architecture: "Qwen2ForCausalLM", model_type: "qwen2", interleaved: false, ..LLAMA },
    Family { name: "qwen3", architecture: "Qwen3ForCausalLM", model_type: "qwen3", interleaved: false, ..LLAMA },
    GEMMA,
    Family {
        name: "gemma2",
        architecture: "Gemma2ForCausalLM",
        model_type: "gemma2",
        ffn_norm: "pre_feedforward_layernorm",
        wide_query_layers: Some(46),
        ..GEMMA
    },
    Family {
        name: "gemma3",
        architecture: "Gemma3ForCausalLM",
        model_type: "gemma3_text",
        ffn_norm: "pre_feedforward_layernorm",
        wide_query_layers: Some(62),
        ..GEMMA
    },
];

/// Keys of `config.json`, and of the metadata after the architecture's name.
const SETTINGS: [(&str, &str); 12] = [
    ("hidden_size", "embedding_length"),
    ("intermediate_size", "feed_forward_length"),
    ("num_hidden_layers", "block_count"),
    ("num_attention_heads", "attention.head_count"),
    ("num_key_value_heads", "attention.head_count_kv"),
    ("head_dim", "attention.key_length"),
    ("rms_norm_eps", "attention.layer_norm_rms_epsilon"),
    ("rope_theta", "rope.freq_base"),
    ("max_position_embeddings", "context_length"),
    ("sliding_window", "attention.sliding_window"),
    ("attn_logit_softcapping", "attn_logit_softcapping"),
    ("final_logit_softcapping", "final_logit_softcapping"),
];

/// Names of a layer's tensors, there and in a repository; `ffn_norm` is the family's.
const LAYER: [(&str, &str); 13] = [
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
    ("post_attention_norm", "post_attention_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
    ("ffn_norm", ""),
];
const TOP: [(&str, &str); 3] =
    [("token_embd", "model.embed_tokens"), ("output_norm", "model.norm"), ("output", "lm_head")];

/// Divisors of the frequencies of a rotation, in files of Llama 3.
const FREQUENCIES: &str = "rope_freqs.weight";

/// The folder that a file is unpacked into: `<cache>/models/<name>-<hash>`.
///
/// # Errors
/// The file is damaged, of another family or format, or cannot be unpacked.
pub fn folder(path: &Path) -> Result<PathBuf, GgufError> {
    unpack(path, &cache::folder().ok_or(GgufError::NoFolder)?)
}

/// [`folder`] in a cache that is given.
pub fn unpack(path: &Path, cache: &Path) -> Result<PathBuf, GgufError> {
    let fault = |fault| GgufError::File { path: path.to_owned(), fault };
    let io = |source| fault(Fault::Io(source));
    let file = File::open(path).map_err(io)?;
    let metadata = file.metadata().map_err(io)?;
    // SAFETY: as with safetensors, a change of the file while it is read changes the numbers.
    let bytes = unsafe { Mmap::map(&file) }.map_err(io)?;
    let container = Container::read(&bytes).map_err(fault)?;
    if container.number("split.count").is_some_and(|parts| parts > 1) {
        return Err(fault(Fault::Part));
    }
    let mut hash = Sha256::new();
    hash.update(&bytes[..container.data]);
    hash.update(format!("{VERSION} {} {:?}", bytes.len(), metadata.modified().ok()));
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    let models =
        cache::private(cache, "models").map_err(|(path, source)| GgufError::File { path, fault: source.into() })?;
    let folder = models.join(format!("{name}-{}", units::hex(&hash.finalize()[..6])));
    if !folder.is_dir() {
        write_folder(&container, &models, &folder).map_err(fault)?;
    }
    Ok(folder)
}

fn write_folder(container: &Container, models: &Path, folder: &Path) -> Result<(), Fault> {
    let name = container.text("general.architecture").unwrap_or_default();
    let Some(family) = FAMILIES.iter().find(|family| family.name == name) else {
        return Err(Fault::Unsupported(format!("the architecture \"{name}\"")));
    };
    let draft = cache::draft_folder(models)?;
    let write =
        |name: &str, value: Value| File::create_new(draft.path().join(name))?.write_all(value.to_string().as_bytes());
    write("config.json", config(container, family)?)?;
    write("tokenizer.json", tokenizer::tokenizer(container)?)?;
    write("tokenizer_config.json", tokenizer::config(container))?;
    write("generation_config.json", json!({"eos_token_id": tokenizer::ends(container)}))?;
    weights(container, family, &draft.path().join("model.safetensors"))?;
    match std::fs::rename(draft.path(), folder) {
        Ok(()) => drop(draft.keep()),
        // another process was first
        Err(_) if folder.is_dir() => {}
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

fn config(container: &Container, family: &Family) -> Result<Value, Fault> {
    let get = |key: &str| container.metadata.get(&format!("{}.{key}", family.name));
    let mut config: Map<String, Value> =
        SETTINGS.iter().filter_map(|(key, from)| Some(((*key).to_owned(), get(from)?.clone()))).collect();
    let count = |key| get(key).and_then(Value::as_u64).unwrap_or_default();
    let (layers, heads) = (count("block_count"), count("attention.head_count"));
    if heads == 0 {
        return damaged(format!("{}.attention.head_count: expected a number above 0", family.name));
    }
    let by_heads = count("embedding_length") / heads;
    let head_dim = get("attention.key_length").and_then(Value::as_u64).unwrap_or(by_heads);
    if family.norms_plus_one {
        let wide = family.wide_query_layers == Some(layers);
        config.insert("query_pre_attn_scalar".to_owned(), json!(if wide { by_heads } else { head_dim }));
    }
    if let Some(scaling) = rope_scaling(container, family)? {
        config.insert("rope_scaling".to_owned(), scaling);
    }
    let has = |name: &str| container.tensors.iter().any(|tensor| tensor.name == name);
    config.extend([
        ("architectures".to_owned(), json!([family.architecture])),
        ("model_type".to_owned(), json!(family.model_type)),
        ("vocab_size".to_owned(), json!(container.list("tokenizer.ggml.tokens").len())),
        ("tie_word_embeddings".to_owned(), json!(!has("output.weight"))),
        ("eos_token_id".to_owned(), json!(tokenizer::ends(container))),
        ("bos_token_id".to_owned(), json!(container.number("tokenizer.ggml.bos_token_id"))),
        ("attention_bias".to_owned(), json!(has("blk.0.attn_q.bias"))),
    ]);
    Ok(Value::Object(config))
}

fn rope_scaling(container: &Container, family: &Family) -> Result<Option<Value>, Fault> {
    let get = |key: &str| container.metadata.get(&format!("{}.rope.scaling.{key}", family.name));
    let context = container.number(&format!("{}.context_length", family.name));
    if let Some(tensor) = container.tensors.iter().find(|tensor| tensor.name == FREQUENCIES) {
        // the same divisors at any length
        let mut divisors = vec![0.0; tensor.width];
        tensor.row(0, &mut divisors);
        return Ok(Some(json!({
            "rope_type": "longrope", "short_factor": divisors, "long_factor": divisors, "factor": 1.0,
            "attention_factor": 1.0, "original_max_position_embeddings": context
        })));
    }
    match get("type").and_then(Value::as_str) {
        None | Some("none") => Ok(None),
        Some(kind @ ("linear" | "yarn")) => Ok(Some(json!({
            "rope_type": kind, "factor": get("factor"),
            "original_max_position_embeddings": get("original_context_length").cloned().unwrap_or(json!(context))
        }))),
        Some(kind) => Err(Fault::Unsupported(format!("the rope scaling \"{kind}\""))),
    }
}

/// A tensor's name in a repository; `None` for what `config.json` has.
fn name_of(tensor: &Tensor, family: &Family) -> Result<Option<String>, Fault> {
    let renamed = |names: &[(&str, &str)], stem: &str| {
        let name = names.iter().find(|(name, _)| *name == stem).map(|(_, name)| *name);
        name.map(|name| if name.is_empty() { family.ffn_norm.to_owned() } else { name.to_owned() })
    };
    let (stem, kind) = tensor.name.rsplit_once('.').unwrap_or((&tensor.name, ""));
    let name = match stem.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) {
        _ if tensor.name == FREQUENCIES => return Ok(None),
        Some((layer, stem)) => renamed(&LAYER, stem).map(|name| format!("model.layers.{layer}.{name}.{kind}")),
        None => renamed(&TOP, stem).map(|name| format!("{name}.{kind}")),
    };
    name.map(Some).ok_or_else(|| Fault::Unsupported(format!("the tensor {}", tensor.name)))
}

/// Writes the tensors, row by row, so that a row is all that is held in memory.
fn weights(container: &Container, family: &Family, path: &Path) -> Result<(), Fault> {
    let mut named = Vec::new();
    let (mut header, mut end) = (Map::new(), 0);
    for tensor in &container.tensors {
        let Some(name) = name_of(tensor, family)? else { continue };
        let shape = if tensor.is_vector { vec![tensor.width] } else { vec![tensor.rows, tensor.width] };
        let start = end;
        end += tensor.rows * tensor.width * tensor.format.target.size();
        let dtype = tensor.format.target.name().to_uppercase();
        header.insert(name, json!({"dtype": dtype, "shape": shape, "data_offsets": [start, end]}));
        named.push(tensor);
    }
    let mut file = BufWriter::with_capacity(1 << 20, File::create_new(path)?);
    file.write_all(&file_header(header))?;
    for tensor in named {
        let heads = match tensor.name.split('.').nth(2) {
            Some("attn_q") if family.interleaved => container.number(&format!("{}.attention.head_count", family.name)),
            Some("attn_k") if family.interleaved => {
                container.number(&format!("{}.attention.head_count_kv", family.name))
            }
            _ => None,
        };
        let subtracted = if family.norms_plus_one && tensor.name.contains("norm") { 1.0 } else { 0.0 };
        write_tensor(tensor, heads, subtracted, &mut file)?;
    }
    file.into_inner().map_err(|error| error.into_error())?.sync_all()?;
    Ok(())
}

/// `heads`: those whose rows interleave the two halves of a rotation.
fn write_tensor(tensor: &Tensor, heads: Option<u64>, subtracted: f32, file: &mut impl Write) -> Result<(), Fault> {
    let half = heads.map_or(0, |heads| tensor.rows / 2 / (heads as usize).max(1));
    if heads.is_some_and(|heads| tensor.is_vector || tensor.rows != 2 * half * heads as usize) {
        return Err(Fault::Unsupported(format!("the tensor {} of {} rows", tensor.name, tensor.rows)));
    }
    let source = |row: usize| match row.checked_div(half) {
        // row (head, half, i) is row (head, i, half) in the file
        Some(block) => block / 2 * 2 * half + 2 * (row % half) + block % 2,
        None => row,
    };
    let (mut numbers, mut bytes) = (vec![0.0; tensor.width], Vec::new());
    for row in 0..tensor.rows {
        tensor.row(source(row), &mut numbers);
        numbers.iter_mut().for_each(|x| *x -= subtracted);
        tensor.format.target.encode(&numbers, &mut bytes);
        file.write_all(&bytes)?;
    }
    Ok(())
}
