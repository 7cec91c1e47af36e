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

    /// Names of JSON members whose values are never shown, in any answer or payload. Default: none.
    pub fn redact(mut self, members: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.redact = members.into_iter().map(Into::into).collect();
        self
    }

    /// The router. Nest it under [`Console::base`], or merge it.
    pub fn router(self) -> Router {
        server::router(self)
    }
}
