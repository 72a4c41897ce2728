//! `uqac download`.

use super::error::CliError;
use super::print;
use super::progress::Transfer;
use crate::model::hub::download::download;
use clap::Args;
use std::process::ExitCode;

/// Downloads a model from the Hugging Face hub into its cache, where --model NAME finds it; an interrupted download goes on
/// (in builds with the feature download)
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct DownloadArgs {
    /// The model's name on the hub, org/name or org/name@revision
    name: String,
    /// A branch, a tag or a commit [default: main]
    #[arg(long)]
    revision: Option<String>,
}

const EXAMPLES: &str = "\
Example:
  uqac download Qwen/Qwen2.5-0.5B-Instruct && uqac ask -m Qwen/Qwen2.5-0.5B-Instruct \"What is 17 * 23?\"

The model's folder is printed. Only what the engine reads is downloaded: configuration, tokenizer, chat template and safetensors.

Environment:
  HF_ENDPOINT   another hub than https://huggingface.co
  HF_TOKEN      for private and gated models [default: the one that `hf auth login` has stored]
  HF_HUB_CACHE  the cache [default: $HF_HOME/hub, else ~/.cache/huggingface/hub]
  HTTPS_PROXY   a proxy";

pub fn run(args: &DownloadArgs) -> Result<ExitCode, CliError> {
    let name = match &args.revision {
        Some(revision) => format!("{}@{revision}", args.name),
        None => args.name.clone(),
    };
    let mut transfer = Transfer::new("downloaded");
    let folder = download(&name, &mut |progress| {
        transfer.show(progress.file, progress.done, progress.total);
    })?;
    transfer.finish();
    print(&format!("{}\n", folder.display()))?;
    Ok(ExitCode::SUCCESS)
}
