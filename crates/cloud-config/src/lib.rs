//! The kubeconfig for Harvester: find, parse, connect.
