//! How much a core's own caches hold, for the sizes of blocks; they change no bits.

use std::sync::OnceLock;

/// Bytes of the first- and the second-level data cache of a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caches {
    pub first: usize,
    pub second: usize,
}

/// What most cores have at least; taken where the system does not say.
const USUAL: Caches = Caches { first: 32 << 10, second: 512 << 10 };

impl Caches {
    /// Those of this machine's first core, as Linux lists them.
    pub fn detect() -> Caches {
        static CACHES: OnceLock<Caches> = OnceLock::new();
        *CACHES.get_or_init(|| {
            let size = |level: &str| (0..4).find_map(|index| listed(index, level));
            Caches { first: size("1").unwrap_or(USUAL.first), second: size("2").unwrap_or(USUAL.second) }
        })
    }
}

/// The size of the `index`-th cache that is listed, if it holds data and is of this level.
fn listed(index: usize, level: &str) -> Option<usize> {
    let read = |name: &str| {
        let path = format!("/sys/devices/system/cpu/cpu0/cache/index{index}/{name}");
        std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
    };
    let holds_data = read("type")? != "Instruction" && read("level")? == level;
    holds_data.then(|| read("size")?.strip_suffix('K')?.parse().ok().map(|kib: usize| kib << 10)).flatten()
}
