//! `docs/flags.md` is made from the tables that parse the flags. `UPDATE_DOCS=1 cargo test --test flags` writes it anew.

use std::{env, fs, path::Path};

const HEAD: &str = "\
# Flags

<!-- made by `UPDATE_DOCS=1 cargo test --test flags` from the tables that the programs parse with -->

All programs take flags as Go programs do: `--name=value`, `--name value`, `-name`, `_` for `-`, and repetition. A value comes
from the command line, else from the environment variable, else from the default; an empty variable counts as none. Durations
have units: `45s`, `1m30s`, `1.5h`. The flags of the node driver are in `docs/node-driver.md` and in `--help`.
";

#[test]
fn the_document_of_flags_is_what_the_programs_parse() {
    let tables = [
        cloud_controller_manager::cli::FLAGS,
        load_balancer::cli::FLAGS,
        load_balancer_webhook::cli::FLAGS,
        csi_driver::cli::FLAGS,
        credentials::cli::GENERATE,
        credentials::cli::INSPECT,
        credentials::cli::ROTATE,
        credentials::serve::cli::FLAGS,
        diagnosis::explain::cli::FLAGS,
        diagnosis::doctor::cli::FLAGS,
        diagnosis::orphans::cli::FLAGS,
        diagnosis::status::cli::FLAGS,
        dashboard::cli::FLAGS,
    ];
    let sections = tables.iter().map(|table| format!("\n{}", table.markdown()));
    let text = HEAD.to_owned() + &sections.collect::<String>();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/flags.md");
    if env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&file, &text).expect("docs can be written");
    }
    let found = fs::read_to_string(&file).unwrap_or_default();
    assert!(found == text, "docs/flags.md is out of date: run UPDATE_DOCS=1 cargo test --test flags");
}
