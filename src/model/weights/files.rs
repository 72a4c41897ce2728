//! Tensors by name: those of safetensors files, random ones, or only their shapes.

use super::matrix::{DType, MappedFile, Weight, copy};
use super::random::RandomTensors;
use crate::files;
use crate::model::{ModelError, Result, read_json};
use memmap2::Mmap;
use safetensors::{Dtype, SafeTensors};
use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::{cell::RefCell, ops::Range, sync::Arc};

/// Layouts of the text model's tensors: alone, and the two of multimodal checkpoints.
pub const PREFIXES: [&str; 3] = ["model.", "language_model.model.", "model.language_model."];

/// Every tensor of a model, by name.
pub struct TensorIndex<'a> {
    /// The file named by errors about a missing tensor.
    pub path: PathBuf,
    /// Prefix of the text model's tensors.
    pub prefix: &'static str,
    pub source: Source<'a>,
}

pub enum Source<'a> {
    Files(HashMap<String, Entry>),
    /// Random values for every tensor.
    Random(RandomTensors),
    /// No values; the names and shapes of what is read are recorded.
    Shapes(&'a RefCell<Vec<(String, Vec<usize>)>>),
}

pub struct Entry {
    file: Arc<MappedFile>,
    dtype: Dtype,
    shape: Vec<usize>,
    /// Range in the file.
    bytes: Range<usize>,
}

impl TensorIndex<'_> {
    pub fn open(folder: &Path) -> Result<Self> {
        let (single, sharded) = (folder.join("model.safetensors"), folder.join("model.safetensors.index.json"));
        // an index next to a single file is left over from another version of the folder
        let (path, files) = if single.is_file() {
            (single.clone(), vec![single])
        } else if sharded.is_file() {
            let files = shard_names(&sharded)?.into_iter().map(|name| folder.join(name)).collect();
            (sharded, files)
        } else {
            return Err(ModelError::NoWeights { folder: folder.to_owned() });
        };
        let mut tensors = HashMap::new();
        for file in files {
            map_file(file, &mut tensors)?;
        }
        let has = |prefix: &&&str| tensors.contains_key(&format!("{prefix}embed_tokens.weight"));
        let prefix = PREFIXES.iter().find(has).unwrap_or(&PREFIXES[0]);
        Ok(TensorIndex { path, prefix, source: Source::Files(tensors) })
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
        let entry = tensors.get(name).ok_or_else(|| ModelError::MissingTensor {
            path: self.path.clone(),
            tensor: name.to_owned(),
            hint: (name == "lm_head.weight").then(|| " (config.json says tie_word_embeddings: false)".to_owned()),
        })?;
        let (path, tensor) = (entry.file.path.clone(), name.to_owned());
        if entry.shape != expected {
            return Err(ModelError::Shape { path, tensor, expected: expected.to_owned(), found: entry.shape.clone() });
        }
        let dtype = match entry.dtype {
            Dtype::F32 => DType::F32,
            Dtype::BF16 => DType::Bf16,
            Dtype::F16 => DType::F16,
            found => return Err(ModelError::Dtype { path, tensor, found: format!("{found:?}") }),
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

/// File names of `model.safetensors.index.json`'s `weight_map`, each once.
fn shard_names(path: &Path) -> Result<BTreeSet<String>> {
    #[derive(serde::Deserialize)]
    struct Index {
        weight_map: HashMap<String, String>,
    }
    let names: BTreeSet<String> = read_json::<Index>(path)?.weight_map.into_values().collect();
    // a name is a file of this folder, never a path outside it
    match names.iter().find(|n| Path::new(n).components().count() != 1 || n.as_str() == "..") {
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

fn map_file(path: PathBuf, tensors: &mut HashMap<String, Entry>) -> Result<()> {
    let file = files::open(&path).map_err(|source| ModelError::Io { path: path.clone(), source })?;
    // SAFETY: the map is only read. As for every program that maps its input, the file must not be truncated or rewritten while in
    // use; model files are written once, under a temporary name. If one is truncated all the same (SIGBUS), the commands report it.
    let map = unsafe { Mmap::map(&file) }.map_err(|source| ModelError::Io { path: path.clone(), source })?;
    let corrupt = |message: String| ModelError::Safetensors { path: path.clone(), message };
    if let Some(len) = map.first_chunk().map(|bytes| u64::from_le_bytes(*bytes)).filter(|len| *len > MAX_HEADER) {
        return Err(corrupt(format!("its header has {len} bytes, expected at most {MAX_HEADER}")));
    }
    let (header, metadata) = SafeTensors::read_metadata(&map).map_err(|e| corrupt(e.to_string()))?;
    let data = size_of::<u64>() + header;
    let file = Arc::new(MappedFile { path: path.clone(), map });
    for (name, info) in metadata.tensors() {
        let (start, end) = info.data_offsets;
        let (file, shape) = (file.clone(), info.shape.clone());
        tensors.insert(name, Entry { file, dtype: info.dtype, shape, bytes: data + start..data + end });
    }
    Ok(())
}
