//! The schema that pgonce is installed in, and its statements as they are sent there.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use super::delegable::delegable;
use crate::driver::Statement;
use crate::error::{Error, ErrorDetail, Result};

/// Words of SQL that cannot name a schema without quotes, on any supported version.
#[rustfmt::skip]
const RESERVED: &[&str] = &[
    "all", "analyse", "analyze", "and", "any", "array", "as", "asc", "asymmetric", "authorization", "binary", "both",
    "case", "cast", "check", "collate", "collation", "column", "concurrently", "constraint", "create", "cross",
    "current_catalog", "current_date", "current_role", "current_schema", "current_time", "current_timestamp",
    "current_user", "default", "deferrable", "desc", "distinct", "do", "else", "end", "except", "false", "fetch", "for",
    "foreign", "freeze", "from", "full", "grant", "group", "having", "ilike", "in", "initially", "inner", "intersect",
    "into", "is", "isnull", "join", "lateral", "leading", "left", "like", "limit", "localtime", "localtimestamp",
    "natural", "not", "notnull", "null", "offset", "on", "only", "or", "order", "outer", "overlaps", "placing",
    "primary", "references", "returning", "right", "select", "session_user", "similar", "some", "symmetric",
    "system_user", "table", "tablesample", "then", "to", "trailing", "true", "union", "unique", "user", "using",
    "variadic", "verbose", "when", "where", "window", "with",
];

/// Checks the name of a schema: lower case letters, digits and underscores, so that it needs no
/// quotes anywhere and can stand in every function's body.
pub(crate) fn schema_name(name: &str) -> Result<&str> {
    let ok = !name.is_empty()
        && name.len() <= 63
        && !name.starts_with("pg_")
        && !RESERVED.contains(&name)
        && name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
        && name
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    if ok {
        Ok(name)
    } else {
        Err(Error::Invalid(ErrorDetail::new(
            "22023",
            format!("{name:?} cannot be the name of pgonce's schema"),
            "Use at most 63 lower case letters, digits and underscores, beginning with a letter and not with pg_, and no reserved word of SQL.",
        )))
    }
}

/// A statement as its capability writes it, for a schema called `pgonce`.
#[derive(Debug)]
pub(crate) struct Sql {
    text: &'static str,
    often: bool,
}

impl Sql {
    /// A statement that is called often: prepared once on each connection.
    pub(crate) const fn kept(text: &'static str) -> Self {
        Self { text, often: true }
    }

    /// A statement that is called seldom: not worth a prepared statement.
    pub(crate) const fn seldom(text: &'static str) -> Self {
        Self { text, often: false }
    }
}

/// The schema that pgonce is installed in, and its statements as they are sent there.
#[derive(Debug)]
pub(crate) struct Schema {
    name: String,
    /// Whether statements may be prepared by name; not behind a transaction pooler.
    keep: bool,
    /// Whether its tables are distributed by Citus.
    distributed: bool,
    /// By the address of the text: each is written once, as a static.
    made: RwLock<HashMap<(usize, usize), Statement>>,
    /// By the user's statement.
    around: RwLock<HashMap<String, Arc<Around>>>,
}

/// A statement of the user's with those of pgonce around it, in each form in which it is sent.
#[derive(Debug)]
pub(crate) struct Around {
    /// How many values the user's statement has.
    pub(crate) params: usize,
    /// With the retention among the values.
    pub(crate) keeping: Statement,
    /// With a look at the contract.
    pub(crate) asking: Statement,
    /// In a transaction that holds the claim.
    pub(crate) in_transaction: Statement,
}

/// Maximum number of the user's statements that are kept: who writes values into them would fill the memory.
const MAX_AROUND: usize = 1_000;

impl Schema {
    pub(crate) fn new(name: &str, keep: bool) -> Result<Arc<Self>> {
        Self::of(name, keep, false)
    }

    pub(crate) fn of(name: &str, keep: bool, distributed: bool) -> Result<Arc<Self>> {
        Ok(Arc::new(Self {
            name: schema_name(name)?.to_owned(),
            keep,
            distributed,
            made: RwLock::default(),
            around: RwLock::default(),
        }))
    }

    pub(crate) fn is_distributed(&self) -> bool {
        self.distributed
    }

    /// Refuses what does not work where Citus distributes the tables.
    pub(crate) fn refuse_if_distributed(&self, what: &str, hint: &'static str) -> Result<()> {
        match self.distributed {
            false => Ok(()),
            true => Err(Error::Schema(ErrorDetail::new(
                "P4105",
                format!("{what} does not work on Citus"),
                hint,
            ))),
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The statement for this schema.
    pub(crate) fn statement(&self, sql: &Sql) -> Statement {
        if !sql.often {
            return self.make(sql);
        }
        let address = (sql.text.as_ptr() as usize, sql.text.len());
        let made = self.made.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(statement) = made.get(&address) {
            return statement.clone();
        }
        drop(made);
        let statement = self.make(sql);
        let mut made = self.made.write().unwrap_or_else(PoisonError::into_inner);
        made.entry(address).or_insert(statement).clone()
    }

    /// A statement with one of the user's in it, which makes it another for each.
    pub(crate) fn statement_of(&self, sql: String) -> Statement {
        Statement {
            sql: sql.into(),
            keep: self.keep,
            pooled: !self.keep,
        }
    }

    /// What is sent for a statement of the user's with this many values, made once.
    pub(crate) fn around(
        &self,
        sql: &str,
        params: usize,
        make: impl FnOnce(&str) -> Result<Around>,
    ) -> Result<Arc<Around>> {
        let made = self.around.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(around) = made.get(sql).filter(|around| around.params == params) {
            return Ok(around.clone());
        }
        drop(made);
        let around = Arc::new(make(sql)?);
        let mut made = self.around.write().unwrap_or_else(PoisonError::into_inner);
        if made.len() >= MAX_AROUND {
            made.clear();
        }
        made.insert(sql.to_owned(), around.clone());
        Ok(around)
    }

    /// Whether the connections go through a transaction pooler.
    pub(crate) fn is_pooled(&self) -> bool {
        !self.keep
    }

    fn make(&self, sql: &Sql) -> Statement {
        let text = match self.distributed {
            true => delegable(sql.text),
            false => sql.text.to_owned(),
        };
        Statement {
            sql: qualified(&text)
                .replace("pgonce.", &format!("{}.", self.name))
                .into(),
            keep: self.keep && sql.often,
            pooled: !self.keep,
        }
    }
}

/// Types by their schema: they are no keywords, and a `search_path` could put others in their place.
/// Functions and operators are written with theirs.
fn qualified(text: &str) -> String {
    const TYPES: [&str; 7] = [
        "text",
        "jsonb",
        "bytea",
        "uuid",
        "regclass",
        "name",
        "pg_snapshot",
    ];
    TYPES.iter().fold(text.to_owned(), |text, name| {
        text.replace(&format!("::{name}"), &format!("::pg_catalog.{name}"))
    })
}
