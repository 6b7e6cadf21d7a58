//! `docs/flags.md` is made from the tables that parse the flags. `UPDATE_DOCS=1 cargo test --test flags` writes it anew.

use std::{env, fs, path::Path};

use node_driver::flags::{ALL, Flag, FlagType};

const HEAD: &str = "\
# Flags

<!-- made by `UPDATE_DOCS=1 cargo test --test flags` from the tables that the programs parse with -->

All programs take flags as Go programs do: `--name=value`, `--name value`, `-name`, `_` for `-`, and repetition. A value comes
from the command line, else from the environment variable, else from the default; an empty variable counts as none. Durations
have units: `45s`, `1m30s`, `1.5h`. Those of the node driver are [at the end](#docker-machine-driver-harvester).
";

const NODE_DRIVER: &str = "
## `docker-machine-driver-harvester`

Flags of `rancher-machine create --driver harvester`, and of the driver's own commands `check` and `render`. In Rancher they are the
fields of a machine pool's HarvesterConfig, without `harvester-` and in camel case: `harvester-cpu-count` is `cpuCount`. An empty
default is none.

| Flag | Environment | Default | Meaning |
|---|---|---|---|
";

fn of_node_driver(flag: &Flag) -> String {
    let default = match flag.flag_type {
        FlagType::Text("") => String::new(),
        FlagType::Text(default) => format!("`{default}`"),
        FlagType::Number(default) => format!("`{default}`"),
        FlagType::Switch => "off".to_owned(),
    };
    let meaning = match flag.usage.split_once(": {") {
        Some((what, json)) => format!("{what}: `{{{json}`"),
        None => flag.usage.to_owned(),
    };
    format!("| `--{}` | `{}` | {default} | {meaning} |\n", flag.name, flag.variable())
}

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
    let of_node_driver: String = ALL.iter().map(of_node_driver).collect();
    let text = HEAD.to_owned() + &sections.collect::<String>() + NODE_DRIVER + &of_node_driver;
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/flags.md");
    if env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&file, &text).expect("docs can be written");
    }
    let found = fs::read_to_string(&file).unwrap_or_default();
    assert!(found == text, "docs/flags.md is out of date: run UPDATE_DOCS=1 cargo test --test flags");
}
