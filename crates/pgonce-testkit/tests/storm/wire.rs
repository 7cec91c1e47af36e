//! What goes through the proxy without a fault comes out as it went in.

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    thread,
};

use pgonce_testkit::{CuttingProxy, Direction};
use tokio_postgres::SimpleQueryMessage;

use crate::Fixture;

fn packet(kind: Option<u8>, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 4).unwrap();
    let mut packet: Vec<u8> = kind.into_iter().collect();
    packet.extend(length.to_be_bytes());
    packet.extend(body);
    packet
}

fn in_pieces(mut stream: &TcpStream, bytes: &[u8], size: usize) {
    for piece in bytes.chunks(size) {
        stream.write_all(piece).unwrap();
    }
}

fn exactly(mut stream: &TcpStream, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes).unwrap();
    bytes
}

#[test]
fn every_byte_passes_in_both_directions_however_it_is_cut_into_pieces() {
    let large = vec![b'x'; 300_000];
    let start_up = packet(None, b"\0\x03\0\0user\0me\0\0");
    let questions = [
        packet(Some(b'Q'), b"select 1\0"),
        packet(Some(b'd'), &large),
        packet(Some(b'X'), b""),
    ]
    .concat();
    let log_in = [
        packet(Some(b'R'), &[0; 4]),
        packet(Some(b'K'), &[0, 0, 0, 9, 1, 2, 3, 4]),
        packet(Some(b'Z'), b"I"),
    ]
    .concat();
    let answers = [
        packet(Some(b'D'), &large),
        packet(Some(b'C'), b"SELECT 1\0"),
        packet(Some(b'Z'), b"I"),
    ]
    .concat();

    for size in [7, 997, 5_000, usize::MAX] {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let proxy = CuttingProxy::start(listener.local_addr().unwrap()).unwrap();
        let expected = (start_up.clone(), questions.clone());
        let outcome = (log_in.clone(), answers.clone());
        let server = thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            assert_eq!(exactly(&stream, expected.0.len()), expected.0);
            in_pieces(&stream, &outcome.0, 3);
            assert_eq!(exactly(&stream, expected.1.len()), expected.1);
            in_pieces(&stream, &outcome.1, size);
            stream.shutdown(Shutdown::Write).unwrap();
            assert_eq!(
                (&stream).read(&mut [0]).unwrap(),
                0,
                "the client's end arrives"
            );
        });

        let stream = TcpStream::connect(proxy.addr()).unwrap();
        in_pieces(&stream, &packet(None, &80_877_103_u32.to_be_bytes()), 3);
        assert_eq!(exactly(&stream, 1), b"N", "no TLS here");
        in_pieces(&stream, &start_up, 2);
        assert_eq!(exactly(&stream, log_in.len()), log_in);
        assert_eq!(proxy.backends(), [9]);
        in_pieces(&stream, &questions, size);
        assert_eq!(exactly(&stream, answers.len()), answers);
        assert_eq!(
            (&stream).read(&mut [0]).unwrap(),
            0,
            "the server's end arrives"
        );
        stream.shutdown(Shutdown::Both).unwrap();
        server.join().unwrap();

        let seen: Vec<_> = proxy.transcript().iter().map(ToString::to_string).collect();
        let up = ["c0:s0 Query select 1", "c0:s1 CopyData", "c0:s2 Terminate"];
        let down = [
            "c0:c0 DataRow",
            "c0:c1 CommandComplete SELECT 1",
            "c0:c2 ReadyForQuery idle",
        ];
        assert_eq!(seen, [up, down].concat());
    }
}

#[tokio::test]
async fn tokio_postgres_works_through_it() {
    let fixture = Fixture::new().await;
    let client = fixture.client().await;
    let large = "ü".repeat(2_000_000);
    let row = client
        .query_one("select $1::text || '!'", &[&large])
        .await
        .unwrap();
    assert_eq!(row.get::<_, String>(0), format!("{large}!"));

    let sink = client.copy_in("copy note from stdin").await.unwrap();
    let mut sink = Box::pin(sink);
    let line: &[u8] = b"a\t1\nb\t2\n";
    futures_util::SinkExt::send(&mut sink, bytes::Bytes::from_static(line))
        .await
        .unwrap();
    assert_eq!(sink.as_mut().finish().await.unwrap(), 2);

    let error = client.batch_execute("select 1/0").await.unwrap_err();
    assert_eq!(error.code().unwrap().code(), "22012");
    let outcome = client
        .simple_query("select key from note order by key")
        .await
        .unwrap();
    let rows = outcome
        .iter()
        .filter(|outcome| matches!(outcome, SimpleQueryMessage::Row(_)));
    assert_eq!(rows.count(), 2);

    let text: Vec<_> = fixture
        .proxy
        .transcript()
        .iter()
        .map(|m| m.text.clone())
        .collect();
    for expected in ["COPY 2", "22012 division by zero", "select $1::text || '!'"] {
        assert!(
            text.iter().any(|text| text == expected),
            "{expected} in {text:?}"
        );
    }
}

#[tokio::test]
async fn a_cancel_request_finds_its_way() {
    let fixture = Fixture::new().await;
    let client = fixture.client().await;
    let token = client.cancel_token();
    let proxy = &fixture.proxy;
    let cancel = async {
        pgonce_testkit::wait_until("the query to start", crate::SOON, async || {
            proxy.transcript().iter().any(|m| m.name == "Query")
        })
        .await
        .unwrap();
        // The server drops a cancellation that comes before the query is under way.
        loop {
            token.cancel_query(tokio_postgres::NoTls).await.unwrap();
            tokio::task::yield_now().await;
        }
    };
    let outcome = tokio::select! {
        outcome = client.batch_execute("select pg_sleep(60)") => outcome,
        () = cancel => unreachable!(),
    };
    assert_eq!(outcome.unwrap_err().code().unwrap().code(), "57014");
}

#[tokio::test]
async fn sqlx_works_through_it() {
    use sqlx::{Connection, PgConnection};
    let fixture = Fixture::new().await;
    let url = fixture.proxy.url_for(fixture.database.name());
    let mut connection = PgConnection::connect(&url).await.unwrap();
    let mut transaction = connection.begin().await.unwrap();
    for amount in 0..3_i64 {
        sqlx::query("insert into note values ('a', $1)")
            .bind(amount)
            .execute(&mut *transaction)
            .await
            .unwrap();
    }
    transaction.commit().await.unwrap();
    connection.close().await.unwrap();
    assert_eq!(fixture.notes().await, 3);
    let seen = fixture.proxy.transcript();
    let commits = seen.iter().filter(|m| m.direction == Direction::ToServer);
    assert_eq!(
        commits
            .filter(|m| m.text.eq_ignore_ascii_case("commit"))
            .count(),
        1
    );
    assert_eq!(seen.last().unwrap().name, "Terminate");
}

#[tokio::test]
async fn a_path_has_the_same_numbers_in_every_run() {
    let fixture = Fixture::new().await;
    let mut runs = Vec::new();
    for _ in 0..3 {
        fixture.proxy.start_over();
        let mut client = fixture.client().await;
        let transaction = client.transaction().await.unwrap();
        let insert = "insert into note values ($1, $2)";
        transaction.execute(insert, &[&"a", &1_i64]).await.unwrap();
        transaction.commit().await.unwrap();
        let mut seen = fixture.proxy.transcript();
        // The two directions are numbered apart: how they interleave is chance.
        seen.sort_by_key(|message| (message.direction, message.number));
        runs.push(seen);
    }
    assert!(runs[0].len() > 10);
    assert_eq!(runs[0], runs[1]);
    assert_eq!(runs[0], runs[2]);
}
