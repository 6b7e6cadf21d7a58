//! The guest cluster of each load balancer, and its members: quotas count by it.
//!
//! The record of a pool names holders by namespace and name alone, so the objects must say it. One that is gone and still
//! has a record counts as what it was; a process that starts later does not know.

use std::collections::{BTreeSet, HashMap};

use controller_kit::ObjectKey;
use harvester_api::{LoadBalancer, annotations, labels};
use kube::ResourceExt as _;

#[derive(Default)]
pub(super) struct Clusters {
    cluster_of: HashMap<ObjectKey, String>,
    members: HashMap<String, BTreeSet<ObjectKey>>,
    /// Those that are gone, as far as a record may name them.
    gone: BTreeSet<ObjectKey>,
}

impl Clusters {
    pub(super) fn of(&self, key: &ObjectKey) -> Option<&str> {
        self.cluster_of.get(key).map(String::as_str)
    }

    pub(super) fn members(&self, cluster: &str) -> impl Iterator<Item = &ObjectKey> {
        self.members.get(cluster).into_iter().flatten()
    }

    /// Answers the cluster that it was of before, if that is another one: also one that it was of before it went.
    pub(super) fn seen(&mut self, key: &ObjectKey, lb: &LoadBalancer) -> Option<String> {
        self.gone.remove(key);
        self.set(key, cluster_of(lb))
    }

    pub(super) fn gone(&mut self, key: &ObjectKey) {
        if self.cluster_of.contains_key(key) {
            self.gone.insert(key.clone());
        }
    }

    /// Forgets the load balancer if it is gone and no record names it. To be asked after each change of either, and of that
    /// one alone: of a guest cluster that is removed thousands are gone at once. Answers the cluster that it was of, if it
    /// is forgotten.
    pub(super) fn forget(&mut self, key: &ObjectKey, is_recorded: impl FnOnce() -> bool) -> Option<String> {
        if !self.gone.contains(key) || is_recorded() {
            return None;
        }
        self.gone.remove(key);
        self.set(key, None)
    }

    fn set(&mut self, key: &ObjectKey, cluster: Option<String>) -> Option<String> {
        if self.cluster_of.get(key) == cluster.as_ref() {
            return None;
        }
        let before = self.cluster_of.remove(key);
        if let Some(before) = &before
            && let Some(members) = self.members.get_mut(before)
        {
            members.remove(key);
            if members.is_empty() {
                self.members.remove(before);
            }
        }
        if let Some(cluster) = cluster {
            self.members.entry(cluster.clone()).or_default().insert(key.clone());
            self.cluster_of.insert(key.clone(), cluster);
        }
        before
    }
}

/// The annotation by which a pool is chosen comes before the label of the cloud controller manager.
pub(super) fn cluster_of(lb: &LoadBalancer) -> Option<String> {
    let named = [lb.annotations().get(annotations::LB_CLUSTER), lb.labels().get(labels::CLUSTER)];
    named.into_iter().flatten().find(|name| !name.is_empty()).cloned()
}

#[cfg(test)]
mod tests {
    use harvester_api::LoadBalancerSpec;

    use super::*;

    fn of(annotation: &str, label: &str) -> LoadBalancer {
        let mut lb = LoadBalancer::new("web", LoadBalancerSpec::default());
        lb.annotations_mut().insert(annotations::LB_CLUSTER.to_owned(), annotation.to_owned());
        lb.labels_mut().insert(labels::CLUSTER.to_owned(), label.to_owned());
        lb
    }

    fn members(clusters: &Clusters, cluster: &str) -> Vec<String> {
        clusters.members(cluster).map(ToString::to_string).collect()
    }

    #[test]
    fn a_load_balancer_that_is_gone_counts_for_its_cluster_while_it_has_a_record() {
        let (mut clusters, key) = (Clusters::default(), ObjectKey::new("shop", "web"));
        clusters.seen(&key, &of("", "blue"));
        clusters.seen(&ObjectKey::new("shop", "api"), &of("", ""));
        assert_eq!(
            (clusters.of(&key), members(&clusters, "blue")),
            (Some("blue"), vec!["shop/web".to_owned()])
        );
        clusters.gone(&key);
        clusters.forget(&key, || true);
        assert_eq!(members(&clusters, "blue").len(), 1);
        // one that is there is not forgotten, and neither is one that is made again
        clusters.seen(&key, &of("red", "blue"));
        clusters.forget(&key, || false);
        assert_eq!((members(&clusters, "blue").len(), members(&clusters, "red").len()), (0, 1));
        clusters.gone(&key);
        clusters.forget(&key, || false);
        assert_eq!((clusters.of(&key), clusters.members.len(), clusters.gone.len()), (None, 0, 0));
    }
}
