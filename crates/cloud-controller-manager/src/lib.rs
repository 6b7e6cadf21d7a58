//! Harvester's implementation of the cloud provider traits.
