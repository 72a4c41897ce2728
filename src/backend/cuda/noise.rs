//! Numbers for trials of kernels, the same every time.

/// A generator of numbers (xorshift); not of 0.
pub struct Noise(pub u64);

impl Noise {
    /// Between -1 and 1.
    pub fn next(&mut self) -> f32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    /// Between -scale and scale.
    pub fn floats(&mut self, count: usize, scale: f32) -> Vec<f32> {
        (0..count).map(|_| scale * self.next()).collect()
    }
}
