//! `cargo run --release -p warren-bench --example client -- [--breakdown] [--alone] [--rounds N]
//! [--calls N] [--dir DIR] [--json]`: the benchmark without the command around it.

#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::process::ExitCode;

use warren_bench::client::{ClientOptions, run};

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    if let Some(code) = warren_runtime::dispatch(&arguments) {
        return code;
    }
    let mut options = ClientOptions::default();
    let mut json = false;
    let mut arguments = arguments.iter().filter_map(|argument| argument.to_str());
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().unwrap_or_default();
        match argument {
            "--breakdown" => options.breakdown = true,
            "--alone" => options.alone = true,
            "--json" => json = true,
            "--rounds" => options.rounds = value().parse().unwrap_or(options.rounds),
            "--calls" => options.calls = value().parse().unwrap_or(options.calls),
            "--dir" => options.directory = value().into(),
            _ => eprintln!("{argument} is ignored"),
        }
    }
    match run(&options) {
        Ok(report) if json => {
            println!("{}", serde_json::to_string_pretty(&report).unwrap_or_default());
            ExitCode::SUCCESS
        }
        Ok(report) => {
            print!("{report}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
