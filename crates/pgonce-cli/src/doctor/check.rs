//! The list of checks, as data: SQL files whose comments say what a finding means.

use serde::Serialize;

/// One check. Each row that its query answers is a finding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Check {
    pub(super) id: &'static str,
    pub(super) severity: Severity,
    pub(super) title: &'static str,
    pub(super) why: &'static str,
    /// Columns: evidence, and where there is one a fix as `sql` or as `command`. Empty where the program itself looks.
    pub(super) query: &'static str,
}

/// How bad a finding is. The greater, the worse.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Severity {
    /// Worth knowing; nothing is at risk today.
    Notice,
    /// Something will go wrong under load, after a failure, or with time.
    Warning,
    /// A guarantee is weakened, or work stands still.
    Critical,
}

impl Severity {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Notice => "notice",
            Self::Warning => "warning",
            Self::Critical => "critical",
        }
    }
}

/// The files, by area: the heading in the docs, and the text.
const FILES: [(&str, &str); 5] = [
    ("Contracts", include_str!("contracts.sql")),
    ("Work", include_str!("work.sql")),
    ("Schema", include_str!("schema.sql")),
    ("Server", include_str!("server.sql")),
    ("Program", include_str!("program.sql")),
];

/// All checks, by area.
pub(super) fn checks() -> impl Iterator<Item = (&'static str, Check)> {
    FILES.into_iter().flat_map(|(area, text)| {
        let blocks = text.split("-- check: ").skip(1);
        blocks.map(move |block| (area, parse(block)))
    })
}

fn parse(block: &'static str) -> Check {
    let mut rest = block;
    let mut next = |name: &str| {
        let (line, after) = rest.split_once('\n').unwrap_or((rest, ""));
        rest = after;
        line.strip_prefix(name).unwrap_or(line).trim()
    };
    let id = next("");
    let severity = match next("-- severity: ") {
        "critical" => Severity::Critical,
        "warning" => Severity::Warning,
        _ => Severity::Notice,
    };
    let title = next("-- title: ");
    let why = next("-- why: ");
    Check {
        id,
        severity,
        title,
        why,
        query: rest.trim().trim_end_matches(';'),
    }
}

/// A query with its fragments filled in, for the schema `pgonce`: `{schema}`, its namespace; `{settings}`, what roles,
/// databases and the server set; `{definitions}`, digests of the objects as they are now; `{forecast}`, what there will be in 30 days.
pub(super) fn filled(query: &str) -> String {
    query
        .replace("{schema}", SCHEMA)
        .replace("{settings}", SETTINGS)
        .replace("{definitions}", &pgonce::migrate::definitions())
        .replace("{forecast}", &format!("({})", crate::forecast::query(30)))
}

const SCHEMA: &str =
    "(select c.relnamespace from pg_class c where c.oid = 'pgonce.intent'::regclass)";

/// A setting's value for a session is decided by the role in this database, the role, the database, the server; each
/// of them is a place where a value can be wrong.
const SETTINGS: &str = "(
    select case when r.rolname is null then format('database %s', d.datname)
                when d.datname is null then format('role %s', r.rolname)
                else format('role %s in database %s', r.rolname, d.datname) end as place,
           case when r.rolname is null then format('alter database %I', d.datname)
                when d.datname is null then format('alter role %I', r.rolname)
                else format('alter role %I in database %I', r.rolname, d.datname) end as alter,
           '' as reload, split_part(v, '=', 1) as name, substr(v, strpos(v, '=') + 1) as value
      from pg_db_role_setting s cross join lateral unnest(s.setconfig) v
      left join pg_database d on d.oid = s.setdatabase left join pg_roles r on r.oid = s.setrole
     where s.setdatabase in (0, (select o.oid from pg_database o where o.datname = current_database()))
    union all
    select 'the server', 'alter system', ' select pg_reload_conf();', p.name, p.setting
      from pg_settings p where p.source in ('configuration file', 'command line', 'environment variable'))";

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fmt::Write as _;

    use super::*;

    #[test]
    fn every_check_has_an_id_of_its_own_and_says_why_it_matters() {
        let mut seen = BTreeSet::new();
        for (_, check) in checks() {
            assert!(seen.insert(check.id), "{} twice", check.id);
            assert!(
                check
                    .id
                    .bytes()
                    .all(|c| c.is_ascii_lowercase() || c == b'-'),
                "{check:?}"
            );
            assert!(
                check.title.len() > 10 && check.why.ends_with('.'),
                "{check:?}"
            );
            let select = check.query.starts_with("select") || check.query.starts_with("with");
            assert!(select || check.query.is_empty(), "{check:?}");
        }
        assert!(seen.len() >= 50, "{}", seen.len());
    }

    /// `PGONCE_UPDATE=1` writes it.
    #[test]
    fn the_page_of_the_docs_has_a_section_for_every_finding() {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../docs/src/reference/doctor.md"
        );
        let page = std::fs::read_to_string(path).unwrap();
        let marker =
            "<!-- generated from crates/pgonce-cli/src/doctor: PGONCE_UPDATE=1 writes it -->\n";
        let (head, _) = page.split_once(marker).unwrap();
        let mut expected = format!("{head}{marker}");
        let mut last = "";
        for (area, check) in checks() {
            if area != last {
                write!(expected, "\n## {area}\n").unwrap();
                last = area;
            }
            let Check {
                id,
                severity,
                title,
                why,
                ..
            } = check;
            let severity = severity.as_str();
            write!(expected, "\n### {id}\n\n*{severity}*: {title}. {why}\n").unwrap();
        }
        if std::env::var_os("PGONCE_UPDATE").is_some() {
            std::fs::write(path, &expected).unwrap();
        } else {
            assert!(
                page == expected,
                "run this test with PGONCE_UPDATE=1, and look at the difference"
            );
        }
    }
}
