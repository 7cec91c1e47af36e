//! The guarantees, one file each.
