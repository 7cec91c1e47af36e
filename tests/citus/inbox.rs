//! Accepted messages on Citus.

use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::inbox::Message;
use pgonce_tests::{Observer, TestDriver as _};

use crate::cluster::Cluster;
use crate::distributed::{distributed, migrator, once};

#[tokio::test]
#[ignore = "needs Citus: make citus-tests"]
async fn a_message_is_accepted_once_whatever_node_a_client_asks() {
    let db = distributed(Cluster::shared().await, "messages").await;
    let see = db.see().await;
    let mut nodes = Vec::new();
    for url in &db.urls {
        nodes.push(Observer::connect(url).await);
    }
    let ids = [
        "plain",
        "it's \\ \"quoted\", {odd}",
        "0192f0c4-5b6a-7c3e-9d52-3f1a2b4c5d6e",
    ];
    for tenant in ["a", "b", "c", "d"] {
        for (n, id) in ids.iter().enumerate() {
            let id = id.replace('\'', "''");
            let accept = |hash: &str| {
                format!("select pgonce.accept('billing', 'shop', '{id}', '{hash}', '{tenant}')")
            };
            assert_eq!(nodes[n].text(&accept("\\x01")).await, "t");
            for node in &nodes {
                assert_eq!(node.text(&accept("\\x01")).await, "f");
                assert_eq!(node.code(&accept("\\x02")).await, "P4050");
            }
        }
        // A batch with what is known, what is new, and both twice.
        for (n, node) in nodes.iter().enumerate() {
            let batch = format!(
                "select string_agg(a, ' ') from pgonce.accept_batch('billing', 'shop', '{{new-{n},plain,new-{n},also-{n},plain}}', null, '{tenant}') a"
            );
            assert_eq!(node.text(&batch).await, format!("new-{n} also-{n}"));
            assert_eq!(node.text(&batch).await, "");
            let other = format!(
                "select pgonce.accept_batch('billing', 'shop', '{{fresh,plain}}', array['\\x01', '\\x02']::bytea[], '{tenant}')"
            );
            assert_eq!(node.code(&other).await, "P4050");
            let twice = format!(
                "select pgonce.accept_batch('billing', 'shop', '{{fresh,fresh}}', array['\\x01', '\\x02']::bytea[], '{tenant}')"
            );
            assert_eq!(node.code(&twice).await, "P4050");
        }
    }
    for bad in [
        "select pgonce.accept('', 's', 'm', null, 't')",
        "select pgonce.accept('c', 's', '', null, 't')",
        "select pgonce.accept_batch('c', 's', '{m,\"\"}', null, 't')",
        "select pgonce.accept_batch('c', 's', '{m,n}', '{}', 't')",
    ] {
        assert_eq!(see.code(bad).await, "22023", "{bad}");
    }
    let many = "select pgonce.accept_batch('c', 's', array(select n::text from generate_series(1, 10001) n), null, 't')";
    assert_eq!(see.code(many).await, "P4043");
    let all = "select count(*) from pgonce.accept_batch('c', 's', array(select n::text from generate_series(1, 2000) n), null, 't')";
    assert_eq!(see.number(all).await, 2000);
    assert_eq!(see.number(all).await, 0);
    let markers = "select count(*) from pgonce.inbox_marker where consumer = 'billing'";
    assert_eq!(see.number(markers).await, 4 * (3 + 6));
    migrator(db.url()).check().await.unwrap();
}

#[tokio::test]
#[ignore = "needs Citus: make citus-tests"]
async fn the_sdk_accepts_messages_within_a_command() {
    let db = distributed(Cluster::shared().await, "sdk_messages").await;
    let see = db.see().await;
    let messages: Vec<_> = ["1", "2", "3"].map(|id| Message::new(id, id)).into();
    for (n, url) in db.urls.iter().enumerate() {
        let once = once(url);
        let intent = pgonce::Intent::new("orders.create", n.to_string(), &1)
            .unwrap()
            .tenant("t")
            .unwrap();
        let work = |mut tx: pgonce::Attempt<TokioPostgres>| {
            let messages = &messages;
            async move {
                let one = tx.accept("billing", "shop", &messages[0]).await?;
                let new = tx.accept_batch("billing", "shop", messages).await?;
                for id in one
                    .then_some("1")
                    .into_iter()
                    .chain(new.iter().map(|id| &**id))
                {
                    let order = format!("insert into orders (tenant, key) values ('t', '{id}')");
                    TokioPostgres::exec(tx.conn(), &order).await?;
                }
                tx.succeed(&(one, new.len())).await
            }
        };
        let done: (bool, usize) = once
            .run(&intent, work)
            .await
            .unwrap()
            .into_answer()
            .unwrap();
        assert_eq!(done, (n == 0, if n == 0 { 2 } else { 0 }));
    }
    assert_eq!(see.number("select count(*) from orders").await, 3);
}

#[tokio::test]
#[ignore = "needs Citus: make citus-tests"]
async fn markers_go_when_their_contract_says_so_on_every_server() {
    let db = distributed(Cluster::shared().await, "purged").await;
    let see = db.see().await;
    see.run("select pgonce.define_inbox('short', '2 days', '1 day'); select pgonce.define_inbox('ever', null)")
        .await;
    for tenant in ["a", "b", "c", "d", "e"] {
        for consumer in ["short", "ever", "other"] {
            see.run(&format!(
                "select pgonce.accept('{consumer}', 's', 'm', null, '{tenant}'), pgonce.accept('{consumer}', 's', '0192f0c4-5b6a-7c3e-9d52-3f1a2b4c5d6e', null, '{tenant}')"
            ))
            .await;
        }
    }
    assert_eq!(see.number("select pgonce._purge_inbox(3)").await, 0);
    see.run("select pgonce._move_clock('3 days')").await;
    assert_eq!(see.number("select pgonce._purge_inbox(3)").await, 3);
    once(db.url()).inbox().maintain().await.unwrap();
    let left = "select count(*) from pgonce.inbox_marker";
    assert_eq!(see.number(left).await, 20);
    // A shorter promise holds for what comes; what was promised before is kept.
    see.run("select pgonce.define_inbox('other', '1 day', '1 hour')")
        .await;
    see.run("select pgonce._move_clock('25 days')").await;
    assert_eq!(see.number("select pgonce._purge_inbox(100)").await, 0);
    see.run("select pgonce._move_clock('25 days')").await;
    assert_eq!(see.number("select pgonce._purge_inbox(100)").await, 10);
    let forever = "select pgonce.accept('ever', 's', 'm', null, 'a')";
    assert_eq!(see.text(forever).await, "f");
}
