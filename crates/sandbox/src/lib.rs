//! Two simulated clusters with the real parts running against them.
