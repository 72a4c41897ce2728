//! Plain and traced work, interleaved in one run.

/// Does it plain (`false`) and traced (`true`): [plain, traced]. Which goes first changes from round to round, so that a drift
/// of the clock favours neither.
pub fn interleave<T, E>(round: usize, mut run: impl FnMut(bool) -> Result<T, E>) -> Result<[T; 2], E> {
    if round.is_multiple_of(2) {
        return Ok([run(false)?, run(true)?]);
    }
    let traced = run(true)?;
    Ok([run(false)?, traced])
}

/// What the trace adds to each round's seconds, in percent.
pub fn added_percent(plain: &[f64], traced: &[f64]) -> Vec<f64> {
    plain.iter().zip(traced).map(|(plain, traced)| 100.0 * (traced - plain) / plain).collect()
}
