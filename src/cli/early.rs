//! The flags that end a response early.

use super::count;
use crate::engine::running::{MAX_WINDOW, Measure, RunningConfidence, WINDOW};
use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

/// Where a response ends for want of confidence.
#[derive(Args)]
#[command(next_help_heading = "Stopping early")]
pub struct EarlyArgs {
    /// End a response with the token after which its running confidence is below C
    #[arg(long, value_name = "C", value_parser = finite, allow_negative_numbers = true)]
    stop_below: Option<f64>,
    /// The running confidence: the mean over the last tokens of
    #[arg(long, value_parser = measure(), default_value = "group", requires = "stop_below")]
    running: Measure,
    /// Tokens that the running confidence is the mean of; before there are as many, no response ends by it
    #[arg(long, value_name = "N", value_parser = count(1..=MAX_WINDOW as u64), default_value_t = WINDOW, requires = "stop_below")]
    window: usize,
}

impl EarlyArgs {
    /// `None` where no response is to end early.
    pub fn running(&self) -> Option<RunningConfidence> {
        let EarlyArgs { stop_below, running: measure, window } = *self;
        stop_below.map(|_| RunningConfidence { measure, window, stop_below })
    }
}

fn finite(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|value: &f64| value.is_finite()).ok_or_else(|| "expected a number".to_owned())
}

fn measure() -> impl TypedValueParser<Value = Measure> {
    let about = |measure: Measure| match measure {
        Measure::Group => "minus the mean log-probability of the top 20 tokens, as DeepConf has it",
        Measure::Entropy => "minus the prediction's entropy in nats",
    };
    let names = PossibleValuesParser::new(Measure::ALL.map(|m| PossibleValue::new(m.name()).help(about(m))));
    names.try_map(|name| Measure::ALL.into_iter().find(|m| m.name() == name).ok_or("not one of the possible values"))
}
