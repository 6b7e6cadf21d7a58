//! `csi-sanity`, the suite of the Container Storage Interface, against the driver in a VM.

use std::{fs, process::Stdio};

use anyhow::{Context, Result, ensure};
use outside_tools::Tool;
use serde_json::Value;
use tokio::process::Command;

use super::calls::takes;
use crate::{
    environment::{Environment, GuestVm},
    measure::Told,
};

const FIGURE: &str = "csi-sanity-failed";
/// Bytes of the suite's volumes: a tenth of its default, and files here.
const SIZE: &str = "1073741824";

/// What became of the specs.
#[derive(Debug, Default, PartialEq, Eq)]
struct Report {
    passed: usize,
    failed: Vec<String>,
    skipped: usize,
}

impl Report {
    /// Reads Ginkgo's report in JSON.
    fn read(text: &str) -> Result<Self> {
        let suites: Value = serde_json::from_str(text).context("read the report of csi-sanity")?;
        let specs = suites.as_array().into_iter().flatten();
        let specs = specs.flat_map(|suite| suite["SpecReports"].as_array().into_iter().flatten());
        let mut report = Self::default();
        for spec in specs.filter(|spec| spec["LeafNodeType"] == "It") {
            match spec["State"].as_str().unwrap_or_default() {
                "passed" => report.passed += 1,
                "skipped" | "pending" => report.skipped += 1,
                _ => report.failed.push(spec["LeafNodeText"].as_str().unwrap_or_default().to_owned()),
            }
        }
        Ok(report)
    }
}

/// Specs that fail, of those that run.
pub(super) async fn failed(environment: &mut Environment, vm: &GuestVm, told: &Told<'_>) -> Result<()> {
    let Some(suite) = Tool::CsiSanity.find() else {
        told.left_out(&[FIGURE], "needs cargo xtask tools");
        return Ok(());
    };
    let (storage, folder) = environment.storage()?;
    let (driver, root) = (storage.driver(&vm.name)?, storage.root(&vm.name));
    takes(&driver.plugin()).await?;
    let report = folder.run().join("csi-sanity.json");
    let mounts = driver.part.command.mounts_of.context("a VM has mounts of its own")?;
    let output = Command::new("nsenter")
        .arg(format!("--mount=/proc/{mounts}/ns/mnt"))
        .arg("--")
        .arg(suite)
        .arg("--csi.endpoint")
        .arg(&driver.socket)
        .arg("--csi.mountdir")
        .arg(root.join("sanity-mounts"))
        .arg("--csi.stagingdir")
        .arg(root.join("sanity-staging"))
        .args(["--csi.testvolumesize", SIZE, "--ginkgo.no-color", "--ginkgo.json-report"])
        .arg(&report)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .context("start csi-sanity")?;
    let text = fs::read_to_string(&report).with_context(|| {
        format!("csi-sanity wrote no report: {}", String::from_utf8_lossy(&output.stderr))
    })?;
    let report = Report::read(&text)?;
    ensure!(report.passed > 0, "csi-sanity ran no spec: {report:?}");
    told.figure(FIGURE, report.failed.len() as f64);
    told.remark(&format!("{FIGURE}: {} passed, {} skipped", report.passed, report.skipped));
    for spec in report.failed {
        told.remark(&format!("csi-sanity: failed: {spec}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_neither_passed_nor_was_skipped_has_failed() {
        let text = r#"[{"SpecReports": [
            {"LeafNodeType": "BeforeSuite", "State": "passed"},
            {"LeafNodeType": "It", "LeafNodeText": "a", "State": "passed"},
            {"LeafNodeType": "It", "LeafNodeText": "b", "State": "failed"},
            {"LeafNodeType": "It", "LeafNodeText": "c", "State": "panicked"},
            {"LeafNodeType": "It", "LeafNodeText": "d", "State": "skipped"},
            {"LeafNodeType": "It", "LeafNodeText": "e", "State": "pending"}]}]"#;
        let expected = Report { passed: 1, failed: vec!["b".to_owned(), "c".to_owned()], skipped: 2 };
        assert_eq!(Report::read(text).unwrap(), expected);
    }
}
