//! Scopes, the ledger, and who did what.

use pgonce::Error;

use super::field;
use crate::html::{Html, el};
use crate::server::{App, Fields};
use crate::view::{Column, Kind, Section};

const SCOPES: &[Column] = &[
    ("Scope", "scope", Kind::Code),
    ("Tenant", "tenant", Kind::Code),
    ("Keeps answers", "retention", Kind::Text),
    ("Lease", "lease", Kind::Text),
    ("Busy", "busy", Kind::Text),
    ("Stores", "storage", Kind::Text),
    ("After expiry", "after_expiry", Kind::Text),
    ("Stale", "stale", Kind::Text),
    ("Keys from", "key_source", Kind::Text),
    ("Effects in", "boundary", Kind::Text),
    ("Note", "note", Kind::Text),
    ("Defined", "defined_at", Kind::Time),
];

pub(super) async fn scopes(app: &App, fields: &Fields) -> Result<Vec<Section>, Error> {
    let sql = "select s.scope, s.tenant, s.retention::text, s.lease::text, s.busy || case s.busy when 'wait' then ', ' || s.wait_timeout else '' end as busy, s.storage, \
         s.after_expiry || coalesce(' for ' || s.tombstone_for, '') as after_expiry, s.stale, s.key_source, s.boundary, s.note, s.defined_at \
         from pgonce.scope s where $1::text is null or (s.scope, s.tenant) > ($1, $2) order by s.scope, s.tenant limit $3::text::int";
    let after = ["after", "after_tenant"].map(|name| fields.get(name).map(String::as_str));
    let limit = (MANY + 1).to_string();
    let params = [after[0], after[1].or(Some("")), Some(&*limit)];
    let rows = app.db.rows(sql, &params).await?;
    let none = "No scope is defined, and the database is strict: every claim is refused.";
    let cursor = [("after", "scope"), ("after_tenant", "tenant")];
    let list = Section::new("", SCOPES, rows, none);
    Ok(vec![list.paged(MANY, ("scopes", "/scopes"), &[], &cursor)])
}

const ACCOUNTS: &[Column] = &[
    ("Account", "account", Kind::Code),
    ("Tenant", "tenant", Kind::Code),
    ("Currency", "currency", Kind::Text),
    ("Normal", "normal", Kind::Text),
    ("Balance", "balance", Kind::Number),
    ("Available", "available", Kind::Number),
    ("Entries", "entries", Kind::Number),
    ("Opened", "opened_at", Kind::Time),
    ("Closed", "closed_at", Kind::Time),
];

const PROBLEMS: &[Column] = &[
    ("Problem", "problem", Kind::Status),
    ("Account", "account", Kind::Code),
    ("Tenant", "tenant", Kind::Code),
    ("Detail", "detail", Kind::Text),
];

const PAGE: usize = 100;
/// Rows of a page whose rows are short.
const MANY: usize = 200;

pub(super) async fn ledger(app: &App, fields: &Fields) -> Result<Vec<Section>, Error> {
    // Balances as text: they may have more digits than a number of JSON.
    let sql = "select a.account, a.tenant, a.currency, a.normal, a.balance::text, a.available::text, a.entries, a.opened_at, a.closed_at \
         from (select n.tenant, n.account from pgonce.ledger_account n where n.shard = 0 and ($2::text is null or (n.tenant, n.account) > ($1, $2)) \
               order by n.tenant, n.account limit $3::text::int) n \
         cross join lateral (select v.* from pgonce.ledger_accounts v where v.tenant = n.tenant and v.account = n.account limit 1) a order by a.tenant, a.account";
    let after = ["after_tenant", "after"].map(|name| fields.get(name).map(String::as_str));
    let rows = app
        .db
        .rows(
            sql,
            &[
                after[0].or(Some("")),
                after[1],
                Some(&(PAGE + 1).to_string()),
            ],
        )
        .await?;
    let accounts = Section::new("Accounts", ACCOUNTS, rows, "There is no account.");
    let cursor = [("after_tenant", "tenant"), ("after", "account")];
    let mut tables = vec![accounts.paged(PAGE, ("ledger", "/ledger"), &[], &cursor)];
    if field(fields, "check") == "yes" {
        let problems = app.db.rows("select v.problem, v.account, v.tenant, v.detail from pgonce.ledger_verify() v limit 101", &[]).await?;
        tables.insert(
            0,
            Section::new(
                "Verification",
                PROBLEMS,
                problems,
                "Every balance, chain and group was recomputed: all agree.",
            )
            .cut(100),
        );
    }
    Ok(tables)
}

pub(super) fn ledger_page(app: &App, list: Html) -> Html {
    let form = el(
        "form",
        &[("action", &format!("{}/ledger", app.base))],
        el(
            "input",
            &[("type", "hidden"), ("name", "check"), ("value", "yes")],
            "",
        )
        .and(el("button", &[], "Verify all balances")),
    );
    el("h1", &[], "Ledger").and(form).and(list)
}

const AUDIT: &[Column] = &[
    ("When", "at", Kind::Time),
    ("Act", "act", Kind::Status),
    ("On", "subject", Kind::Code),
    ("Who", "who", Kind::Text),
    ("Why", "reason", Kind::Text),
];

pub(super) async fn audit(app: &App, fields: &Fields) -> Result<Vec<Section>, Error> {
    let sql = "select o.acted_at as at, o.act || case when o.forced then ', forced' else '' end as act, o.scope || ' ' || o.key as subject, \
         coalesce(o.person || ' (' || o.role || ')', o.role::text) as who, o.reason, o.tenant, o.scope, o.key, o.number \
         from pgonce.operator_act o where $1::text is null or (o.acted_at, o.number) < ($1::text::timestamptz, $2::text::bigint) \
         order by o.acted_at desc, o.number desc limit $3::text::int";
    let after = ["after_time", "after"].map(|name| fields.get(name).map(String::as_str));
    let limit = (MANY + 1).to_string();
    let params = [after[0], after[1].or(Some("0")), Some(&*limit)];
    let rows = app.db.rows(sql, &params).await?;
    let cursor = [("after_time", "at"), ("after", "number")];
    let list = Section::new("", AUDIT, rows, "Nobody has intervened by hand.");
    Ok(vec![list.paged(MANY, ("audit", "/audit"), &[], &cursor)])
}
