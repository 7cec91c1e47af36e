//! Who names a function that others call does not get their rights.

use pgonce::migrate::Part;

use super::roles::{Shop, all_done, code, count};
use super::test_db::connect;

/// A schema for a role; everybody finds what is in it.
async fn schema(shop: &Shop, schema: &str, role: &str) {
    let create = format!(
        "create schema {schema} authorization {role}; grant usage on schema {schema} to public"
    );
    shop.db.run(&create).await;
}

#[tokio::test]
async fn a_guard_that_an_operator_wrote_does_not_run_with_the_senders_rights() {
    let shop = Shop::open().await;
    let (operator, app) = (
        shop.connect(Part::Operator).await,
        shop.connect(Part::App).await,
    );
    schema(&shop, "theirs", shop.name(Part::Operator)).await;
    schema(&shop, "ours", shop.name(Part::App)).await;
    let writes = "(text, text, jsonb) returns boolean language plpgsql as \
        'begin insert into ours.secret values (current_user); return true; end'";
    let (ours, theirs) = (
        format!("create table ours.secret (a text); create function ours.guard {writes}"),
        format!("create function theirs.guard {writes}"),
    );
    all_done(&app, &[&ours]).await;
    all_done(
        &operator,
        &[
            &theirs,
            "select pgonce.define_transition('m', '', 'new'), pgonce.define_transition('m', 'new', 'bad', 'theirs.guard'), \
             pgonce.define_transition('m', 'new', 'good', 'ours.guard')",
        ],
    )
    .await;
    let send = |to: &str, command: &str| {
        format!("select version from pgonce.transition('m', '1', '{to}', '{command}')")
    };
    assert_eq!(count(&app, &send("new", "c1")).await, 1);
    assert_eq!(code(&app, &send("bad", "c2")).await, "42501");
    // With its owner's rights it could still leave something to the commit.
    all_done(
        &operator,
        &["alter function theirs.guard security definer set search_path = pg_catalog, pg_temp"],
    )
    .await;
    assert_eq!(code(&app, &send("bad", "c2")).await, "42501");
    all_done(
        &app,
        &["select pgonce.set_timer('m', '1', 'sla', 'bad', '-1 s')"],
    )
    .await;
    let failed = "select count(*) from pgonce.fire_timers() where outcome = 'failed'";
    assert_eq!(count(&app, failed).await, 1);
    let secrets = "select count(*) from ours.secret";
    assert_eq!(count(&app, secrets).await, 0);
    // A call by its name would find this one.
    let other = writes.replace("(text, text, jsonb)", "(text, text, anyelement)");
    let instead = format!("drop function theirs.guard; create function theirs.guard {other}");
    all_done(&operator, &[&instead]).await;
    assert_eq!(code(&app, &send("bad", "c2")).await, "42883");
    assert_eq!(count(&app, secrets).await, 0);
    let again = format!("drop function theirs.guard; create function theirs.guard {writes}");
    all_done(&operator, &[&again]).await;
    // Nor does that of an application with the rights of those who may do more.
    assert_eq!(code(&shop.db.client, &send("good", "c3")).await, "42501");
    assert_eq!(count(&app, &send("good", "c3")).await, 2);
    assert_eq!(count(&app, secrets).await, 1);
    // A member of the sender's role could act as the sender anyway.
    let (member, role) = (shop.name(Part::Operator), shop.name(Part::App));
    shop.db.run(&format!("grant {role} to {member}")).await;
    all_done(
        &operator,
        &[
            "alter function theirs.guard security invoker",
            "select pgonce.define_transition('m', 'good', 'bad', 'theirs.guard')",
        ],
    )
    .await;
    assert_eq!(count(&app, &send("bad", "c4")).await, 3);
}

#[tokio::test]
async fn an_operator_does_not_put_his_own_code_into_a_projection_that_consumers_apply() {
    let shop = Shop::open().await;
    let (operator, consumer) = (
        shop.connect(Part::Operator).await,
        shop.connect(Part::Consumer).await,
    );
    schema(&shop, "theirs", shop.name(Part::Operator)).await;
    schema(&shop, "ours", shop.name(Part::Consumer)).await;
    for (client, schema) in [(&consumer, "ours"), (&operator, "theirs")] {
        let create = format!(
            "create table {schema}.one (a text primary key); create table {schema}.two (a text primary key); \
             create function {schema}.apply(regclass, pgonce.projected) returns void language plpgsql as 'begin end'"
        );
        all_done(client, &[&create]).await;
    }
    let define = |table: &str, apply: &str| {
        format!("select pgonce.define_projection('p', '{table}', '{apply}', 'marker')")
    };
    all_done(&operator, &[&define("ours.one", "ours.apply")]).await;
    for (table, apply) in [
        ("ours.one", "theirs.apply"),
        ("theirs.one", "ours.apply"),
        ("theirs.one", "theirs.apply"),
    ] {
        let hijack = define(table, apply);
        assert_eq!(code(&operator, &hijack).await, "42501", "{hijack}");
    }
    let defined = "select into_table || ' ' || apply from pgonce.projection";
    assert_eq!(shop.db.text(defined).await, "ours.one ours.apply");
    // What belongs to the same role may take its place; and the owner decides.
    all_done(&operator, &[&define("ours.two", "ours.apply")]).await;
    let owner = connect(&shop.owner).await;
    all_done(&owner, &[&define("theirs.two", "theirs.apply")]).await;
    assert_eq!(shop.db.text(defined).await, "theirs.two theirs.apply");
}
