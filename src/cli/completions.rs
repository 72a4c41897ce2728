//! `uqac completions` and `uqac man`: what a package of the program brings besides it.

use super::error::CliError;
use super::print;
use clap::{Args, Command};
use clap_complete::Shell;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

/// Completions of this program for a shell, on standard output
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct CompletionsArgs {
    shell: Shell,
}

const EXAMPLES: &str = "\
Examples:
  uqac completions bash > ~/.local/share/bash-completion/completions/uqac
  uqac completions zsh > ~/.zfunc/_uqac
  uqac completions fish > ~/.config/fish/completions/uqac.fish";

pub fn completions(args: &CompletionsArgs, mut command: Command) -> Result<ExitCode, CliError> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "uqac", &mut script);
    print(&String::from_utf8_lossy(&script))?;
    Ok(ExitCode::SUCCESS)
}

/// The manual: of the program on standard output, or with a folder one page for every command
#[derive(Args)]
#[command(after_help = "Examples:\n  uqac man | man -l -\n  uqac man ~/.local/share/man/man1 && man uqac-ask")]
pub struct ManArgs {
    /// Where the pages are written, uqac.1, uqac-ask.1 ...
    #[arg(value_name = "FOLDER")]
    folder: Option<PathBuf>,
}

pub fn man(args: &ManArgs, command: Command) -> Result<ExitCode, CliError> {
    let Some(folder) = &args.folder else {
        let mut page = Vec::new();
        clap_mangen::Man::new(command).render(&mut page).map_err(CliError::Stdout)?;
        print(&String::from_utf8_lossy(&page))?;
        return Ok(ExitCode::SUCCESS);
    };
    let written = |source: io::Error| CliError::File { path: folder.clone(), source };
    std::fs::create_dir_all(folder).map_err(written)?;
    clap_mangen::generate_to(command, folder).map_err(written)?;
    Ok(ExitCode::SUCCESS)
}
