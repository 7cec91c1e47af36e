//! The SQL around the files: locks, settings and the ledger. `up` and `plan` share it.

use std::time::Duration;

use super::files::{self, Migration};
use super::header::{Header, public_headers};
use super::nodes::{DISTRIBUTE, Layout, TWINS, UNLOAD};
use super::part::Part;
use super::routines::{ROUTINES, Routine};
use crate::driver::quote_literal;

/// Whatever isolation the database has by default: what is read after the lock must be new.
pub(super) const BEGIN: &str = "begin isolation level read committed read write";

/// For looking only.
pub(super) const BEGIN_TO_LOOK: &str = "begin isolation level repeatable read read only";

/// Settings of a role or a database that could bend what the files mean. The last word of a body
/// parsed at creation must come from pg_catalog, or from our own schema by name.
pub(super) const SETTINGS: &str = "\
set local search_path = pg_catalog, pg_temp;
set local standard_conforming_strings = on;
set local check_function_bodies = on;
set local client_min_messages = warning;
set local synchronous_commit = on;
set local statement_timeout = 0;
set local idle_in_transaction_session_timeout = '60s';
";

/// One migrator at a time, for the length of a transaction: a session's lock would leak through a
/// pooler. Of the two-number kind, so that it can never meet the lock of an intent. For locks that
/// the application holds it waits no longer than `lock_timeout`: others queue behind it.
///
/// The rest of the transaction is done by the role that owns what is there. Whatever role runs it, a superuser or a member of the
/// owner's role too, what is new belongs to the same owner: a function has its owner's rights, in each function that it calls and on
/// each table. Without a ledger that is the owner of the schema, where it is there and is no schema of the database's owner.
pub(super) fn lock(schema: &str, lock_timeout: Duration) -> String {
    // Nought would mean for ever.
    let lock_timeout = lock_timeout.as_millis().clamp(1, i32::MAX as u128);
    format!(
        "set local lock_timeout = 0;\n\
         do $$ begin perform pg_advisory_xact_lock(20260102, hashtext('{schema}')); end $$;\n\
         set local lock_timeout = '{lock_timeout}ms';\n\
         do $$
declare
    v_owner name := (select pg_get_userbyid(coalesce(c.relowner, nullif(n.nspowner, 'pg_database_owner'::regrole)))
        from pg_namespace n left join pg_class c on c.relnamespace = n.oid and c.relname = 'migration' where n.nspname = '{schema}');
begin
    if v_owner <> current_user then
        execute format('set local role %I', v_owner);
    end if;
end $$;\n"
    )
}

/// The schema and the ledger, where they are missing. A schema that is there is not created "if
/// not exists": that would ask for a right on the database that its owner need not have.
pub(super) fn ledger(schema: &str) -> String {
    in_schema(
        schema,
        &format!(
            "do $$ begin
    if not exists (select from pg_namespace where nspname = '{schema}') then
        create schema {schema};
    end if;
end $$;
create table if not exists pgonce.migration (
    number     integer not null,
    name       text not null,
    checksum   text not null,
    breaking   boolean not null,
    applied_at timestamptz not null default clock_timestamp(),
    applied_by text not null default current_user,
    constraint one_row_per_migration primary key (number)
);
create table if not exists pgonce.routines (
    one        boolean not null default true,
    checksum   text not null,
    version    text not null,
    definitions jsonb not null default '{{}}',
    applied_at timestamptz not null default clock_timestamp(),
    applied_by text not null default current_user,
    constraint one_row_for_all_routines primary key (one),
    constraint there_is_only_one check (one)
);
"
        ),
    )
}

/// Fails where the routines are no longer those with this checksum, or are there though they were not.
pub(super) fn require_routines(schema: &str, checksum: Option<&str>) -> String {
    // No text of the table ends the body.
    let quoted = |text| quote_literal(text).replace('$', "\\x24");
    let checksum = checksum.map_or_else(|| "null".to_owned(), quoted);
    format!(
        "do $$ begin
    if (select r.checksum from {schema}.routines r) is distinct from {checksum} then
        raise exception 'schema {schema} was migrated after this script was made' using errcode = '55000',
            hint = 'Make it again: pgonce migrate plan --sql.';
    end if;
end $$;
"
    )
}

/// Writes a migration into the ledger.
pub(super) fn record_migration(schema: &str, migration: &Migration) -> String {
    format!(
        "insert into {schema}.migration (number, name, checksum, breaking, applied_by) values ({}, {}, {}, {}, session_user)",
        migration.number,
        quote_literal(migration.name),
        quote_literal(&migration.checksum()),
        migration.is_breaking(),
    )
}

/// Writes the state of the routines into the ledger.
pub(super) fn record_routines(schema: &str, layout: Layout) -> String {
    format!(
        "insert into {schema}.routines (checksum, version, applied_by, definitions) values ({}, {}, session_user, \
         (select jsonb_object_agg(d.object, d.digest) || \
          jsonb_build_object('server', current_setting('server_version_num')::int / 10000) from {} d)) \
         on conflict on constraint one_row_for_all_routines do update set checksum = excluded.checksum, \
         version = excluded.version, definitions = excluded.definitions, applied_at = excluded.applied_at, applied_by = excluded.applied_by",
        quote_literal(&files::routines_checksum(layout)),
        quote_literal(files::VERSION),
        in_schema(schema, &definitions()),
    )
}

/// A sub-query: every function, view, trigger, constraint and index of the schema `pgonce`, with a digest of its
/// definition. Not the routines whose bodies are switches, and not partitions, which come and go. Run it with the
/// search path of [`SETTINGS`].
#[doc(hidden)]
pub fn definitions() -> String {
    let schema =
        "(select c.relnamespace from pg_class c where c.oid = 'pgonce.migration'::regclass)";
    format!(
        "(select format('function %s', p.oid::regprocedure) as object, md5(pg_get_functiondef(p.oid)) as digest
            from pg_proc p where p.pronamespace = {schema} and p.prokind in ('f', 'p')
             and p.proname not in ('now', '_tenant_is_allowed', '_scope_is_allowed', '_is_one_node', '_guarded_scopes')
          union all
          select format('view %s', c.oid::regclass), md5(pg_get_viewdef(c.oid))
            from pg_class c where c.relnamespace = {schema} and c.relkind = 'v'
          union all
          select format('trigger %s on %s', t.tgname, t.tgrelid::regclass), md5(pg_get_triggerdef(t.oid))
            from pg_trigger t join pg_class c on c.oid = t.tgrelid
           where c.relnamespace = {schema} and not c.relispartition and not t.tgisinternal
          union all
          select format('constraint %s on %s', k.conname, k.conrelid::regclass), md5(pg_get_constraintdef(k.oid))
            from pg_constraint k join pg_class c on c.oid = k.conrelid
           where c.relnamespace = {schema} and not c.relispartition and k.contype in ('p', 'u', 'f', 'c')
          union all
          select format('index %s', x.indexrelid::regclass), md5(pg_get_indexdef(x.indexrelid))
            from pg_index x join pg_class c on c.oid = x.indrelid
           where c.relnamespace = {schema} and not c.relispartition)"
    )
}

/// All routines, and what loading them must not change: a database that was strict stays strict
/// (its switch is the body of a routine), scopes keep their commit guards, tenants stay isolated, and roles get what is new for their part.
pub(super) fn routines(schema: &str, layout: Layout) -> String {
    let mut text: String = match layout {
        Layout::Distributed => ROUTINES.iter().map(on_citus).collect(),
        _ => ROUTINES.iter().map(|routine| routine.sql).collect(),
    };
    text.extend(layout.switches());
    text.extend(public_headers().iter().map(Header::comment));
    text.push_str(
        "
do $$ begin
    perform pgonce._set_claim_switch();
    perform pgonce._guard_scopes(array_agg(s.scope)) from pgonce.scope s where s.commit_guard having count(*) > 0;
    -- Else the first lease would begin the epoch, and the others would wait for its commit. On Citus each tenant has its own.
    if to_regclass('pgonce.tenant_epoch') is null then
        perform pgonce._installation_epoch();
    end if;
    if exists (select from pg_class c where c.oid = 'pgonce.intent'::regclass and c.relforcerowsecurity) then
        perform pgonce.isolate_tenants(true);
    end if;
end $$;
-- PostgreSQL lets everyone execute a new function.
revoke execute on all functions in schema pgonce from public;
do $$ begin
    perform pgonce._apply_grants(r.rolname) from pg_roles r
      where exists (select from pgonce.role_grant g where g.role = r.rolname)
         -- What an earlier build left to a role that has no part any more.
         or not pgonce._is_granted(r.rolname) and exists (select from pg_policy p join pg_class c on c.oid = p.polrelid
             where c.relnamespace = (select i.relnamespace from pg_class i where i.oid = 'pgonce.intent'::regclass)
               and p.polname ^@ 'read_by_' and r.oid = any (p.polroles));
end $$;
",
    );
    in_schema(schema, &text)
}

/// A routine as it is loaded on Citus: its twin, or itself with tenants compared as they come. Citus takes an argument with
/// a collation of its own for another tenant.
fn on_citus(routine: &Routine) -> String {
    let name = |path: &'static str| path.rsplit('/').next();
    let twin = TWINS.iter().find(|t| name(t.name) == name(routine.name));
    match (twin, routine.name) {
        (Some(twin), _) => twin.sql.to_owned(),
        // There nothing forgets for a cache, no history of attempts is kept, and there are no calls to providers; a ledger is
        // verified by its tenant's server.
        (
            None,
            "cache/_forget_replays"
            | "intent/_record_attempt"
            | "intent/_forget_attempts"
            | "external/_end_calls"
            | "ledger/_ledger_broken",
        ) => String::new(),
        // Citus would send this whole text to the workers for each trigger: so each is a text of its own.
        (None, "intent/_check_transition" | "retention/_append_only") => {
            let mut parts = routine.sql.split("create or replace trigger");
            let function = parts.next().unwrap_or_default().to_owned();
            let triggers = parts.flat_map(|trigger| without_truncate(trigger.trim_end()));
            triggers.fold(function, |text, trigger| {
                let trigger = format!("create or replace trigger{trigger}");
                let trigger = quote_literal(trigger.trim_end_matches(';'));
                format!("{text}do $do$ begin execute {trigger}; end $do$;\n")
            })
        }
        (None, _) => routine.sql.replace("p_tenant collate \"C\"", "p_tenant"),
    }
}

/// Citus creates no trigger on shards that is for TRUNCATE too: that is one of its own, on the table.
fn without_truncate(trigger: &str) -> Vec<String> {
    let Some((first, on)) = trigger.split_once(" or truncate on ") else {
        return vec![trigger.to_owned()];
    };
    let name = first.split_whitespace().next().unwrap_or_default();
    let truncate = format!(" {name}_untruncated before truncate on {on}");
    vec![format!("{first} on {on}"), truncate]
}

/// Removes the routines, on Citus.
pub(super) fn unload(schema: &str) -> String {
    in_schema(schema, UNLOAD)
}

/// Distributes the tables.
pub(super) fn distribute(schema: &str, colocate_with: Option<&str>) -> String {
    let table = quote_literal(colocate_with.unwrap_or("default"));
    in_schema(schema, DISTRIBUTE).replace("{colocate}", &table)
}

/// The files are written for the schema `pgonce`.
pub(super) fn in_schema(schema: &str, text: &str) -> String {
    text.replace("pgonce.", &format!("{schema}."))
        .replace("in schema pgonce ", &format!("in schema {schema} "))
}

/// Lets a role do a part of the work.
pub(super) fn grant(schema: &str, part: Part, role: &str) -> String {
    format!(
        "select {schema}.grant_to({}, {})",
        quote_literal(role),
        quote_literal(part.as_str())
    )
}
