//! Metrics in Prometheus' text format.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::{fmt::Write, sync::Mutex, sync::MutexGuard, sync::PoisonError, time::Duration};

/// Upper bounds of the latency histogram in seconds.
const BUCKETS: [f64; 10] = [0.01, 0.05, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 120.0];

#[derive(Default)]
pub struct Metrics {
    /// Responses in the batch.
    pub running: AtomicUsize,
    pub prompt_tokens: AtomicU64,
    pub completion_tokens: AtomicU64,
    /// Answers withheld.
    pub abstained: AtomicU64,
    first_token: Mutex<Histogram>,
    answered: Mutex<Answered>,
}

#[derive(Default)]
struct Answered {
    /// By path and status.
    requests: std::collections::BTreeMap<(String, u16), u64>,
    /// Requests whose client disconnected.
    cancelled: u64,
    /// Of the successful requests to the engine.
    seconds: Histogram,
}

/// Times by bucket, the last of which is unbounded, and their sum.
#[derive(Default)]
struct Histogram {
    counts: [u64; BUCKETS.len() + 1],
    sum: f64,
}

impl Histogram {
    fn add(&mut self, took: Duration) {
        let seconds = took.as_secs_f64();
        self.counts[BUCKETS.partition_point(|bound| *bound < seconds)] += 1;
        self.sum += seconds;
    }

    fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Suffixes of the metric's name, and their values.
    fn samples(&self) -> Vec<(String, f64)> {
        let mut count = 0;
        let bounds = BUCKETS.iter().map(f64::to_string).chain(["+Inf".to_owned()]);
        let bucket = |(bound, items): (String, &u64)| {
            count += items;
            (format!("_bucket{{le=\"{bound}\"}}"), count as f64)
        };
        let mut samples: Vec<_> = bounds.zip(&self.counts).map(bucket).collect();
        samples.extend([("_sum".to_owned(), self.sum), ("_count".to_owned(), self.count() as f64)]);
        samples
    }
}

impl Metrics {
    /// Counts a request; `complete`: the client received the whole answer.
    pub fn answered(&self, path: &str, status: u16, took: Duration, complete: bool) {
        let mut answered = lock(&self.answered);
        *answered.requests.entry((path.to_owned(), status)).or_default() += 1;
        answered.cancelled += u64::from(!complete);
        let by_engine = ["/v1/chat/completions", "/v1/completions", "/v1/score"].contains(&path);
        if by_engine && complete && status == 200 {
            answered.seconds.add(took);
        }
    }

    /// Counts a request's first generated token.
    pub fn first_token(&self, took: Duration) {
        lock(&self.first_token).add(took);
    }

    /// Seconds until a rejected client should retry: the mean latency.
    pub fn retry_after(&self) -> u64 {
        let seconds = &lock(&self.answered).seconds;
        (seconds.sum / seconds.count().max(1) as f64).ceil().clamp(1.0, 60.0) as u64
    }

    pub fn render(&self, queued: usize) -> String {
        let Answered { requests, cancelled, seconds } = &*lock(&self.answered);
        let mut text = String::new();
        let mut metric = |name: &str, kind: &str, help: &str, samples: &[(String, f64)]| {
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
            for (suffix, value) in samples {
                let _ = writeln!(text, "{name}{suffix} {value}");
            }
        };
        let one = |value: f64| [(String::new(), value)];
        metric("uqac_running", "gauge", "Responses being generated", &one(self.running.load(Relaxed) as f64));
        metric("uqac_queued", "gauge", "Requests waiting for a place in the batch", &one(queued as f64));
        metric("uqac_cancelled_total", "counter", "Requests whose client disconnected", &one(*cancelled as f64));
        let tokens = [("prompt", &self.prompt_tokens), ("completion", &self.completion_tokens)];
        let tokens = tokens.map(|(kind, count)| (format!("{{kind=\"{kind}\"}}"), count.load(Relaxed) as f64));
        metric("uqac_tokens_total", "counter", "Tokens processed by the model", &tokens);
        let labels = |path: &str, status: &u16| format!("{{path=\"{path}\",status=\"{status}\"}}");
        let requests = requests.iter().map(|((path, status), count)| (labels(path, status), *count as f64));
        metric("uqac_requests_total", "counter", "Requests by path and status", &requests.collect::<Vec<_>>());
        metric("uqac_abstained_total", "counter", "Answers withheld", &one(self.abstained.load(Relaxed) as f64));
        let first_token = lock(&self.first_token).samples();
        metric("uqac_first_token_seconds", "histogram", "Time to a request's first token", &first_token);
        metric("uqac_request_seconds", "histogram", "Time to a request's last byte", &seconds.samples());
        text
    }
}

/// Whatever happened to other holders: every update is complete.
pub fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_add_up() {
        let metrics = Metrics::default();
        for (seconds, status) in [(0.02, 200), (0.3, 200), (500.0, 200), (0.02, 400)] {
            metrics.answered("/v1/score", status, Duration::from_secs_f64(seconds), true);
        }
        metrics.answered("/v1/score", 200, Duration::ZERO, false);
        metrics.answered("/health", 200, Duration::ZERO, true);
        let text = metrics.render(4);
        for line in [
            "uqac_queued 4",
            "uqac_cancelled_total 1",
            "uqac_requests_total{path=\"/v1/score\",status=\"200\"} 4",
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
