//! Tensors by name: those of safetensors files, random ones, or only their shapes.

use super::matrix::{DType, MappedFile, Weight, copy};
use super::random::RandomTensors;
use crate::files;
use crate::model::{ModelError, ModelSpec, Result, read_json};
use memmap2::Mmap;
use safetensors::{Dtype, SafeTensors, tensor::TensorInfo};
use std::{cell::RefCell, ops::Range, sync::Arc};
use std::{collections::BTreeSet, collections::HashMap, collections::HashSet, path::Path, path::PathBuf};

/// Layouts of the text model's tensors: alone, the two of multimodal checkpoints, and that of a model saved without its head.
pub const PREFIXES: [&str; 5] = ["model.", "language_model.model.", "model.language_model.", "model.model.", ""];

/// Weights in one file, or the index of several.
pub const NAMES: [&str; 2] = ["model.safetensors", "model.safetensors.index.json"];

/// Every tensor of a model, by name.
pub struct TensorIndex<'a> {
    /// The file named by errors about a missing tensor.
    pub path: PathBuf,
    /// Prefix of the text model's tensors.
    pub prefix: &'static str,
    pub source: Source<'a>,
    /// Names that were asked for.
    read: RefCell<HashSet<String>>,
    pub fp8_block: Option<[usize; 2]>,
}

pub enum Source<'a> {
    Files(HashMap<String, Entry>),
    /// Random values for every tensor.
    Random(RandomTensors),
    /// No values; the names and shapes of what is read are recorded.
    Shapes(&'a RefCell<Vec<(String, Vec<usize>)>>),
}

pub struct Entry {
    pub file: Arc<MappedFile>,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    /// Range in the file.
    pub bytes: Range<usize>,
}

impl<'a> TensorIndex<'a> {
    pub fn new(source: Source<'a>) -> Self {
        let (path, prefix, read) = (PathBuf::new(), PREFIXES[0], RefCell::default());
        TensorIndex { path, prefix, source, read, fp8_block: None }
    }

    pub fn open(folder: &Path, fp8_block: Option<[usize; 2]>) -> Result<Self> {
        let [single, sharded] = NAMES.map(|name| folder.join(name));
        // an index next to a single file is left over from another version of the folder
        let (path, files, shard_of) = if single.is_file() {
            (single, BTreeSet::from([NAMES[0].to_owned()]), HashMap::new())
        } else if sharded.is_file() {
            let shard_of = weight_map(&sharded)?;
            (sharded, shard_of.values().cloned().collect(), shard_of)
        } else {
            return Err(ModelError::NoWeights { folder: folder.to_owned() });
        };
        let mut tensors: HashMap<String, Entry> = HashMap::new();
        for shard in files {
            for (name, entry) in map_file(folder.join(&shard))? {
                // a tensor in two shards is the one that the index names
                match (tensors.get(&name), shard_of.get(&name)) {
                    (Some(_), Some(named)) if *named != shard => continue,
                    (Some(other), None) => {
                        let other = files::name(&other.file.path);
                        let message = format!("{name}: expected in one file, found in {other} and {shard}");
                        return Err(ModelError::Config { path, key: "weight_map".to_owned(), message });
                    }
                    _ => tensors.insert(name, entry),
                };
            }
        }
        // the embedding may be that of the head
        let has = |prefix: &&&str| tensors.contains_key(&format!("{prefix}norm.weight"));
        let prefix = PREFIXES.iter().find(has).unwrap_or(&PREFIXES[0]);
        Ok(TensorIndex { path, prefix, fp8_block, ..TensorIndex::new(Source::Files(tensors)) })
    }

    /// A warning about tensors that were not asked for, except those that no text model reads.
    pub fn unread(&self, spec: &ModelSpec) -> Option<String> {
        /// Parts of their names: multi-token prediction, other modalities, derived values, and scales of FP8.
        const OTHERS: &str = "mtp. vision visual. audio multi_modal_projector. rotary_emb.inv_freq _scale_inv activation_scale input_scale";
        let Source::Files(tensors) = &self.source else { return None };
        let read = self.read.borrow();
        let is_shared = |name: &str| {
            let layer = name.strip_prefix("layers.").and_then(|rest| rest.split('.').next()?.parse::<usize>().ok());
            layer.and_then(|layer| Some(spec.layers.get(layer)?.kv_layer != layer)).unwrap_or(false)
        };
        let is_other = |name: &str| {
            OTHERS.split(' ').any(|part| name.contains(part)) || name.strip_prefix(self.prefix).is_some_and(is_shared)
        };
        let unread = tensors.keys().filter(|name| !read.contains(*name) && !is_other(name));
        let mut unread: Vec<&str> = unread.map(String::as_str).collect();
        unread.sort_unstable();
        let (count, more) = (unread.len(), if unread.len() > 4 { ", …" } else { "" });
        unread.truncate(4);
        (count > 0).then(|| {
            let (path, names) = (self.path.display(), unread.join(", "));
            format!("{path}: {count} tensors are not read, since config.json does not announce them: {names}{more}")
        })
    }

    /// Name of a tensor of the text model.
    pub fn text(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// The head, if the files have one.
    pub fn head_name(&self) -> Option<String> {
        let names = ["lm_head.weight", "language_model.lm_head.weight"];
        names.into_iter().find(|name| self.has(name) == Some(true)).map(str::to_owned)
    }

    /// Whether a tensor exists; `None` if all are assumed to.
    pub fn has(&self, name: &str) -> Option<bool> {
        match &self.source {
            Source::Files(tensors) => Some(tensors.contains_key(name)),
            Source::Random(_) => Some(false),
            Source::Shapes(_) => None,
        }
    }

    /// A tensor as a matrix with rows as long as its last dimension.
    pub fn tensor(&self, name: &str, expected: &[usize]) -> Result<Weight> {
        let tensors = match &self.source {
            Source::Files(tensors) => tensors,
            Source::Random(random) => return Ok(random.weight(name, expected)),
            Source::Shapes(noted) => {
                noted.borrow_mut().push((name.to_owned(), expected.to_owned()));
                return Ok(Weight::of_shape(name, expected));
            }
        };
        self.read.borrow_mut().insert(name.to_owned());
        let entry = tensors.get(name).ok_or_else(|| ModelError::MissingTensor {
            path: self.path.clone(),
            tensor: name.to_owned(),
            hint: (name == "lm_head.weight").then(|| " (config.json says tie_word_embeddings: false)".to_owned()),
        })?;
        let (path, tensor) = (entry.file.path.clone(), name.to_owned());
        if entry.shape != expected {
            return Err(ModelError::Shape { path, tensor, expected: expected.to_owned(), found: entry.shape.clone() });
        }
        let scales = ["_scale_inv", "_scale"].map(|end| format!("{name}{end}"));
        let scales = scales.into_iter().find_map(|name| tensors.get_key_value(&name));
        let dtype = match entry.dtype {
            Dtype::F32 => DType::F32,
            Dtype::BF16 => DType::Bf16,
            Dtype::F16 => DType::F16,
            found => {
                return match scales.filter(|_| found == Dtype::F8_E4M3) {
                    Some((of_scales, scales)) => self.dequantized(name, entry, of_scales, scales),
                    None => Err(ModelError::Dtype { path, tensor, found: format!("{found:?}") }),
                };
            }
        };
        let Entry { file, bytes, .. } = entry;
        let data = &file.map[bytes.clone()];
        let unaligned = !(data.as_ptr() as usize).is_multiple_of(dtype.size());
        let copy = unaligned.then(|| copy(std::iter::once(data), data.len()));
        let start = if unaligned { 0 } else { bytes.start };
        Ok(Weight { dtype, file: Some(file.clone()), copy, start, ..Weight::of_shape(name, expected) })
    }

    pub fn matrix(&self, name: &str, rows: usize, in_features: usize) -> Result<Weight> {
        self.tensor(name, &[rows, in_features])
    }

    /// A norm weight or bias, or a convolution's weights, checked to be finite.
    pub fn vector(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        let weight = self.tensor(name, shape)?;
        if weight.is_shape() {
            return Ok(vec![0.0; weight.rows * weight.in_features]);
        }
        weight.check_finite()?;
        Ok(weight.elements().to_vec())
    }
}

/// The file of each tensor, of `model.safetensors.index.json`.
fn weight_map(path: &Path) -> Result<HashMap<String, String>> {
    #[derive(serde::Deserialize)]
    struct Index {
        weight_map: HashMap<String, String>,
    }
    let names = read_json::<Index>(path)?.weight_map;
    // a name is a file of this folder, never a path outside it
    match names.values().find(|n| Path::new(n).components().count() != 1 || n.as_str() == "..") {
        None => Ok(names),
        Some(name) => Err(ModelError::Config {
            path: path.to_owned(),
            key: "weight_map".to_owned(),
            message: format!("expected file names, found {name:?}"),
        }),
    }
}

/// Max bytes. Some hundred describe a tensor, and what is parsed from them is held in memory.
const MAX_HEADER: u64 = 16 << 20;

fn map_file(path: PathBuf) -> Result<Vec<(String, Entry)>> {
    let file = files::open(&path).map_err(|source| ModelError::Io { path: path.clone(), source })?;
    // SAFETY: the map is only read. As for every program that maps its input, the file must not be truncated or rewritten while in
    // use; model files are written once, under a temporary name. If one is truncated all the same (SIGBUS), the commands report it.
    let map = unsafe { Mmap::map(&file) }.map_err(|source| ModelError::Io { path: path.clone(), source })?;
    files::not_a_pointer(&map).map_err(|source| ModelError::Io { path: path.clone(), source })?;
    let corrupt = |message: String| ModelError::Safetensors { path: path.clone(), message };
    if let Some(len) = map.first_chunk().map(|bytes| u64::from_le_bytes(*bytes)).filter(|len| *len > MAX_HEADER) {
        return Err(corrupt(format!("its header has {len} bytes, expected at most {MAX_HEADER}")));
    }
    let (header, metadata) = SafeTensors::read_metadata(&map).map_err(|e| corrupt(e.to_string()))?;
    let data = size_of::<u64>() + header;
    let file = Arc::new(MappedFile { path: path.clone(), map });
    let entry = |(name, info): (String, &TensorInfo)| {
        let (start, end) = info.data_offsets;
        let (file, shape) = (file.clone(), info.shape.clone());
        (name, Entry { file, dtype: info.dtype, shape, bytes: data + start..data + end })
    };
    Ok(metadata.tensors().into_iter().map(entry).collect())
}
