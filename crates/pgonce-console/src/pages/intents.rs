//! Intents: a list by filter.

use pgonce::Error;

use super::field;
use crate::db::{Row, text};
use crate::html::{Html, el, query};
use crate::look::{self, LOOK};
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

/// What is not finished, the oldest first: it has an index of its own, and is few. What is stuck has a contract that says what may be done.
fn unfinished(is_stuck: bool) -> String {
    let columns = "i.tenant, i.scope, i.key, i.status, i.attempts, i.first_at, i.last_at, i.owner, i.failure_code, i.since::text as since";
    let since = "coalesce(i.lease_until, i.last_at)";
    let (state, contract) = match is_stuck {
        true => (
            format!("{since} <= pgonce.now() and $4 = 'stuck'"),
            ", lateral (select date_trunc('second', s.stuck_for)::text as stuck_for, s.classification from pgonce.stuck s \
              where s.tenant = i.tenant and s.scope = i.scope and s.key = i.key) k",
        ),
        false => (
            "i.status::text = $4".to_owned(),
            ", lateral (select null as stuck_for) k",
        ),
    };
    format!(
        "select {columns}, k.* from (select i.*, {since} as since from pgonce.intent i where i.expires_at is null and {state} \
             and ($1::text is null or i.tenant = $1) and ($2::text is null or i.scope like $2) and ($3::text is null or starts_with(i.key, $3)) \
             and ($5::text is null or {since} >= $5::text::timestamptz and ({since}, i.tenant, i.scope, i.key) > ($5::text::timestamptz, $6, $7, $8)) \
             order by {since}, i.tenant, i.scope, i.key limit $9::text::int) i {contract} order by i.since, i.tenant, i.scope, i.key"
    )
}

/// From scope to scope, and in each by key, from where the last page ended.
fn by_key() -> String {
    let columns = "i.tenant, i.scope, i.key, i.status, i.attempts, i.first_at, i.last_at, i.owner, i.failure_code";
    let state_is = "($4::text is null or x.status::text = $4 or $4 = 'failed' and x.status in ('failed_final', 'failed_retryable'))";
    // The rows of a pair come in the order of keys, and pairs in theirs: both ends are found in the primary key.
    let look = format!(
        "select i.* from pair p cross join lateral (select {columns} from pgonce.intent i where i.tenant = p.tenant and i.scope = p.scope \
             and i.key > case when p.tenant = $5 and p.scope = $6 then $7 else '' end and ($3::text is null or i.key >= $3 and ($9::text is null or i.key < $9)) \
             order by i.key limit {LOOK}) i where ($1::text is null or p.tenant = $1) and ($2::text is null or p.scope like $2)"
    );
    let listed = look::among(&look, LOOK, state_is, "$8::text::int");
    format!(
        "with recursive pair (tenant, scope) as (
             (select i.tenant, i.scope from pgonce.intent i where (i.tenant, i.scope) >= ($5, $6) order by i.tenant, i.scope limit 1)
             union all
             select n.* from pair p cross join lateral (
                 select i.tenant, i.scope from pgonce.intent i where (i.tenant, i.scope) > (p.tenant, p.scope) order by i.tenant, i.scope limit 1) n
              where $1::text is null or p.tenant = $1) {listed}"
    )
}

/// The first text after all that begin with this, by the bytes of UTF-8; none where there is no such text.
fn successor(prefix: &str) -> Option<String> {
    let mut chars: Vec<char> = prefix.chars().collect();
    while let Some(last) = chars.pop() {
        // After the last letter before the surrogates comes the first behind them.
        let next = match last {
            '\u{d7ff}' => Some('\u{e000}'),
            last => char::from_u32(u32::from(last) + 1),
        };
        if let Some(next) = next {
            chars.push(next);
            return Some(chars.into_iter().collect());
        }
    }
    None
}

pub(super) async fn list(app: &App, fields: &Fields) -> Result<Vec<Section>, Error> {
    let filter = Filter::parse(field(fields, "q"));
    let limit = (PAGE + 1).to_string();
    let pattern = filter.pattern();
    let empty = "No record matches. An attempt in an open transaction has no record yet, and expired ones are purged.";
    let cursor =
        ["after_tenant", "after_scope", "after"].map(|name| fields.get(name).map(String::as_str));
    let page = ("intents", "/intents");
    let keep = [("q", field(fields, "q"))];
    let by_name = [
        ("after_tenant", "tenant"),
        ("after_scope", "scope"),
        ("after", "key"),
    ];
    let state = filter.state.as_deref();
    let list = if let Some("stuck" | "processing" | "failed_retryable") = state {
        let params = [
            filter.tenant.as_deref(),
            pattern.as_deref(),
            filter.key.as_deref(),
            state,
            fields.get("after_time").map(String::as_str),
            cursor[0].or(Some("")),
            cursor[1].or(Some("")),
            cursor[2].or(Some("")),
            Some(&*limit),
        ];
        let sql = unfinished(state == Some("stuck"));
        let rows = app.db.rows(&sql, &params).await?;
        let [tenant, scope, key] = by_name;
        let cursor = [("after_time", "since"), tenant, scope, key];
        Section::new("", LIST, rows, empty).paged(PAGE, page, &keep, &cursor)
    } else {
        let beyond = filter.key.as_deref().and_then(successor);
        let params = [
            filter.tenant.as_deref(),
            pattern.as_deref(),
            filter.key.as_deref(),
            state,
            cursor[0].or(filter.tenant.as_deref()).or(Some("")),
            cursor[1].or(Some("")),
            cursor[2].or(Some("")),
            Some(&*limit),
            beyond.as_deref(),
        ];
        let rows = app.db.rows(&by_key(), &params).await?;
        Section::new("", LIST, rows, empty).looked(PAGE, page, &keep, &by_name)
    };
    Ok(vec![Section {
        link: Some(link),
        ..list
    }])
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

    #[test]
    fn a_prefix_ends_before_the_next_text_that_does_not_begin_with_it() {
        assert_eq!(successor("order-").as_deref(), Some("order."));
        assert_eq!(successor("\u{d7ff}").as_deref(), Some("\u{e000}"));
        assert_eq!(successor("a\u{10ffff}").as_deref(), Some("b"));
        assert_eq!(successor("\u{10ffff}"), None);
        assert_eq!(successor(""), None);
    }
}
