//! A load balancer that is killed in a Pod that stays: how long nobody gets an address.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context, Result};
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use tokio::time::Instant;

use super::{direct::Direct, percentile};
use crate::{commands, environment::Environment, parts::PartCommand};

const TIMES: usize = 3;

/// From SIGKILL of the leader to the next address, with the Lease times of production (45, 30 and 2 s).
pub(super) async fn restart(environment: &mut Environment, folder: &Path) -> Result<f64> {
    let token = folder.join("load-balancer.token");
    fs::write(&token, token_of_a_pod()).with_context(|| format!("write {}", token.display()))?;
    let usual =
        environment.change_recipe(commands::LOAD_BALANCER, |command| in_a_pod(command, &token)).await?;
    let mut direct = Direct::prepare(environment.harvester.clone(), "bench-restart").await?;
    direct.create("before", 1).await?;
    let mut times = Vec::new();
    for number in 0..TIMES {
        let killed = Instant::now();
        environment.kill_and_start_again(commands::LOAD_BALANCER).await?;
        direct.create(&format!("after-{number}"), 1).await?;
        times.push(killed.elapsed());
    }
    direct.remove().await?;
    environment.change_recipe(commands::LOAD_BALANCER, |command| *command = usual.clone()).await?;
    let mut times: Vec<f64> = times.iter().map(Duration::as_secs_f64).collect();
    Ok(percentile(&mut times, 0.50))
}

fn in_a_pod(command: &mut PartCommand, token: &Path) {
    command.environment.retain(|name, _| !name.starts_with("CATTLE_ELECTION_"));
    command.args.push(format!("--pod-token-file={}", token.display()));
}

/// As the kubelet would put it there; nobody but the process itself reads it.
fn token_of_a_pod() -> String {
    let part = |json: &str| BASE64_URL_SAFE_NO_PAD.encode(json);
    let claims = r#"{"kubernetes.io":{"namespace":"harvester-system","pod":{"name":"bench","uid":"6a1f0c9e-1b7d-4e57-9f43-0c7a3c1f2b11"}}}"#;
    format!("{}.{}.{}", part(r#"{"alg":"none"}"#), part(claims), part("none"))
}
