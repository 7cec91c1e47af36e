//! What cannot be imported is refused with its own code, and nothing is half done.

use super::*;

/// The code of the error, or of the only row that failed while the others were applied.
async fn code_of(world: &Place, to: &Import, text: impl Into<Vec<u8>>) -> String {
    world
        .see
        .run("truncate public.customer, pgonce.import, pgonce.import_chunk, pgonce.import_row")
        .await;
    match import(&world.once, to, text).await {
        Ok(report) => {
            let rows = report.rows;
            assert_eq!((rows.failed, rows.applied), (1, rows.rows - 1));
            let stored = world
                .see
                .number("select count(*) from public.customer")
                .await;
            assert_eq!(u64::try_from(stored).unwrap(), rows.applied);
            world.see.text("select code from pgonce.import_row").await
        }
        Err(error) => {
            let stored = world
                .see
                .number("select count(*) from public.customer")
                .await;
            assert_eq!(stored, 0, "half done: {error}");
            error.code().to_owned()
        }
    }
}

#[tokio::test]
async fn every_kind_of_bad_input_has_its_own_code() {
    let (world, _turn) = place().await;
    let good = "email,name\nada@x,Ada\n";
    let large = format!("{good}bob@x,{}\ncy@x,Cy\n", "x".repeat(10 << 20));
    let quoted = format!("{good}bob@x,\"{}\n\"\ncy@x,Cy\n", "x\n".repeat(5 << 20));
    let rest = (0..1000).map(|n| format!("r{n}@x,{}\n", "x".repeat(10_000)));
    let rest = rest.collect::<String>();
    let cases: [(&str, Vec<u8>, &str); 17] = [
        (
            "two quotes inside, 10 MB apart",
            format!("{good}bob@x,B\"ob\n{rest}cy@x,C\"y\n").into(),
            "P4090",
        ),
        (
            "a quote that is closed by another row's",
            format!("{good}bob@x,\"Bob\n{rest}cy@x,\"Cy\"\n{rest}").into(),
            "P4090",
        ),
        (
            "a quote inside",
            format!("{good}bob@x,B\"o\"b\n").into(),
            "P4090",
        ),
        (
            "text after a quote",
            format!("{good}bob@x,\"Bob\" x\n").into(),
            "P4090",
        ),
        (
            "a quote that is never closed",
            format!("{good}bob@x,\"Bob\ncy@x,Cy\n").into(),
            "P4090",
        ),
        (
            "a value too few",
            format!("{good}bob@x\ncy@x,Cy\n").into(),
            "P4091",
        ),
        (
            "a value too many",
            format!("{good}bob@x,Bob,1\ncy@x,Cy\n").into(),
            "P4091",
        ),
        (
            "not UTF-8",
            [good.as_bytes(), b"bob@x,B\xf6b\ncy@x,Cy\n"].concat(),
            "P4092",
        ),
        (
            "a header that is not UTF-8",
            b"email,n\xe4me\n".to_vec(),
            "P4092",
        ),
        ("a field of 10 MB", large.into(), "P4093"),
        ("a field of 10 MB in quotes", quoted.into(), "P4093"),
        ("an empty file", Vec::new(), "P4094"),
        ("a byte order mark only", b"\xef\xbb\xbf".to_vec(), "P4094"),
        (
            "an unknown column",
            b"email,nom\nada@x,Ada\n".to_vec(),
            "P4095",
        ),
        ("a column twice", b"email,name,name\n".to_vec(), "P4095"),
        (
            "a NUL",
            format!("{good}bob@x,\0\ncy@x,Cy\n").into(),
            "22021",
        ),
        (
            "no key",
            format!("{good},Nobody\ncy@x,Cy\n").into(),
            "23502",
        ),
    ];
    for (what, text, code) in cases {
        assert_eq!(code_of(&world, &customers(), text).await, code, "{what}");
    }
    let cut = {
        let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        out.write_all(good.as_bytes()).unwrap();
        let mut bytes = out.finish().unwrap();
        bytes.truncate(bytes.len() - 12);
        bytes
    };
    assert_eq!(code_of(&world, &customers(), cut).await, "P4090");
    let lines = customers().format(Format::JsonLines);
    let json = "{\"email\":\"ada@x\",\"name\":\"Ada\"}\n";
    for (line, code) in [
        ("{\"email\":\"bob@x\",\"name\":", "P4090"),
        ("[1]", "P4090"),
        ("{\"email\":\"a\",\"email\":\"b\"}", "P4090"),
        ("{\"email\":\"bob@x\",\"nom\":\"Bob\"}", "P4095"),
    ] {
        assert_eq!(
            code_of(&world, &lines, format!("{json}{line}\n")).await,
            code,
            "{line}"
        );
    }
    assert_eq!(code_of(&world, &lines, "no json\n").await, "P4090");
}

#[tokio::test]
async fn an_empty_line_between_json_objects_is_no_row_also_where_they_have_one_value() {
    let (world, _turn) = place().await;
    world
        .see
        .run(
            "create table public.seen (email text primary key); grant all on public.seen to public",
        )
        .await;
    let to = Import::into_table("seen", "public.seen").format(Format::JsonLines);
    let text = "{\"email\":\"ada@x\"}\n\n{\"email\":\"bob@x\"}\n\n";
    let report = import(&world.once, &to, text).await.unwrap();
    assert_eq!(counts(&report), [2, 2, 0, 0, 0]);
}

#[tokio::test]
async fn a_target_that_cannot_be_imported_into_is_refused_with_its_own_code() {
    let (world, _turn) = place().await;
    world.see.run("create table public.late (email text, name text, unique (email) deferrable); \
        create table public.part (email text, name text); create unique index on public.part (email) where name <> ''; \
        create table public.made (email text primary key, name text generated always as (email) stored); \
        grant all on public.late, public.part, public.made to public").await;
    let text = "email,name\nada@x,Ada\n";
    for (to, code) in [
        (Import::into_table("j", "public.nothing"), "P4096"),
        (Import::into_table("j", "not a name"), "42602"),
        (Import::into_table("j", "public.late"), "P4097"),
        (Import::into_table("j", "public.part"), "P4097"),
        (Import::into_table("j", "public.made"), "P4095"),
        (
            Import::into_table("j", "public.customer").key(["name"]),
            "P4097",
        ),
        (
            Import::into_table("j", "public.customer").key(["nothing"]),
            "P4095",
        ),
        (Import::into_table("", "public.customer"), "22023"),
        (Import::call("j", "public.nothing"), "P4096"),
    ] {
        let error = import(&world.once, &to, text).await.unwrap_err();
        assert_eq!(error.code(), code, "{error}");
    }
    assert_eq!(
        world.see.number("select count(*) from pgonce.import").await,
        0
    );
}
