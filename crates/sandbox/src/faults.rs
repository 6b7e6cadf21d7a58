//! What `--help-faults` prints.

pub(crate) const HELP: &str = "\
Making things go wrong in the sandbox
=====================================

Annotations, on a VirtualMachine or its VirtualMachineInstance in the Harvester cluster:
  sim.harvesterhci.io/agent: silent                 the guest agent does not answer
  sim.harvesterhci.io/backend: stopped              the VM takes no connection (time-out)
  sim.harvesterhci.io/backend: refusing             the VM refuses connections
  sim.harvesterhci.io/backend: slow=2s              the VM answers after so long
  sim.harvesterhci.io/ready: \"false\"                the VM never becomes ready
  sim.harvesterhci.io/hotplug: stuck                volumes are never attached

Objects that a real Harvester obeys too: labels topology.kubernetes.io/region and /zone of its Nodes,
VirtualMachineInstanceMigration objects, spec.runStrategy of a VM, its subresources start, stop and restart.

Requests, by rules in ConfigMap kube-system/sim-faults of each cluster (not with --server real):

  apiVersion: v1
  kind: ConfigMap
  metadata: {namespace: kube-system, name: sim-faults}
  data:
    rules: |
      - {user: harvester-load-balancer, verb: update, resource: ippools, nth: 3, answer: 409}
      - {resource: services, probability: 0.1, answer: drop, when: after}

  user         part of the user's name; all users but the administrator when left out
  verb         get, list, watch, create, update, patch, delete
  resource     plural, or plural/subresource
  name         of the object
  nth          only this request, counted from 1
  probability  0 to 1
  answer       403, 409, 410 (inside a watch stream), 429, 500, drop, or delay=<duration such as 300ms>
  when         before (default) or after the request was carried out
";
