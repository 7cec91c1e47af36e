//! A dump keeps the names of policies, not the numbers of roles; and tables may get another owner.

use pgonce::migrate::Migrator;

use super::roles::{Shop, all_done, count, role};
use super::test_db::{connect, tokio_driver};

const SECRET: &str = "begin; select pgonce.claim('orders', 'secret', '\\x01'); select pgonce.succeed('orders', 'secret', '\\x01', 1, '7'); \
    select pgonce.publish('orders', 'x', 's', '{}'); commit";
const SEES: &str =
    "select (select count(*) from pgonce.intent) + (select count(*) from pgonce.outbox)";

/// Calls all policies with which the role reads all by this name, as those of a restored dump have the number of the old cluster.
async fn rename_policies(shop: &Shop, role: &str, to: &str) {
    let rename = format!(
        "do $$ declare v_policy record; begin \
           for v_policy in select p.polname, p.polrelid::regclass as name from pg_policy p \
              where p.polname ^@ 'read_by_' and '{role}'::regrole::oid = any (p.polroles) \
           loop \
             execute format('alter policy %I on %s rename to %I', v_policy.polname, v_policy.name, '{to}'); \
           end loop; \
         end $$"
    );
    shop.db.run(&rename).await;
}

/// As a newer build does.
async fn migrate(shop: &Shop) {
    shop.db
        .run("update pgonce.routines set checksum = 'old'")
        .await;
    Migrator::new(tokio_driver(&shop.owner)).up().await.unwrap();
}

fn grant(role: &str, part: &str) -> String {
    format!("select pgonce.grant_to('{role}', '{part}')")
}

fn revoke(role: &str, part: &str) -> String {
    format!("select pgonce.revoke_from('{role}', '{part}')")
}

#[tokio::test]
async fn a_revoked_operator_reads_nothing_whatever_its_policies_are_called() {
    let shop = Shop::open().await;
    shop.db.run(SECRET).await;
    let owner = connect(&shop.owner).await;
    let (name, url) = role(&shop.db).await;
    all_done(&owner, &[&grant(&name, "app"), &grant(&name, "operator")]).await;
    let client = connect(&url).await;
    let left = format!(
        "select count(*) from pg_policy where polname ^@ 'read_by_' and '{name}'::regrole::oid = any (polroles)"
    );
    let policies = count(&shop.db.client, &left).await;
    assert!(policies > 1, "{policies}");
    rename_policies(&shop, &name, "read_by_7").await;
    // An earlier build made some of its own beside them.
    let again =
        format!("create policy read_by_8 on pgonce.intent for select to {name} using (true)");
    shop.db.run(&again).await;
    migrate(&shop).await;
    assert_eq!(count(&client, SEES).await, 2);
    assert_eq!(count(&shop.db.client, &left).await, policies);
    all_done(&owner, &[&revoke(&name, "operator")]).await;
    assert_eq!(count(&client, SEES).await, 0);
    assert_eq!(count(&shop.db.client, &left).await, 0);
}

#[tokio::test]
async fn two_operators_whose_policies_have_each_others_numbers_keep_their_own() {
    let shop = Shop::open().await;
    shop.db.run(SECRET).await;
    let owner = connect(&shop.owner).await;
    let mut roles = Vec::new();
    for _ in 0..2 {
        let (name, url) = role(&shop.db).await;
        all_done(&owner, &[&grant(&name, "app"), &grant(&name, "operator")]).await;
        let number = format!("select '{name}'::regrole::oid::text");
        let number = shop.db.text(&number).await;
        roles.push((name, connect(&url).await, format!("read_by_{number}")));
    }
    let [(one, by_one, its), (other, by_other, others)] = &roles[..] else {
        panic!("two roles");
    };
    rename_policies(&shop, one, "read_by_none").await;
    rename_policies(&shop, other, its).await;
    rename_policies(&shop, one, others).await;
    migrate(&shop).await;
    let both = async || (count(by_one, SEES).await, count(by_other, SEES).await);
    assert_eq!(both().await, (2, 2));
    all_done(&owner, &[&revoke(one, "operator")]).await;
    assert_eq!(both().await, (0, 2));
    // The name that its number would give it is taken.
    all_done(&owner, &[&grant(one, "operator")]).await;
    assert_eq!(both().await, (2, 2));
    all_done(&owner, &[&revoke(other, "operator")]).await;
    assert_eq!(both().await, (2, 0));
}

/// What was left to a role holds for its members, too.
#[tokio::test]
async fn an_upgrade_takes_back_what_an_earlier_build_left_to_a_revoked_role() {
    let shop = Shop::open().await;
    shop.db.run(SECRET).await;
    let (revoked, _) = role(&shop.db).await;
    let (member, url) = role(&shop.db).await;
    let leave = format!(
        "create policy read_by_7 on pgonce.intent for select to {revoked} using (true); grant {revoked} to {member}; {}",
        grant(&member, "app")
    );
    shop.db.run(&leave).await;
    let client = connect(&url).await;
    assert_eq!(count(&client, SEES).await, 1, "as it was");
    migrate(&shop).await;
    assert_eq!(count(&client, SEES).await, 0);
}

#[tokio::test]
async fn the_policies_of_the_owner_are_for_the_role_that_owns_the_tables_now() {
    let shop = Shop::open().await;
    shop.db.run(SECRET).await;
    let old = "select pg_get_userbyid(relowner)::text from pg_class where oid = 'pgonce.intent'::regclass";
    let old = shop.db.text(old).await;
    let isolate = "select pgonce.isolate_tenants(true)";
    let former = connect(&shop.owner).await;
    all_done(&former, &[isolate]).await;
    let (new, url) = role(&shop.db).await;
    shop.db
        .run(&format!("reassign owned by {old} to {new}"))
        .await;
    let owner = connect(&url).await;
    let lease = "select pgonce.claim('orders', 'leased', '\\x01', '1 minute')";
    all_done(&owner, &[isolate, lease]).await;
    all_done(
        &owner,
        &["select pgonce.isolate_tenants(false)", &grant(&old, "app")],
    )
    .await;
    assert_eq!(count(&former, SEES).await, 0);
}
