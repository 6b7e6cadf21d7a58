fn main() -> std::process::ExitCode { sandbox::end_with_parent(); sandbox::cli::main(std::env::args_os().collect()) }
