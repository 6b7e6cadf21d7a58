//! TCP health checks: thresholds as a pure machine, and a dialler with a time wheel.
