//! The command line: `orphans`.
//!
//! Exit codes: 0 it is shown, and what was chosen is deleted; 1 a cluster, a list or a file is of no use, or something
//! could not be deleted; 2 wrong arguments.

use std::{
    ffi::OsString,
    fs,
    io::{self, BufRead as _, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::PathBuf,
    process::ExitCode,
};

use cloud_config::{CloudConfig, Connection, Local, Options};
use credential_rotation::InUse;
use kube::Client;
use program::{
    Clock, complain, failed,
    flags::{Flag, Table},
};

use super::{Deletion, Orphan, Report, decide, delete, facts, render};
use crate::{
    access::{read_only, with_token_in_use},
    flags::{CLOUD_CONFIG, GUEST, NAMESPACE, OUTPUT, PROGRAM, is_json, refuse},
    screen::cut,
};

/// The flags.
pub const FLAGS: Table = Table {
    program: "harvester-cloud-provider orphans",
    about: "Shows what guest clusters and Services that are gone left in the guest cluster's namespace of Harvester: load \
            balancers, records of pools, volumes, finalizers. Deletes only what it is told to.",
    flags: &[
        GUEST,
        CLOUD_CONFIG,
        NAMESPACE,
        OUTPUT,
        Flag::switch(
            "delete",
            "ask which load balancers to delete: once for those that are proved to be this guest cluster's, by name for \
             others",
        ),
        Flag::switch("delete-volumes", "ask for each volume by name, and delete it with its data"),
        Flag::value(
            "undo",
            "FILE",
            "where to write what is deleted; else orphans-undo-TIME.yaml in this folder",
        ),
    ],
};

struct Asked {
    kubeconfig: Option<PathBuf>,
    cloud_config: Option<PathBuf>,
    namespace: Option<String>,
    json: bool,
    balancers: bool,
    volumes: bool,
    undo: Option<PathBuf>,
}

/// Runs the program; `args` begins with its name.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args = program::words(args);
    if let Some(text) = program::asked_for(&FLAGS, env!("CARGO_PKG_VERSION"), &args) {
        return program::show(&text);
    }
    let mut reader = FLAGS.read(&args, |name| std::env::var(name).ok());
    let asked = Asked {
        kubeconfig: reader.text("kubeconfig").map(PathBuf::from),
        cloud_config: reader.text("cloud-config").map(PathBuf::from),
        namespace: reader.text("harvester-namespace"),
        json: is_json(&mut reader),
        balancers: reader.is_on("delete"),
        volumes: reader.is_on("delete-volumes"),
        undo: reader.text("undo").map(PathBuf::from),
    };
    if asked.json && (asked.balancers || asked.volumes) {
        reader.fault("--output=json deletes nothing: leave --delete and --delete-volumes out");
    }
    if let Err(faults) = reader.finish(()) {
        return refuse(&faults);
    }
    match program::run_tool(|process| Box::pin(async move { run(asked, process.clock).await })) {
        Ok(Ok(code)) => code,
        Ok(Err(why)) => failed(&why),
        Err(error) => failed(&format!("start the runtime: {error}")),
    }
}

/// The clusters, and where to look.
struct Clusters {
    guest: Result<Client, String>,
    harvester: Client,
    namespace: String,
    /// Which token of the cloud-config is used, where the parts may have renewed it.
    note: Option<String>,
}

impl Clusters {
    async fn open(asked: &Asked) -> Result<Self, cloud_config::Error> {
        let settings = Options::named(&format!("{PROGRAM}/{} orphans", env!("CARGO_PKG_VERSION")));
        let from = Local { kubeconfig: asked.kubeconfig.clone(), master: None };
        let guest = match cloud_config::local(&from, &settings) {
            // what was given is to be used
            Err(error) if !matches!(error, cloud_config::Error::NoLocal { .. }) => return Err(error),
            guest => guest.map(read_only).map_err(|error| error.to_string()),
        };
        let config =
            cloud_config::find(asked.cloud_config.as_deref()).and_then(|file| CloudConfig::read(&file));
        let InUse { config, note, .. } =
            with_token_in_use(config, guest.as_ref().map_err(Clone::clone), &settings).await?;
        let namespace = asked.namespace.clone().unwrap_or_else(|| config.namespace.clone());
        let harvester = Connection::open(&config, &settings)?.client();
        Ok(Self { guest, harvester, namespace, note })
    }

    async fn report(&self, clock: &Clock) -> Report {
        let guest = self.guest.as_ref().map_err(Clone::clone);
        let harvester = read_only(self.harvester.clone());
        let read = facts::read_both(guest, &harvester, &self.namespace, clock.now());
        decide(&program::progress("reading both clusters", read).await)
    }
}

async fn run(asked: Asked, clock: Clock) -> Result<ExitCode, String> {
    let clusters = Clusters::open(&asked).await.map_err(|error| error.to_string())?;
    if let Some(note) = &clusters.note {
        complain(&format!("cloud-config: {}", cut(note)));
    }
    let report = clusters.report(&clock).await;
    let shown = if asked.json {
        let text = serde_json::to_string_pretty(&report).map_err(|error| error.to_string())?;
        program::show(&(text + "\n"))
    } else {
        program::show(&render(&report))
    };
    let is_whole = if asked.volumes { report.not_read.is_empty() } else { !report.is_incomplete };
    let read = if is_whole { shown } else { ExitCode::FAILURE };
    if !asked.balancers && !asked.volumes {
        return Ok(read);
    }
    let chosen = delete::choose(&report, asked.balancers, asked.volumes, &mut ask);
    if chosen.is_empty() {
        program::show("Nothing is deleted.\n");
        return Ok(read);
    }
    let again = clusters.report(&clock).await;
    let (same, mut outcomes) = delete::unchanged(&chosen, &again);
    if !same.is_empty() {
        write_undo(asked.undo, &same, &clock)?;
        let deleted = delete::delete(&clusters.harvester, &same);
        outcomes.extend(program::progress("deleting", deleted).await);
    }
    for outcome in &outcomes {
        program::show(&format!("{}\n", outcome.sentence));
    }
    let all = outcomes.iter().all(|outcome| outcome.is_deleted);
    Ok(if all { read } else { ExitCode::FAILURE })
}

/// Nothing is deleted that is not written down.
fn write_undo(file: Option<PathBuf>, orphans: &[&Orphan], clock: &Clock) -> Result<(), String> {
    debug_assert!(orphans.iter().all(|orphan| orphan.delete != Deletion::ByHand));
    let named = || PathBuf::from(format!("orphans-undo-{}.yaml", clock.now().strftime("%Y%m%d-%H%M%S")));
    let file = file.unwrap_or_else(named);
    let written =
        fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&file).and_then(|mut it| {
            it.write_all(delete::undo(orphans).as_bytes())?;
            it.sync_all()
        });
    written.map_err(|error| {
        format!("write {}: {error}; nothing is deleted. --undo names another file", file.display())
    })?;
    let file = file.display();
    program::show(&format!("{file} has what is deleted now; it brings no data of volumes back.\n"));
    Ok(())
}

fn ask(question: &str) -> String {
    drop(write!(io::stderr(), "{question}"));
    drop(io::stderr().flush());
    let mut line = String::new();
    // no answer is no
    io::stdin().lock().read_line(&mut line).map(|_| line.trim().to_owned()).unwrap_or_default()
}
