//! Obeys the Settings of the Harvester cluster: the DHCP server by an annotation, which kube-vip runs, and how disks come
//! into VMs that run. Harvester's own `server-version` says both for its hosts, as an upgrade brings another release.

use std::collections::BTreeMap;

use controller_kit::{PendingEvent, Recorder};
use futures::StreamExt;
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{ApiResource, DynamicObject, GroupVersionKind},
    runtime::{WatchStreamExt, watcher},
};
use program::TaskGroup;

use super::{DHCP, Dhcp, GUEST_VIP, Unknown, foreign};
use crate::{HotPlug, harvester_version::SERVER_VERSION, kube_vip::Release};

/// The values of the Settings.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Said {
    pub(crate) dhcp: Option<Dhcp>,
    pub(crate) harvester_vip: Option<Release>,
    pub(crate) guest_vip: Option<Release>,
    pub(crate) hot_plug: Option<HotPlug>,
}

/// Something in a Setting that nobody obeys.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Complaint {
    /// Name of the Setting.
    setting: String,
    /// Of the Event that tells it.
    reason: &'static str,
    text: String,
}

/// The values of the Settings now. A value that cannot be read stays as it was `before`.
fn read(settings: &BTreeMap<String, DynamicObject>, before: &Said) -> (Said, Vec<Complaint>) {
    let of_keys = |(name, setting): (&String, &DynamicObject)| {
        let foreign = foreign("Setting", setting.annotations().keys());
        let complaint = |unknown: Unknown| Complaint {
            setting: name.clone(),
            reason: unknown.reason(),
            text: unknown.to_string(),
        };
        foreign.map(complaint).collect::<Vec<_>>()
    };
    let mut complaints: Vec<_> = settings.iter().flat_map(of_keys).collect();
    let annotated = |key: &str| {
        settings.iter().find_map(|(name, setting)| Some((name, setting.annotations().get(key)?.as_str())))
    };
    let mut complain = |name: &str, what: String| {
        let (setting, text) = (name.to_owned(), what + ": nothing changes");
        complaints.push(Complaint { setting, reason: "UnknownValue", text });
    };
    let dhcp = match annotated(DHCP) {
        None => None,
        Some((name, text)) => {
            let unreadable = |error| {
                complain(name, format!("annotation {DHCP} cannot be read, {error}"));
                before.dhcp.clone()
            };
            serde_json::from_str(text).map_or_else(unreadable, Some)
        }
    };
    let guest_vip = match annotated(GUEST_VIP) {
        None => None,
        Some((name, text)) => Release::of(text).or_else(|| {
            complain(name, format!("annotation {GUEST_VIP}: {text:?} is no version such as 0.8.1"));
            before.guest_vip
        }),
    };
    let version = settings.get(SERVER_VERSION).and_then(|setting| setting.data["value"].as_str());
    let harvester_vip = match version.filter(|version| !version.is_empty()) {
        None => None,
        Some(text) => Release::of_harvester(text).or_else(|| {
            complain(SERVER_VERSION, format!("value {text:?} is no release such as v1.7.1"));
            before.harvester_vip
        }),
    };
    let hot_plug = match version.filter(|version| !version.is_empty()) {
        None => None,
        Some(text) => HotPlug::of_harvester(text).or(before.hot_plug),
    };
    (Said { dhcp, harvester_vip, guest_vip, hot_plug }, complaints)
}

/// Calls `hear` with what Settings say when they are known, and whenever that changes, until `tasks` ends.
pub(crate) fn start(
    tasks: &TaskGroup,
    harvester: &Client,
    events: Recorder,
    mut hear: impl FnMut(&Said) + Send + 'static,
) {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("harvesterhci.io", "v1beta1", "Setting"));
    let api: Api<DynamicObject> = Api::all_with(harvester.clone(), &resource);
    tasks.spawn_until_stop(async move {
        let (mut settings, mut said, mut complained) = (BTreeMap::new(), Said::default(), Vec::new());
        let mut is_known = false;
        let mut changes = watcher(api, watcher::Config::default()).default_backoff().boxed();
        while let Some(change) = changes.next().await {
            match change {
                Ok(watcher::Event::Init) => {
                    settings.clear();
                    continue;
                }
                Ok(watcher::Event::InitApply(setting)) => {
                    settings.insert(setting.name_any(), setting);
                    continue;
                }
                Ok(watcher::Event::InitDone) => {}
                Ok(watcher::Event::Apply(setting)) => drop(settings.insert(setting.name_any(), setting)),
                Ok(watcher::Event::Delete(setting)) => drop(settings.remove(&setting.name_any())),
                Err(error) => {
                    tracing::warn!(error = &error as &dyn std::error::Error, "watch of Settings broke");
                    continue;
                }
            }
            let (now, complaints) = read(&settings, &said);
            if now != said || !is_known {
                hear(&now);
                (said, is_known) = (now, true);
            }
            for complaint in complaints.iter().filter(|complaint| !complained.contains(*complaint)) {
                if let Some(setting) = settings.get(&complaint.setting) {
                    let about = setting.object_ref(&resource);
                    events.publish(&about, &PendingEvent::warning(complaint.reason, &complaint.text));
                }
            }
            complained = complaints;
        }
    });
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn settings(all: Value) -> BTreeMap<String, DynamicObject> {
        let all: BTreeMap<String, Value> = serde_json::from_value(all).unwrap();
        let setting = |(name, mut json): (String, Value)| {
            json["metadata"]["name"] = name.clone().into();
            (name, serde_json::from_value(json).unwrap())
        };
        all.into_iter().map(setting).collect()
    }

    fn annotated(key: &str, value: &str) -> Value {
        json!({"sim": {"metadata": {"annotations": {key: value}}}})
    }

    #[rstest]
    #[case::nothing(json!({}), None, None)]
    #[case::a_release_of_harvester(json!({"server-version": {"value": "v1.4.2"}}), Some(Release::From07), None)]
    #[case::none_yet(json!({"server-version": {"value": ""}}), None, None)]
    #[case::kube_vip_of_the_guest(annotated(GUEST_VIP, "v0.6.0"), None, Some(Release::UpTo06))]
    fn settings_say_which_kube_vip_runs(
        #[case] all: Value,
        #[case] harvester: Option<Release>,
        #[case] guest: Option<Release>,
    ) {
        let (said, complaints) = read(&settings(all), &Said::default());
        assert_eq!((said.harvester_vip, said.guest_vip, complaints), (harvester, guest, vec![]));
    }

    #[rstest]
    #[case(json!({"server-version": {"value": "master"}}), "value \"master\" is no release such as v1.7.1")]
    #[case(annotated(GUEST_VIP, "newest"), "\"newest\" is no version such as 0.8.1")]
    #[case(annotated(DHCP, "[]"), "cannot be read")]
    fn what_cannot_be_read_is_told_and_changes_nothing(#[case] all: Value, #[case] expected: &str) {
        let before = Said {
            dhcp: None,
            harvester_vip: all.get(SERVER_VERSION).map(|_| Release::From12),
            guest_vip: all.to_string().contains(GUEST_VIP).then_some(Release::From07),
            hot_plug: all.get(SERVER_VERSION).map(|_| HotPlug::Requests),
        };
        let (said, complaints) = read(&settings(all), &before);
        assert_eq!(said, before);
        let [Complaint { reason: "UnknownValue", text, .. }] = &*complaints else { panic!("{complaints:?}") };
        assert!(text.contains(expected) && text.ends_with("nothing changes"), "{text}");
    }

    #[rstest]
    #[case("v1.7.1", Some(HotPlug::Requests))]
    #[case("v1.8.0", Some(HotPlug::Declarative))]
    #[case("", None)]
    fn the_release_says_how_disks_come_into_vms(#[case] version: &str, #[case] expected: Option<HotPlug>) {
        let (said, _) = read(&settings(json!({SERVER_VERSION: {"value": version}})), &Said::default());
        assert_eq!(said.hot_plug, expected);
    }

    #[test]
    fn an_annotation_that_no_setting_has_is_told_beside_what_is_obeyed() {
        let all = json!({"sim": {"metadata": {"annotations": {
            "sim.harvesterhci.io/guest-kubevip": "0.6.0", GUEST_VIP: "0.6.0", "note": "x"}}}});
        let (said, complaints) = read(&settings(all), &Said::default());
        assert_eq!(said.guest_vip, Some(Release::UpTo06));
        let [Complaint { setting, reason: "UnknownKey", text }] = &*complaints else {
            panic!("{complaints:?}")
        };
        assert_eq!(setting, "sim");
        assert!(text.contains("guest-kubevip is ignored") && text.contains(DHCP), "{text}");
    }
}
