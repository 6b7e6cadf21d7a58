//! How releases of Harvester differ in what they do with volumes. The Setting `server-version` says which one runs; where
//! it is absent or says nothing, it is a new one.

use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind},
};

/// Harvester's Setting with its own release.
pub(crate) const SERVER_VERSION: &str = "server-version";

/// How a disk comes into a VM that runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HotPlug {
    /// Up to 1.7, KubeVirt's gate `HotplugVolumes`: by a request in the VM's status. A VM that runs does not follow its
    /// template.
    Requests,
    /// From 1.8, the gate `DeclarativeHotplugVolumes`: a VM that runs follows its template.
    #[default]
    Declarative,
}

/// Major and minor number of a release such as `v1.7.1` or `v1.8.0-rc2`.
pub(crate) fn numbers(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.trim().trim_start_matches('v').split(['.', '-']).map(|part| part.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

impl HotPlug {
    /// What a release of Harvester brings; `None` for a text that is no release.
    pub fn of_harvester(version: &str) -> Option<Self> {
        numbers(version).map(|numbers| if numbers < (1, 8) { Self::Requests } else { Self::Declarative })
    }
}

/// The text of a Setting: its value, or its default where the value is empty.
pub(crate) fn text(setting: &DynamicObject) -> &str {
    let of = |field: &str| setting.data[field].as_str().unwrap_or_default();
    if of("value").is_empty() { of("default") } else { of("value") }
}

/// One of Harvester's Settings.
pub(crate) async fn setting(harvester: &Client, name: &str) -> kube::Result<Option<DynamicObject>> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("harvesterhci.io", "v1beta1", "Setting"));
    Api::all_with(harvester.clone(), &resource).get_opt(name).await
}

/// The release that runs now; empty where nobody says.
pub(crate) async fn current(harvester: &Client) -> kube::Result<String> {
    let setting = setting(harvester, SERVER_VERSION).await?;
    Ok(setting.map(|setting| text(&setting).to_owned()).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("v1.2.2", Some(HotPlug::Requests))]
    #[case("v1.7.1", Some(HotPlug::Requests))]
    #[case("v1.8.0-rc2", Some(HotPlug::Declarative))]
    #[case("2.0.0", Some(HotPlug::Declarative))]
    #[case("master", None)]
    #[case("", None)]
    fn every_release_has_its_way(#[case] version: &str, #[case] expected: Option<HotPlug>) {
        assert_eq!(HotPlug::of_harvester(version), expected);
    }
}
