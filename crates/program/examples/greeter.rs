//! The smallest program: a table of flags, a check of them, and the work. `-- --help` shows the table.

use std::{net::SocketAddr, process::ExitCode};

use program::{
    Process,
    flags::{Flag, Table},
    http,
    logging::Logging,
    serving,
};

const FLAGS: Table = Table {
    program: "greeter",
    about: "Greets people.",
    flags: &[
        Flag::value("greeting", "TEXT", "the greeting").default("hello").env(&["GREETING"]),
        Flag::value("metrics-address", "ADDRESS", "health and metrics over HTTP").default("127.0.0.1:9402"),
    ],
};

fn main() -> ExitCode {
    let check = |mut flags: program::flags::Reader<'_>| {
        let address: Option<SocketAddr> = flags
            .optional("metrics-address", |text| text.parse().map_err(|_| format!("{text:?} is no address")));
        let greeting = flags.text("greeting").unwrap_or_default();
        flags.finish((Logging::logrus("info"), (greeting, address)))
    };
    program::main(&FLAGS, env!("CARGO_PKG_VERSION"), std::env::args_os(), check, greet)
}

async fn greet((greeting, address): (String, Option<SocketAddr>), process: Process) -> Result<(), String> {
    let router = http::router(process.health.clone(), process.metrics.clone());
    serving::http(&process.tasks, address.ok_or("no address")?, router)?;
    tracing::info!("{greeting}");
    process.health.readiness("greeting").pass();
    process.tasks.stop.cancelled().await;
    Ok(())
}
