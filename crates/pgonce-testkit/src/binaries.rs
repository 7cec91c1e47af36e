use std::{
    collections::BTreeMap,
    fs,
    hash::Hash,
    iter,
    path::{Path, PathBuf},
    process::Command,
};

use serde::{Deserialize, Serialize};

use crate::{Error, Result, cache::Surroundings, run};

const VARIABLE: &str = "PGONCE_PG_BIN";

/// Folders that hold one folder per major version; the text around `*` is
/// what surrounds the version in the name.
const VERSIONED: [&str; 6] = [
    "/usr/lib/postgresql/*/bin",
    "/usr/pgsql-*/bin",
    "/usr/libexec/postgresql*",
    "/opt/homebrew/opt/postgresql@*/bin",
    "/usr/local/opt/postgresql@*/bin",
    "/usr/local/pgsql*/bin",
];

/// The server programs of one PostgreSQL installation.
///
/// ```no_run
/// # fn example() -> pgonce_testkit::Result<()> {
/// use pgonce_testkit::Binaries;
///
/// let default = Binaries::find()?;
/// let eighteen = Binaries::of_major(18)?;
/// for each in Binaries::all()? {
///     assert!(each.program("initdb").is_some());
/// }
/// # drop((default, eighteen));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Binaries {
    folder: PathBuf,
    version: String,
    major: u32,
}

impl Binaries {
    /// The installation to use when nobody asks for a certain version: the one
    /// in `PGONCE_PG_BIN`, else what `pg_config --bindir` says, else the newest
    /// in the usual folders, else the one on `PATH`, else the newest in the
    /// cache that `scripts/setup` fills.
    pub fn find() -> Result<Self> {
        let search = Search::of_this_process();
        run::remembered(&search.question(None), || search.find())
    }

    /// One installation per major version, the lowest first. Where several
    /// offer the same major version, the one that [`Binaries::find`] would meet
    /// first is taken.
    pub fn all() -> Result<Vec<Self>> {
        Search::of_this_process().all()
    }

    /// The installation of one major version, such as 18.
    pub fn of_major(major: u32) -> Result<Self> {
        let search = Search::of_this_process();
        let question = search.question(Some(major));
        run::remembered(&question, || search.of_major(major))
    }

    /// The installation whose `initdb` and `postgres` are in `folder`.
    pub fn in_folder(folder: impl Into<PathBuf>) -> Result<Self> {
        let folder = folder.into();
        run::remembered(&folder, || Self::named_by("the caller", folder.clone()))
    }

    /// The major version: 18 for 18.4.
    pub fn major(&self) -> u32 {
        self.major
    }

    /// The full version, such as `18.4`.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The bin folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The path of one program, if this installation has it (`psql` and
    /// `pg_dump` may be missing where only a server was installed).
    pub fn program(&self, name: &str) -> Option<PathBuf> {
        Some(self.folder.join(name)).filter(|path| path.is_file())
    }

    /// The same programs in another place.
    pub(crate) fn moved_to(&self, folder: PathBuf) -> Self {
        Self {
            folder,
            ..self.clone()
        }
    }

    fn named_by(origin: &str, folder: PathBuf) -> Result<Self> {
        inspect(&folder).map_err(|why| Error::NotABinFolder {
            origin: origin.to_owned(),
            folder,
            why,
        })
    }
}

/// Asks the server program itself: folder names lie after upgrades.
fn inspect(folder: &Path) -> std::result::Result<Binaries, String> {
    if !folder.is_dir() {
        return Err("there is no such folder".into());
    }
    for program in ["initdb", "postgres"] {
        if !folder.join(program).is_file() {
            return Err(format!("it has no `{program}`"));
        }
    }
    let output = Command::new(folder.join("postgres"))
        .arg("--version")
        .output()
        .map_err(|error| format!("its `postgres` cannot be run: {error}"))?;
    if !output.status.success() {
        let complaint = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(format!("its `postgres --version` failed: {complaint}"));
    }
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let version = text.split_whitespace().nth(2).unwrap_or_default();
    let digits: String = version.chars().take_while(char::is_ascii_digit).collect();
    let major = digits
        .parse()
        .map_err(|_| format!("its `postgres --version` says {:?}", text.trim()))?;
    Ok(Binaries {
        folder: folder.to_owned(),
        version: version.to_owned(),
        major,
    })
}

/// Where to look.
struct Search(Surroundings);

impl Search {
    fn of_this_process() -> Self {
        Self(Surroundings::of_this_process())
    }

    /// What is asked for, and everything that the answer depends on.
    fn question(&self, major: Option<u32>) -> impl Hash {
        let names = [VARIABLE, "PATH", "PGONCE_CACHE", "CARGO_MANIFEST_DIR"];
        (
            major,
            names.map(|name| self.0.variable(name)),
            &self.0.start,
        )
    }

    fn find(&self) -> Result<Binaries> {
        if let Some(chosen) = self.chosen()? {
            return Ok(chosen);
        }
        let places = self.places();
        places
            .iter()
            .find_map(|folder| inspect(folder).ok())
            .ok_or_else(|| self.nothing(&places))
    }

    fn all(&self) -> Result<Vec<Binaries>> {
        let mut by_major = BTreeMap::new();
        let places = self.places();
        let found = places.iter().filter_map(|folder| inspect(folder).ok());
        for each in self.chosen()?.into_iter().chain(found) {
            by_major.entry(each.major).or_insert(each);
        }
        if by_major.is_empty() {
            return Err(self.nothing(&places));
        }
        Ok(by_major.into_values().collect())
    }

    fn of_major(&self, wanted: u32) -> Result<Binaries> {
        let all = self.all()?;
        let found: Vec<_> = all.iter().map(|each| each.major.to_string()).collect();
        let found = found.join(", ");
        all.into_iter()
            .find(|each| each.major == wanted)
            .ok_or(Error::NoSuchMajor { wanted, found })
    }

    /// Set but wrong is an error: silently taking another server would test
    /// something else than what was asked for.
    fn chosen(&self) -> Result<Option<Binaries>> {
        let Some(folder) = self.0.variable(VARIABLE) else {
            return Ok(None);
        };
        Binaries::named_by(VARIABLE, folder.into()).map(Some)
    }

    fn places(&self) -> Vec<PathBuf> {
        let on_path = self.0.path();
        pg_config(&on_path)
            .into_iter()
            .chain(VERSIONED.into_iter().flat_map(newest_first))
            .chain(on_path)
            .chain(self.cached())
            .collect()
    }

    fn cached(&self) -> Vec<PathBuf> {
        let cache = self.0.cached("postgres");
        cache
            .map(|cache| newest_first(&cache.join("*/bin").to_string_lossy()))
            .unwrap_or_default()
    }

    fn nothing(&self, places: &[PathBuf]) -> Error {
        let cache = self.0.variable("PGONCE_CACHE");
        let cache = cache.unwrap_or(Path::new(".cache")).join("postgres");
        let listed = iter::once(format!("{VARIABLE} (not set), pg_config"))
            .chain(VERSIONED.map(str::to_owned))
            .chain(places.iter().map(|folder| folder.display().to_string()))
            .chain(iter::once(cache.display().to_string()));
        Error::NoPostgres {
            looked_at: listed.collect::<Vec<_>>().join(", "),
        }
    }
}

fn pg_config(on_path: &[PathBuf]) -> Option<PathBuf> {
    let program = on_path
        .iter()
        .map(|folder| folder.join("pg_config"))
        .find(|path| path.is_file())?;
    let output = Command::new(program).arg("--bindir").output().ok()?;
    let folder = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    Some(PathBuf::from(folder)).filter(|folder| folder.is_absolute())
}

/// Fills the one `*` of a pattern with what exists, the highest number first.
fn newest_first(pattern: &str) -> Vec<PathBuf> {
    let Some((before, after)) = pattern.split_once('*') else {
        return Vec::new();
    };
    let Some((parent, prefix)) = before.rsplit_once('/') else {
        return Vec::new();
    };
    let mut found: Vec<(u32, PathBuf)> = fs::read_dir(parent)
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let name = entry.ok()?.file_name().into_string().ok()?;
            let major = name.strip_prefix(prefix)?.parse().ok()?;
            let folder = format!("{parent}/{name}{after}");
            Some((major, PathBuf::from(folder)))
        })
        .collect();
    found.sort_by_key(|(major, _)| std::cmp::Reverse(*major));
    found.into_iter().map(|(_, folder)| folder).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn search(start: &Path, variables: &[(&str, &Path)]) -> Search {
        let variables = variables.iter();
        Search(Surroundings {
            variables: variables
                .map(|(name, value)| ((*name).to_owned(), value.into()))
                .collect(),
            start: start.to_owned(),
        })
    }

    fn pretend_install(folder: &Path, version: &str) {
        fs::create_dir_all(folder).unwrap();
        for program in ["initdb", "postgres"] {
            let path = folder.join(program);
            let text = format!("#!/bin/sh\necho 'postgres (PostgreSQL) {version}'\n");
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
    }

    #[test]
    fn a_wrong_variable_is_an_error_that_names_it_and_says_what_to_do() {
        let empty = tempfile::tempdir().unwrap();
        for (folder, why) in [
            (Path::new("/no/such/folder"), "no such folder"),
            (empty.path(), "no `initdb`"),
        ] {
            let search = search(empty.path(), &[(VARIABLE, folder)]);
            let attempts = [search.find().err(), search.all().err()];
            for error in attempts.into_iter().chain([search.of_major(18).err()]) {
                let text = error.unwrap().to_string();
                assert!(text.contains(VARIABLE) && text.contains(why), "{text}");
                assert!(text.contains("unset it"), "{text}");
            }
        }
    }

    #[test]
    fn the_variable_beats_every_other_place() {
        let place = tempfile::tempdir().unwrap();
        pretend_install(place.path(), "77.1");
        let search = search(place.path(), &[(VARIABLE, place.path())]);
        assert_eq!(search.find().unwrap().major(), 77);
        assert_eq!(search.of_major(77).unwrap().version(), "77.1");
    }

    #[test]
    fn the_cache_is_found_from_any_folder_below_it() {
        let root = tempfile::tempdir().unwrap();
        pretend_install(&root.path().join(".cache/postgres/9/bin"), "9.6.24");
        pretend_install(&root.path().join(".cache/postgres/88/bin"), "88beta1");
        let below = root.path().join("crates/deep");
        fs::create_dir_all(&below).unwrap();
        assert_eq!(search(&below, &[]).of_major(88).unwrap().major(), 88);
        let elsewhere = search(Path::new("/"), &[("CARGO_MANIFEST_DIR", &below)]);
        let cached = elsewhere.cached();
        assert!(cached[0].ends_with("88/bin") && cached[1].ends_with("9/bin"));
    }

    #[test]
    fn a_missing_major_says_how_to_get_it() {
        let place = tempfile::tempdir().unwrap();
        pretend_install(place.path(), "77.1");
        let search = search(place.path(), &[(VARIABLE, place.path())]);
        let text = search.of_major(99).unwrap_err().to_string();
        assert!(text.contains("scripts/setup 99"), "{text}");
        assert!(text.contains("77"), "{text}");
    }
}
