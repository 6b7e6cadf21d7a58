//! What Rancher's cluster gets, so that its machines are made by our driver: docs/node-driver.md says which of them to take.
//!
//! ```text
//! Job of a machine ── <ui-path>/assets/docker-machine-driver-harvester is there? ──yes──► Rancher's own address, its SHA-256
//!                                                     └──no──► url and checksum of the NodeDriver `harvester`
//! ```
//! Rancher finds the NodeDriver by its name, which is the machine kind's (HarvesterMachine). When it starts it writes the
//! NodeDriver `harvester` anew, and no other one.

use super::NAME;

/// The name of the NodeDriver beside Rancher's own.
const BESIDE: &str = "harvester-cloud-provider";

/// Where Rancher's image has the driver: unpacked, from where it learns the flags, and as the asset that Jobs download.
const PLACES: [&str; 3] = [
    "/opt/drivers/management-state/bin",
    "/usr/share/rancher/ui/assets",
    "/usr/share/rancher/ui-dashboard/assets",
];

/// All files with their names.
pub(super) fn rendered(url: &str, arch: &str, sum: &str) -> [(&'static str, String); 3] {
    [
        ("node-driver.yaml", node_driver("harvester", true, url, arch, sum)),
        ("node-driver-beside.yaml", node_driver(BESIDE, false, url, arch, sum)),
        ("rancher-asset.yaml", asset(url, arch, sum)),
    ]
}

/// The NodeDriver, with the annotations that Rancher itself sets on its own.
fn node_driver(name: &str, builtin: bool, url: &str, arch: &str, sum: &str) -> String {
    format!(
        "apiVersion: management.cattle.io/v3
kind: NodeDriver
metadata:
  name: {name}
  annotations:
    publicCredentialFields: clusterType,clusterId
    privateCredentialFields: kubeconfigContent
    optionalCredentialFields: clusterId
    defaults: clusterType:imported
spec:
  displayName: harvester
  description: \"\"
  externalId: \"\"
  builtin: {builtin}
  active: true
  addCloudCredential: false
  url: {url}/{NAME}-{arch}.tar.gz
  checksum: {sum}
  uiUrl: \"\"
  whitelistDomains:
  - github.com
"
    )
}

/// A patch of Rancher's Deployment: before Rancher starts, its own image downloads the driver and compares the checksum. The
/// mounts take the places of the files in the image.
fn asset(url: &str, arch: &str, sum: &str) -> String {
    let archive = format!("{NAME}-{arch}.tar.gz");
    let mounts: String = PLACES
        .iter()
        .map(|place| {
            format!("        - {{name: node-driver, mountPath: {place}/{NAME}, subPath: {NAME}, readOnly: true}}\n")
        })
        .collect();
    format!(
        "# kubectl patch deployment rancher -n cattle-system --patch-file rancher-asset.yaml
# Give the init container the image of the Deployment: it has curl, tar and sha256sum.
spec:
  template:
    spec:
      initContainers:
      - name: node-driver
        image: rancher/rancher:VERSION
        command:
        - sh
        - -euc
        - |
          cd /node-driver
          curl -sSfL -o {archive} {url}/{archive}
          echo '{sum}  {archive}' | sha256sum -c
          tar -xzf {archive} {NAME}
        volumeMounts:
        - {{name: node-driver, mountPath: /node-driver}}
      containers:
      - name: rancher
        volumeMounts:
{mounts}      volumes:
      - {{name: node-driver, emptyDir: {{}}}}
"
    )
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const URL: &str = "https://example.com/v1";
    const SUM: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    fn read(file: &str) -> Value {
        let (_, text) = rendered(URL, "arm64", SUM).into_iter().find(|(name, _)| *name == file).unwrap();
        serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{file}: {error}\n{text}"))
    }

    #[test]
    fn both_node_drivers_name_archive_and_checksum_and_have_the_fields_of_the_kind() {
        for (file, name, builtin) in
            [("node-driver.yaml", "harvester", true), ("node-driver-beside.yaml", BESIDE, false)]
        {
            let driver = read(file);
            assert_eq!(driver["apiVersion"], "management.cattle.io/v3");
            assert_eq!((&driver["kind"], &driver["metadata"]["name"]), (&json!("NodeDriver"), &json!(name)));
            let mut fields: Vec<&str> =
                driver["spec"].as_object().unwrap().keys().map(String::as_str).collect();
            fields.sort_unstable();
            let known = [
                "active",
                "addCloudCredential",
                "builtin",
                "checksum",
                "description",
                "displayName",
                "externalId",
                "uiUrl",
                "url",
                "whitelistDomains",
            ];
            assert_eq!(fields, known, "the kind has these and no others");
            let spec = &driver["spec"];
            assert_eq!(spec["url"], format!("{URL}/{NAME}-arm64.tar.gz"));
            assert_eq!((&spec["checksum"], &spec["builtin"]), (&json!(SUM), &json!(builtin)));
            assert_eq!(spec["displayName"], "harvester", "the fields of its form have this name");
        }
    }

    #[test]
    fn the_patch_compares_the_checksum_before_rancher_sees_the_driver() {
        let pod = &read("rancher-asset.yaml")["spec"]["template"]["spec"];
        let script = pod["initContainers"][0]["command"][2].as_str().unwrap();
        assert_eq!(pod["initContainers"][0]["command"][1], "-euc", "a failed line ends it");
        let order = ["curl ", "sha256sum -c", "tar -xzf"].map(|part| script.find(part).unwrap());
        assert!(order.is_sorted(), "{script}");
        assert!(script.contains(SUM) && script.contains(&format!("{URL}/{NAME}-arm64.tar.gz")), "{script}");
        let mounts = pod["containers"][0]["volumeMounts"].as_array().unwrap();
        assert_eq!(mounts.len(), PLACES.len());
        for mount in mounts {
            assert!(mount["mountPath"].as_str().is_some_and(|path| path.ends_with(&format!("/{NAME}"))));
            assert_eq!((&mount["subPath"], &mount["name"]), (&json!(NAME), &pod["volumes"][0]["name"]));
        }
    }
}
