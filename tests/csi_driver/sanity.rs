//! `csi-sanity`, the suite of the Container Storage Interface. It sends names with capitals and one of 128 characters, and
//! the simulated Harvester takes only names that Kubernetes takes.

use std::{
    collections::BTreeMap,
    fs,
    io::Write as _,
    process::{Command, Stdio},
};

use outside_tools::Tool;
use serde_json::Value;
use test_cluster::Rights;

use crate::{
    Running,
    harvester::{Lab, may_make_disks},
    until,
};

/// Why the suite skips specs of its own accord: capabilities that the driver has not, and one that it never runs.
const SKIPPED: [(&str, usize); 11] = [
    ("", 1),
    ("ControllerGetVolumeHealth not supported", 2),
    ("ControllerListVolumeHealth not supported", 1),
    ("ControllerModifyVolume not supported", 6),
    ("GetCapacity not supported", 1),
    ("GroupControllerService not supported", 6),
    ("Modify Volume not supported", 1),
    ("Modify volume not supported", 1),
    ("NodeGetStorageHealth not supported", 1),
    ("NodeGetVolumeHealth not supported", 2),
    ("SNAPSHOT_ACCESSIBILITY_CONSTRAINTS not supported", 1),
];
/// Of a node without a limit.
const NO_LIMIT: (&str, usize) = ("testnodevolumeattachlimit not enabled", 1);

/// What the suite says: how many specs passed, which failed, and how many were skipped for which reason.
#[derive(Debug, Default, PartialEq, Eq)]
struct Report {
    passed: usize,
    failed: BTreeMap<String, String>,
    skipped: BTreeMap<String, usize>,
}

impl Report {
    fn read(text: &str) -> Self {
        let suites: Value = serde_json::from_str(text).unwrap();
        let specs = suites.as_array().into_iter().flatten().flat_map(|suite| {
            suite["SpecReports"].as_array().into_iter().flatten().filter(|spec| spec["LeafNodeType"] == "It")
        });
        let mut report = Self::default();
        for spec in specs {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let groups = spec["ContainerHierarchyTexts"].as_array().into_iter().flatten().map(text);
            match spec["State"].as_str().unwrap_or_default() {
                "passed" => report.passed += 1,
                "skipped" | "pending" => {
                    *report.skipped.entry(text(&spec["Failure"]["Message"])).or_default() += 1;
                }
                _ => {
                    let name: Vec<_> = groups.chain([text(&spec["LeafNodeText"])]).collect();
                    let why = text(&spec["Failure"]["Message"]);
                    let place = &spec["Failure"]["Location"]["LineNumber"];
                    report.failed.insert(name.join(" / "), format!("line {place}: {why}"));
                }
            }
        }
        report
    }
}

/// Runs the suite against a fresh driver; `None` where a tool or a right is missing.
async fn judge(version: &str, rights: Rights, flags: &[&str], suite: &[&str]) -> Option<Report> {
    let Some(sanity) = Tool::CsiSanity.find() else {
        leave_out("csi-sanity is not on this machine: `cargo xtask tools` builds it");
        return None;
    };
    if !may_make_disks() {
        leave_out("csi-sanity: only root may make loop devices and mount");
        return None;
    }
    let lab = Lab::start(version, rights).await;
    let (log, report) = (lab.path().join("driver.log"), lab.path().join("report.json"));
    let to_log = fs::File::create(&log).unwrap();
    let mut driver = Running(lab.driver().args(flags).stderr(to_log).spawn().unwrap());
    let output = tokio::task::block_in_place(|| {
        until("the driver listens", || lab.socket().exists());
        let output = Command::new(sanity)
            .arg("--csi.endpoint")
            .arg(lab.socket())
            .arg("--csi.mountdir")
            .arg(lab.kubelet_root().join("mounts"))
            .arg("--csi.stagingdir")
            .arg(lab.kubelet_root().join("staging"))
            .args(["--csi.testvolumesize", "1073741824", "--ginkgo.no-color", "--ginkgo.json-report"])
            .arg(&report)
            .args(suite)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        driver.terminate();
        assert!(driver.0.wait().unwrap().success(), "the driver ends as it should");
        output
    });
    let found = fs::read_to_string(&report)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stdout)));
    let found = Report::read(&found);
    assert!(found.failed.is_empty(), "{}\n{:#?}", fs::read_to_string(log).unwrap(), found.failed);
    Some(found)
}

/// The test runner keeps what `eprintln` prints to itself.
#[expect(clippy::explicit_write, reason = "see above")]
fn leave_out(why: &str) {
    writeln!(std::io::stderr(), "left out: {why}").unwrap();
}

// docs/contract/csi-driver.md#sanity
#[tokio::test(flavor = "multi_thread")]
async fn csi_sanity_passes_what_the_capabilities_select() {
    let limit = (["--max-volumes-per-node=8"], ["--csi.testnodevolumeattachlimit"]);
    let Some(report) = judge("v1.8.0", Rights::Existing, &limit.0, &limit.1).await else { return };
    assert_eq!((report.passed, report.skipped), (80, skipped(SKIPPED)));
}

// docs/contract/csi-driver.md#sanity
#[tokio::test(flavor = "multi_thread")]
async fn csi_sanity_passes_on_bare_devices_of_an_older_harvester_too() {
    let block = ["--csi.testvolumeaccesstype", "block"];
    let Some(report) = judge("v1.7.0", Rights::Ours, &[], &block).await else { return };
    assert_eq!((report.passed, report.skipped), (79, skipped(SKIPPED.into_iter().chain([NO_LIMIT]))));
}

fn skipped(reasons: impl IntoIterator<Item = (&'static str, usize)>) -> BTreeMap<String, usize> {
    reasons.into_iter().map(|(reason, count)| (reason.to_owned(), count)).collect()
}
