//! `uqac serve`: an OpenAI-compatible server that adds a confidence to each answer.

use super::options::{AssessArgs, examples_and_rules, note_samples, note_settings};
use super::*;
use crate::serve::{Settings, serve};
use crate::{eval::assess::Request, eval::assess::calibration, uq::scores::needs_ensemble};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};

/// Serve OpenAI's API with a confidence for each answer
///
/// Endpoints: /v1/chat/completions, /v1/completions, /v1/models, /v1/score for existing responses, /health, /metrics, and a page
/// at /. Ctrl-C stops the server after the accepted requests; a second one stops it at once.
#[derive(Args)]
#[command(after_help = EXAMPLES, after_long_help = examples_and_rules(EXAMPLES))]
pub struct ServeArgs {
    /// Address to listen on; beyond loopback, set --api-key
    #[arg(long, value_name = "ADDRESS", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    host: IpAddr,
    /// Port to listen on; 0: any free port
    #[arg(long, value_name = "N", default_value_t = 8080, value_parser = units::whole::<u16>(0..=u16::MAX.into()))]
    port: u16,
    #[command(flatten)]
    settings: Settings,
    #[command(flatten)]
    assess: AssessArgs,
}

const EXAMPLES: &str = "\
Examples:
  uqac serve -m Qwen/Qwen2.5-0.5B-Instruct
  curl localhost:8080/v1/chat/completions -H 'content-type: application/json' \\
    -d '{\"messages\": [{\"role\": \"user\", \"content\": \"What is 17 + 25?\"}], \"temperature\": 0}'
  UQAC_API_KEY=… uqac serve --host 0.0.0.0 --port 80 --max-batch 64";

pub fn run(args: &ServeArgs) -> Result<(), Failure> {
    let AssessArgs { model, method, abstain } = &args.assess;
    signals::on_interrupt("stopped before the model was loaded");
    let mut parameters = method.parameters()?;
    let address = SocketAddr::new(args.host, args.port);
    let listener = TcpListener::bind(address).map_err(|source| CliError::Listen { address, source })?;
    let address = listener.local_addr().unwrap_or(address);
    let (named, folder) = model.or_embedded()?;
    let mut engine = model.load(&folder)?;
    note_settings(&engine, 1.0);
    let calibration = calibration(&folder, &engine, None, &parameters.reading, *abstain)?;
    note_samples(calibration.as_ref(), 0, "in requests, uqac.samples:");
    let needed = || calibration.as_ref().is_some_and(|found| needs_ensemble(&found.score));
    parameters.ensemble = method.ensemble.unwrap_or_else(needed);
    let settings = args.settings.clone();
    let api_key = settings.api_key.or_else(|| std::env::var("UQAC_API_KEY").ok()).filter(|key| !key.is_empty());
    if !address.ip().is_loopback() && api_key.is_none() {
        note("note: no --api-key: anyone who can reach this address can use the server");
    }
    let (model, log) = (model_name(&named, &folder), says(Level::Normal));
    let settings = Settings { model, api_key, log, ..settings };
    signals::stop_on_request(); // before anybody can see that the server runs
    note(&format!("{} on {}: http://{address}", settings.model, engine.device()));
    let request = Request { calibration: calibration.as_ref(), abstain: *abstain, ..Request::of(&parameters) };
    let served = serve(&mut engine, request, listener, settings, signals::stop_requested);
    served.map_err(|source| CliError::Listen { address, source })?;
    note("stopped");
    Ok(())
}
