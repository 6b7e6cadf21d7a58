//! The command line: `doctor`.
//!
//! Exit codes: 0 nothing is red; 1 something is; 2 wrong arguments.

use std::{ffi::OsString, fmt::Write as _, path::PathBuf, process::ExitCode};

use cloud_config::{CloudConfig, Local};
use program::{
    failed,
    flags::{Flag, Table},
};
use serde_json::{Value, json};

use super::{CHECKS, Finding, Occasion, Verdict, decide, read, render};
use crate::{
    access::with_token_in_use,
    flags::{CLOUD_CONFIG, GUEST, OUTPUT, PROGRAM, is_json, refuse},
    screen::Colour,
    shell::shell_word,
};

/// The flags.
pub const FLAGS: Table = Table {
    program: "harvester-cloud-provider doctor",
    about: "Looks at both clusters and says in one line each what is in order, what is not, and what mends it. Stores \
            nothing.",
    flags: &[
        GUEST,
        CLOUD_CONFIG,
        Flag::value(
            "rancher-credential",
            "FILE",
            "kubeconfig of the cloud credential by which Rancher makes machines; without it that is not looked at",
        ),
        Flag::switch(
            "before-upgrade",
            "looks at what must be so before these programs replace the Go ones, too",
        ),
        Flag::switch("before-rollback", "looks at what must be so before the Go programs replace these, too"),
        OUTPUT,
        Flag::switch("list", "names every check and what it looks at, and asks nobody"),
    ],
};

/// Runs the program; `args` begins with its name.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args = program::words(args);
    if let Some(text) = program::asked_for(&FLAGS, env!("CARGO_PKG_VERSION"), &args) {
        return program::show(&text);
    }
    let mut reader = FLAGS.read(&args, |name| std::env::var(name).ok());
    let kubeconfig = reader.text("kubeconfig").map(PathBuf::from);
    let cloud_config = reader.text("cloud-config").map(PathBuf::from);
    let rancher = reader.text("rancher-credential").map(PathBuf::from);
    let replaced = [reader.is_on("before-upgrade"), reader.is_on("before-rollback")];
    let json = is_json(&mut reader);
    let is_list = reader.is_on("list");
    if let Err(faults) = reader.finish(()) {
        return refuse(&faults);
    }
    let occasion = match replaced {
        [false, false] => Occasion::Daily,
        [true, false] => Occasion::BeforeUpgrade,
        [false, true] => Occasion::BeforeRollback,
        [true, true] => {
            let fault = "--before-upgrade and --before-rollback exclude each other: give one of them";
            return refuse(&[fault.to_owned()]);
        }
    };
    if is_list {
        return program::show(&list(json));
    }
    let given = [("kubeconfig", &kubeconfig), ("cloud-config", &cloud_config)];
    let given =
        given.into_iter().filter_map(|(name, file)| Some((name, file.as_ref()?.display().to_string())));
    let clusters: String = given.map(|(name, file)| format!(" --{name} {}", shell_word(&file))).collect();
    let outcome = program::run_tool(|process| async move {
        let settings =
            cloud_config::Options::named(&format!("{PROGRAM}/{} doctor", env!("CARGO_PKG_VERSION")));
        let guest = cloud_config::local(&Local { kubeconfig, master: None }, &settings)
            .map_err(|error| error.to_string());
        let config = cloud_config::find(cloud_config.as_deref()).and_then(|file| CloudConfig::read(&file));
        let now = process.clock.now();
        let read = async {
            let opened = || guest.as_ref().map_err(String::clone);
            let used = with_token_in_use(config, opened(), &settings).await;
            read::read(opened(), used.as_ref().map_err(ToString::to_string), &settings, now).await
        };
        let mut facts = program::progress("reading both clusters", Box::pin(read)).await;
        if let Some(file) = rancher {
            facts.rancher = Some(match CloudConfig::read(&file) {
                Ok(credential) => read::read_rancher(&credential, &settings).await,
                Err(error) => Err(error.to_string()),
            });
        }
        decide(&facts, occasion)
    });
    match outcome {
        Ok(mut findings) => {
            name_clusters(&mut findings, &clusters);
            show(&findings, json)
        }
        Err(error) => failed(&format!("start the runtime: {error}")),
    }
}

/// A command of ours in a next step is to look at the clusters that this one was given; `clusters`: its flags for them.
fn name_clusters(findings: &mut [Finding], clusters: &str) {
    for mend in findings.iter_mut().filter_map(|finding| finding.mend.as_mut()) {
        for command in ["explain service", "orphans"] {
            let command = format!("`{PROGRAM} {command} ");
            *mend = mend.replace(&command, &format!("{}{clusters} ", command.trim_end()));
        }
    }
}

fn show(findings: &[Finding], json: bool) -> ExitCode {
    let text = if json {
        match serde_json::to_string_pretty(findings) {
            Ok(text) => text + "\n",
            Err(error) => return failed(&error.to_string()),
        }
    } else {
        render(findings, Colour::of_stdout())
    };
    let shown = program::show(&text);
    if findings.iter().any(|finding| finding.verdict == Verdict::Red) { ExitCode::FAILURE } else { shown }
}

fn list(json: bool) -> String {
    if json {
        let all = CHECKS.iter().map(|check| json!({"id": check.id, "about": check.about}));
        return format!("{:#}\n", Value::from_iter(all));
    }
    let width = CHECKS.iter().map(|check| check.id.len()).max().unwrap_or_default();
    CHECKS.iter().fold(String::new(), |mut text, check| {
        writeln!(text, "{:<width$}  {}", check.id, check.about).expect("a String takes any text");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_in_a_next_step_names_the_kubeconfigs_that_were_given() {
        let told = |mend: &str| {
            let (id, verdict, mend) = ("leftovers", Verdict::Red, Some(mend.to_owned()));
            let mut findings = [Finding { id, verdict, sentence: String::new(), mend, because: None }];
            name_clusters(&mut findings, " --kubeconfig guest");
            findings[0].mend.clone().unwrap()
        };
        let orphans = told("`harvester-cloud-provider orphans --delete` asks");
        assert_eq!(orphans, "`harvester-cloud-provider orphans --kubeconfig guest --delete` asks");
        let explain = told("`harvester-cloud-provider explain service shop/web` says why");
        assert_eq!(
            explain,
            "`harvester-cloud-provider explain service --kubeconfig guest shop/web` says why"
        );
        let inspect = "`harvester-cloud-provider cloud-config inspect cloud-config` says it";
        assert_eq!(told(inspect), inspect);
    }
}
