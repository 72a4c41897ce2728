//! What a template may cost: every step is counted, and every byte that it makes, before it is made.

/// Steps of a template for a short conversation; published templates take a few hundred a message.
const STEPS: u64 = 5_000_000;
/// Bytes that a template may make in all, whether it keeps them or not, for a short conversation.
const BYTES: u64 = 48 << 20;
/// Per byte of the conversation on top: templates copy, strip, split and scan what they are given.
const STEPS_PER_BYTE: u64 = 4;
const BYTES_PER_BYTE: u64 = 64;
/// Bytes that cost as much time as one step.
const BYTES_A_STEP: usize = 64;

/// Why a template broke off.
#[derive(Debug)]
pub(crate) enum Fault {
    /// What Jinja2 or Python would raise.
    Error(String),
    /// The template's own refusal (`raise_exception`).
    Raised(String),
    /// It costs more than any template should.
    Limit(String),
}

impl Fault {
    pub fn error(message: impl Into<String>) -> Self {
        Self::Error(message.into())
    }

    pub fn limit(message: impl Into<String>) -> Self {
        Self::Limit(message.into())
    }
}

/// What is left. Since bytes are never given back, the memory that a template holds is bounded too.
pub(crate) struct Budget {
    steps: u64,
    bytes: u64,
}

impl Budget {
    /// For a conversation of `input_len` bytes.
    pub fn new(input_len: usize) -> Self {
        let input_len = input_len as u64;
        Self { steps: STEPS + STEPS_PER_BYTE * input_len, bytes: BYTES + BYTES_PER_BYTE * input_len }
    }

    /// Takes `n` steps.
    pub fn steps(&mut self, n: usize) -> Result<(), Fault> {
        self.steps = self.steps.checked_sub(n as u64).ok_or_else(|| Fault::limit("it takes too many steps"))?;
        Ok(())
    }

    /// Takes the time for looking at `n` bytes.
    pub fn scan(&mut self, n: usize) -> Result<(), Fault> {
        self.steps(1 + n / BYTES_A_STEP)
    }

    /// Takes `n` bytes, and the time for writing them.
    pub fn bytes(&mut self, n: usize) -> Result<(), Fault> {
        self.bytes = self.bytes.checked_sub(n as u64).ok_or_else(|| Fault::limit("it makes too much text or data"))?;
        self.scan(n)
    }
}
