//! Metrics of scores against labels.
//!
//! ```text
//! scores, labels ─ Ranking ─ levels ─┬─ discrimination: AUROC, AUPRC, AUROC within lengths
//! (bootstrap: how often each item)   ├─ selective: AURC, risk-coverage curve, PRR
//!                                    └─ calibration: ECE, reliability bins, Brier
//! balanced: the paper's subsamples (by mt19937)          calibrators: Platt's sigmoid, isotonic regression
//! ```
//!
//! Scores: higher is more confident. Labels: whether the answer is right. Everything is computed from [`Level`]s, the
//! labels counted by distinct score, so that the order of tied items never matters: where a definition needs an order
//! (AURC, PRR), the value is its expectation over all orders of the tied ones. A metric that is not defined (of no items,
//! of one class only) is `None`. By hand: no crate has these expectations over ties, the paper's bins and subsamples.

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
    /// Bins [a, b), as the authors' code.
    Ece,
    /// Bins (a, b], as the paper's text.
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

    /// Its name for programs, its name for people, whether it takes the score for a probability (the others only rank
    /// by it), and its value.
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

    /// Its name for programs.
    pub fn key(self) -> &'static str {
        self.row().0
    }

    /// Its name for people.
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// The bins of this calibration error; of other metrics the authors' code's.
    pub fn binning(self) -> Binning {
        if self == Metric::EceRight { Binning::Right } else { Binning::Left }
    }

    /// The metric of these labels; `None` of scores that are no probabilities (`probability` false) where it needs them.
    pub fn of(self, levels: &[Level], probability: bool) -> Option<f64> {
        let (_, _, needs_probability, value) = self.row();
        if needs_probability && !probability { None } else { value(levels) }
    }
}
