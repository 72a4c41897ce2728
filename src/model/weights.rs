//! Memory-mapped safetensors: one file, or shards named by `model.safetensors.index.json`. Matrices stay where they
//! are, in their file's precision; only the norm weights and biases (one vector each) are widened to f32.

use super::{ModelError, ModelSpec};
use crate::files;
use half::{bf16, f16};
use memmap2::Mmap;
use safetensors::{Dtype, SafeTensors};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

/// Numbers as a file stores them.
#[derive(Clone, Copy, Debug)]
pub enum Elements<'a> {
    F32(&'a [f32]),
    Bf16(&'a [bf16]),
    F16(&'a [f16]),
}

impl Elements<'_> {
    /// How many numbers there are.
    pub fn len(&self) -> usize {
        match self {
            Elements::F32(v) => v.len(),
            Elements::Bf16(v) => v.len(),
            Elements::F16(v) => v.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The i-th number, widened to f32 without loss.
    pub fn get(&self, i: usize) -> f32 {
        match self {
            Elements::F32(v) => v[i],
            Elements::Bf16(v) => v[i].to_f32(),
            Elements::F16(v) => v[i].to_f32(),
        }
    }

    /// All of them, widened to f32 without loss.
    pub fn to_vec(&self) -> Vec<f32> {
        (0..self.len()).map(|i| self.get(i)).collect()
    }
}

/// How numbers are stored: those of a weight in its file, of keys and values in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    F32,
    F16,
    Bf16,
}

impl DType {
    /// As on the command line and in results: `f32`, `f16`, `bf16`.
    pub fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::F16 => "f16",
            DType::Bf16 => "bf16",
        }
    }

    /// Bytes of one element.
    pub fn size(self) -> usize {
        match self {
            DType::F32 => 4,
            DType::F16 | DType::Bf16 => 2,
        }
    }

    /// The nearest number of this type; of two equally near ones, the even one.
    pub fn round(self, x: f32) -> f32 {
        match self {
            DType::F32 => x,
            DType::F16 => f16::from_f32(x).to_f32(),
            DType::Bf16 => bf16::from_f32(x).to_f32(),
        }
    }
}

impl FromStr for DType {
    type Err = &'static str;

    fn from_str(name: &str) -> Result<DType, Self::Err> {
        [DType::F32, DType::F16, DType::Bf16].into_iter().find(|t| t.name() == name).ok_or("expected f32, f16 or bf16")
    }
}

/// A weight matrix `[rows, in_features]`, row-major, in its stored dtype: y = W x.
#[derive(Clone, Debug)]
pub struct Weight {
    pub name: String,
    pub rows: usize,
    pub in_features: usize,
    pub dtype: DType,
    bytes: Bytes,
}

/// Where a tensor's bytes are; aligned for its type.
#[derive(Clone, Debug)]
enum Bytes {
    Mapped {
        file: Arc<MappedFile>,
        start: usize,
    },
    /// A copy, for the rare file whose header leaves the data unaligned. u64 gives the alignment.
    Copied(Arc<Vec<u64>>),
}

#[derive(Debug)]
struct MappedFile {
    path: PathBuf,
    map: Mmap,
}

impl Weight {
    /// The matrix's elements, `rows * in_features` of them.
    pub fn elements(&self) -> Elements<'_> {
        let bytes = self.byte_slice();
        match self.dtype {
            DType::F32 => Elements::F32(bytemuck::cast_slice(bytes)),
            DType::Bf16 => Elements::Bf16(bytemuck::cast_slice(bytes)),
            DType::F16 => Elements::F16(bytemuck::cast_slice(bytes)),
        }
    }

    /// Size in the file.
    pub fn byte_len(&self) -> usize {
        self.rows * self.in_features * self.dtype.size()
    }

    pub(crate) fn byte_slice(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Mapped { file, start } => &file.map[*start..*start + self.byte_len()],
            Bytes::Copied(words) => &bytemuck::cast_slice(words)[..self.byte_len()],
        }
    }

    /// Index of the first NaN or infinity.
    pub fn first_non_finite(&self) -> Option<usize> {
        match self.elements() {
            Elements::F32(v) => v.iter().position(|x| !x.is_finite()),
            Elements::Bf16(v) => v.iter().position(|x| !x.is_finite()),
            Elements::F16(v) => v.iter().position(|x| !x.is_finite()),
        }
    }
}

/// The weights of one transformer layer, its matrices in `M` and its vectors in `V`; shapes in [`ModelSpec`]'s terms.
#[derive(Clone, Debug)]
pub struct LayerWeights<M = Weight, V = Vec<f32>> {
    /// `[hidden_size]`, before attention.
    pub input_norm: V,
    /// `[num_attention_heads · head_dim, hidden_size]`
    pub q: M,
    /// `[num_key_value_heads · head_dim, hidden_size]`, both.
    pub k: M,
    pub v: M,
    pub q_bias: Option<V>,
    pub k_bias: Option<V>,
    pub v_bias: Option<V>,
    /// `[head_dim]`, both, where [`ModelSpec::qk_norm`].
    pub q_norm: Option<V>,
    pub k_norm: Option<V>,
    /// `[hidden_size, num_attention_heads · head_dim]`
    pub o: M,
    pub o_bias: Option<V>,
    /// `[hidden_size]`, on the attention's output, where [`ModelSpec::post_norms`].
    pub post_attention_norm: Option<V>,
    /// `[hidden_size]`, before the feed-forward network.
    pub feed_forward_norm: V,
    /// `[intermediate_size, hidden_size]`, both.
    pub gate: M,
    pub up: M,
    /// `[hidden_size, intermediate_size]`
    pub down: M,
    pub gate_bias: Option<V>,
    pub up_bias: Option<V>,
    pub down_bias: Option<V>,
    /// `[hidden_size]`, on the feed-forward network's output, where [`ModelSpec::post_norms`].
    pub post_feed_forward_norm: Option<V>,
}

/// All weights of a model.
#[derive(Clone, Debug)]
pub struct Weights {
    /// `[vocab_size, hidden_size]`
    pub embedding: Weight,
    pub layers: Vec<LayerWeights>,
    /// `[hidden_size]`
    pub final_norm: Vec<f32>,
    /// `[vocab_size, hidden_size]`; the embedding itself where the head is tied.
    pub head: Weight,
}

impl Weights {
    /// Maps the folder's weights and checks every shape against `spec`.
    pub fn open(folder: &Path, spec: &ModelSpec) -> Result<Self, ModelError> {
        let index = TensorIndex::open(folder)?;
        let (hidden, vocab) = (spec.hidden_size, spec.vocab_size);
        let embedding = index.matrix("model.embed_tokens.weight", vocab, hidden)?;
        let head = match spec.tie_word_embeddings {
            true => embedding.clone(),
            false => index.matrix("lm_head.weight", vocab, hidden)?,
        };
        let layers = (0..spec.layers.len()).map(|l| layer_weights(&index, spec, l)).collect::<Result<_, _>>()?;
        Ok(Weights { embedding, layers, final_norm: index.vector("model.norm.weight", hidden)?, head })
    }

    /// Every matrix once (a tied head is not named again).
    pub fn matrices(&self) -> Vec<&Weight> {
        let layers = self.layers.iter().flat_map(|l| [&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down]);
        let head = (self.head.name != self.embedding.name).then_some(&self.head);
        std::iter::once(&self.embedding).chain(layers).chain(head).collect()
    }

    /// Bytes of all matrices in their files.
    pub fn byte_len(&self) -> usize {
        self.matrices().iter().map(|w| w.byte_len()).sum()
    }

    /// Bytes that one decode step reads: every matrix but the embedding, of which it reads a row.
    pub fn bytes_per_token(&self) -> usize {
        self.byte_len() - self.embedding.byte_len()
            + if self.head.name == self.embedding.name { self.head.byte_len() } else { 0 }
    }

    /// Looks for NaN and infinity in every matrix: the explanation of a pass that was not finite. Reads all weights.
    pub fn check_finite(&self) -> Result<(), ModelError> {
        for weight in self.matrices() {
            if let Some(index) = weight.first_non_finite() {
                let path = match &weight.bytes {
                    Bytes::Mapped { file, .. } => file.path.clone(),
                    Bytes::Copied(_) => PathBuf::new(),
                };
                return Err(ModelError::NotFinite { path, tensor: weight.name.clone(), index });
            }
        }
        Ok(())
    }
}

fn layer_weights(index: &TensorIndex, spec: &ModelSpec, layer: usize) -> Result<LayerWeights, ModelError> {
    let (hidden, inner) = (spec.hidden_size, spec.intermediate_size);
    let (q_rows, kv_rows) = (spec.num_attention_heads * spec.head_dim, spec.num_key_value_heads * spec.head_dim);
    let name = |part: &str| format!("model.layers.{layer}.{part}");
    let matrix = |part: &str, rows, width| index.matrix(&name(&format!("{part}.weight")), rows, width);
    let norm = |part: &str, width| index.vector(&name(&format!("{part}.weight")), width);
    let optional_norm = |present: bool, part: &str, width| present.then(|| norm(part, width)).transpose();
    let bias = |present: bool, part: &str, width| {
        present.then(|| index.vector(&name(&format!("{part}.bias")), width)).transpose()
    };
    // the four-norm families call the norm before the feed-forward network by its place, the others by what it follows
    let feed_forward_norm = if spec.post_norms { "pre_feedforward_layernorm" } else { "post_attention_layernorm" };
    Ok(LayerWeights {
        input_norm: norm("input_layernorm", hidden)?,
        q: matrix("self_attn.q_proj", q_rows, hidden)?,
        k: matrix("self_attn.k_proj", kv_rows, hidden)?,
        v: matrix("self_attn.v_proj", kv_rows, hidden)?,
        q_bias: bias(spec.qkv_bias, "self_attn.q_proj", q_rows)?,
        k_bias: bias(spec.qkv_bias, "self_attn.k_proj", kv_rows)?,
        v_bias: bias(spec.qkv_bias, "self_attn.v_proj", kv_rows)?,
        q_norm: optional_norm(spec.qk_norm, "self_attn.q_norm", spec.head_dim)?,
        k_norm: optional_norm(spec.qk_norm, "self_attn.k_norm", spec.head_dim)?,
        o: matrix("self_attn.o_proj", hidden, q_rows)?,
        o_bias: bias(spec.output_bias, "self_attn.o_proj", hidden)?,
        post_attention_norm: optional_norm(spec.post_norms, "post_attention_layernorm", hidden)?,
        feed_forward_norm: norm(feed_forward_norm, hidden)?,
        gate: matrix("mlp.gate_proj", inner, hidden)?,
        up: matrix("mlp.up_proj", inner, hidden)?,
        down: matrix("mlp.down_proj", hidden, inner)?,
        gate_bias: bias(spec.mlp_bias, "mlp.gate_proj", inner)?,
        up_bias: bias(spec.mlp_bias, "mlp.up_proj", inner)?,
        down_bias: bias(spec.mlp_bias, "mlp.down_proj", hidden)?,
        post_feed_forward_norm: optional_norm(spec.post_norms, "post_feedforward_layernorm", hidden)?,
    })
}

/// Every tensor of a folder, by name.
struct TensorIndex {
    /// The file that errors about a missing tensor name.
    path: PathBuf,
    tensors: HashMap<String, Entry>,
}

struct Entry {
    file: Arc<MappedFile>,
    dtype: Dtype,
    shape: Vec<usize>,
    start: usize,
    len: usize,
}

impl TensorIndex {
    fn open(folder: &Path) -> Result<Self, ModelError> {
        let (single, sharded) = (folder.join("model.safetensors"), folder.join("model.safetensors.index.json"));
        let (path, files) = if sharded.is_file() {
            let files = shard_names(&sharded)?.into_iter().map(|name| folder.join(name)).collect();
            (sharded, files)
        } else if single.is_file() {
            (single.clone(), vec![single])
        } else {
            return Err(ModelError::NoWeights { folder: folder.to_owned() });
        };
        let mut tensors = HashMap::new();
        for file in files {
            map_file(file, &mut tensors)?;
        }
        Ok(TensorIndex { path, tensors })
    }

    fn entry(&self, name: &str, expected: &[usize]) -> Result<(&Entry, DType), ModelError> {
        let entry = self.tensors.get(name).ok_or_else(|| ModelError::MissingTensor {
            path: self.path.clone(),
            tensor: name.to_owned(),
            hint: (name == "lm_head.weight").then(|| " (config.json says tie_word_embeddings: false)".to_owned()),
        })?;
        let (path, tensor) = (entry.file.path.clone(), name.to_owned());
        if entry.shape != expected {
            return Err(ModelError::Shape { path, tensor, expected: expected.to_owned(), found: entry.shape.clone() });
        }
        match entry.dtype {
            Dtype::F32 => Ok((entry, DType::F32)),
            Dtype::BF16 => Ok((entry, DType::Bf16)),
            Dtype::F16 => Ok((entry, DType::F16)),
            found => Err(ModelError::Dtype { path, tensor, found: format!("{found:?}") }),
        }
    }

    fn matrix(&self, name: &str, rows: usize, in_features: usize) -> Result<Weight, ModelError> {
        let (entry, dtype) = self.entry(name, &[rows, in_features])?;
        Ok(entry.weight(name, rows, in_features, dtype))
    }

    /// A norm weight or bias, checked to be finite.
    fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>, ModelError> {
        let (entry, dtype) = self.entry(name, &[len])?;
        let weight = entry.weight(name, 1, len, dtype);
        match weight.first_non_finite() {
            None => Ok(weight.elements().to_vec()),
            Some(index) => Err(ModelError::NotFinite { path: entry.file.path.clone(), tensor: name.to_owned(), index }),
        }
    }
}

impl Entry {
    fn weight(&self, name: &str, rows: usize, in_features: usize, dtype: DType) -> Weight {
        let bytes = &self.file.map[self.start..self.start + self.len];
        let bytes = if (bytes.as_ptr() as usize).is_multiple_of(dtype.size()) {
            Bytes::Mapped { file: self.file.clone(), start: self.start }
        } else {
            let mut words = vec![0u64; self.len.div_ceil(8)];
            bytemuck::cast_slice_mut(&mut words)[..self.len].copy_from_slice(bytes);
            Bytes::Copied(Arc::new(words))
        };
        Weight { name: name.to_owned(), rows, in_features, dtype, bytes }
    }
}

/// File names of `model.safetensors.index.json`'s `weight_map`, each once.
fn shard_names(path: &Path) -> Result<Vec<String>, ModelError> {
    #[derive(serde::Deserialize)]
    struct Index {
        weight_map: HashMap<String, String>,
    }
    let text = files::read_to_string(path, files::MAX_SETTINGS)
        .map_err(|source| ModelError::Io { path: path.to_owned(), source })?;
    let index: Index =
        serde_json::from_str(&text).map_err(|source| ModelError::Json { path: path.to_owned(), source })?;
    let mut names: Vec<String> = index.weight_map.into_values().collect();
    names.sort();
    names.dedup();
    // a name is a file of this folder, never a path out of it
    match names.iter().find(|n| Path::new(n).components().count() != 1 || n.as_str() == "..") {
        None => Ok(names),
        Some(name) => Err(ModelError::Config {
            path: path.to_owned(),
            key: "weight_map".to_owned(),
            message: format!("expected file names, found {name:?}"),
        }),
    }
}

/// Bytes. Some hundred describe a tensor, and what is parsed of them is held in memory.
const MAX_HEADER: u64 = 16 << 20;

fn map_file(path: PathBuf, tensors: &mut HashMap<String, Entry>) -> Result<(), ModelError> {
    let file = files::open(&path).map_err(|source| ModelError::Io { path: path.clone(), source })?;
    // SAFETY: the map is only read. As for every program that maps its input, the file must not be truncated or
    // rewritten while it is in use; model files are written once, under a temporary name. The commands say so where one
    // is truncated all the same (SIGBUS).
    let map = unsafe { Mmap::map(&file) }.map_err(|source| ModelError::Io { path: path.clone(), source })?;
    let corrupt = |message: String| ModelError::Safetensors { path: path.clone(), message };
    if let Some(len) = map.first_chunk().map(|bytes| u64::from_le_bytes(*bytes)).filter(|len| *len > MAX_HEADER) {
        return Err(corrupt(format!("its header has {len} bytes, expected at most {MAX_HEADER}")));
    }
    let parsed = SafeTensors::deserialize(&map).map_err(|e| corrupt(e.to_string()))?;
    let base = map.as_ptr() as usize;
    let found: Vec<(String, Dtype, Vec<usize>, usize, usize)> = parsed
        .iter()
        .map(|(name, view)| {
            let data = view.data();
            (name.to_owned(), view.dtype(), view.shape().to_vec(), data.as_ptr() as usize - base, data.len())
        })
        .collect();
    let file = Arc::new(MappedFile { path, map });
    for (name, dtype, shape, start, len) in found {
        tensors.insert(name, Entry { file: file.clone(), dtype, shape, start, len });
    }
    Ok(())
}
