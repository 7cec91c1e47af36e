//! Encrypted connections.

use std::time::Duration;

use pgonce_testkit::Postgres;
use tokio_postgres::NoTls;

use crate::fixture::{Run, program};

#[tokio::test]
async fn it_encrypts_when_the_address_says_so_and_trusts_no_stranger() {
    let server = Postgres::builder().start().await.unwrap();
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (client, connection) = tokio_postgres::connect(&server.url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    for (file, text) in [
        ("server.crt", made.cert.pem()),
        ("server.key", made.signing_key.serialize_pem()),
    ] {
        // The server writes its own files: it runs as another user when the tests run as root.
        let lines = format!(
            "copy (select unnest(string_to_array('{}', chr(10)))) to program 'umask 077; cat > {file}'",
            text.trim()
        );
        client.batch_execute(&lines).await.unwrap();
    }
    client
        .batch_execute("alter system set ssl = on")
        .await
        .unwrap();
    client
        .batch_execute("select pg_reload_conf()")
        .await
        .unwrap();
    pgonce_testkit::wait_until("the server offers TLS", Duration::from_secs(10), || async {
        let row = client.query_one("show ssl", &[]).await.unwrap();
        row.get::<_, &str>(0) == "on"
    })
    .await
    .unwrap();

    let authority = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(authority.path(), made.cert.pem()).unwrap();
    let url = format!(
        "postgres://postgres@localhost:{}/postgres?sslmode=require",
        server.port()
    );
    let mut known = program(&["migrate", "up"]);
    known
        .env("DATABASE_URL", &url)
        .env("PGSSLROOTCERT", authority.path());
    let run = Run::of(known.output().unwrap());
    assert_eq!(run.code, 0, "{run:?}");

    let mut stranger = program(&["migrate", "status"]);
    stranger
        .env("DATABASE_URL", &url)
        .env_remove("PGSSLROOTCERT");
    let run = Run::of(stranger.output().unwrap());
    assert_eq!(run.code, 3, "{run:?}");
    assert!(run.err.contains("certificate"), "{run:?}");
}
