//! `uqac serve`: an OpenAI-compatible server whose answers carry their confidences.

use super::assess::{ReadingArgs, examples_and_rules};
use super::error::CliError;
use super::say::{Level, says};
use super::{ModelArgs, count, model_name, note, signals};
use crate::eval::assess::calibration;
use crate::serve::{Settings, serve};
use clap::Args;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::process::ExitCode;

/// Answer requests of OpenAI's API, with the confidence of every answer
///
/// /v1/chat/completions, /v1/completions, /v1/models, and /v1/score for responses that exist; /health and /metrics; a page at /.
/// Ctrl-C ends it once everything that was accepted is answered; a second one at once.
#[derive(Args)]
#[command(after_help = examples_and_rules(EXAMPLES))]
pub struct ServeArgs {
    /// Address to listen on; anything but this machine's own should have an --api-key
    #[arg(long, value_name = "ADDRESS", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    host: IpAddr,
    /// 0: any that is free
    #[arg(long, value_name = "N", default_value_t = 8080)]
    port: u16,
    /// What clients must send as their key [default: $UQAC_API_KEY, which other users of the machine cannot see]
    #[arg(long, value_name = "KEY")]
    api_key: Option<String>,
    /// Responses that are generated at once
    #[arg(long, value_name = "N", default_value = "16", value_parser = count(1..=1024))]
    max_batch: usize,
    /// Requests that may wait for a place; more are refused with status 429
    #[arg(long, value_name = "N", default_value = "256", value_parser = count(1..=65536))]
    queue: usize,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    reading: ReadingArgs,
}

/// Bytes of a request's body.
const MAX_BODY: usize = 8 << 20;

const EXAMPLES: &str = "\
  uqac serve -m Qwen/Qwen2.5-0.5B-Instruct
  curl localhost:8080/v1/chat/completions -H 'content-type: application/json' \\
    -d '{\"messages\": [{\"role\": \"user\", \"content\": \"What is 17 + 25?\"}], \"temperature\": 0}'
  UQAC_API_KEY=… uqac serve --host 0.0.0.0 --port 80 --max-batch 64";

pub fn run(args: &ServeArgs) -> Result<ExitCode, CliError> {
    let parameters = args.reading.parameters()?;
    let address = SocketAddr::new(args.host, args.port);
    let listener = TcpListener::bind(address).map_err(|source| CliError::Listen { address, source })?;
    let address = listener.local_addr().unwrap_or(address);
    let (named, folder) = args.model.or_embedded()?;
    let mut engine = args.model.run.load(&folder)?;
    let calibration = calibration(&folder, &engine, None, &parameters.reading)?;
    let api_key = args.api_key.clone().or_else(|| std::env::var("UQAC_API_KEY").ok()).filter(|key| !key.is_empty());
    if !address.ip().is_loopback() && api_key.is_none() {
        note("note: anybody who reaches this address can use it: there is no --api-key");
    }
    let settings = Settings {
        model: model_name(&named, &folder),
        api_key,
        max_batch: args.max_batch,
        max_queue: args.queue,
        max_body: MAX_BODY,
        log: says(Level::Normal),
    };
    note(&format!("{} on {}: http://{address}", settings.model, engine.device()));
    signals::stop_on_request();
    serve(&mut engine, (&parameters, calibration.as_ref()), listener, settings, signals::stop_requested)?;
    note("stopped");
    Ok(ExitCode::SUCCESS)
}
