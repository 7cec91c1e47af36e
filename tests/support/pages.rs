//! The book's Rust examples, compiled as documentation tests.

macro_rules! pages {
    ($($name:ident $file:literal),+ $(,)?) => { $(
        #[cfg(doctest)]
        #[doc = include_str!(concat!("../../docs/src/", $file))]
        pub struct $name;
    )+ };
}

pages! {
    Keys "keys.md",
    Leases "leases.md",
    Migrations "migrations.md",
    Outbox "outbox.md",
    Poolers "poolers.md",
    Quickstart "quickstart.md",
    Retries "retries.md",
    Uniqueness "uniqueness.md",
}
