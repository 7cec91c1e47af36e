//! Files are imported row by row, each row once.

mod bad_files;
mod strikes;

use std::io::Write as _;

use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::import::{Format, Import, Input, Report};
use pgonce::tokio_postgres::Once;
use pgonce::{Error, Result};
use pgonce_tests::World;
use tokio::sync::{Mutex, MutexGuard};

type Place = World<TokioPostgres>;

/// Fault points belong to the process: one test at a time, where tests share it.
static TURN: Mutex<()> = Mutex::const_new(());

const CUSTOMER: &str = "create table public.customer (id bigint generated always as identity primary key, \
    email text not null constraint one_customer_per_email unique, name text not null, age integer check (age > 0)); \
    grant select, insert on public.customer to public";

async fn place() -> (Place, MutexGuard<'static, ()>) {
    let turn = TURN.lock().await;
    let world = World::new().await;
    world.see.run(CUSTOMER).await;
    (world, turn)
}

fn customers() -> Import {
    Import::into_table("customers", "public.customer").key(["email"])
}

fn stream(text: impl Into<Vec<u8>>) -> Input {
    Input::Stream(Box::new(std::io::Cursor::new(text.into())))
}

async fn import(once: &Once, import: &Import, text: impl Into<Vec<u8>>) -> Result<Report> {
    once.import(import, stream(text), |_| ()).await
}

/// Rows, applied, skipped, changed, failed.
fn counts(report: &Report) -> [u64; 5] {
    let rows = report.rows;
    [
        rows.rows,
        rows.applied,
        rows.skipped,
        rows.changed,
        rows.failed,
    ]
}

/// A file of the test's own; it is removed with what is returned.
fn file(name: &str, bytes: &[u8]) -> (tempfile::TempDir, Input) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    (folder, Input::File(path))
}

#[tokio::test]
async fn every_row_has_its_result_and_a_rerun_changes_nothing() {
    let (world, _turn) = place().await;
    let text = "email,name,age\nada@x,Ada,36\nbob@x,\"Bob, \"\"the\"\"\nsecond\",\ncy@x,Cy,old\nada@x,Ada,36\nada@x,Eve,36\n\
        dot@x,Dot,0\nzoe@x,Zoe,7\n";
    let report = import(&world.once, &customers(), text).await.unwrap();
    assert_eq!(counts(&report), [7, 3, 2, 1, 2]);
    let stored = "select string_agg(email || ':' || name || ':' || coalesce(age::text, '-'), '|' order by email) from public.customer";
    let expected = "ada@x:Ada:36|bob@x:Bob, \"the\"\nsecond:-|zoe@x:Zoe:7";
    assert_eq!(world.see.text(stored).await, expected);
    let attention = "select string_agg(concat_ws(' ', row, line, status, key, field, code), '|' order by row) from pgonce.import_row";
    assert_eq!(
        world.see.text(attention).await,
        "3 5 failed [\"cy@x\"] age 22P02|5 7 skipped [\"ada@x\"] changed|6 8 failed [\"dot@x\"] 23514"
    );
    let each = "select string_agg(r.status, ' ' order by n) from generate_series(1, 8) n, \
        pgonce.import_result('customers', 1, n) r where r.hash is not null or n = 8";
    assert_eq!(
        world.see.text(each).await,
        "applied applied failed skipped skipped failed applied pending"
    );
    // The same stream again: all that was applied is there.
    let again = import(&world.once, &customers(), text).await.unwrap();
    assert_eq!(counts(&again), [7, 0, 5, 1, 2]);
    assert_eq!(world.see.text(stored).await, expected);
    let hashes = "select count(distinct hashes) from (select number, string_agg(hashes, '' order by first_row) as hashes \
        from pgonce.import_chunk group by number) c";
    assert_eq!(world.see.number(hashes).await, 1);
}

#[tokio::test]
async fn a_file_is_known_by_its_hash_whatever_it_is_called() {
    let (world, _turn) = place().await;
    let text = b"name,email\nAda,ada@x\n";
    for (name, new) in [("a.csv", true), ("b.csv", false)] {
        let (_folder, input) = file(name, text);
        let report = world
            .once
            .import(&customers(), input, |_| ())
            .await
            .unwrap();
        assert_eq!((report.new, counts(&report)), (new, [1, 1, 0, 0, 0]));
    }
    let (_folder, input) = file("c.csv", text);
    let other = customers().map("name", "");
    let error = world.once.import(&other, input, |_| ()).await.unwrap_err();
    assert_eq!(error.code(), "P4098", "{error}");
    let (_folder, input) = file("c.csv", b"email,name\nada@x,Ada\nbob@x,Bob\n");
    let report = world
        .once
        .import(&customers(), input, |_| ())
        .await
        .unwrap();
    assert_eq!((report.number, counts(&report)), (2, [2, 1, 1, 0, 0]));
}

#[tokio::test]
async fn compressed_files_of_several_parts_and_both_formats_are_read() {
    let (world, _turn) = place().await;
    let (one, two) = (
        "{\"email\":\"ada@x\",\"name\":\"Ada\",\"age\":36}\n",
        "{\"name\":\"B\\u00f6b\",\"email\":\"bob@x\"}\n\n",
    );
    let gzip = |text: &str| {
        let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        out.write_all(text.as_bytes()).unwrap();
        out.finish().unwrap()
    };
    let zstd = |text: &str| {
        ruzstd::encoding::compress_to_vec(
            text.as_bytes(),
            ruzstd::encoding::CompressionLevel::Fastest,
        )
    };
    let files = [
        (
            "a.jsonl.gz",
            [gzip(one), gzip(two)].concat(),
            [2, 2, 0, 0, 0],
        ),
        (
            "a.ndjson.zst",
            [zstd(one), zstd(two)].concat(),
            [2, 0, 2, 0, 0],
        ),
        (
            "a.jsonl",
            format!("\u{feff}{one}{two}").into_bytes(),
            [2, 0, 2, 0, 0],
        ),
        (
            "a.csv",
            "\u{feff}email;name;age\r\nada@x;Ada;36\r\n\"bob@x\";Böb;\r\n".into(),
            [2, 0, 2, 0, 0],
        ),
    ];
    for (name, bytes, expected) in files {
        let delimiter = if name == "a.csv" { b';' } else { b',' };
        let (_folder, input) = file(name, &bytes);
        let wanted = customers().delimiter(delimiter);
        let report = world.once.import(&wanted, input, |_| ()).await.unwrap();
        assert_eq!(counts(&report), expected, "{name}");
    }
    assert_eq!(
        world
            .see
            .text("select name from public.customer where email = 'bob@x'")
            .await,
        "Böb"
    );
}

#[tokio::test]
async fn rows_go_to_a_function_once_for_each_key_one_by_one_or_in_batches() {
    let (world, _turn) = place().await;
    world.see.run("create table public.paid (ref text, amount numeric check (amount > 0)); grant all on public.paid to public; \
        create function public.pay(r jsonb) returns void language sql as \
            'insert into public.paid values (r ->> ''ref'', (r ->> ''amount'')::numeric)'; \
        create function public.pay_all(r jsonb) returns bigint language sql as \
            'with p as (insert into public.paid select e ->> ''ref'', (e ->> ''amount'')::numeric \
             from jsonb_array_elements(r) e returning 1) select count(*) from p'").await;
    let rows = "{\"ref\":\"a\",\"amount\":123456789012345678901234567890.5}\n{\"ref\":\"b\",\"amount\":1}\n{\"amount\":1,\"ref\":\"b\"}\n\
        {\"ref\":\"b\",\"amount\":2}\n{\"ref\":\"c\",\"amount\":0}\n{\"amount\":5}\n";
    for (job, to) in [
        ("one", Import::call("one", "public.pay")),
        ("all", Import::call_batch("all", "public.pay_all")),
    ] {
        world.see.run("truncate public.paid").await;
        let to = to.key(["ref"]).format(Format::JsonLines);
        let report = import(&world.once, &to, rows).await.unwrap();
        assert_eq!(counts(&report), [6, 2, 2, 1, 2], "{job}");
        let fixed = "{\"ref\":\"c\",\"amount\":3}\n{\"ref\":\"a\",\"amount\":7}\n";
        let report = import(&world.once, &to, fixed).await.unwrap();
        assert_eq!(
            counts(&report),
            [2, 1, 1, 1, 0],
            "{job}: a row that failed may come again"
        );
        let paid = world
            .see
            .text("select string_agg(ref || amount, ' ' order by ref) from public.paid")
            .await;
        assert_eq!(paid, "a123456789012345678901234567890.5 b1 c3", "{job}");
    }
}

/// The natural key is a value, and one value has many spellings.
#[tokio::test]
async fn a_row_goes_to_a_function_once_however_its_file_spells_it() {
    let (world, _turn) = place().await;
    world.see.run("create table public.paid (ref text, amount numeric); grant all on public.paid to public; \
        create function public.pay(r jsonb) returns void language sql as \
            'insert into public.paid values (r ->> ''ref'', (r ->> ''amount'')::numeric)'").await;
    let to = Import::call("pay", "public.pay").key(["ref"]);
    let lines = [
        r#"{"ref":"INV\/2026\/7","amount":1}
{"ref":"caf\u00e9","amount":2.50}
{"ref":17,"amount":3,"note":null}"#,
        r#"{"amount":1.0,"ref":"INV/2026/7"}
{"ref":"café","amount":25e-1}
{"ref":17.0,"amount":3}"#,
    ];
    let json = to.clone().format(Format::JsonLines);
    for (text, expected) in lines.iter().zip([[3, 3, 0, 0, 0], [3, 0, 3, 0, 0]]) {
        let report = import(&world.once, &json, *text).await.unwrap();
        assert_eq!(counts(&report), expected, "{text}");
    }
    let csv = "ref,amount,note\nINV/2026/7,1,\ncafé,2.5,\n17,3,\n17,4,\n";
    let report = import(&world.once, &to.format(Format::Csv), csv)
        .await
        .unwrap();
    assert_eq!(counts(&report), [4, 0, 4, 1, 0], "{report:?}");
    let paid = "select count(*) || ' ' || sum(amount) from public.paid";
    assert_eq!(world.see.text(paid).await, "3 6.50");
}

#[tokio::test]
async fn a_dry_run_says_what_would_happen_and_does_nothing() {
    let (world, _turn) = place().await;
    let text = "email,name,age\nada@x,Ada,36\nbob@x,Bob,x\n";
    let report = import(&world.once, &customers().dry_run(true), text)
        .await
        .unwrap();
    assert_eq!(counts(&report), [2, 1, 0, 0, 1]);
    let reject = &report.rejects[0];
    assert_eq!(
        (reject.line, reject.field.as_deref(), &*reject.code),
        (3, Some("age"), "22P02")
    );
    let left =
        "select (select count(*) from public.customer) + (select count(*) from pgonce.import)";
    assert_eq!(world.see.number(left).await, 0);
}

#[tokio::test]
async fn triggers_foreign_keys_and_row_level_security_fail_single_rows() {
    let (world, _turn) = place().await;
    world.see.run("create table public.land (code text primary key); insert into public.land values ('de'); \
        alter table public.customer add land text references public.land; grant select on public.land to public; \
        create function public.normal() returns trigger language plpgsql as \
            'begin if new.name = ''drop'' then return null; end if; new.email := lower(new.email); return new; end'; \
        create trigger normal before insert on public.customer for each row execute function public.normal()").await;
    let mut text = String::from("email,name,land\n");
    for n in 0..100 {
        let land = if n % 30 == 7 { "xx" } else { "de" };
        text += &format!("C{n}@x,Cy {n},{land}\n");
    }
    text += "C5@x,again,de\nc6@X,again,de\nz@x,drop,de\n";
    let report = import(&world.once, &customers(), text).await.unwrap();
    assert_eq!(counts(&report), [103, 96, 3, 0, 4]);
    let reasons = "select string_agg(distinct code, ' ') from pgonce.import_row";
    assert_eq!(world.see.text(reasons).await, "23503 not_inserted");
    world
        .see
        .run(
            "alter table public.customer enable row level security; \
        create policy known on public.customer using (true) with check (true)",
        )
        .await;
    let report = import(
        &world.once,
        &customers(),
        "email,name,land\nc9@x,Cy 9,de\nnew@x,New,de\n",
    )
    .await
    .unwrap();
    assert_eq!(counts(&report), [2, 1, 1, 0, 0]);
}

#[tokio::test]
async fn a_row_that_a_trigger_keeps_out_is_not_said_to_be_applied() {
    let (world, _turn) = place().await;
    world.see.run("create function public.keep_out() returns trigger language plpgsql as \
            'begin return case when new.name <> ''drop'' then new end; end'; \
        create trigger keep_out before insert on public.customer for each row execute function public.keep_out()").await;
    let text = "email,name\na@x,Ann\nb@x,drop\nc@x,Cy\n";
    let report = import(&world.once, &customers(), text).await.unwrap();
    assert_eq!(counts(&report), [3, 2, 1, 0, 0]);
    let reasons = "select string_agg(row || ' ' || code, ',') from pgonce.import_row";
    assert_eq!(world.see.text(reasons).await, "2 not_inserted");
}

#[tokio::test]
async fn whatever_a_row_makes_the_database_raise_fails_that_row_alone() {
    let (world, _turn) = place().await;
    world.see.run("create function public.refuse() returns trigger language plpgsql as \
            'begin if new.name ~ ''^[0-9A-Z]{5}$'' then raise exception ''no'' using errcode = new.name; end if; return new; end'; \
        create trigger refuse before insert on public.customer for each row execute function public.refuse()").await;
    let codes = [
        "09000", "20000", "21000", "22012", "27000", "2F003", "38000", "39004", "44000", "54000",
        "55000", "P0001",
    ];
    let mut text = String::from("email,name\n");
    for (n, code) in codes.iter().enumerate() {
        text += &format!("good{n}@x,Cy\nbad{n}@x,{code}\n");
    }
    // Too long for an index, and too random to be made smaller.
    let mut seed = 1_u32;
    let long: String = (0..9000)
        .map(|_| {
            seed = seed.wrapping_mul(1_103_515_245).wrapping_add(12_345);
            char::from_digit(seed >> 16 & 31, 36).unwrap()
        })
        .collect();
    text += &format!("{long}@x,long\nlast@x,Cy\n");
    let report = import(&world.once, &customers(), text).await.unwrap();
    let (good, bad) = (codes.len() as u64 + 1, codes.len() as u64 + 1);
    assert_eq!(counts(&report), [good + bad, good, 0, 0, bad]);
    let found = "select string_agg(code, ' ' order by row) from pgonce.import_row";
    let expected = format!("{} 54000", codes.join(" "));
    assert_eq!(world.see.text(found).await, expected);
}

#[tokio::test]
async fn too_many_failed_rows_stop_the_import_and_a_higher_limit_goes_on() {
    let (world, _turn) = place().await;
    let mut text = String::from("email,name,age\n");
    for n in 0..60 {
        text += &format!("c{n}@x,Cy,{}\n", if n % 2 == 0 { "1" } else { "x" });
    }
    let few = customers().max_failed(10).max_rows(20);
    let (_folder, input) = file("a.csv", text.as_bytes());
    let error = world.once.import(&few, input, |_| ()).await.unwrap_err();
    assert!(
        matches!(&error, Error::Invalid(_)) && error.code() == "P4083",
        "{error}"
    );
    let (_folder, input) = file("a.csv", text.as_bytes());
    let report = world
        .once
        .import(&customers(), input, |_| ())
        .await
        .unwrap();
    assert_eq!((report.number, counts(&report)), (1, [60, 30, 0, 0, 30]));
    assert_eq!(
        world
            .see
            .number("select count(*) from public.customer")
            .await,
        30
    );
}
