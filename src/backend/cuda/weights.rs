//! The weights on the device, copied from the memory map through pinned buffers: f32 and f16 matrices as they are, bf16
//! ones as f16 with a power of two for each row, which is exact ([`narrow_weights`](super::abi::NarrowWeights)) and lets
//! the tensor cores multiply them with f16 activations; or matrices of products in 8 bits, with the CPU's values
//! ([`pack_q8`](super::abi::PackQ8)); norm weights and biases in f32.

use super::abi::{ExpertView, MatrixType, NarrowWeights, PackQ8, Q8Line, Stored, type_number};
use super::kernel_set::{KernelSet, MAX_CHOSEN, MAX_KEY_DIM};
use super::memory::{Buffer, DevicePtr, Floats, Pinned};
use super::{context::Device, error::Context, error::CudaError, error::Result};
use crate::model::weights::{
    DType, DeltaNetWeights, DenseBeside, Expert, LayerInput, LayerInputs, LayerWeights, Weight,
};
use crate::{backend::WeightFormat, backend::q8, model::ModelSpec, model::Weights, model::config::LayerSpec};
use cudarc::driver::CudaEvent;
use half::f16;
use std::{collections::BTreeSet, collections::HashSet, f32::consts::FRAC_1_SQRT_2, rc::Rc};

/// Bytes of one of the two pinned buffers.
const STAGE: usize = 16 << 20;

/// A matrix on the device, `[out_features, in_features]`.
pub struct Matrix {
    data: Rc<Buffer<u8>>,
    /// `[out_features]` row scales, powers of two except where the model scales the product; `None`: 1.
    scales: Option<Buffer<f32>>,
    pub out_features: usize,
    pub in_features: usize,
    pub dtype: MatrixType,
}

/// Types of a model's matrices on the device. The embedding keeps its file's type; with 8-bit weights it therefore has a separate head.
pub struct MatrixTypes {
    /// Names of the 8-bit ones.
    packed: HashSet<String>,
}

impl MatrixTypes {
    pub fn new(weights: &Weights, format: WeightFormat) -> MatrixTypes {
        let packed = weights.products().filter(|weight| !format.is_file() && q8::fits(weight.in_features));
        MatrixTypes { packed: packed.map(|weight| weight.name.clone()).collect() }
    }

    /// The type of a product's matrix.
    pub fn of(&self, weight: &Weight) -> MatrixType {
        if self.packed.contains(&weight.name) { MatrixType::Q8 } else { weight.dtype.into() }
    }

    /// The distinct types.
    pub fn all(&self, weights: &Weights) -> Vec<MatrixType> {
        let of_files = weights.matrices().into_iter().map(|weight| MatrixType::from(weight.dtype));
        let all: BTreeSet<_> = of_files.chain((!self.packed.is_empty()).then_some(MatrixType::Q8)).collect();
        all.into_iter().collect()
    }

    /// Bytes of a product's matrix.
    pub fn bytes(&self, weight: &Weight) -> usize {
        self.of(weight).bytes(weight)
    }
}

impl Matrix {
    pub fn ptr(&self) -> DevicePtr<Stored> {
        self.data.ptr().cast()
    }

    /// Null: all scales are 1.
    pub fn scales(&self) -> Floats {
        self.scales.as_ref().map_or(DevicePtr::NULL, Buffer::ptr)
    }

    /// Its values, row by row.
    pub fn read(&self, device: &Device) -> Result<Vec<f32>> {
        let count = self.out_features * self.in_features;
        let numbers = match self.dtype {
            MatrixType::F32 => device.read_numbers(&self.data, 0, count, DType::F32)?,
            MatrixType::F16 => device.read_numbers(&self.data, 0, count, DType::F16)?,
            MatrixType::Q8 => {
                let of_row = Q8Line::of_row(self.in_features);
                let lines: Vec<Q8Line> = device.read_at(&self.data, 0, self.out_features * of_row)?;
                let row = |row: &[Q8Line]| row.iter().flat_map(Q8Line::numbers).take(self.in_features).collect();
                lines.chunks(of_row).flat_map(|lines| -> Vec<f32> { row(lines) }).collect()
            }
        };
        let Some(scales) = &self.scales else { return Ok(numbers) };
        let scales: Vec<f32> = device.read(scales, 0, self.out_features)?;
        Ok(numbers.iter().enumerate().map(|(i, w)| w * scales[i / self.in_features]).collect())
    }

    /// The same matrix times a factor.
    fn times(&self, factor: f32, device: &Device) -> Result<Matrix> {
        let scales = match &self.scales {
            Some(scales) => device.read(scales, 0, self.out_features)?,
            None => vec![1.0; self.out_features],
        };
        let scales: Vec<f32> = scales.iter().map(|scale: &f32| scale * factor).collect();
        Ok(Matrix { data: self.data.clone(), scales: Some(device.upload("row scales", &scales)?), ..*self })
    }
}

pub type DeviceLayer = LayerWeights<Matrix, Buffer<f32>>;

/// All weights of a model on the device.
pub struct DeviceWeights {
    pub embedding: Matrix,
    /// With the projection divided by √hidden_size; its norm includes the weight offset and is divided by √2.
    pub layer_inputs: Option<LayerInputs<Matrix, Buffer<f32>>>,
    pub layers: Vec<DeviceLayer>,
    pub types: MatrixTypes,
    /// The experts of each layer, in the kernels' layout.
    pub experts: Vec<Buffer<ExpertView>>,
    pub final_norm: Buffer<f32>,
    /// A power of two that scales final hidden states into the range of f16: no element of a normed row exceeds
    /// √hidden_size times its weight.
    pub hidden_scale: f32,
    /// `None`: the embedding.
    head: Option<Matrix>,
    /// `[hidden_size]` ones, the weights of an identity norm.
    pub ones: Buffer<f32>,
}

impl DeviceWeights {
    /// Copies everything, in 8 bits if the kernels that pack it are loaded; `progress` receives the bytes copied so far and the bytes of
    /// all matrices.
    pub fn upload(
        device: &Device,
        weights: &Weights,
        spec: &ModelSpec,
        kernels: &KernelSet,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<DeviceWeights> {
        let format = if kernels.pack_q8.is_some() { WeightFormat::Q8 } else { WeightFormat::File };
        let types = MatrixTypes::new(weights, format);
        let (embedding, head) = (&weights.embedding, &weights.head);
        let is_embedding = head.name == embedding.name;
        // in 8 bits, the head is copied in addition to the embedding
        let (tied, again) = (is_embedding && types.of(head) != MatrixType::Q8, is_embedding.then_some(head));
        let again = again.filter(|_| !tied);
        let others = weights.matrices().into_iter().filter(|weight| weight.name != embedding.name).chain(again);
        let held: usize = others.map(|weight| types.bytes(weight)).sum();
        // while a matrix is being packed, both of its forms are in memory
        let packed = weights.products().filter(|weight| types.of(weight) == MatrixType::Q8);
        let wanted = embedding.byte_len() + held + packed.map(Weight::byte_len).max().unwrap_or(0);
        let total = weights.byte_len() + again.map_or(0, Weight::byte_len);
        let (free, memory) = device.memory()?;
        if wanted > free {
            return Err(CudaError::OutOfMemory { what: "the weights".to_owned(), wanted, free, total: memory });
        }
        let stage = || Ok((device.pinned(STAGE.min(total))?, device.event()?));
        let stages = [stage()?, stage()?];
        let mut uploader = Uploader { device, kernels, types: &types, stages, next: 0, done: 0, total, progress };
        let embedding = uploader.stored(embedding)?;
        let layer_inputs =
            weights.layer_inputs.as_ref().map(|inputs| uploader.layer_inputs(inputs, spec)).transpose()?;
        let residual = spec.residual_multiplier;
        let layers: Vec<DeviceLayer> =
            weights.layers.iter().map(|layer| uploader.layer(layer, residual)).collect::<Result<_, _>>()?;
        let experts = layers.iter().map(|layer| expert_views(device, layer)).collect::<Result<_, _>>()?;
        let mut head = (!tied).then(|| uploader.matrix(head)).transpose()?;
        if spec.logits_scaling != 1.0 {
            head = Some(head.as_ref().unwrap_or(&embedding).times(1.0 / spec.logits_scaling, device)?);
        }
        let final_norm = device.upload("a norm", &weights.final_norm)?;
        device.synchronize()?;
        let hidden_scale = hidden_scale(&weights.final_norm, spec.family.norm_weight_offset);
        let ones = device.upload("a norm", &vec![1.0; spec.hidden_size])?;
        Ok(DeviceWeights { embedding, layer_inputs, layers, types, experts, final_norm, hidden_scale, head, ones })
    }

    pub fn head(&self) -> &Matrix {
        self.head.as_ref().unwrap_or(&self.embedding)
    }
}

/// The experts of a layer, for the kernels; none for a layer without a router.
fn expert_views(device: &Device, layer: &DeviceLayer) -> Result<Buffer<ExpertView>> {
    let view = |Expert { gate, up, down }: &Expert<Matrix>| ExpertView {
        gate: gate.ptr(),
        gate_scales: gate.scales(),
        up: up.ptr(),
        up_scales: up.scales(),
        down: down.ptr(),
        down_scales: down.scales(),
    };
    let experts = layer.experts.iter().filter(|_| layer.router.is_some());
    device.upload("experts", &experts.map(view).collect::<Vec<_>>())
}

/// [`DeviceWeights::hidden_scale`] for the weights of a norm.
fn hidden_scale(norm: &[f32], offset: f32) -> f32 {
    let max_weight = norm.iter().fold(f32::MIN_POSITIVE, |max, w| max.max((offset + w).abs()));
    let max = (norm.len() as f32).sqrt() * max_weight;
    libm::exp2f(libm::log2f(f32::from(f16::MAX) / max).floor().clamp(-100.0, 100.0))
}

/// The type of the experts' weights on the device, if there are experts.
pub fn expert_type(weights: &Weights) -> Option<MatrixType> {
    let mixed = weights.layers.iter().find(|layer| layer.router.is_some())?;
    mixed.experts.first().map(|expert| expert.gate.dtype.into())
}

/// Checks the kernels' requirements on a model's shape; reports the first one not met.
pub fn check_shape(spec: &ModelSpec, weights: &Weights, format: WeightFormat) -> Result<()> {
    let experts = spec.experts.as_ref();
    let packed_experts = experts.filter(|_| !format.is_file());
    let packed_experts = packed_experts.map(|_| format!("experts with weights in {format}: use --device cpu"));
    let on_device = |weight: &Weight| MatrixType::from(weight.dtype);
    let of_layer = |layer: &LayerSpec| {
        let q_width = spec.num_attention_heads * layer.head_dim;
        [("intermediate_size", layer.intermediate_size), ("heads x head_dim", q_width)]
    };
    let shared = experts.and_then(|experts| experts.shared_expert_intermediate_size);
    let of_model = [
        ("hidden_size", spec.hidden_size),
        ("moe_intermediate_size", experts.map_or(0, |experts| experts.moe_intermediate_size)),
        ("hidden_size_per_layer_input", spec.layer_input.map_or(0, |input| input.hidden_size)),
        ("shared_expert_intermediate_size", shared.unwrap_or(0)),
    ];
    let mut widths = of_model.into_iter().chain(spec.layers.iter().flat_map(of_layer));
    let width = widths.find(|(_, width)| width % 8 != 0);
    let width = width.map(|(name, width)| format!("{name} is {width}: expected a multiple of 8"));
    let vocab = Some(spec.vocab_size).filter(|size| *size > 1 << 20);
    let vocab = vocab.map(|size| format!("vocab_size is {size}: expected at most 2^20"));
    let delta_net = spec.delta_net.as_ref().and_then(|net| {
        let (keys, key, values, value) = (net.num_key_heads, net.key_head_dim, net.num_value_heads, net.value_head_dim);
        // products of wide passes with 16-bit weights compute two outputs at a time
        let in_pairs = weights.layers.iter().any(|layer| on_device(&layer.q) == MatrixType::F16);
        let odd = in_pairs && net.widths()[0] % 2 != 0;
        let unfit = key > MAX_KEY_DIM || odd || value % 4 != 0 || net.widths()[2] % 8 != 0;
        unfit.then(|| {
            format!(
                "delta nets of {keys} key heads of {key} and {values} value heads of {value}: expected keys of at most \
                 {MAX_KEY_DIM}, an even number of all their components, values of a multiple of 4, and of 8 in all"
            )
        })
    });
    let tokens = &weights.embedding;
    let inputs = weights.layer_inputs.as_ref().map(|inputs| &inputs.embedding);
    let inputs = inputs.filter(|inputs| on_device(inputs) != on_device(tokens));
    let inputs = inputs.map(|w| format!("{} in {}, tokens' in {}", w.name, w.dtype, tokens.dtype));
    let chosen = experts.map(|experts| experts.num_experts_per_tok).filter(|top_k| *top_k > MAX_CHOSEN);
    let chosen = chosen.map(|top_k| format!("{top_k} experts per token: expected at most {MAX_CHOSEN}"));
    let (layers, common) = (&weights.layers, expert_type(weights));
    let mixed = layers.iter().filter(|layer| layer.router.is_some()).flat_map(|layer| &layer.experts);
    let expert = mixed.flat_map(|e| [&e.gate, &e.up, &e.down]).find(|w| Some(on_device(w)) != common);
    let expert = expert.map(|w| format!("{} in {}, unlike other experts", w.name, w.dtype));
    let beside = layers.iter().filter_map(|layer| layer.dense_beside.as_ref().map(|beside| &beside.network));
    let shared = layers.iter().filter_map(|layer| layer.shared_expert.as_ref().map(|(expert, _)| expert));
    let mut networks = layers.iter().flat_map(|layer| &layer.experts).chain(beside).chain(shared);
    let network = networks.find(|network| on_device(&network.gate) != on_device(&network.up));
    let network =
        network.map(|Expert { gate, up, .. }| format!("{} is {}, {} is {}", gate.name, gate.dtype, up.name, up.dtype));
    let problem = packed_experts.or(width).or(vocab).or(delta_net).or(inputs).or(chosen).or(expert).or(network);
    problem.map_or(Ok(()), |problem| Err(CudaError::Unsupported(problem)))
}

struct Uploader<'a> {
    device: &'a Device,
    kernels: &'a KernelSet,
    types: &'a MatrixTypes,
    stages: [(Pinned, CudaEvent); 2],
    /// The next stage.
    next: usize,
    done: usize,
    total: usize,
    progress: &'a mut dyn FnMut(usize, usize),
}

impl Uploader<'_> {
    /// A layer whose blocks' outputs are multiplied by `residual`.
    fn layer(&mut self, layer: &LayerWeights, residual: f32) -> Result<DeviceLayer> {
        let device = self.device;
        let vector = |values: &Vec<f32>| device.upload("a norm or bias", values);
        let optional = |values: &Option<Vec<f32>>| values.as_ref().map(vector).transpose();
        let shared = layer.shared_expert.as_ref();
        let shared = shared.map(|(expert, gate)| Ok((self.expert(expert, residual)?, self.stored(gate)?)));
        let times = |values: &Option<Vec<f32>>| values.as_ref().map(|bias| bias.iter().map(|x| x * residual).collect());
        Ok(DeviceLayer {
            input_norm: optional(&layer.input_norm)?,
            q: self.matrix(&layer.q)?,
            k: layer.k.as_ref().map(|k| self.matrix(k)).transpose()?,
            v: layer.v.as_ref().map(|v| self.matrix(v)).transpose()?,
            q_bias: optional(&layer.q_bias)?,
            k_bias: optional(&layer.k_bias)?,
            v_bias: optional(&layer.v_bias)?,
            q_norm: optional(&layer.q_norm)?,
            k_norm: optional(&layer.k_norm)?,
            v_norm: optional(&layer.v_norm)?,
            o: self.scaled(&layer.o, residual)?,
            o_bias: optional(&times(&layer.o_bias))?,
            output_gate: layer.output_gate.as_ref().map(|gate| self.matrix(gate)).transpose()?,
            output_gate_bias: optional(&layer.output_gate_bias)?,
            delta_net: layer.delta_net.as_ref().map(|net| self.delta_net(net)).transpose()?,
            post_attention_norm: optional(&layer.post_attention_norm)?,
            feed_forward_norm: optional(&layer.feed_forward_norm)?,
            router: layer.router.as_ref().map(|router| self.stored(router)).transpose()?,
            experts: layer.experts.iter().map(|expert| self.expert(expert, residual)).collect::<Result<_, _>>()?,
            shared_expert: shared.transpose()?,
            dense_beside: layer.dense_beside.as_ref().map(|beside| self.dense_beside(beside)).transpose()?,
            gate_bias: optional(&layer.gate_bias)?,
            up_bias: optional(&layer.up_bias)?,
            down_bias: optional(&times(&layer.down_bias))?,
            post_feed_forward_norm: optional(&layer.post_feed_forward_norm)?,
            input: layer.input.as_ref().map(|input| self.layer_input(input)).transpose()?,
            scalar: layer.scalar,
        })
    }

    fn expert(&mut self, Expert { gate, up, down }: &Expert, residual: f32) -> Result<Expert<Matrix>> {
        Ok(Expert { gate: self.matrix(gate)?, up: self.matrix(up)?, down: self.scaled(down, residual)? })
    }

    fn vector(&self, values: &[f32]) -> Result<Buffer<f32>> {
        self.device.upload("a norm or bias", values)
    }

    fn layer_inputs(&mut self, inputs: &LayerInputs, spec: &ModelSpec) -> Result<LayerInputs<Matrix, Buffer<f32>>> {
        let norm: Vec<f32> = inputs.norm.iter().map(|w| (spec.family.norm_weight_offset + w) * FRAC_1_SQRT_2).collect();
        Ok(LayerInputs {
            embedding: self.stored(&inputs.embedding)?,
            projection: self.scaled(&inputs.projection, (spec.hidden_size as f32).sqrt().recip())?,
            norm: self.vector(&norm)?,
        })
    }

    fn layer_input(&mut self, input: &LayerInput) -> Result<LayerInput<Matrix, Buffer<f32>>> {
        let (gate, projection) = (self.matrix(&input.gate)?, self.matrix(&input.projection)?);
        Ok(LayerInput { gate, projection, norm: self.vector(&input.norm)? })
    }

    fn delta_net(&mut self, net: &DeltaNetWeights) -> Result<DeltaNetWeights<Matrix, Buffer<f32>>> {
        let [q, k, v] = net.conv.each_ref().map(|taps| self.vector(taps));
        Ok(DeltaNetWeights {
            a: self.stored(&net.a)?,
            b: self.stored(&net.b)?,
            a_log: self.vector(&net.a_log)?,
            dt_bias: self.vector(&net.dt_bias)?,
            conv: [q?, k?, v?],
            norm: self.vector(&net.norm)?,
        })
    }

    fn dense_beside(&mut self, beside: &DenseBeside) -> Result<DenseBeside<Matrix, Buffer<f32>>> {
        Ok(DenseBeside {
            network: self.expert(&beside.network, 1.0)?,
            post_norm: self.vector(&beside.post_norm)?,
            router_norm: self.vector(&beside.router_norm)?,
            expert_norm: self.vector(&beside.expert_norm)?,
            post_expert_norm: self.vector(&beside.post_expert_norm)?,
            expert_scales: self.vector(&beside.expert_scales)?,
        })
    }

    /// A matrix times a factor.
    fn scaled(&mut self, weight: &Weight, factor: f32) -> Result<Matrix> {
        let matrix = self.matrix(weight)?;
        if factor == 1.0 { Ok(matrix) } else { matrix.times(factor, self.device) }
    }

    /// A product's matrix, in its type.
    fn matrix(&mut self, weight: &Weight) -> Result<Matrix> {
        let Some(kernels) = self.kernels.pack_q8.as_ref().filter(|_| self.types.of(weight) == MatrixType::Q8) else {
            return self.stored(weight);
        };
        let (k, raw) = (weight.in_features, self.bytes(weight)?);
        let data = self.device.allocate(&weight.name, MatrixType::Q8.bytes(weight))?;
        let parameters = PackQ8 { w: raw.ptr().cast(), lines: data.ptr().cast(), k: k.into() };
        self.device.launch(&kernels[type_number(weight.dtype) as usize], [weight.rows, 1, 1], &parameters)?;
        let (data, out_features) = (Rc::new(data), weight.rows);
        Ok(Matrix { data, scales: None, out_features, in_features: k, dtype: MatrixType::Q8 })
    }

    /// A matrix in its file's type, bf16 as f16.
    fn stored(&mut self, weight: &Weight) -> Result<Matrix> {
        let data = self.bytes(weight)?;
        let (out_features, in_features) = (weight.rows, weight.in_features);
        let scales = (weight.dtype == DType::Bf16).then(|| self.narrow(&data, weight)).transpose()?;
        let data = Rc::new(data);
        Ok(Matrix { data, scales, out_features, in_features, dtype: weight.dtype.into() })
    }

    /// A copy of a matrix's bytes.
    fn bytes(&mut self, weight: &Weight) -> Result<Buffer<u8>> {
        let bytes = weight.byte_slice();
        let data = self.device.allocate(&weight.name, bytes.len())?;
        let mut offset = 0;
        for part in bytes.chunks(self.stages[0].0.bytes().len().max(1)) {
            self.copy(&data, offset, part)?;
            offset += part.len();
        }
        Ok(data)
    }

    /// Converts a copied bf16 matrix to f16; returns the row scales.
    fn narrow(&self, data: &Buffer<u8>, weight: &Weight) -> Result<Buffer<f32>> {
        let scales = self.device.allocate(&weight.name, weight.rows)?;
        let parameters = NarrowWeights { w: data.ptr().cast(), scales: scales.ptr(), k: weight.in_features.into() };
        self.device.launch(&self.kernels.narrow_weights, [weight.rows, 1, 1], &parameters)?;
        Ok(scales)
    }

    /// Copies a part through one stage while the other stage's copy is in flight.
    fn copy(&mut self, to: &Buffer<u8>, offset: usize, part: &[u8]) -> Result<()> {
        let (stage, copied) = &mut self.stages[self.next];
        copied.synchronize().during("waiting for the device")?;
        stage.bytes_mut()[..part.len()].copy_from_slice(part);
        self.device.write(to, offset, &stage.bytes()[..part.len()])?;
        self.device.record(copied)?;
        self.next = 1 - self.next;
        self.done += part.len();
        (self.progress)(self.done, self.total);
        Ok(())
    }
}
