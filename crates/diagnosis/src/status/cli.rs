//! The command line: `status`.
//!
//! Exit codes: 0 it is shown; 1 a kubeconfig is of no use; 2 wrong arguments.

use std::{ffi::OsString, io::IsTerminal as _, path::PathBuf, process::ExitCode, time::Duration};

use cloud_config::{CloudConfig, Connection, Local, Options};
use program::{
    Process, failed,
    flags::{Flag, Table},
};

use super::{decide, render};
use crate::{
    access::with_token_in_use,
    doctor::read,
    flags::{CLOUD_CONFIG, GUEST, OUTPUT, PROGRAM, is_json, refuse},
    screen::{Colour, over},
};

/// Between two looks with `--watch`.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// The flags.
pub const FLAGS: Table = Table {
    program: "harvester-cloud-provider status",
    about: "Shows both clusters on one screen: checks that are not green, Services, Nodes and pools. Stores nothing.",
    flags: &[
        GUEST,
        CLOUD_CONFIG,
        OUTPUT,
        Flag::switch("watch", "look every 5 s until Ctrl-C; in a pipe print what changed as a whole page"),
    ],
};

/// Runs the program; `args` begins with its name.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args = program::words(args);
    if let Some(text) = program::asked_for(&FLAGS, env!("CARGO_PKG_VERSION"), &args) {
        return program::show(&text);
    }
    let mut reader = FLAGS.read(&args, |name| std::env::var(name).ok());
    let from = Local { kubeconfig: reader.text("kubeconfig").map(PathBuf::from), master: None };
    let cloud_config = reader.text("cloud-config").map(PathBuf::from);
    let (json, watch) = (is_json(&mut reader), reader.is_on("watch"));
    if json && watch {
        reader.fault("--watch is for people: leave --output=json out");
    }
    if let Err(faults) = reader.finish(()) {
        return refuse(&faults);
    }
    match program::run_tool(|process| Box::pin(run(process, from, cloud_config, json, watch))) {
        Ok(Ok(code)) => code,
        Ok(Err(why)) => failed(&why),
        Err(error) => failed(&format!("start the runtime: {error}")),
    }
}

async fn run(
    process: Process,
    from: Local,
    cloud_config: Option<PathBuf>,
    json: bool,
    watch: bool,
) -> Result<ExitCode, String> {
    let settings = Options::named(&format!("{PROGRAM}/{} status", env!("CARGO_PKG_VERSION")));
    let guest = cloud_config::local(&from, &settings).map_err(|error| error.to_string())?;
    let config = cloud_config::find(cloud_config.as_deref()).and_then(|file| CloudConfig::read(&file));
    let now = process.clock.now();
    let read = async {
        let used = with_token_in_use(config, Ok(&guest), &settings).await;
        let facts = read::read(Ok(&guest), used.as_ref().map_err(ToString::to_string), &settings, now).await;
        (used, facts)
    };
    let (used, mut facts) = program::progress("reading both clusters", Box::pin(read)).await;
    let harvester = used.ok().and_then(|used| Connection::open(&used.config, &settings).ok());
    let harvester = harvester.map(|connection| connection.client());
    let (is_terminal, colour) = (std::io::stdout().is_terminal(), Colour::of_stdout());
    let mut shown = String::new();
    loop {
        let now = decide(&facts);
        let code = if json {
            let text = serde_json::to_string_pretty(&now).map_err(|error| error.to_string())?;
            program::show(&(text + "\n"))
        } else {
            let page = render(&now, colour);
            let code = if watch && is_terminal {
                let time = process.clock.now();
                program::show(&over(&format!("{}  Ctrl-C ends it\n{page}", time.strftime("%H:%M:%S UTC"))))
            } else if page != shown {
                let gap = if shown.is_empty() { "" } else { "\n---\n" };
                program::show(&format!("{gap}{page}"))
            } else {
                ExitCode::SUCCESS
            };
            shown = page;
            code
        };
        if !watch || code != ExitCode::SUCCESS {
            return Ok(code);
        }
        tokio::time::sleep(LOOK_AGAIN).await;
        read::again(&guest, harvester.as_ref(), &mut facts, process.clock.now()).await;
    }
}
