//! Meanings of the tables' columns, for their tooltips, and the best numbers in them.

/// (what a head is, after a task and before a comma or an interval; an arrow to what is better; its meaning). The
/// first that fits counts.
const HEADS: &[(&str, &str, &str)] = &[
    ("Task", "", "what was asked"),
    ("Method", "", "where the score comes from"),
    ("Items", "", "how many questions"),
    ("Accuracy ref.", "↑", "share of right answers, graded as the paper's authors do"),
    ("Accuracy", "↑", "share of right answers, with its 95 % interval"),
    ("Majority", "↑", "accuracy of the majority vote of several responses"),
    ("No answer", "↓", "responses in which no answer was found"),
    ("Truncated", "↓", "responses cut off at the limit of tokens"),
    ("Errors", "↓", "items that failed"),
    ("Labels differ", "", "items that we and the paper's authors grade differently"),
    ("Tokens", "", "mean length of a response"),
    ("Similarity", "", "mean cosine with the hidden states of the answer's tokens"),
    ("Chain", "", "mean number of tokens in the attention chain"),
    ("Ensemble", "", "mean number of alternatives scored"),
    ("n", "", "items with a score of this method"),
    ("Difference", "", "to the method that the others are compared with, paired bootstrap"),
    ("AUROC", "↑", "chance that a right answer has a higher score than a wrong one; 0.5 is a coin's"),
    ("by length", "↑", "AUROC among responses of like length"),
    (
        "ECE",
        "↓",
        "expected calibration error: how far the score, read as a probability, is from the share of right answers",
    ),
    ("Brier", "↓", "mean squared error of the score, read as a probability"),
    ("AUPRC", "↑", "area under precision and recall"),
    ("AURC", "↓", "area under risk and coverage: wrong answers among those given, averaged over all thresholds"),
    ("PRR", "↑", "prediction rejection ratio: 1 is the best possible order of the answers, 0 a random one"),
    ("Threshold", "", "score above which an answer is given"),
    ("Coverage", "↑", "share of questions that are answered"),
    ("Risk", "↓", "share of wrong answers among those given"),
    ("Setting", "", "what differs from the run's own parameters"),
    ("Overlap", "", "mean Jaccard index of the chains with the run's own"),
    ("Same chain", "", "share of items whose chain is the run's own"),
    ("Mean change", "", "mean distance of the score from the run's own"),
    ("Largest", "", "largest distance of the score from the run's own"),
    ("Stage", "", "a part of the work"),
    ("Seconds", "↓", "in all"),
    ("Per item", "↓", "seconds"),
    ("Of generation", "↓", "over the seconds that the responses took"),
];

/// An arrow towards what is better, and the meaning, of a column's head: `AUROC [95 %]`, `gsm8k: AUROC`.
pub fn meaning(head: &str) -> Option<(&'static str, &'static str)> {
    let measure = head.rsplit(": ").next().unwrap_or(head);
    let fits =
        |name: &str| measure.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with([',', ' ']));
    HEADS.iter().find(|(name, ..)| fits(name)).map(|(_, arrow, meaning)| (*arrow, *meaning))
}
