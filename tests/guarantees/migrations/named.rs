//! Parts and bindings belong to a role, not to its name.

use pgonce::migrate::Part;

use super::bound::bound;
use super::roles::{Shop, all_done, code, count, role};
use super::test_db::connect;

/// What relays and operators do is for all tenants.
#[tokio::test]
async fn a_role_that_acts_for_all_tenants_is_not_bound() {
    let shop = Shop::open().await;
    let owner = connect(&shop.owner).await;
    let (name, _) = role(&shop.db).await;
    let bind = |role: &str| format!("select pgonce.bind_tenant('{role}', 'acme')");
    let grant = |role: &str, part: &str| format!("select pgonce.grant_to('{role}', '{part}')");
    for part in ["relay", "operator"] {
        let (other, _) = role(&shop.db).await;
        all_done(&owner, &[&grant(&other, part)]).await;
        assert_eq!(code(&owner, &bind(&other)).await, "22023", "{part}");
        let by_setting = format!("select pgonce.bind_tenant('{other}')");
        assert_eq!(code(&owner, &by_setting).await, "22023", "{part}");
        let (member, _) = role(&shop.db).await;
        shop.db.run(&format!("grant {other} to {member}")).await;
        assert_eq!(code(&owner, &bind(&member)).await, "22023", "a member");
        let (group, _) = role(&shop.db).await;
        let (member, _) = role(&shop.db).await;
        shop.db.run(&format!("grant {group} to {member}")).await;
        all_done(&owner, &[&bind(&member)]).await;
        let to_all = grant(&group, part);
        assert_eq!(code(&owner, &to_all).await, "22023", "{part}, by a group");
    }
    all_done(&owner, &[&grant(&name, "consumer"), &bind(&name)]).await;
    for part in ["relay", "operator"] {
        assert_eq!(code(&owner, &grant(&name, part)).await, "22023", "{part}");
    }
    let unbind = format!("select pgonce.bind_tenant('{name}', '')");
    all_done(&owner, &[&unbind, &grant(&name, "operator")]).await;
}

/// A role may become a member of another one at any time, without a call of pgonce.
#[tokio::test]
async fn a_bound_role_that_became_a_relay_moves_no_subscription() {
    let (shop, url) = bound().await;
    let name = bound_name(&shop).await;
    shop.db
        .run(&format!("grant {} to {name}", shop.name(Part::Relay)))
        .await;
    let relay = connect(&url).await;
    for call in [
        "_claim_lanes('billing', 'host-7', '1 minute')",
        "_drop_outbox_partitions()",
    ] {
        let call = format!("select pgonce.{call}");
        assert_eq!(code(&relay, &call).await, "42501", "{call}");
    }
    let free = shop.connect(Part::Relay).await;
    let lanes = "select count(*) from pgonce._claim_lanes('billing', 'host-8', '1 minute')";
    assert_eq!(count(&free, lanes).await, 16);
}

async fn bound_name(shop: &Shop) -> String {
    let name = "select role::text from pgonce.tenant_binding";
    shop.db.text(name).await
}

const FOREIGN: &str = "select count(*) from pgonce.answer_of('s', 'done', '\\x01', 'globex')";

/// PostgreSQL knows a role by its number: pgonce keeps its name, and a policy, which keeps the number.
#[tokio::test]
async fn a_bound_role_stays_bound_whatever_its_name_becomes() {
    let (shop, url) = bound().await;
    let owner = connect(&shop.owner).await;
    let old = bound_name(&shop).await;
    let (new, third) = (format!("{old}_new"), format!("{old}_third"));
    let rename = |from: &str, to: &str| format!("alter role {from} rename to {to}");
    let bind =
        |role: &str, tenant: &str| format!("select pgonce.bind_tenant('{role}', '{tenant}')");
    let bindings =
        "select string_agg(role || ' ' || tenant, ', ' order by tenant) from pgonce.tenant_binding";

    shop.db.run(&rename(&old, &new)).await;
    let renamed = connect(&url.replace(&old, &new)).await;
    assert_eq!(count(&renamed, FOREIGN).await, 0);
    let relay = format!("select pgonce.grant_to('{new}', 'relay')");
    assert_eq!(code(&owner, &relay).await, "22023");
    // Another one of the old name is bound by itself, and the first one stays bound.
    let other = format!("create role {old} login; select pgonce.grant_to('{old}', 'app')");
    shop.db.run(&other).await;
    all_done(&owner, &[&bind(&old, "globex")]).await;
    let both = format!("{new} acme, {old} globex");
    assert_eq!(shop.db.text(bindings).await, both);
    assert_eq!(count(&renamed, FOREIGN).await, 0);
    assert_eq!(count(&connect(&url).await, FOREIGN).await, 1);
    // The two change names.
    for (from, to) in [(&old, &third), (&new, &old), (&third, &new)] {
        shop.db.run(&rename(from, to)).await;
    }
    assert_eq!(count(&connect(&url).await, FOREIGN).await, 0);
    all_done(&owner, &[&bind(&old, "initech")]).await;
    let changed = format!("{new} globex, {old} initech");
    assert_eq!(shop.db.text(bindings).await, changed);
    all_done(&owner, &[&bind(&new, ""), &bind(&old, "")]).await;
    let left = "select (select count(*) from pgonce.tenant_binding) || ' ' || count(*) from pg_policy \
        where polrelid = 'pgonce.role_grant'::regclass and polname not like 'read\\_by\\_%'";
    assert_eq!(shop.db.text(left).await, "0 0");
    assert_eq!(count(&connect(&url).await, FOREIGN).await, 1);
}

/// A dump that is restored before the role is there has its binding, and no policy.
#[tokio::test]
async fn a_bound_role_without_a_policy_is_bound_by_its_name() {
    let (shop, url) = bound().await;
    let owner = connect(&shop.owner).await;
    let name = bound_name(&shop).await;
    let drop = format!("drop policy {name} on pgonce.role_grant");
    all_done(&owner, &[&drop]).await;
    assert_eq!(count(&connect(&url).await, FOREIGN).await, 0);
    let again = format!("select pgonce.bind_tenant('{name}', 'acme')");
    all_done(&owner, &[&again, &again]).await;
    let policies = "select count(*)::text from pg_policy p join pgonce.tenant_binding b on b.role = p.polname \
        where p.polrelid = 'pgonce.role_grant'::regclass and p.polroles::regrole[]::text[] = array[b.role::text]";
    assert_eq!(shop.db.text(policies).await, "1");
}

#[tokio::test]
async fn a_role_has_nothing_of_a_dropped_one_of_its_name() {
    let shop = Shop::open().await;
    let owner = connect(&shop.owner).await;
    let (name, url) = role(&shop.db).await;
    let grant = |part: &str| format!("select pgonce.grant_to('{name}', '{part}')");
    let again = format!("drop owned by {name}; drop role {name}; create role {name} login");
    let operates = "table pgonce.operator_act";
    all_done(&owner, &[&grant("operator")]).await;
    all_done(&connect(&url).await, &[operates]).await;
    shop.db.run(&again).await;
    // As `migrate up` does for every role.
    let apply = format!("select pgonce._apply_grants('{name}')");
    all_done(&owner, &[&apply]).await;
    assert_eq!(code(&connect(&url).await, operates).await, "42501");
    all_done(&owner, &[&grant("operator")]).await;
    shop.db.run(&again).await;
    all_done(&owner, &[&grant("viewer")]).await;
    let viewer = connect(&url).await;
    assert_eq!(code(&viewer, operates).await, "42501");
    all_done(&viewer, &["table pgonce.stuck"]).await;
    let parts =
        format!("select string_agg(part, ' ') from pgonce.role_grant where role = '{name}'");
    assert_eq!(shop.db.text(&parts).await, "viewer");
}
