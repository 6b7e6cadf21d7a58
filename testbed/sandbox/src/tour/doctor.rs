//! `doctor`, asked as a user asks it.

use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use tokio::process::Command;

use super::Tour;

/// The lines that are about volumes.
const OF_VOLUMES: [&str; 5] =
    ["csi-driver", "csi-leader", "rights-volumes", "snapshot-crds", "storage-classes"];

/// A line of it.
#[derive(Debug, Deserialize)]
struct Finding {
    id: String,
    verdict: String,
    sentence: String,
}

/// Waits until nothing is red and everything about volumes is green; answers how much is green.
pub(super) async fn is_content(tour: &Tour<'_>) -> Result<usize> {
    let (program, folder) = (tour.environment.program()?, tour.environment.folder());
    tour.observer()
        .wait("doctor to be content", || async {
            let mut doctor = Command::new(&program);
            doctor.args(["doctor", "--output", "json"]);
            doctor.arg("--kubeconfig").arg(folder.join("guest.kubeconfig"));
            doctor.arg("--cloud-config").arg(folder.join("harvester.kubeconfig"));
            let output = doctor.stdin(Stdio::null()).output().await.context("start doctor")?;
            let findings: Vec<Finding> = serde_json::from_slice(&output.stdout)
                .with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())?;
            let of_volumes = |finding: &&Finding| OF_VOLUMES.contains(&finding.id.as_str());
            for finding in &findings {
                let is_bad = finding.verdict == "red" || of_volumes(&finding) && finding.verdict != "green";
                ensure!(!is_bad, "{} is {}: {}", finding.id, finding.verdict, finding.sentence);
            }
            let found = findings.iter().filter(of_volumes).count();
            ensure!(found == OF_VOLUMES.len(), "it has {found} lines about volumes");
            ensure!(output.status.success(), "it ended with {}", output.status);
            Ok(findings.iter().filter(|finding| finding.verdict == "green").count())
        })
        .await
}
