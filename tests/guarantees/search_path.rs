//! Every function is protected from the caller's search_path in one of three ways. The test reads the catalogue, so
//! that a new function cannot be forgotten.

use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce_tests::World;

/// Functions in PL/pgSQL without a path of their own, which would cost more than what they do. Every name and operator in
/// them has its schema.
const QUALIFIED: &[&str] = &[
    "_installation_epoch",
    "_lease_fence",
    "accept",
    "accept_batch",
    "define_projection",
    "insert_or_fetch",
    "publish",
    "succeed",
    "update_once",
];

/// Words before a parenthesis that call nothing, and types that the grammar itself knows.
const WORDS: &[&str] = &[
    "and", "array", "as", "by", "coalesce", "conflict", "exists", "filter", "from", "if", "in",
    "insert", "not", "on", "operator", "or", "order", "perform", "return", "row", "select",
    "values", "when", "where", "with", "g", "loop", "rows", "excluded",
];
const TYPES: &[&str] = &["bigint", "boolean", "integer", "interval", "smallint"];

#[tokio::test]
async fn every_function_has_a_parsed_body_or_a_pinned_path_or_only_qualified_names() {
    let world = World::<TokioPostgres>::new().await;
    let functions = "select p.proname, l.lanname, p.prosqlbody is not null, coalesce(array_to_string(p.proconfig, ' '), ''), p.prosrc \
        from pg_proc p join pg_language l on l.oid = p.prolang where p.pronamespace = 'pgonce'::regnamespace order by 1";
    let mut qualified = Vec::new();
    for row in world.see.rows(functions).await {
        let mut cells = row.into_iter().map(Option::unwrap_or_default);
        let mut next = || cells.next().unwrap();
        let (name, language, parsed, settings, body) = (next(), next(), next(), next(), next());
        if parsed == "t" || settings.contains("search_path=pg_catalog, pg_temp") {
            continue;
        }
        assert_eq!(
            language, "plpgsql",
            "{name} needs a body that is parsed when it is created"
        );
        let found = unqualified(&body);
        assert!(found.is_empty(), "{name}: {found:?}");
        qualified.push(name);
    }
    assert_eq!(qualified, QUALIFIED);
}

/// What a body names without a schema: operators, calls, types and forms that mean an operator.
fn unqualified(body: &str) -> Vec<String> {
    let mut found = Vec::new();
    let tokens = tokens(body);
    let at = |n: usize| tokens.get(n).map_or("", String::as_str);
    for (n, token) in tokens.iter().enumerate() {
        let before = if n > 0 { at(n - 1) } else { "" };
        let is_word = token.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        if [
            "between", "like", "distinct", "nullif", "using(", "any", "all", "overlaps", "similar",
        ]
        .contains(&token.as_str())
        {
            found.push(token.clone());
        } else if is_word
            && at(n + 1) == "("
            && before != "."
            && !WORDS.contains(&token.as_str())
            && before != "as"
        {
            found.push(format!("{token}("));
        } else if token == "in" && at(n + 1) == "(" {
            found.push("in (".to_owned());
        } else if token == "::"
            && !TYPES.contains(&at(n + 1))
            && !["pg_catalog", "pgonce"].contains(&at(n + 1))
        {
            found.push(format!("::{}", at(n + 1)));
        } else if token.starts_with(|c| "+-*/<>=~!@#%^&|`?".contains(c)) {
            // In `operator(pg_catalog.=)`, in an assignment, after a name of `using`, in `r.*`, in `p_x => 1`.
            let schema = before == "." && at(n.wrapping_sub(2)) == "pg_catalog";
            let star = token == "*" && before == ".";
            let assigns = token == "=" && ["set", ",", "using"].contains(&at(n.wrapping_sub(2)));
            if !(schema || star || assigns || token == "=>") {
                found.push(format!("{before} {token} {}", at(n + 1)));
            }
        } else if before.starts_with("v_")
            && is_word
            && at(n + 1) != "("
            && declared(&tokens, n)
            && !TYPES.contains(&token.as_str())
            && !["pg_catalog", "pgonce"].contains(&token.as_str())
        {
            found.push(format!("{before} {token}"));
        }
    }
    found
}

/// Whether a token is between `declare` and `begin`.
fn declared(tokens: &[String], n: usize) -> bool {
    let begin = tokens
        .iter()
        .position(|token| token == "begin")
        .unwrap_or(0);
    tokens[0] == "declare" && n < begin
}

/// Words, operators and marks; texts and comments are left out.
fn tokens(body: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut rest = body;
    while let Some(first) = rest.chars().next() {
        let length = if rest.starts_with("--") {
            rest.find('\n').unwrap_or(rest.len())
        } else if first == '\'' || first == '"' {
            let end = rest[1..].find(first).unwrap() + 2;
            tokens.push("text".to_owned());
            end
        } else if first.is_ascii_alphanumeric() || first == '_' {
            rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
                .unwrap_or(rest.len())
        } else if rest.starts_with("::") || rest.starts_with(":=") || rest.starts_with("..") {
            2
        } else if "+-*/<>=~!@#%^&|`?".contains(first) {
            rest.find(|c| !"+-*/<>=~!@#%^&|`?".contains(c))
                .unwrap_or(rest.len())
        } else {
            first.len_utf8()
        };
        let token = &rest[..length];
        if !token.trim().is_empty() && !token.starts_with("--") && first != '\'' && first != '"' {
            tokens.push(token.to_owned());
        }
        rest = &rest[length..];
    }
    tokens
}

#[test]
fn the_check_finds_what_is_not_qualified() {
    for bad in [
        "begin if a % 2 then end if; end",
        "begin perform set_config('a', 'b', true); end",
        "begin return x::text; end",
        "begin if x between 1 and 2 then end if; end",
        "begin if x in (1, 2) then end if; end",
        "declare v_x text; begin end",
        "begin select 1 where a = b; end",
    ] {
        assert!(!unqualified(bad).is_empty(), "{bad}");
    }
    let good = "declare v_x bigint; v_y pg_catalog.text; begin update pgonce.intent i set a = 1, b = coalesce(p_a, i.b) \
        where i.a operator(pg_catalog.=) p_a collate \"C\"; perform pg_catalog.set_config('a % b', 'c', true); end";
    assert_eq!(unqualified(good), Vec::<String>::new());
}
