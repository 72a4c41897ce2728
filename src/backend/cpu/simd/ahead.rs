//! Prefetch distances of streams from memory.

use std::sync::OnceLock;

/// Max bytes of one stream in flight.
const MAX_AHEAD: usize = 2048;

/// An L1 cache up to this size is limited to [`SMALL_CACHE_IN_FLIGHT`].
const SMALL_CACHE: usize = 32 << 10;

/// Max bytes of all streams together in flight into a [`SMALL_CACHE`].
const SMALL_CACHE_IN_FLIGHT: usize = 2048;

/// Bytes between a kernel's read position in each of `streams` streams and its [`prefetch`] position: what memory
/// delivers to a core within its latency. Measured, not derived (`benches/NOTES.md`, "Reading weights").
///
/// [`prefetch`]: super::Simd::prefetch
pub fn bytes_ahead(streams: usize) -> usize {
    static SMALL: OnceLock<bool> = OnceLock::new();
    match SMALL.get_or_init(|| first_level_cache().is_some_and(|bytes| bytes <= SMALL_CACHE)) {
        true => (SMALL_CACHE_IN_FLIGHT / streams).min(MAX_AHEAD),
        false => MAX_AHEAD,
    }
}

/// Bytes of a core's L1 data cache, if Linux reports them.
fn first_level_cache() -> Option<usize> {
    let caches = "/sys/devices/system/cpu/cpu0/cache";
    let read = |index: u32, what: &str| std::fs::read_to_string(format!("{caches}/index{index}/{what}")).ok();
    let index = (0..4).find(|i| {
        let is = |what, value: &str| read(*i, what).is_some_and(|text| text.trim() == value);
        is("level", "1") && (is("type", "Data") || is("type", "Unified"))
    })?;
    parse_size(&read(index, "size")?)
}

/// Parses a cache size as Linux writes it, `"32K\n"`, into bytes.
fn parse_size(text: &str) -> Option<usize> {
    let kib: usize = text.trim().strip_suffix('K')?.parse().ok()?;
    kib.checked_mul(1 << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_as_linux_writes_them() {
        assert_eq!(parse_size("32K\n"), Some(32 << 10));
        assert_eq!(parse_size("48K"), Some(48 << 10));
        for bad in ["", "K", "32", "32M", "-1K", "99999999999999999999K"] {
            assert_eq!(parse_size(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn more_streams_never_look_further_ahead() {
        for streams in 1..9 {
            assert!((1..=MAX_AHEAD).contains(&bytes_ahead(streams)));
            assert!(bytes_ahead(streams + 1) <= bytes_ahead(streams));
        }
    }
}
