//! Vocabulary of Harvester: kinds, annotations, labels, finalizers and conditions.
