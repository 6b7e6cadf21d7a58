//! A cloud controller manager framework: what a cloud implements, and the controllers that drive it.
