//! Choices on one half of the items, measured on the other: the threshold below which not to answer, and maps to
//! calibrated probabilities.

use super::summary::wilson;
use super::{Data, Item, Method};
use crate::eval::metrics::{
    Binning, Confidence, Isotonic, Platt, Ranking, RiskControl, brier, ece, log_odds, permutation,
};
use serde::Serialize;

/// A task's items cut in two at random.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Holdout {
    /// Graded items on which is chosen and fitted.
    pub fitted: usize,
    /// Graded items on which the outcome is shown.
    pub held_out: usize,
    pub methods: Vec<HoldoutMethod>,
}

/// A method on the two halves.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HoldoutMethod {
    pub method: String,
    /// With a target risk.
    pub abstention: Option<Abstention>,
    /// With calibration; `None` too if a half has no item with a score.
    pub calibration: Option<Calibration>,
}

/// Answering only above a threshold: the lowest one of which the fitted half shows, at the requested confidence, that it holds
/// the target risk ([`risk`](crate::eval::metrics::risk)).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Abstention {
    /// Scores above it are answered; `None`: no threshold can be shown to hold the risk, nothing is answered.
    pub threshold: Option<f64>,
    /// Its logarithm, by which answers are ranked where the method has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_threshold: Option<f64>,
    /// The upper bound on the risk, of all thresholds that were tried together.
    pub bound: Option<f64>,
    pub fitted: Answered,
    pub held_out: Answered,
}

/// Answered items of a half.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Answered {
    /// Share of the half's graded items; one without an answer is never answered.
    pub coverage: f64,
    /// Share of the answered items that are wrong, with Wilson's 95 % interval; `None` if none is answered.
    pub risk: Option<f64>,
    /// Wilson's 95 % interval of `risk`.
    pub risk_interval: Option<[f64; 2]>,
}

/// Errors of probabilities on the held-out half.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Calibration {
    pub items: usize,
    /// Of the scores themselves, if they claim to be probabilities.
    pub as_is: Option<CalibrationErrors>,
    pub platt: CalibrationErrors,
    pub isotonic: CalibrationErrors,
}

/// Of probabilities against labels.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CalibrationErrors {
    pub ece: f64,
    pub brier: f64,
}

/// Both halves of a task; `None` if nothing needs them or there are fewer than two graded items.
pub(super) fn holdout(Data { items, methods, options }: Data, binning: Binning) -> Option<Holdout> {
    let graded: Vec<&Item> = items.iter().filter(|item| item.correct.is_some()).collect();
    if graded.len() < 2 || (options.target_risk.is_none() && !options.calibrate) {
        return None;
    }
    let order = permutation(options.seed, graded.len());
    let (fitted, held_out) = order.split_at(graded.len().div_ceil(2));
    let half = |half: &[usize], method: &Method| Half {
        items: half.len(),
        judged: half.iter().filter_map(|&i| graded[i].judged(method)).collect(),
    };
    let control = options.target_risk.map(|target| RiskControl { target, confidence: options.risk_confidence });
    let of_method = |method: &Method| {
        let (fit, show) = (half(fitted, method), half(held_out, method));
        HoldoutMethod {
            method: method.key.clone(),
            abstention: control.map(|control| abstention(&fit, &show, method, control)),
            calibration: if options.calibrate { calibration(&fit, &show, method.probability, binning) } else { None },
        }
    };
    let known = |method: &&Method| graded.iter().any(|item| item.judged(method).is_some());
    let methods = methods.iter().filter(known).map(of_method).collect();
    Some(Holdout { fitted: fitted.len(), held_out: held_out.len(), methods })
}

/// A method's scores on a half.
struct Half {
    /// All graded items.
    items: usize,
    /// Of those with an answer and a score: that, and whether the answer is right.
    judged: Vec<(Confidence, bool)>,
}

impl Half {
    fn answered_above(&self, threshold: Option<Confidence>) -> Answered {
        let answered = |found: &Confidence| threshold.is_some_and(|threshold| found.rank > threshold.rank);
        let labels: Vec<bool> =
            self.judged.iter().filter(|(found, _)| answered(found)).map(|(_, label)| *label).collect();
        let wrong = labels.iter().filter(|label| !**label).count();
        Answered {
            coverage: labels.len() as f64 / self.items.max(1) as f64,
            risk: (!labels.is_empty()).then(|| wrong as f64 / labels.len() as f64),
            risk_interval: wilson(wrong, labels.len()),
        }
    }
}

fn abstention(fit: &Half, show: &Half, method: &Method, control: RiskControl) -> Abstention {
    let found = control.threshold(&fit.judged);
    let above = found.map(|found| found.above);
    Abstention {
        threshold: above.map(|above| above.score),
        log_threshold: above.map(|above| above.rank).filter(|rank| method.log.is_some() && rank.is_finite()),
        bound: found.map(|found| found.bound),
        fitted: fit.answered_above(above),
        held_out: show.answered_above(above),
    }
}

fn calibration(fit: &Half, show: &Half, probability: bool, binning: Binning) -> Option<Calibration> {
    let split = |half: &Half| half.judged.iter().map(|(found, right)| (found.score, *right)).unzip();
    let (scores, labels): (Vec<f64>, Vec<bool>) = split(fit);
    let (shown, shown_labels): (Vec<f64>, Vec<bool>) = split(show);
    // of probabilities the form that suits a sigmoid
    let scaled = |score: &f64| if probability { log_odds(*score) } else { *score };
    let platt = Platt::fit(&scores.iter().map(scaled).collect::<Vec<_>>(), &labels)?;
    let isotonic = Isotonic::fit(&scores, &labels)?;
    let errors = |map: &dyn Fn(&f64) -> f64| {
        let levels = Ranking::of(&shown.iter().map(map).collect::<Vec<_>>(), &shown_labels).levels();
        Some(CalibrationErrors { ece: ece(&levels, binning)?, brier: brier(&levels)? })
    };
    Some(Calibration {
        items: shown.len(),
        as_is: if probability { errors(&|score| *score) } else { None },
        platt: errors(&|score| platt.at(scaled(score)))?,
        isotonic: errors(&|score| isotonic.at(*score))?,
    })
}
