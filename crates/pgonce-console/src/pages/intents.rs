//! Intents: a list by filter.

use pgonce::Error;

use super::field;
use crate::db::{Row, text};
use crate::html::{Html, el, query};
use crate::parts::chips;
use crate::server::{App, Fields};
use crate::view::{Column, Kind, Section};

const LIST: &[Column] = &[
    ("Key", "key", Kind::Code),
    ("Scope", "scope", Kind::Code),
    ("Tenant", "tenant", Kind::Code),
    ("Status", "status", Kind::Status),
    ("Attempts", "attempts", Kind::Number),
    ("First", "first_at", Kind::Time),
    ("Last", "last_at", Kind::Time),
    ("Stuck for", "stuck_for", Kind::Text),
    ("What may be done", "classification", Kind::Status),
    ("Owner", "owner", Kind::Code),
    ("Failure", "failure_code", Kind::Code),
];

const PAGE: usize = 50;

pub(crate) fn link(row: &Row) -> String {
    let names = ["tenant", "scope", "key"].map(|name| (name, text(row, name)));
    format!(
        "/intent{}",
        query(
            &names
                .each_ref()
                .map(|(name, value)| (*name, value.as_str()))
        )
    )
}

/// `scope:orders.* state:failed tenant:acme key:prefix`; a word without a name is a key's beginning.
#[derive(Debug, Default, PartialEq, Eq)]
struct Filter {
    scope: Option<String>,
    state: Option<String>,
    tenant: Option<String>,
    key: Option<String>,
}

impl Filter {
    fn parse(text: &str) -> Self {
        let mut filter = Self::default();
        for word in text.split_whitespace() {
            match word.split_once(':') {
                Some(("scope", value)) => filter.scope = Some(value.to_owned()),
                Some(("state" | "status", value)) => filter.state = Some(value.to_owned()),
                Some(("tenant", value)) => filter.tenant = Some(value.to_owned()),
                Some(("key", value)) => filter.key = Some(value.to_owned()),
                _ => filter.key = Some(word.to_owned()),
            }
        }
        filter
    }

    /// The scope as a pattern of LIKE, where it has a star.
    fn pattern(&self) -> Option<String> {
        let scope = self.scope.as_ref()?;
        let escaped = scope
            .replace('\\', "\\\\")
            .replace('%', "\\%")
            .replace('_', "\\_");
        Some(escaped.replace('*', "%"))
    }
}

pub(super) async fn list(app: &App, fields: &Fields) -> Result<Vec<Section>, Error> {
    let filter = Filter::parse(field(fields, "q"));
    let limit = (PAGE + 1).to_string();
    let pattern = filter.pattern();
    let is_stuck = filter.state.as_deref() == Some("stuck");
    let rows = if is_stuck {
        let sql = "select k.tenant, k.scope, k.key, k.status, k.attempts, k.first_at, k.last_at, date_trunc('second', k.stuck_for)::text as stuck_for, \
             k.classification, k.owner, k.failure_code from pgonce.stuck k \
             where ($1::text is null or k.tenant = $1) and ($2::text is null or k.scope like $2) and ($3::text is null or starts_with(k.key, $3)) limit $4::text::int";
        app.db
            .rows(
                sql,
                &[
                    filter.tenant.as_deref(),
                    pattern.as_deref(),
                    filter.key.as_deref(),
                    Some(&limit),
                ],
            )
            .await?
    } else {
        // By the primary key, from where the last page ended.
        let sql = "select i.tenant, i.scope, i.key, i.status, i.attempts, i.first_at, i.last_at, i.owner, i.failure_code from pgonce.intent i \
             where ($1::text is null or i.tenant = $1) and ($2::text is null or i.scope like $2) and ($3::text is null or starts_with(i.key, $3)) \
             and ($4::text is null or i.status::text = $4 or $4 = 'failed' and i.status in ('failed_final', 'failed_retryable')) \
             and (coalesce($4, '') not in ('processing', 'failed_retryable') or i.expires_at is null) \
             and ($7::text is null or (i.tenant, i.scope, i.key) > ($5, $6, $7)) order by i.tenant, i.scope, i.key limit $8::text::int";
        let after = ["after_tenant", "after_scope", "after"]
            .map(|name| fields.get(name).map(String::as_str));
        let params = [
            filter.tenant.as_deref(),
            pattern.as_deref(),
            filter.key.as_deref(),
            filter.state.as_deref(),
            after[0].or(Some("")),
            after[1].or(Some("")),
            after[2],
            Some(&*limit),
        ];
        app.db.rows(sql, &params).await?
    };
    let empty = "No record matches. An attempt in an open transaction has no record yet, and expired ones are purged.";
    let cursor = [
        ("after_tenant", "tenant"),
        ("after_scope", "scope"),
        ("after", "key"),
    ];
    let keep = [("q", field(fields, "q"))];
    let mut list =
        Section::new("", LIST, rows, empty).paged(PAGE, ("intents", "/intents"), &keep, &cursor);
    // Stuck ones are in no order that a page could go on from: the first of them are what matters.
    if is_stuck {
        list.next = None;
    }
    list.link = Some(link);
    Ok(vec![list])
}

pub(super) fn list_page(app: &App, fields: &Fields, list: Html) -> Html {
    let path = format!("{}/intents", app.base);
    let chips = [
        ("all", ""),
        ("stuck", "state:stuck"),
        ("processing", "state:processing"),
        ("failed, may be retried", "state:failed_retryable"),
        ("failed permanently", "state:failed_final"),
        ("succeeded", "state:succeeded"),
    ];
    let chips = self::chips(&path, field(fields, "q"), "q", &chips);
    el("h1", &[], "Intents")
        .and(el(
            "form",
            &[("action", &path), ("class", "filter")],
            el(
                "input",
                &[
                    ("name", "q"),
                    ("value", field(fields, "q")),
                    ("aria-label", "Filter"),
                    (
                        "placeholder",
                        "scope:orders.* state:failed tenant:acme key:order-",
                    ),
                ],
                "",
            )
            .and(el("button", &[], "Filter")),
        ))
        .and(chips)
        .and(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_words_with_names_and_a_bare_word_is_a_key() {
        let filter = Filter::parse("scope:orders.* state:failed tenant:acme order-7");
        assert_eq!(
            (
                filter.state.as_deref(),
                filter.tenant.as_deref(),
                filter.key.as_deref()
            ),
            (Some("failed"), Some("acme"), Some("order-7"))
        );
        assert_eq!(filter.pattern().as_deref(), Some("orders.%"));
        assert_eq!(
            Filter::parse("scope:100%_x").pattern().as_deref(),
            Some("100\\%\\_x")
        );
        assert_eq!(Filter::parse("  "), Filter::default());
    }
}
