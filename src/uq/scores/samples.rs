//! Scores of responses sampled beside one, which [`Scores::add`](super::Scores::add) takes from their votes.

use super::{Group, SINGLE_PASS, Score};

/// Defaults of scores from further responses or turns.
pub const MORE_PASSES: Score = Score { group: Group::MorePasses, ..SINGLE_PASS };

/// Whether the score of this key is one of samples.
pub fn needs_samples(key: &str) -> bool {
    SCORES.iter().any(|score| score.key == key)
}

/// The share of samples that agree.
pub const AGREEMENT: &str = "agreement";

/// That plus σ(G4), registered as R9 (`benches/EVIDENCE.md`).
pub const G4_AGREEMENT: &str = "g4_agreement";

/// σ(x) = 1/(1 + e⁻ˣ)
pub fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + libm::exp(-x))
}

scores! {
    MORE_PASSES:
    "self_consistency", "Self-consistency", "the weight of the samples that give the same answer", is_probability: true
        => |_| None;
    "self_consistency_majority", "Majority weight", "the weight of the answer that most samples give",
        is_probability: true, of_majority: true
        => |_| None;
    "agreement", "Agreement", "the share of samples that give the same answer", is_probability: true
        => |_| None;
    "g4_agreement", "Agreement + G4", "the share of samples that give the same answer, plus G4 between 0 and 1"
        => |_| None;
}
