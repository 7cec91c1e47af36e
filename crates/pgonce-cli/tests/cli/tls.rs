//! Encrypted connections.

use std::time::Duration;

use pgonce_testkit::Postgres;
use tokio_postgres::NoTls;

use crate::fixture::{Run, program};

#[tokio::test]
async fn sslmode_and_sslrootcert_mean_what_libpq_says() {
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
    let stranger = tempfile::NamedTempFile::new().unwrap();
    let other = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(stranger.path(), other.cert.pem()).unwrap();
    let (known, stranger) = (
        authority.path().to_str().unwrap(),
        stranger.path().to_str().unwrap(),
    );
    let port = server.port();
    let run = |host: &str, options: &str| {
        let url = format!("postgres://postgres@{host}:{port}/postgres?{options}");
        let mut command = program(&["migrate", "status"]);
        Run::of(command.env("DATABASE_URL", url).output().unwrap())
    };
    // 4: connected, and pgonce is not installed there. 3: no connection. 2: no authority to check against.
    for (host, options, code) in [
        ("localhost", "sslmode=disable".to_owned(), 4),
        ("localhost", "sslmode=allow".to_owned(), 4),
        ("localhost", "sslmode=prefer".to_owned(), 4),
        ("localhost", "sslmode=require".to_owned(), 4),
        (
            "localhost",
            format!("sslmode=require&sslrootcert={known}"),
            4,
        ),
        (
            "localhost",
            format!("sslmode=require&sslrootcert={stranger}"),
            3,
        ),
        ("localhost", "sslmode=verify-ca".to_owned(), 2),
        (
            "127.0.0.1",
            format!("sslmode=verify-ca&sslrootcert={known}"),
            4,
        ),
        (
            "localhost",
            format!("sslmode=verify-ca&sslrootcert={stranger}"),
            3,
        ),
        ("localhost", "sslmode=verify-full".to_owned(), 2),
        (
            "localhost",
            format!("sslmode=verify-full&sslrootcert={known}"),
            4,
        ),
        (
            "127.0.0.1",
            format!("sslmode=verify-full&sslrootcert={known}"),
            3,
        ),
        (
            "localhost",
            format!("sslmode=verify-full&sslrootcert={stranger}"),
            3,
        ),
        ("localhost", "sslrootcert=system".to_owned(), 3),
        (
            "localhost",
            "sslmode=verify-full&sslrootcert=/no/such/file".to_owned(),
            2,
        ),
    ] {
        let run = run(host, &options);
        assert_eq!(run.code, code, "{host} {options}: {run:?}");
    }
    let mut by_variables = program(&["migrate", "up"]);
    let port = port.to_string();
    for (name, value) in [
        ("PGHOST", "localhost"),
        ("PGPORT", &*port),
        ("PGUSER", "postgres"),
        ("PGDATABASE", "postgres"),
        ("PGSSLMODE", "verify-full"),
        ("PGSSLROOTCERT", known),
    ] {
        by_variables.env(name, value);
    }
    let run = Run::of(by_variables.output().unwrap());
    assert_eq!(run.code, 0, "the PG* variables alone: {run:?}");
}
