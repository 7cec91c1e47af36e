//! What the guarantee tests share.
