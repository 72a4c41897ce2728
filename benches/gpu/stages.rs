//! The measurements, each next to its floor. Runs under comparison alternate within a round.

use crate::measure::{Bench, StageError};
use crate::report::{Row, median};
use crate::roofline;

/// One figure in percent of another.
fn percent(value: f64, of: f64) -> f64 {
    100.0 * value / of
}

/// Seconds and rates of one round of [`decode`].
struct Round {
    bandwidth: f64,
    plain: f64,
    traced: f64,
}

/// Larger batches take tens of seconds per round, so they get one round and no memory figure.
const MANY: usize = 64;

/// Decode speed of `batch` sequences, plain and with UQAC's trace, and the trace's cost in time and memory.
pub fn decode(bench: &mut Bench, batch: usize) -> Result<Vec<Row>, StageError> {
    let (prompt, response) = (bench.sizes.prompt, bench.sizes.response);
    let rounds = if batch > MANY { 1 } else { bench.sizes.rounds };
    let rounds = paired_rounds(bench, batch, prompt, response, rounds)?;
    let bandwidth = bench.read_floor(median(&rounds.iter().map(|r| r.bandwidth).collect::<Vec<_>>()));
    let bytes = roofline::step_bytes(&bench.engine, batch, prompt, response - 1);
    let counts = bench.counts;
    // decode shares of the floor: 255 tokens/s of the 8B shape and 1,250 of the 1B shape on an H200
    let share = match (batch, bench.shape) {
        (1, "llama-3.1-8b") => 0.82,
        (1, _) => 0.66,
        _ => 0.75,
    };
    let speed = |what: &str, seconds: fn(&Round) -> f64| {
        let rates: Vec<f64> = rounds.iter().map(|r| batch as f64 / seconds(r)).collect();
        let because = format!(
            "{:.1} MB a step (weights once, {batch} × its KV cache) at {:.0} GB/s",
            bytes / 1e6,
            bandwidth / 1e9
        );
        Row::new(bench.shape, format!("decode, batch {batch}, {what}"), "tokens/s", &rates)
            .floor(Some(batch as f64 * bandwidth / bytes), because)
            .fact("GB/s", bytes / median(&rounds.iter().map(seconds).collect::<Vec<_>>()) / 1e9)
            .share_target(share, counts)
    };
    let mut rows = vec![speed("plain", |r| r.plain), speed("with UQAC's trace", |r| r.traced)];
    let extra = percent(batch as f64 * bench.trace_bytes(), bytes);
    rows.push(overhead(bench, &rounds, &format!("UQAC on against off, batch {batch}, decode time"), extra));
    if batch <= MANY {
        rows.push(trace_memory(bench, batch)?);
    }
    Ok(rows)
}

/// Rounds of alternating plain and traced decoding, after warming up both.
fn paired_rounds(
    bench: &mut Bench,
    batch: usize,
    prompt: usize,
    response: usize,
    count: usize,
) -> Result<Vec<Round>, StageError> {
    let prompts = bench.prompts(batch, prompt);
    let warm = bench.prompts(batch, prompt.min(bench.sizes.prompt));
    for traced in [false, true] {
        bench.generate(&warm, response.min(8), traced)?;
    }
    let mut rounds = Vec::new();
    for i in 0..count {
        let bandwidth = bench.machine.bandwidth()?;
        let step = |traced| Ok::<f64, StageError>(bench.generate(&prompts, response, traced)?.step);
        let [plain, traced] = alternate(i, step)?;
        rounds.push(Round { bandwidth, plain, traced });
    }
    Ok(rounds)
}

/// Runs plain (`false`) and traced (`true`) work, in an order that alternates between even and odd rounds: [plain,
/// traced].
fn alternate<T, E>(round: usize, mut run: impl FnMut(bool) -> Result<T, E>) -> Result<[T; 2], E> {
    if round.is_multiple_of(2) {
        return Ok([run(false)?, run(true)?]);
    }
    let traced = run(true)?;
    Ok([run(false)?, traced])
}

/// Decode time added by the trace, in percent; `floor`: the trace's bytes in percent of the step's.
fn overhead(bench: &Bench, rounds: &[Round], what: &str, floor: f64) -> Row {
    let added: Vec<f64> = rounds.iter().map(|r| percent(r.traced - r.plain, r.plain)).collect();
    Row::new(bench.shape, what, "%", &added).floor(Some(floor), "the trace's bytes as a share of the step's").target(
        "≤ 1 %",
        bench.counts,
        |row| row.median <= 1.0,
    )
}

/// Peak memory added by the trace.
fn trace_memory(bench: &mut Bench, batch: usize) -> Result<Row, StageError> {
    let prompts = bench.prompts(batch, bench.sizes.prompt);
    let mut peak = |traced| bench.peak(|bench| bench.generate(&prompts, bench.sizes.response, traced));
    // plain first: memory retained by an allocator then counts against the trace
    let ((_, plain), (_, traced)) = (peak(false)?, peak(true)?);
    let positions = (batch * (bench.sizes.response + 1)) as f64;
    let floor = percent(positions * bench.trace_bytes(), plain);
    let what = format!("UQAC on against off, batch {batch}, peak memory");
    Ok(Row::new(bench.shape, what, "%", &[percent(traced - plain, plain)])
        .floor(Some(floor), "the trace's bytes for every response token")
        .fact("plain MB", plain / 1e6)
        .fact("peak MB", traced / 1e6)
        .target("≤ 0.2 %", bench.counts && batch == 1, |row| row.median <= 0.2))
}

/// Prefill speed.
pub fn prefill(bench: &mut Bench) -> Result<Vec<Row>, StageError> {
    let tokens = bench.sizes.prefill;
    bench.need_context(tokens + 1)?;
    let prompts = bench.prompts(1, tokens);
    bench.generate(&prompts, 1, false)?;
    let times = (0..bench.sizes.rounds)
        .map(|_| Ok(bench.generate(&prompts, 1, false)?.first))
        .collect::<Result<Vec<f64>, StageError>>()?;
    let operations = roofline::operations(&bench.engine, 0, tokens, 1);
    let rates: Vec<f64> = times.iter().map(|seconds| tokens as f64 / seconds).collect();
    let because = format!(
        "{:.2} TFLOP, each product counted once, at the measured {:.0} TFLOP/s",
        operations / 1e12,
        bench.matrix_rate.unwrap_or(f64::NAN) / 1e12
    );
    let row = Row::new(bench.shape, format!("prefill, {tokens} tokens"), "tokens/s", &rates)
        .floor(bench.matrix_rate.map(|rate| tokens as f64 * rate / operations), because)
        .fact("TFLOP/s", operations / median(&times) / 1e12);
    let counts = bench.counts && bench.matrix_rate.is_some();
    Ok(vec![row.share_target(0.6, counts)])
}

/// Time and memory of a traced pass over a whole sequence and its attention chain; other implementations need an
/// attention tensor of layers × heads × T × T.
pub fn length(bench: &mut Bench, tokens: usize) -> Result<Vec<Row>, StageError> {
    bench.need_context(tokens)?;
    let ids = bench.prompts(1, tokens).remove(0);
    let prompt_len = tokens.min(bench.sizes.prompt) / 2;
    let ((seconds, links, held), peak) = bench.peak(|bench| {
        let start = std::time::Instant::now();
        let (links, held) = crate::answered::chain_of(&mut bench.engine, &ids, prompt_len)?;
        Ok((start.elapsed().as_secs_f64(), links, held))
    })?;
    let weights = bench.engine.weights().byte_len() as f64;
    let needed = weights + roofline::cache_bytes(&bench.engine, tokens);
    let trace = (tokens - prompt_len + 1) as f64 * bench.trace_bytes();
    let operations = roofline::operations(&bench.engine, 0, tokens, tokens - prompt_len);
    let time = Row::new(bench.shape, format!("traced pass and chain, {tokens} tokens"), "s", &[seconds])
        .floor(bench.matrix_rate.map(|rate| operations / rate), "operations at the matrix rate")
        .fact("links", links as f64);
    let long = tokens == bench.sizes.long;
    let memory = Row::new(bench.shape, format!("peak memory, {tokens} tokens"), "MB", &[peak / 1e6])
        .floor(Some((needed + trace) / 1e6), "weights + KV cache + trace")
        .fact("weights MB", weights / 1e6)
        .fact("sequence MB", held as f64 / 1e6)
        .fact("% above weights + KV", percent(peak - needed, needed));
    let memory =
        if long { memory.target("≤ weights + KV + 3 %", bench.counts, |_| peak <= 1.03 * needed) } else { memory };
    Ok(vec![time, memory])
}

/// The trace's cost per step at the end of a long sequence.
pub fn deep(bench: &mut Bench) -> Result<Vec<Row>, StageError> {
    let (long, steps) = (bench.sizes.long, bench.sizes.long_steps);
    bench.need_context(long)?;
    let prompt = long - steps;
    let rounds = paired_rounds(bench, 1, prompt, steps, bench.sizes.rounds.min(3))?;
    let bandwidth = bench.read_floor(median(&rounds.iter().map(|r| r.bandwidth).collect::<Vec<_>>()));
    let bytes = roofline::step_bytes(&bench.engine, 1, prompt, steps - 1);
    let rates: Vec<f64> = rounds.iter().map(|r| 1.0 / r.traced).collect();
    let because = format!("{:.1} MB a step at {:.0} GB/s", bytes / 1e6, bandwidth / 1e9);
    let what = format!("decode at {long} tokens, with UQAC's trace");
    let speed = Row::new(bench.shape, what, "tokens/s", &rates)
        .floor(Some(bandwidth / bytes), because)
        .share_target(0.85, bench.counts);
    let extra = percent(bench.trace_bytes(), bytes);
    Ok(vec![speed, overhead(bench, &rounds, &format!("UQAC on against off at {long} tokens, decode time"), extra)])
}

/// A whole long response, token by token.
pub fn whole(bench: &mut Bench) -> Result<Vec<Row>, StageError> {
    let tokens = bench.sizes.long - bench.sizes.prompt;
    bench.need_context(bench.sizes.long)?;
    let copies = bench.machine.bandwidth()?;
    let bandwidth = bench.read_floor(copies);
    let bytes = roofline::step_bytes(&bench.engine, 1, bench.sizes.prompt, tokens - 1);
    // generous: assumes half the bandwidth
    bench.deadline.need(2.0 * tokens as f64 * bytes / bandwidth)?;
    let prompts = bench.prompts(1, bench.sizes.prompt);
    let (timing, peak) = bench.peak(|bench| bench.generate(&prompts, tokens, true))?;
    let needed = bench.engine.weights().byte_len() as f64 + roofline::cache_bytes(&bench.engine, bench.sizes.long);
    let because = format!("{:.1} MB a step on average at {:.0} GB/s", bytes / 1e6, bandwidth / 1e9);
    let speed = Row::new(bench.shape, format!("response of {tokens} tokens, traced"), "tokens/s", &[1.0 / timing.step])
        .floor(Some(bandwidth / bytes), because);
    let memory = Row::new(bench.shape, format!("response of {tokens} tokens, peak memory"), "MB", &[peak / 1e6])
        .floor(Some(needed / 1e6), "weights + KV cache")
        .target("≤ weights + KV + 3 %", bench.counts, |_| peak <= 1.03 * needed);
    Ok(vec![speed, memory])
}

/// Traced responses to `batch` prompts, after a warm-up; returns the seconds per decode step.
pub fn traced_steps(bench: &mut Bench, batch: usize) -> Result<f64, StageError> {
    let prompts = bench.prompts(batch, bench.sizes.prompt);
    bench.generate(&prompts, bench.sizes.response.min(8), true)?;
    Ok(bench.generate(&prompts, bench.sizes.response, true)?.step)
}

/// A prefill and a few traced decode steps.
pub fn steps(bench: &mut Bench) -> Result<Vec<Row>, StageError> {
    let prompts = bench.prompts(1, bench.sizes.prompt);
    bench.generate(&prompts, bench.sizes.response.min(4), true)?;
    Ok(Vec::new())
}
