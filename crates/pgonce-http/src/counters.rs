//! Counters of what the layer did.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident;)+) => {
        /// How often each thing happened since the layer was made. Read at any time.
        #[derive(Debug, Default)]
        pub struct Counters { $($name: AtomicU64,)+ }

        impl Counters {
            $(
                $(#[doc = $doc])+
                pub fn $name(&self) -> u64 {
                    self.$name.load(Relaxed)
                }
            )+

            /// All of them by name.
            pub fn all(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name()),)+]
            }
        }

        /// Which counter.
        #[derive(Debug, Clone, Copy)]
        #[allow(non_camel_case_types)]
        pub(crate) enum Event { $($name,)+ }

        impl Event {
            /// The counter's name.
            pub(crate) fn name(self) -> &'static str {
                match self { $(Event::$name => stringify!($name),)+ }
            }
        }

        impl Counters {
            pub(crate) fn count(&self, event: Event) {
                let counter = match event { $(Event::$name => &self.$name,)+ };
                counter.fetch_add(1, Relaxed);
            }
        }
    };
}

counters! {
    /// Requests whose work was done now.
    done;
    /// Requests that got a stored answer.
    replayed;
    /// Requests that got 409 because another one with the key is in progress.
    busy;
    /// Keys that were used with another request.
    conflicts;
    /// Requests that could not be an intent (no key, a bad key, too large), or whose handler contradicted what is recorded.
    refused;
    /// Requests that got 503: the database was unavailable, or too much was in progress.
    unavailable;
    /// Requests that could not be answered for a reason on the server's side.
    errors;
    /// Requests whose work was done without a claim, because the policy fails open.
    unprotected;
    /// Handlers that panicked.
    panics;
    /// Answers that could not be kept: streams, and those above the limit.
    unkept;
}
