//! The book's Rust examples, compiled as documentation tests.

macro_rules! pages {
    ($($name:ident $file:literal),+ $(,)?) => { $(
        #[cfg(doctest)]
        #[doc = include_str!(concat!("../../docs/src/", $file))]
        pub struct $name;
    )+ };
}

pages! {
    ExternalPage "how-to/external.md",
    Fingerprints "reference/fingerprints.md",
    ImportPage "how-to/import.md",
    Keys "how-to/keys.md",
    Leases "how-to/leases.md",
    LedgerPage "how-to/ledger.md",
    Migrations "how-to/migrations.md",
    Outbox "how-to/outbox.md",
    Poolers "how-to/poolers.md",
    QueuePage "how-to/queue.md",
    Retries "how-to/retries.md",
    Transitions "how-to/transitions.md",
    Uniqueness "how-to/uniqueness.md",
}
