//! The text of `--help-faults`.

use std::fmt::Write as _;

use sim_harvester::settings;

/// All of it.
pub(crate) fn help() -> String {
    let mut text = "\
Making things go wrong in the sandbox
=====================================

Annotations in the Harvester cluster:
"
    .to_owned();
    for (key, kinds, values) in settings::HELP {
        writeln!(text, "  {key}  on {kinds}\n      {values}").expect("a String takes everything");
    }
    text + REST
}

const REST: &str = "
Objects that a real Harvester obeys too: labels topology.kubernetes.io/region and /zone of its Nodes,
VirtualMachineInstanceMigration objects, spec.runStrategy of a VM, its subresources start, stop and restart,
the Setting server-version (its hosts run the kube-vip of that release).

Requests, by rules in ConfigMap kube-system/sim-faults of each cluster (not with --server real):

  apiVersion: v1
  kind: ConfigMap
  metadata: {namespace: kube-system, name: sim-faults}
  data:
    rules: |
      - {user: harvester-load-balancer, verb: update, resource: ippools, nth: 3, answer: 409}
      - {resource: services, probability: 0.1, answer: drop, when: after}

  user         name of the user, or of its service account; all users but the administrator when left out.
               guest.kubeconfig and harvester.kubeconfig are those of the administrator, admin
  verb         get, list, watch, create, update, patch, delete, deletecollection
  resource     plural without the group, or plural/subresource
  name         of the object, for verbs that name one in their path: not create, list, watch
  nth          only this request, counted from 1
  probability  0 to 1
  answer       403, 409, 410 (inside a watch stream), 429, 500, drop, or delay=<duration such as 300ms>
  when         before (default) or after the request was carried out

A * at the end of user, verb, resource or name stands for any end. A rule that could never hit a request is refused,
one for a kind that the server does not have gets a warning. No rule hits the administrator's requests for this
ConfigMap. An annotation that is misspelt or has an unknown value gets an Event on its object.
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_has_every_annotation_and_the_rules() {
        let text = help();
        for word in ["dhcp", "agent", "backend", "ready", "hotplug"] {
            assert!(text.contains(&format!("sim.harvesterhci.io/{word}")), "{word}");
        }
        assert!(text.contains("sim-faults"));
    }
}
