//! The driver alone, in a file of the name that Rancher loads.

use std::process::ExitCode;

fn main() -> ExitCode {
    node_driver::cli::main(std::env::args_os())
}
