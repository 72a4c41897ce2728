//! Generation, scoring and the traced responses that a method works on. The engine is independent of the method.

pub mod batch;
pub mod encode;
pub mod generate;
mod lookup;
mod named;
mod pace;
mod rescore;
mod response;
pub mod running;
mod speculate;
mod thinking;
mod trace;

pub use crate::backend::TraceParts;
pub use batch::{BATCH_SIZE, Batch, Request};
pub use generate::{FinishReason, GenerateOptions, Generation, Progress, Ticket};
pub use pace::{Speculate, SpeculationStats};
pub use response::{Response, Variant};
pub use thinking::ThinkingBudget;
pub use trace::{SELECTED_HEADS, TraceQueries, Traced, TracedSequence};

use crate::backend::cpu::{CpuBackend, CpuOptions, InputRounding, simd::Isa};
use crate::backend::cuda::{CudaBackend, CudaError, CudaOptions};
use crate::backend::{
    Backend, BackendError, DType, DeviceChoice, ExpectedMemory, Next, Prediction, SequenceId, Step, TraceOptions,
    ValueType, WeightFormat,
};
use crate::model::tokenizer::{Tokenizer, TokenizerError};
use crate::{backend::entropy::Gamma, backend::forward, backend::reference::ReferenceBackend};
use crate::{model::ModelError, model::ModelSpec, model::Weights, model::chat::Arguments, model::chat::ChatTemplate};
use pace::Pace;
use std::{path::Path, sync::Arc};

/// Options of an engine.
#[derive(Clone, Copy, Debug, Default)]
pub struct EngineOptions {
    pub device: DeviceChoice,
    /// CPU threads; 0: one per core.
    pub threads: usize,
    /// Type of cached keys; `None`: f32.
    pub k_cache: Option<DType>,
    /// Type of cached values; `None`: f32, on CUDA f16. Q8 on the CPU only.
    pub v_cache: Option<ValueType>,
    /// Weights in memory.
    pub weights: WeightFormat,
    /// Tokens to guess per pass from earlier text, without changing results.
    pub speculate: Speculate,
    /// Rounding of the CPU backend's matmul inputs.
    pub input_rounding: InputRounding,
    /// γ, the discount of the nearest positions.
    pub gamma: Gamma,
}

pub type Result<T, E = EngineError> = std::result::Result<T, E>;

/// Errors of a pass over a sequence.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error(transparent)]
    Backend(#[from] BackendError),
    #[error("the sequence has {tokens} tokens, the model's context is {context} (max_position_embeddings)")]
    ContextLength { tokens: usize, context: usize },
    #[error("the prompt is empty")]
    EmptyPrompt,
    #[error("n_instr is {prompt_len}: expected at least 1 and fewer than the sequence's {tokens} tokens")]
    NoResponse { prompt_len: usize, tokens: usize },
    #[error(
        "the model cannot read token {id}{}: it has embeddings for the ids below {limit}",
        token.as_ref().map_or(String::new(), |token| format!(" ({token})"))
    )]
    Unreadable { id: u32, token: Option<String>, limit: usize },
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
}

impl EngineError {
    /// Whether the engine cannot run anything any more. Every other error belongs to the sequence that was run.
    pub fn is_lost(&self) -> bool {
        matches!(self, EngineError::Backend(error) if error.is_lost())
    }
}

/// Errors of loading a model.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    #[error(transparent)]
    Chat(#[from] crate::model::chat::ChatError),
    #[error(transparent)]
    Cuda(#[from] CudaError),
}

/// A model that is ready to run, with its tokenizer and chat template.
pub struct Engine {
    backend: Box<dyn Backend>,
    weights: Arc<Weights>,
    tokenizer: Arc<Tokenizer>,
    chat_template: Option<ChatTemplate>,
    options: EngineOptions,
    pace: Pace,
    /// Why `auto` did not use a CUDA device.
    cuda_fallback_reason: Option<CudaError>,
}

impl Engine {
    /// Loads a Hugging Face folder. Weights are memory-mapped; for the CPU they are not read.
    pub fn load(folder: &Path, options: EngineOptions) -> Result<Engine, LoadError> {
        Engine::load_with(folder, options, &mut |_, _| ())
    }

    /// Like [`Engine::load`]; `progress` is called with the bytes copied to a device so far, and their total.
    pub fn load_with(
        folder: &Path,
        options: EngineOptions,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Engine, LoadError> {
        let spec = ModelSpec::from_folder(folder)?;
        let weights = Weights::open(folder, &spec)?;
        Engine::build(folder, (spec, weights, Tokenizer::from_folder(folder)?), options, progress)
    }

    /// A model that is not there as a whole, of which only `config.json` is needed: an engine on the CPU that answers what does
    /// not depend on values, with the weights and the tokenizer if the folder has them.
    ///
    /// # Errors
    /// Those of the files that are there.
    pub fn outline(folder: &Path) -> Result<Engine, LoadError> {
        let spec = ModelSpec::from_folder(folder)?;
        let weights = if Weights::are_in(folder) { Weights::open(folder, &spec) } else { Weights::shapes(&spec) }?;
        let tokenizer = match Tokenizer::from_folder(folder) {
            Err(TokenizerError::Missing { .. }) => Tokenizer::empty()?,
            tokenizer => tokenizer?,
        };
        let options = EngineOptions { device: DeviceChoice::Cpu, ..EngineOptions::default() };
        Engine::build(folder, (spec, weights, tokenizer), options, &mut |_, _| ())
    }

    fn build(
        folder: &Path,
        (mut spec, weights, tokenizer): (ModelSpec, Weights, Tokenizer),
        options: EngineOptions,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Engine, LoadError> {
        spec.add_ends(tokenizer.eos_token_id(), "the tokenizer");
        let chat_template = ChatTemplate::from_folder(folder, &tokenizer)?;
        let (weights, tokenizer, pace) = (Arc::new(weights), Arc::new(tokenizer), Pace::default());
        let (backend, cuda_fallback_reason) = open_backend(spec, &weights, &options, progress)?;
        Ok(Engine { backend, weights, tokenizer, chat_template, options, pace, cuda_fallback_reason })
    }

    pub fn spec(&self) -> &ModelSpec {
        self.backend.spec()
    }

    pub fn weights(&self) -> &Weights {
        &self.weights
    }

    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    pub fn chat_template(&self) -> Option<&ChatTemplate> {
        self.chat_template.as_ref()
    }

    /// Sets variables of the chat template, such as `enable_thinking`, for every conversation; no-op without a template.
    pub fn set_template_arguments(&mut self, arguments: Arguments) {
        if let Some(template) = &mut self.chat_template {
            template.arguments = arguments;
        }
    }

    pub fn options(&self) -> &EngineOptions {
        &self.options
    }

    /// Sets [`EngineOptions::speculate`].
    pub fn set_speculate(&mut self, speculate: Speculate) {
        self.options.speculate = speculate;
    }

    /// Statistics of guesses so far.
    pub fn speculation(&self) -> SpeculationStats {
        self.pace.stats
    }

    /// Whether tokens are guessed.
    fn guesses(&self) -> bool {
        self.backend.rewinds()
            && match self.options.speculate {
                Speculate::Off => false,
                Speculate::Auto => self.backend.is_bit_equal_at_any_width(),
                Speculate::Fixed(_) => true,
            }
    }

    /// The device, for display.
    pub fn device(&self) -> String {
        self.backend.device()
    }

    /// Warnings for the user, about the model's files and the device.
    pub fn warnings(&self) -> impl Iterator<Item = &String> {
        self.weights.warnings.iter().chain(self.backend.warnings())
    }

    /// Why [`DeviceChoice::Auto`] chose the CPU although there is a CUDA device.
    pub fn cuda_fallback_reason(&self) -> Option<&CudaError> {
        self.cuda_fallback_reason.as_ref()
    }

    /// The types of cached keys and values.
    pub fn cache_types(&self) -> (DType, ValueType) {
        self.backend.cache_types()
    }

    /// Bytes of the weights that a decode step reads.
    pub fn weight_bytes_per_token(&self) -> usize {
        self.weights.bytes_per_token(self.spec(), |weight| self.backend.weight_bytes(weight))
    }

    /// Bytes, excluding weights, for a sequence of `tokens` tokens, all of them a traced response with the published K.
    pub fn expected_memory(&self, tokens: usize) -> ExpectedMemory {
        self.backend.expected_memory(tokens, TraceOptions { first_row: 0, parts: TraceParts::default() })
    }

    /// Runs an existing sequence through the model and traces its response, `tokens[prompt_len..]`, recording `parts`
    /// of each row.
    ///
    /// # Errors
    /// A response without tokens, a sequence longer than the model's context, or one the backend cannot run.
    pub fn trace(&mut self, tokens: &[u32], prompt_len: usize, parts: TraceParts) -> Result<TracedSequence<'_>> {
        let (sequence, generation) = self.trace_sequence(tokens, prompt_len, parts)?;
        TracedSequence::new(self, sequence, generation)
    }

    /// A backend sequence with these tokens, and its response as if it had been generated.
    fn trace_sequence(
        &mut self,
        tokens: &[u32],
        prompt_len: usize,
        parts: TraceParts,
    ) -> Result<(SequenceId, Generation)> {
        if prompt_len == 0 || prompt_len >= tokens.len() {
            return Err(EngineError::NoResponse { prompt_len, tokens: tokens.len() });
        }
        self.check(tokens, 0)?;
        let trace = TraceOptions { first_row: prompt_len - 1, parts };
        let sequence = self.backend.open_for(tokens.len(), Some(trace))?;
        let steps = trace_response(&mut *self.backend, sequence, tokens, tokens.len(), prompt_len);
        let steps = steps.inspect_err(|_| self.backend.close(sequence))?;
        let (tokens, finish) = (tokens.to_vec(), FinishReason::Stop);
        Ok((sequence, Generation { tokens, prompt_len, finish, steps }))
    }

    /// Number of ids that can be chosen: those up to the tokenizer's largest that the model can read.
    fn vocabulary(&self) -> usize {
        self.tokenizer.id_bound().min(self.spec().readable_tokens())
    }

    /// Checks that the model can read a sequence and has room for `more` tokens after it.
    ///
    /// # Errors
    /// [`EngineError::ContextLength`], [`EngineError::Unreadable`].
    pub fn check(&self, tokens: &[u32], more: usize) -> Result<()> {
        let (context, limit) = (self.spec().max_position_embeddings, self.spec().readable_tokens());
        if tokens.len() + more > context {
            return Err(EngineError::ContextLength { tokens: tokens.len() + more, context });
        }
        let unreadable = tokens.iter().find(|id| **id as usize >= limit);
        unreadable.map_or(Ok(()), |id| {
            Err(EngineError::Unreadable { id: *id, token: self.tokenizer.decode_token(*id).ok(), limit })
        })
    }
}

/// The chosen backend, and why `auto` did not use a CUDA device.
fn open_backend(
    spec: ModelSpec,
    weights: &Arc<Weights>,
    options: &EngineOptions,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<(Box<dyn Backend>, Option<CudaError>), CudaError> {
    let EngineOptions { device, threads, k_cache, v_cache, input_rounding, weights: format, gamma, .. } = *options;
    // None: a type that CUDA does not support
    let on_cuda = v_cache.map_or(Some(None), |v_cache| v_cache.float().map(Some));
    let mut open_cuda = |ordinal| -> Result<Box<dyn Backend>, CudaError> {
        let options = CudaOptions { ordinal, k_cache, v_cache: on_cuda.flatten(), weights: format, gamma };
        Ok(Box::new(CudaBackend::new(spec.clone(), weights.clone(), &options, progress)?))
    };
    let only_on_cpu = |what: &str| Err(CudaError::Unsupported(format!("{what}: use --device cpu")));
    let cuda_fallback_reason = match device {
        DeviceChoice::Reference if !format.is_file() => return only_on_cpu(&format!("weights in {format}")),
        DeviceChoice::Cuda(_) if on_cuda.is_none() => return only_on_cpu("values in q8"),
        DeviceChoice::Cuda(ordinal) => return Ok((open_cuda(ordinal)?, None)),
        DeviceChoice::Auto if on_cuda.is_some() => match open_cuda(0) {
            Ok(backend) => return Ok((backend, None)),
            Err(CudaError::NoDriver | CudaError::NoDevice { .. }) => None,
            Err(error) => Some(error),
        },
        DeviceChoice::Auto | DeviceChoice::Cpu | DeviceChoice::Reference => None,
    };
    let (k_cache, v_cache) = (k_cache.unwrap_or(DType::F32), v_cache.unwrap_or(ValueType::F32));
    if device == DeviceChoice::Reference {
        return Ok((Box::new(ReferenceBackend::new(spec, weights.clone(), (k_cache, v_cache), gamma)), None));
    }
    let options = CpuOptions { threads, k_cache, v_cache, input_rounding, weights: format, gamma, isa: Isa::detect() };
    Ok((Box::new(CpuBackend::new(spec, weights.clone(), options)), cuda_fallback_reason))
}

/// Runs the first `count` of `tokens` and returns the steps of rows `prompt_len - 1 ..`: each predicts the token after it.
fn trace_response(
    backend: &mut dyn Backend,
    sequence: SequenceId,
    tokens: &[u32],
    count: usize,
    prompt_len: usize,
) -> Result<Vec<Step>> {
    backend.reserve(sequence, count)?;
    backend.expect_fork(sequence, prompt_len - 1);
    let mut steps = Vec::with_capacity(count + 1 - prompt_len);
    let predicts = |row| row + 1 >= prompt_len;
    forward::extend::<EngineError>(backend, sequence, 0, &tokens[..count], true, predicts, |backend, positions| {
        let request = |row: usize| {
            let next = Next::Given(tokens.get(row + 1).copied());
            Prediction { row: row - positions.start, next, detail: true }
        };
        let rows = positions.start.max(prompt_len - 1)..positions.end;
        let requests: Vec<Prediction> = rows.map(request).collect();
        steps.extend(backend.predict(&requests)?.into_iter().map(|(step, _)| step));
        Ok(())
    })?;
    Ok(steps)
}
