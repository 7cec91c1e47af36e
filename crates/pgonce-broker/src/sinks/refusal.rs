//! Why there is no sink, or no source.

/// A sink or a source cannot be had as it was asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// Nothing here goes by that scheme.
    #[error("nothing here is called {scheme:?}; known are {known}")]
    UnknownScheme {
        /// What the URL begins with.
        scheme: String,
        /// What it could begin with.
        known: String,
    },
    /// This build does not have that sink.
    #[error(
        "this build has nothing for {scheme:?}: build pgonce-broker with the feature {feature:?}"
    )]
    NotBuiltIn {
        /// What the URL begins with.
        scheme: String,
        /// The feature that brings it.
        feature: &'static str,
    },
    /// The URL cannot be read.
    #[error("the URL cannot be read: {why}; expected is something like {expected}")]
    BadUrl {
        /// What is wrong.
        why: String,
        /// An example.
        expected: &'static str,
    },
    /// The sink has no such option.
    #[error("{sink} has no option {option:?}; known are {known}")]
    UnknownOption {
        /// The sink.
        sink: &'static str,
        /// What was said.
        option: String,
        /// What could be said.
        known: String,
    },
    /// An option's value makes no sense.
    #[error("option {option:?} cannot be {value:?}: expected is {expected}")]
    BadOption {
        /// The option.
        option: String,
        /// What was said; left out where it is a secret.
        value: String,
        /// What could be said.
        expected: String,
    },
    /// An option is needed and was not given.
    #[error("{sink} needs the option {option:?}: {what}")]
    MissingOption {
        /// The sink.
        sink: &'static str,
        /// The option.
        option: &'static str,
        /// What the option is needed for.
        what: &'static str,
    },
    /// The other side answers, and cannot be used like this.
    #[error("{sink} cannot be used: {why}")]
    Refused {
        /// The sink.
        sink: &'static str,
        /// What is wrong, and what to do.
        why: String,
    },
    /// Nobody answers, or not now. Trying again may help.
    #[error("{sink} cannot be reached: {why}")]
    Unreachable {
        /// The sink.
        sink: &'static str,
        /// What happened.
        why: String,
    },
}

impl Refusal {
    /// A stable name for programs.
    ///
    /// ```
    /// use pgonce_broker::sinks::{Options, open};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let refusal = open("carrier-pigeon://roof", &Options::new()).await.unwrap_err();
    /// assert_eq!(refusal.code(), "sink-unknown-scheme");
    /// # });
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn code(&self) -> &'static str {
        match self {
            Self::UnknownScheme { .. } => "sink-unknown-scheme",
            Self::NotBuiltIn { .. } => "sink-not-built-in",
            Self::BadUrl { .. } => "sink-bad-url",
            Self::UnknownOption { .. } => "sink-unknown-option",
            Self::BadOption { .. } => "sink-bad-option",
            Self::MissingOption { .. } => "sink-missing-option",
            Self::Refused { .. } => "sink-refused",
            Self::Unreachable { .. } => "sink-unreachable",
        }
    }

    /// Whether the same request may succeed later.
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::Unreachable { .. })
    }
}
