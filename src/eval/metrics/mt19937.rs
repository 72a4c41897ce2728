//! The Mersenne Twister MT19937 (Matsumoto and Nishimura 1998), and what numpy's legacy `RandomState` draws from it, so
//! that a published seed gives the published sample.

const N: usize = 624;
const M: usize = 397;

/// A stream of 32-bit numbers.
#[derive(Clone)]
pub struct Mt19937 {
    state: [u32; N],
    next: usize,
}

impl Mt19937 {
    /// Seeded as `numpy.random.RandomState(seed)` (the authors' `init_genrand`).
    pub fn new(seed: u32) -> Mt19937 {
        let mut state = [seed; N];
        for i in 1..N {
            let before = state[i - 1];
            state[i] = (before ^ (before >> 30)).wrapping_mul(1_812_433_253).wrapping_add(i as u32);
        }
        Mt19937 { state, next: N }
    }

    fn twist(&mut self) {
        for i in 0..N {
            let y = (self.state[i] & 0x8000_0000) | (self.state[(i + 1) % N] & 0x7fff_ffff);
            let odd = if y & 1 == 1 { 0x9908_b0df } else { 0 };
            self.state[i] = self.state[(i + M) % N] ^ (y >> 1) ^ odd;
        }
        self.next = 0;
    }

    pub fn next_u32(&mut self) -> u32 {
        if self.next == N {
            self.twist();
        }
        let mut y = self.state[self.next];
        self.next += 1;
        y ^= y >> 11;
        y ^= (y << 7) & 0x9d2c_5680;
        y ^= (y << 15) & 0xefc6_0000;
        y ^ (y >> 18)
    }

    /// Uniform in `0..=max`: numpy's legacy bounded integers, the low bits of a number, drawn anew while too large.
    pub fn up_to(&mut self, max: u32) -> u32 {
        let mask = u32::MAX.checked_shr(max.leading_zeros()).unwrap_or(0);
        loop {
            let value = self.next_u32() & mask;
            if value <= max {
                return value;
            }
        }
    }

    /// `RandomState.permutation(n)`.
    pub fn permutation(&mut self, n: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..n).collect();
        for i in (1..n).rev() {
            order.swap(i, self.up_to(i as u32) as usize);
        }
        order
    }

    /// `RandomState.choice(n, size, replace=False)`, which is also what `pandas.DataFrame.sample` draws.
    pub fn choice(&mut self, n: usize, size: usize) -> Vec<usize> {
        let mut order = self.permutation(n);
        order.truncate(size);
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_stream() {
        // first numbers of seed 5489, and the 10000th, which the C++ standard fixes
        let mut random = Mt19937::new(5489);
        assert_eq!([random.next_u32(), random.next_u32()], [3_499_211_612, 581_869_302]);
        let mut random = Mt19937::new(5489);
        assert_eq!((0..10_000).map(|_| random.next_u32()).last(), Some(4_123_659_995));
    }

    #[test]
    fn bounded_numbers_reach_both_ends_and_none_needs_no_number() {
        let mut random = Mt19937::new(1);
        let mut seen = [false; 6];
        (0..200).for_each(|_| seen[random.up_to(5) as usize] = true);
        assert_eq!(seen, [true; 6]);
        assert_eq!(random.up_to(0), 0);
        assert_eq!(random.permutation(0), [0usize; 0]);
        assert_eq!(random.choice(3, 9).len(), 3);
    }
}
