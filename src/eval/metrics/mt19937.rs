//! Draws of numpy's legacy `RandomState` from the Mersenne Twister MT19937 (Matsumoto and Nishimura 1998), so that a
//! published seed yields the published sample. Hand-written on top of `rand_mt`: no crate has numpy's legacy `choice`.

/// A stream of 32-bit values, seeded like `numpy.random.RandomState(seed)` (the authors' `init_genrand`).
pub use rand_mt::Mt as Mt19937;

/// Uniform in `0..=max`, as numpy's legacy bounded integers: the low bits of a draw, redrawn while too large.
pub fn up_to(random: &mut Mt19937, max: u32) -> u32 {
    let mask = u32::MAX.checked_shr(max.leading_zeros()).unwrap_or(0);
    loop {
        let value = random.next_u32() & mask;
        if value <= max {
            return value;
        }
    }
}

/// `RandomState(seed).permutation(n)`; its first elements are `RandomState.choice(n, size, replace=False)`, which is also what
/// `pandas.DataFrame.sample` draws.
pub fn permutation(seed: u32, n: usize) -> Vec<usize> {
    let (mut random, mut order) = (Mt19937::new(seed), Vec::from_iter(0..n));
    for i in (1..n).rev() {
        order.swap(i, up_to(&mut random, i as u32) as usize);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_stream() {
        // first values for seed 5489, and the 10000th, as specified by the C++ standard
        let mut random = Mt19937::new(5489);
        assert_eq!([random.next_u32(), random.next_u32()], [3_499_211_612, 581_869_302]);
        let mut random = Mt19937::new(5489);
        assert_eq!((0..10_000).map(|_| random.next_u32()).last(), Some(4_123_659_995));
    }

    #[test]
    fn bounded_numbers_reach_both_ends_and_none_needs_no_number() {
        let mut random = Mt19937::new(1);
        let mut seen = [false; 6];
        (0..200).for_each(|_| seen[up_to(&mut random, 5) as usize] = true);
        assert_eq!(seen, [true; 6]);
        assert_eq!(up_to(&mut random, 0), 0);
        assert_eq!(permutation(1, 0), [0usize; 0]);
    }
}
