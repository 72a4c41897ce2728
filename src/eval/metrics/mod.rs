//! Metrics of scores against labels.
//!
//! ```text
//! scores, labels ─ Ranking ─ levels ─┬─ discrimination: AUROC, AUPRC, AUROC within lengths
//! (bootstrap: how often each item)   ├─ selective: AURC, risk-coverage curve, PRR
//!                                    └─ calibration: ECE, reliability bins, Brier
//! balanced: the paper's subsamples (by mt19937)          calibrators: Platt's sigmoid, isotonic regression
//! ```
//!
//! Scores: higher is more confident. Labels: whether the answer is correct. Everything is computed from [`Level`]s, the
//! label counts per distinct score, so the order of tied items never matters: where a definition needs an order (AURC,
//! PRR), the value is its expectation over all orders of the ties. An undefined metric (no items, or a single class) is
//! `None`. Hand-written: no crate has these expectations over ties, the paper's bins and subsamples.

pub mod balanced;
pub mod bootstrap;
pub mod calibration;
pub mod calibrators;
pub mod discrimination;
pub mod mt19937;
pub mod ranking;
pub mod risk;
pub mod selective;

pub use balanced::{Balanced, MeanSd, balanced_reliability, balanced_subsample};
pub use bootstrap::{interval, resampled};
pub use calibration::{Bin, Binning, brier, ece, reliability};
pub use calibrators::{Isotonic, Platt};
pub use discrimination::{auprc, auroc, length_controlled_auroc};
pub use mt19937::permutation;
pub use ranking::{Confidence, Level, Ranking};
pub use risk::RiskControl;
pub use selective::{CurvePoint, aurc, prr, risk_coverage};

use serde::{Deserialize, Serialize};

/// A metric of a method on a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    Auroc,
    /// Bins [a, b), as in the authors' code.
    Ece,
    /// Bins (a, b], as in the paper's text.
    EceRight,
    Brier,
    Auprc,
    Aurc,
    Prr,
}

/// The value of a metric; `None` where it is not defined.
type Compute = fn(&[Level]) -> Option<f64>;

impl Metric {
    /// In the order of tables and files.
    pub const ALL: [Metric; 7] =
        [Metric::Auroc, Metric::Ece, Metric::EceRight, Metric::Brier, Metric::Auprc, Metric::Aurc, Metric::Prr];

    /// Machine-readable name, display name, whether the metric treats the score as a probability (the others only rank by
    /// it), and the function that computes it.
    fn row(self) -> (&'static str, &'static str, bool, Compute) {
        match self {
            Metric::Auroc => ("auroc", "AUROC", false, auroc),
            Metric::Ece => ("ece", "ECE", true, |levels| ece(levels, Binning::Left)),
            Metric::EceRight => ("ece_right", "ECE", true, |levels| ece(levels, Binning::Right)),
            Metric::Brier => ("brier", "Brier", true, brier),
            Metric::Auprc => ("auprc", "AUPRC", false, auprc),
            Metric::Aurc => ("aurc", "AURC", false, aurc),
            Metric::Prr => ("prr", "PRR", false, prr),
        }
    }

    /// Machine-readable name.
    pub fn key(self) -> &'static str {
        self.row().0
    }

    /// Display name.
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// The binning of this calibration error; for other metrics, the authors' code's.
    pub fn binning(self) -> Binning {
        if self == Metric::EceRight { Binning::Right } else { Binning::Left }
    }

    /// The metric over these levels; `None` if it needs probabilities and the scores are not (`probability` false).
    pub fn of(self, levels: &[Level], probability: bool) -> Option<f64> {
        let (_, _, needs_probability, value) = self.row();
        if needs_probability && !probability { None } else { value(levels) }
    }
}
