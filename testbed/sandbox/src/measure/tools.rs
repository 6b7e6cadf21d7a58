//! What people wait for: the script that makes a cloud-config, and `doctor` on clusters with a thousand Services.

use std::{path::Path, process::Stdio};

use anyhow::{Context, Result, ensure};
use outside_tools::Tool;
use tokio::{process::Command, time::Instant};

use super::{Told, percentile, service_batch::ServiceBatch};
use crate::environment::Environment;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/generate_addon.sh");
const TIMES: usize = 5;
const SERVICES: usize = 1_000;

/// Measures, and tells each figure.
///
/// # Errors
/// When the script or `doctor` does not do its work.
pub(super) async fn all(environment: &Environment, told: &Told<'_>) -> Result<()> {
    generate(environment, told).await.context("make a cloud-config")?;
    let mut services = ServiceBatch::watch(environment.guest.clone(), environment.harvester.clone()).await?;
    services.create("looked-at", SERVICES).await?;
    let looked_at = doctor(environment, told).await;
    services.delete_all().await?;
    looked_at.context("look at both clusters")
}

/// Without the binary, as it is piped into a shell: each step of the script is a process of kubectl.
async fn generate(environment: &Environment, told: &Told<'_>) -> Result<()> {
    const NAME: &str = "generate-s";
    let Some(kubectl) = Tool::Kubectl.find() else {
        told.left_out(&[NAME], "the script needs kubectl: cargo xtask tools builds it");
        return Ok(());
    };
    if !Path::new(SCRIPT).exists() {
        told.left_out(&[NAME], "the script is not where this program was built");
        return Ok(());
    }
    let path = std::env::var("PATH").unwrap_or_default();
    let folder = kubectl.parent().context("kubectl is in a folder")?;
    let mut times = Vec::new();
    for number in 0..TIMES {
        let mut script = Command::new("sh");
        script.args([SCRIPT, &format!("bench-{number}"), crate::VM_NAMESPACE]);
        script.env("PATH", format!("{}:{path}", folder.display()));
        script.env("KUBECONFIG", environment.folder().join("harvester.kubeconfig"));
        script.env("HARVESTER_CLOUD_PROVIDER", "").stdin(Stdio::null());
        let begun = Instant::now();
        let output = script.output().await.context("start sh")?;
        times.push(begun.elapsed().as_secs_f64());
        let said = String::from_utf8_lossy(&output.stderr);
        if said.contains("jq is not installed") {
            told.left_out(&[NAME], "the script needs jq");
            return Ok(());
        }
        ensure!(output.status.success(), "{}", said.trim());
    }
    told.figure(NAME, percentile(&mut times, 0.50));
    Ok(())
}

async fn doctor(environment: &Environment, told: &Told<'_>) -> Result<()> {
    let program = environment.program()?;
    let mut times = Vec::new();
    for number in 0..TIMES {
        let mut doctor = Command::new(&program);
        doctor.arg("doctor");
        doctor.arg("--kubeconfig").arg(environment.folder().join("guest.kubeconfig"));
        doctor.arg("--cloud-config").arg(environment.folder().join("cloud-config"));
        let begun = Instant::now();
        let output = doctor.stdin(Stdio::null()).output().await.context("start doctor")?;
        times.push(begun.elapsed().as_secs_f64());
        let said = String::from_utf8_lossy(&output.stdout);
        // 1: something is red, which costs as much as what is green
        let ended = output.status.code().is_some_and(|code| code < 2) && !said.trim().is_empty();
        ensure!(ended, "{}", String::from_utf8_lossy(&output.stderr).trim());
        if number == 0 {
            let others = said.lines().filter(|line| line.split_whitespace().nth(1) != Some("green"));
            others.for_each(|line| told.remark(line));
        }
    }
    told.figure("doctor-s", percentile(&mut times, 0.50));
    Ok(())
}
