//! Counts for Prometheus.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Upper bounds of the histogram of request times, in seconds.
const BUCKETS: [f64; 10] = [0.01, 0.05, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 120.0];

#[derive(Default)]
pub struct Metrics {
    /// Responses that are being generated.
    pub running: AtomicUsize,
    pub prompt_tokens: AtomicU64,
    pub completion_tokens: AtomicU64,
    /// Requests whose client went away.
    pub cancelled: AtomicU64,
    answered: Mutex<Answered>,
}

/// Requests that were answered.
#[derive(Default)]
struct Answered {
    /// By path and status.
    requests: BTreeMap<(&'static str, u16), u64>,
    /// By bucket, those that took longer than the last at the end; of those that the engine answered.
    seconds: [u64; BUCKETS.len() + 1],
    total_seconds: f64,
}

impl Metrics {
    /// Counts an answer; `path` is one of the server's own, so that strangers cannot make labels.
    pub fn answered(&self, path: &'static str, status: u16, took: Duration, by_engine: bool) {
        let mut answered = self.answered.lock().unwrap_or_else(PoisonError::into_inner);
        *answered.requests.entry((path, status)).or_default() += 1;
        if by_engine {
            let seconds = took.as_secs_f64();
            let bucket = BUCKETS.iter().position(|bound| seconds <= *bound).unwrap_or(BUCKETS.len());
            answered.seconds[bucket] += 1;
            answered.total_seconds += seconds;
        }
    }

    /// Seconds after which a refused request should be sent again: as long as one takes.
    pub fn retry_after(&self) -> u64 {
        let answered = self.answered.lock().unwrap_or_else(PoisonError::into_inner);
        let count: u64 = answered.seconds.iter().sum();
        (answered.total_seconds / count.max(1) as f64).ceil().clamp(1.0, 60.0) as u64
    }

    /// In Prometheus' text format.
    pub fn render(&self, queued: usize) -> String {
        let mut text = String::new();
        let mut single = |name: &str, kind: &str, help: &str, value: u64| {
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}");
        };
        single("uqac_running", "gauge", "Responses that are being generated", self.running.load(Relaxed) as u64);
        single("uqac_queued", "gauge", "Requests that wait for a place in the batch", queued as u64);
        single("uqac_cancelled_total", "counter", "Requests whose client went away", self.cancelled.load(Relaxed));
        let name = "uqac_tokens_total";
        let _ = writeln!(text, "# HELP {name} Tokens that went through the model\n# TYPE {name} counter");
        for (kind, count) in [("prompt", &self.prompt_tokens), ("completion", &self.completion_tokens)] {
            let _ = writeln!(text, "{name}{{kind=\"{kind}\"}} {}", count.load(Relaxed));
        }
        let answered = self.answered.lock().unwrap_or_else(PoisonError::into_inner);
        let name = "uqac_requests_total";
        let _ = writeln!(text, "# HELP {name} Requests that were answered\n# TYPE {name} counter");
        for ((path, status), count) in &answered.requests {
            let _ = writeln!(text, "{name}{{path=\"{path}\",status=\"{status}\"}} {count}");
        }
        let name = "uqac_request_seconds";
        let _ = writeln!(text, "# HELP {name} From the request to the last byte\n# TYPE {name} histogram");
        let mut count = 0;
        for (i, bucket) in answered.seconds.iter().enumerate() {
            count += bucket;
            let bound = BUCKETS.get(i).map_or("+Inf".to_owned(), f64::to_string);
            let _ = writeln!(text, "{name}_bucket{{le=\"{bound}\"}} {count}");
        }
        let _ = writeln!(text, "{name}_sum {}\n{name}_count {count}", answered.total_seconds);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_add_up() {
        let metrics = Metrics::default();
        for (seconds, status) in [(0.02, 200), (0.3, 200), (500.0, 500)] {
            metrics.answered("/v1/score", status, Duration::from_secs_f64(seconds), true);
        }
        metrics.answered("/health", 200, Duration::ZERO, false);
        let text = metrics.render(4);
        for line in [
            "uqac_queued 4",
            "uqac_requests_total{path=\"/v1/score\",status=\"200\"} 2",
            "uqac_request_seconds_bucket{le=\"0.01\"} 0",
            "uqac_request_seconds_bucket{le=\"0.5\"} 2",
            "uqac_request_seconds_bucket{le=\"+Inf\"} 3",
            "uqac_request_seconds_count 3",
        ] {
            assert!(text.lines().any(|l| l == line), "{line}\n{text}");
        }
        assert_eq!(metrics.retry_after(), 60);
    }
}
