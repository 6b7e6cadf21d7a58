//! Addresses for load balancers: pools, ranges, selection, allocation.
