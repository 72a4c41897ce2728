//! What the makers publish of the devices that predictions are made for. Peaks: dense bf16 products summed in f32, and the
//! memory's bandwidth.

/// One device.
#[derive(Debug)]
pub struct Accelerator {
    /// As `--predict` takes it.
    pub name: &'static str,
    pub multiprocessors: usize,
    /// Compute capability.
    pub capability: (i32, i32),
    /// Bytes a second.
    pub bandwidth: f64,
    /// Bytes a second from the second cache, and by how much that may be off. Makers do not publish it: assumed.
    pub cache_bandwidth: (f64, f64),
    /// Operations a second.
    pub matrix_peak: f64,
    /// Cycles a second at which the matrix peak is stated, and at most.
    pub clock: f64,
    /// Of the matrix peak, what `mma.sync` reaches, and by how much that may be off: 16-bit products by warps, which all kernels
    /// use but `gemm_hopper.cu`. wgmma and tcgen05 reach the rest.
    pub mma_share: (f64, f64),
    pub source: &'static str,
}

pub const ACCELERATORS: [Accelerator; 4] = [
    Accelerator {
        name: "h100",
        multiprocessors: 132,
        capability: (9, 0),
        bandwidth: 3.35e12,
        cache_bandwidth: (5.7e12, 1.2e12),
        matrix_peak: 989.4e12,
        clock: 1.83e9,
        // Luo et al., "Dissecting the NVIDIA Hopper Architecture through Microbenchmarking" (2024): 62 % on average
        mma_share: (0.62, 0.06),
        source: "NVIDIA H100 Tensor Core GPU datasheet and architecture whitepaper (SXM5)",
    },
    Accelerator {
        name: "h200",
        multiprocessors: 132,
        capability: (9, 0),
        bandwidth: 4.8e12,
        cache_bandwidth: (5.7e12, 1.2e12),
        matrix_peak: 989.4e12,
        clock: 1.83e9,
        mma_share: (0.62, 0.06),
        source: "NVIDIA H200 Tensor Core GPU datasheet (SXM)",
    },
    Accelerator {
        name: "4090",
        multiprocessors: 128,
        capability: (8, 9),
        bandwidth: 1.008e12,
        cache_bandwidth: (4.8e12, 1.0e12),
        matrix_peak: 165.2e12,
        clock: 2.52e9,
        mma_share: (0.95, 0.05),
        source: "NVIDIA Ada GPU architecture whitepaper, GeForce RTX 4090",
    },
    Accelerator {
        name: "b200",
        multiprocessors: 148,
        capability: (10, 0),
        bandwidth: 8.0e12,
        cache_bandwidth: (12e12, 3.5e12),
        matrix_peak: 2250e12,
        clock: 1.85e9,
        // nothing is published of mma.sync there: a guess
        mma_share: (0.35, 0.15),
        source: "NVIDIA DGX B200 datasheet, of eight GPUs; the clock is a guess",
    },
];

impl Accelerator {
    /// Whether a kernel may start before the one before it has ended.
    pub fn early_starts(&self) -> bool {
        self.capability >= (9, 0)
    }
}

/// The device of a name.
pub fn find(name: &str) -> Option<&'static Accelerator> {
    ACCELERATORS.iter().find(|accelerator| accelerator.name == name)
}
