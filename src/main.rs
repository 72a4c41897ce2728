//! The `uqac` command: a confidence for the final answer of a reasoning language model.

fn main() -> std::process::ExitCode {
    uqac::main()
}
