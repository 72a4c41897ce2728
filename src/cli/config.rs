//! `--config FILE`: options from a TOML file, by their long names. They join the command line, so that an option is
//! declared once, and its values are checked as those of a flag.

use super::error::CliError;
use crate::files;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, Command};
use serde_json::{Map, Value};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The command line with the options of the file that its `--config` names, where it has one; flags beat the file.
pub fn expanded(command: &Command, arguments: Vec<OsString>) -> Result<Vec<OsString>, CliError> {
    // what is wrong with the command line itself is for its parser to say
    let Ok(matches) = command.clone().try_get_matches_from(&arguments) else { return Ok(arguments) };
    let Some((name, flags)) = matches.subcommand() else { return Ok(arguments) };
    let Ok(Some(path)) = flags.try_get_one::<PathBuf>("config") else { return Ok(arguments) };
    let wrong = |why: String| CliError::Config { path: path.clone(), why };
    let known: Vec<&Arg> = command.find_subcommand(name).into_iter().flat_map(Command::get_arguments).collect();
    // the program, options that stand before the subcommand, and the subcommand
    let start = arguments.iter().position(|argument| argument == name).map_or(arguments.len(), |at| at + 1);
    let mut all = arguments[..start].to_vec();
    for (key, value) in read(path)? {
        let option = known.iter().find(|option| option.get_long() == Some(&key) && key != "config");
        let option = option.ok_or_else(|| wrong(format!("unknown option {key}; valid names: {}", names(&known))))?;
        if flags.value_source(option.get_id().as_str()) != Some(ValueSource::CommandLine) {
            let expected = |what| wrong(format!("{key}: expected {what}, found {value}"));
            all.extend(flag(option, &key, &value).map_err(expected)?);
        }
    }
    all.extend_from_slice(&arguments[start..]);
    match command.clone().try_get_matches_from(&all) {
        Ok(_) => Ok(all),
        Err(error) => {
            let text = error.to_string();
            let why = text.split("\n\n").next().unwrap_or(&text);
            Err(wrong(why.trim_start_matches("error: ").to_owned()))
        }
    }
}

fn read(path: &Path) -> Result<Map<String, Value>, CliError> {
    /// Bytes: more than any command line has.
    const MAX: u64 = 1 << 20;
    let text = files::read_to_string(path, MAX).map_err(|source| CliError::File { path: path.to_owned(), source })?;
    toml::from_str(&text).map_err(|error| CliError::Config { path: path.to_owned(), why: error.to_string() })
}

fn names(known: &[&Arg]) -> String {
    known.iter().filter_map(|option| option.get_long()).filter(|name| *name != "config").collect::<Vec<_>>().join(", ")
}

/// An option of the file as it is written on the command line; or what its value should have been.
fn flag(option: &Arg, key: &str, value: &Value) -> Result<Vec<OsString>, &'static str> {
    if matches!(option.get_action(), ArgAction::SetTrue) {
        let set = value.as_bool().ok_or("true or false")?;
        return Ok(if set { vec![format!("--{key}").into()] } else { Vec::new() });
    }
    let written = |value: &Value| match value {
        Value::String(text) => Ok(format!("--{key}={text}").into()),
        Value::Number(_) | Value::Bool(_) => Ok(format!("--{key}={value}").into()),
        _ => Err("a text, a number, true, false, or a list of them"),
    };
    match value {
        Value::Array(values) => values.iter().map(written).collect(),
        value => Ok(vec![written(value)?]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::value_parser;

    fn command() -> Command {
        let option = |name: &'static str| Arg::new(name).long(name);
        Command::new("uqac").subcommand(Command::new("eval").args([
            option("config").value_parser(value_parser!(PathBuf)),
            option("max-tokens").value_parser(value_parser!(usize)).default_value("7"),
            option("sweep").num_args(1..).action(ArgAction::Append),
            option("tasks").value_delimiter(',').action(ArgAction::Append),
            option("json").action(ArgAction::SetTrue),
            option("grid").action(ArgAction::SetTrue),
        ]))
    }

    fn joined(file: &str, flags: &[&str]) -> Result<String, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.toml");
        std::fs::write(&path, file).unwrap();
        let start = ["uqac", "eval", "--config"].map(OsString::from);
        let arguments = start.into_iter().chain([path.into()]).chain(flags.iter().map(OsString::from));
        let all = expanded(&command(), arguments.collect()).map_err(|error| error.to_string())?;
        let text = |argument: &OsString| argument.to_str().unwrap().to_owned();
        let rest = all.iter().map(text).filter(|argument| argument != "--config" && !argument.ends_with("run.toml"));
        Ok(rest.collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn flags_beat_the_file() {
        let file =
            "max-tokens = 5\ntasks = [\"a\", \"b\"]\nsweep = [\"k=8,16\", \"theta=0.5\"]\njson = true\ngrid = false\n";
        let all = "uqac eval --json --max-tokens=5 --sweep=k=8,16 --sweep=theta=0.5 --tasks=a --tasks=b";
        assert_eq!(joined(file, &[]).unwrap(), all);
        let beaten = "uqac eval --json --sweep=k=8,16 --sweep=theta=0.5 --max-tokens 9 --tasks c";
        assert_eq!(joined(file, &["--max-tokens", "9", "--tasks", "c"]).unwrap(), beaten);
    }

    #[test]
    fn what_is_wrong_with_the_file_is_explained() {
        for (file, says) in [
            ("max_tokens = 5", "unknown option max_tokens; valid names: max-tokens"),
            ("config = \"x\"", "unknown option config"),
            ("max-tokens = \"x\"", "invalid value 'x' for '--max-tokens"),
            ("max-tokens = [1, 2]", "cannot be used multiple times"),
            ("json = 1", "json: expected true or false, found 1"),
            ("tasks = [[1]]", "tasks: expected a text, a number"),
            ("tasks", "line 1"),
        ] {
            let error = joined(file, &[]).unwrap_err();
            assert!(error.contains("run.toml: ") && error.contains(says), "{file}: {error}");
        }
    }

    #[test]
    fn without_a_file_nothing_changes() {
        let plain = |arguments: &[&str]| {
            let arguments: Vec<OsString> = arguments.iter().map(OsString::from).collect();
            assert_eq!(expanded(&command(), arguments.clone()).unwrap(), arguments);
        };
        plain(&["uqac", "eval", "--json"]);
        plain(&["uqac", "eval", "--nonsense"]);
        plain(&["uqac"]);
    }
}
