//! Stories of the host path.
