//! What somebody wants to happen once, named by (tenant, scope, key).

use std::fmt;
use std::sync::Arc;

use serde::Serialize;

use crate::error::{Error, ErrorDetail, Result};
use crate::fingerprint::Fingerprint;

/// Maximum length of a tenant, scope or key, in bytes.
pub const MAX_NAME_BYTES: usize = 255;

/// Maximum length of a correlation id: an index has it.
const MAX_CORRELATION_BYTES: usize = 1000;

/// What somebody wants to happen once: its name, and the fingerprint of the request behind it.
///
/// ```
/// use pgonce::Intent;
///
/// let intent = Intent::new("orders.create", "0190f5a2-7c3e", &serde_json::json!({"item": "book"}))?
///     .tenant("acme")?
///     .correlation("request-77");
/// assert_eq!(intent.scope(), "orders.create");
/// # Ok::<(), pgonce::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Intent {
    /// `None` where there are no tenants.
    tenant: Option<Arc<str>>,
    scope: String,
    key: String,
    fingerprint: Fingerprint,
    correlation: Option<String>,
    first: bool,
}

impl Intent {
    /// An intent whose fingerprint is that of `request`.
    pub fn new<T: Serialize + ?Sized>(
        scope: impl Into<String>,
        key: impl Into<String>,
        request: &T,
    ) -> Result<Self> {
        Self::with_fingerprint(scope, key, Fingerprint::of(request)?)
    }

    /// An intent with a fingerprint that was made elsewhere.
    pub fn with_fingerprint(
        scope: impl Into<String>,
        key: impl Into<String>,
        fingerprint: Fingerprint,
    ) -> Result<Self> {
        let (scope, key) = (scope.into(), key.into());
        name_fits(&scope, "P4000", "scope")?;
        name_fits(&key, "P4001", "key")?;
        match fingerprint.as_bytes().len() {
            0 => Err(invalid(
                "P4003",
                "the fingerprint is missing",
                "Make it with Fingerprint::of(&request).",
            )),
            1..=64 => Ok(()),
            n => Err(invalid(
                "22023",
                format!("the fingerprint has {n} bytes; at most 64"),
                "Send a digest, not the request itself.",
            )),
        }?;
        Ok(Self {
            tenant: None,
            scope,
            key,
            fingerprint,
            correlation: None,
            first: false,
        })
    }

    /// A key that came as raw bytes, such as a header: refused unless it is UTF-8.
    pub fn key_from_bytes(bytes: &[u8]) -> Result<&str> {
        std::str::from_utf8(bytes).map_err(|error| {
            invalid(
                "22023",
                format!("the key is not UTF-8: {error}"),
                "Send a key of visible ASCII characters, such as a UUID.",
            )
        })
    }

    /// The tenant it belongs to; the same key of another tenant is another intent.
    pub fn tenant(mut self, tenant: impl Into<String>) -> Result<Self> {
        let tenant = tenant.into();
        if !tenant.is_empty() {
            name_fits(&tenant, "22023", "tenant")?;
        }
        self.tenant = (!tenant.is_empty()).then(|| tenant.into());
        Ok(self)
    }

    /// An id that ties its records to your logs and traces. It often is a caller's, and never what a command fails for: U+0000 is
    /// left out, and so is what goes beyond 1000 bytes.
    #[must_use]
    pub fn correlation(mut self, id: impl Into<String>) -> Self {
        let mut id = id.into();
        id.retain(|c| c != '\0');
        id.truncate(id.floor_char_boundary(MAX_CORRELATION_BYTES));
        self.correlation = Some(id);
        self
    }

    /// Says that this is known to be the first attempt: the claim does not look for an earlier
    /// answer, and the insert at the end decides. Wrong knowledge costs a second run of the
    /// work that is rolled back, never a second effect.
    #[must_use]
    pub fn known_first(mut self) -> Self {
        self.first = true;
        self
    }

    /// The tenant; empty where there are none.
    pub fn tenant_name(&self) -> &str {
        self.tenant.as_deref().unwrap_or_default()
    }

    pub(crate) fn shared_tenant(&self) -> Option<Arc<str>> {
        self.tenant.clone()
    }

    /// The scope.
    pub fn scope(&self) -> &str {
        &self.scope
    }

    /// The key.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The fingerprint of the request.
    pub fn fingerprint(&self) -> &Fingerprint {
        &self.fingerprint
    }

    /// The correlation id, where one was given.
    pub fn correlation_id(&self) -> Option<&str> {
        self.correlation.as_deref()
    }

    pub(crate) fn is_known_first(&self) -> bool {
        self.first
    }

    pub(crate) fn not_known(mut self) -> Self {
        self.first = false;
        self
    }
}

/// The key stays out of logs: to some it is a secret.
impl fmt::Debug for Intent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Intent")
            .field("tenant", &self.tenant_name())
            .field("scope", &self.scope)
            .field("fingerprint", &self.fingerprint)
            .finish_non_exhaustive()
    }
}

fn name_fits(name: &str, missing: &str, what: &str) -> Result<()> {
    if name.is_empty() {
        return Err(invalid(
            missing,
            format!("the {what} is missing"),
            match what {
                "scope" => "Name a bounded kind of command, such as 'orders.create'.",
                _ => "Send the caller's name for this one request; the same on every retry.",
            },
        ));
    }
    if name.len() > MAX_NAME_BYTES {
        return Err(invalid(
            "22023",
            format!(
                "the {what} has {} bytes; at most {MAX_NAME_BYTES}",
                name.len()
            ),
            "Hash a long name: pgonce::key::derived does.",
        ));
    }
    if name.contains('\0') {
        return Err(invalid(
            "22023",
            format!("the {what} contains a NUL character, which PostgreSQL cannot store"),
            "Remove it, or hash the name with pgonce::key::derived.",
        ));
    }
    Ok(())
}

fn invalid(code: &str, message: impl Into<String>, hint: &str) -> Error {
    Error::Invalid(ErrorDetail::new(code, message, hint))
}
