//! What the program is for people at a terminal: a plugin of kubectl, and what shells complete.

use std::{
    ffi::{OsStr, OsString},
    path::Path,
    process::ExitCode,
};

use program::flags::{
    Table,
    complete::{self, Command, SHELLS},
};

/// By this name the program is `kubectl harvester`.
pub(crate) const PLUGIN: &str = "kubectl-harvester";
/// By this name it answers kubectl's own completion.
pub(crate) const COMPLETER: &str = "kubectl_complete-harvester";
const WRONG_ARGUMENTS: u8 = 2;

const SERVICE: Table = Table {
    program: "harvester-cloud-provider explain service NAMESPACE/NAME",
    ..diagnosis::explain::cli::FLAGS
};

const fn shell(program: &'static str) -> Table {
    Table { program, about: "Prints what this shell completes command lines with.", flags: &[] }
}

/// The commands for people, in the order in which they are shown.
pub(crate) const COMMANDS: &[Command] = &[
    Command { words: &["status"], table: diagnosis::status::cli::FLAGS },
    Command { words: &["explain", "service"], table: SERVICE },
    Command { words: &["doctor"], table: diagnosis::doctor::cli::FLAGS },
    Command { words: &["orphans"], table: diagnosis::orphans::cli::FLAGS },
    Command { words: &["cloud-config", "generate"], table: credentials::cli::GENERATE },
    Command { words: &["cloud-config", "inspect"], table: credentials::cli::INSPECT },
    Command { words: &["cloud-config", "rotate"], table: credentials::cli::ROTATE },
    Command { words: &["cloud-config", "serve"], table: credentials::serve::cli::FLAGS },
    Command { words: &["dashboard"], table: dashboard::cli::FLAGS },
    Command { words: &["completion", "bash"], table: shell("harvester-cloud-provider completion bash") },
    Command { words: &["completion", "zsh"], table: shell("harvester-cloud-provider completion zsh") },
    Command { words: &["completion", "fish"], table: shell("harvester-cloud-provider completion fish") },
];

/// What the plugin says where no command was named: in answer to `--help`, or because of a wrong word.
pub(crate) fn overview(word: &OsStr) -> ExitCode {
    let mut text =
        "Looks at a guest cluster and its Harvester.\n\nUsage: kubectl harvester COMMAND\n\n".to_owned();
    for command in COMMANDS {
        let about = command.table.about.split_inclusive(". ").next().unwrap_or_default().trim_end();
        text += &format!("  {:<22} {about}\n", command.words.join(" "));
    }
    text += "\nEvery command explains its flags with --help.\n";
    match word.to_string_lossy().as_ref() {
        "" | "help" | "-h" | "--help" => program::show(&text),
        "--version" => program::show(&format!("{PLUGIN} {}\n", env!("CARGO_PKG_VERSION"))),
        _ => is_no_command(word, "kubectl harvester", &text),
    }
}

/// What a word that is no part is answered with.
pub(crate) fn unknown(word: &OsStr, overview: &str) -> ExitCode {
    is_no_command(word, "harvester-cloud-provider", overview)
}

fn is_no_command(word: &OsStr, of: &str, overview: &str) -> ExitCode {
    let shown: String = word.to_string_lossy().chars().take(60).collect();
    program::complain(&format!("{shown:?} is no command of {of}\n\n{overview}"));
    ExitCode::from(WRONG_ARGUMENTS)
}

/// Answers a shell: `__complete WORD…`.
pub(crate) fn complete(args: Vec<OsString>) -> ExitCode {
    program::show(&complete::complete(COMMANDS, &program::words(args)).text())
}

/// `completion SHELL`, for the name by which the program was called.
pub(crate) fn completion(program: &OsStr, args: Vec<OsString>) -> ExitCode {
    let name = Path::new(program).file_name().unwrap_or_default().to_string_lossy().into_owned();
    let words = program::words(args);
    let script = match &words[..] {
        [shell] => complete::script(shell, &name),
        _ => None,
    };
    match script {
        Some(script) => program::show(&script),
        None if words.iter().any(|word| word == "--help" || word == "-h") => {
            program::show(&format!("Usage: {name} completion {}\n", SHELLS.join("|")))
        }
        None => {
            program::complain(&format!("say for which shell: {name} completion {}", SHELLS.join("|")));
            ExitCode::from(WRONG_ARGUMENTS)
        }
    }
}
