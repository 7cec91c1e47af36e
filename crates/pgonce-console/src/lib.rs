//! The web console of pgonce: find any intent, event or message, see what became of it, and act on it.
//!
//! A router that any axum application can mount. Everything is embedded, nothing is asked of anybody else, and no script is
//! inline: the content security policy allows this origin only.
//!
//! ```no_run
//! # async fn example(driver: pgonce::driver::tokio_postgres::TokioPostgres) -> Result<(), Box<dyn std::error::Error>> {
//! use pgonce_console::{Access, Console};
//!
//! let access = Access::local();
//! let address = "127.0.0.1:7650".parse()?;
//! access.may_listen_on(address)?;
//! let console = Console::new(driver).access(access).router();
//! # let _ = console;
//! # Ok(())
//! # }
//! ```

mod access;
mod acts;
mod api;
mod cell;
mod db;
mod forward;
mod html;
mod live;
mod look;
mod openapi;
mod operations;
mod pages;
mod parts;
mod perform;
mod server;
mod view;

pub use access::{Access, Role};
pub use forward::ForwardAuth;

use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use pgonce::driver::tokio_postgres::TokioPostgres;

use crate::db::Db;

/// A console over one database. See the [crate](self).
#[derive(Debug, Clone)]
#[must_use]
pub struct Console {
    db: Db,
    base: String,
    instance: String,
    access: Access,
    redact: Vec<String>,
    state: State,
}

/// What a process remembers from one [`Console`] to the next that replaces it: operations that run, and who is signed in.
///
/// ```no_run
/// # fn example(driver: pgonce::driver::tokio_postgres::TokioPostgres) {
/// use pgonce_console::{Console, State};
///
/// let state = State::default();
/// let first = Console::new(driver.clone()).state(state.clone()).router();
/// // The configuration was read again.
/// let second = Console::new(driver).instance("payments").state(state).router();
/// # let _ = (first, second);
/// # }
/// ```
#[derive(Debug, Clone, Default)]
pub struct State {
    operations: Arc<operations::Operations>,
    guard: Arc<Mutex<Option<Arc<access::Guard>>>>,
}

impl State {
    /// The logins of the console before, where the same people may do the same; none otherwise.
    fn guard(&self, access: Access) -> Arc<access::Guard> {
        let mut kept = self.guard.lock().unwrap_or_else(PoisonError::into_inner);
        match &*kept {
            Some(guard) if *guard.access() == access => guard.clone(),
            _ => kept.insert(Arc::new(access::Guard::new(access))).clone(),
        }
    }
}

impl Console {
    /// A console for the schema `pgonce`, reached over this driver with the rights of its role: a role with the part
    /// `operator` sees and does everything.
    pub fn new(driver: TokioPostgres) -> Self {
        Self {
            db: Db {
                driver,
                schema: pgonce::DEFAULT_SCHEMA.to_owned(),
            },
            base: String::new(),
            instance: String::new(),
            access: Access::local(),
            redact: Vec::new(),
            state: State::default(),
        }
    }

    /// Another schema. Its name must have been checked, as [`pgonce::migrate::Migrator::check`] does.
    pub fn schema(mut self, schema: impl Into<String>) -> Self {
        self.db.schema = schema.into();
        self
    }

    /// The path under which the router is nested, such as `/ops/pgonce`. Default: none.
    pub fn base(mut self, base: &str) -> Self {
        self.base = base.trim_end_matches('/').to_owned();
        self
    }

    /// A name for this installation, shown on every page. Default: none.
    pub fn instance(mut self, instance: impl Into<String>) -> Self {
        self.instance = instance.into();
        self
    }

    /// Who may see and do what. Default: [`Access::local`].
    pub fn access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }

    /// Names of JSON members whose values are never shown, in any answer or payload, nor in a text there that is JSON, such as the body of
    /// an HTTP response. A text with a `{` that is no JSON, and bytes in base64, are hidden whole. Default: none.
    pub fn redact(mut self, members: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.redact = members.into_iter().map(Into::into).collect();
        self
    }

    /// What a console that this one replaces has begun. Default: nothing.
    pub fn state(mut self, state: State) -> Self {
        self.state = state;
        self
    }

    /// The router. Nest it under [`Console::base`], or merge it.
    pub fn router(self) -> Router {
        server::router(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logins_are_kept_for_as_long_as_the_same_people_may_do_the_same() {
        let token = "a-long-random-token";
        let access = |role| Access::local().token("ada", role, token);
        let state = State::default();
        let first = state.guard(access(Role::Operator));
        assert!(first.login(token).is_some());
        assert!(Arc::ptr_eq(&first, &state.guard(access(Role::Operator))));
        let fresh = state.guard(access(Role::Viewer));
        assert!(!Arc::ptr_eq(&first, &fresh));
        assert!(!Arc::ptr_eq(&first, &state.guard(access(Role::Operator))));
    }
}
