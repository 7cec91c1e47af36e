use std::path::{Path, PathBuf};

use crate::{Error, Result, cache::Surroundings};

/// A server program and where it may be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Program {
    pub(super) name: &'static str,
    /// Names the folder that holds it.
    pub(super) variable: &'static str,
    /// Its part of the cache.
    pub(super) cache: &'static str,
    /// Looked at before `PATH`.
    pub(super) first: &'static [&'static str],
}

/// Daemons are often kept off a user's `PATH`.
const USUAL: [&str; 6] = [
    "/usr/sbin",
    "/usr/bin",
    "/usr/local/sbin",
    "/usr/local/bin",
    "/opt/homebrew/bin",
    "/opt/homebrew/sbin",
];

impl Program {
    pub(super) fn find(&self) -> Result<PathBuf> {
        self.find_with(&Surroundings::of_this_process())
    }

    fn find_with(&self, surroundings: &Surroundings) -> Result<PathBuf> {
        let in_folder = |folder: &Path| Some(folder.join(self.name)).filter(|path| path.is_file());
        if let Some(folder) = surroundings.variable(self.variable) {
            return in_folder(folder).ok_or_else(|| Error::NotABrokersFolder {
                program: self.name,
                variable: self.variable,
                folder: folder.to_owned(),
            });
        }
        let folders: Vec<PathBuf> = (self.first.iter().map(PathBuf::from))
            .chain(surroundings.path())
            .chain(USUAL.iter().map(PathBuf::from))
            .chain(
                surroundings
                    .cached(self.cache)
                    .map(|cache| cache.join("bin")),
            )
            .collect();
        folders
            .iter()
            .find_map(|folder| in_folder(folder))
            .ok_or_else(|| self.nowhere(&folders))
    }

    fn nowhere(&self, folders: &[PathBuf]) -> Error {
        let unset = format!("{} (not set)", self.variable);
        let folders = folders.iter().map(|folder| folder.display().to_string());
        let cache = format!(".cache/{}/bin", self.cache);
        let all: Vec<_> = [unset].into_iter().chain(folders).chain([cache]).collect();
        Error::NoBroker {
            program: self.name,
            variable: self.variable,
            looked_at: all.join(", "),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const NONE: Program = Program {
        name: "no-such-server",
        variable: "PGONCE_NONE_BIN",
        cache: "none",
        first: &[],
    };

    fn surroundings(variable: Option<&Path>, start: &Path) -> Surroundings {
        let value = |folder: &Path| ("PGONCE_NONE_BIN".to_owned(), folder.into());
        Surroundings {
            variables: variable.map(value).into_iter().collect(),
            start: start.to_owned(),
        }
    }

    #[test]
    fn a_missing_server_says_how_to_get_it() {
        let text = NONE.find_with(&surroundings(None, Path::new("/")));
        let text = text.unwrap_err().to_string();
        for word in [
            "no-such-server",
            "PGONCE_NONE_BIN",
            "make setup",
            "/usr/sbin",
        ] {
            assert!(text.contains(word), "{text}");
        }
    }

    #[test]
    fn a_wrong_variable_is_an_error_although_the_server_is_elsewhere() {
        let layout = tempfile::tempdir().unwrap();
        let cached = layout.path().join(".cache/none/bin");
        fs::create_dir_all(&cached).unwrap();
        fs::write(cached.join("no-such-server"), "").unwrap();
        let wrong = surroundings(Some(Path::new("/no/such/folder")), layout.path());
        let text = NONE.find_with(&wrong).unwrap_err().to_string();
        assert!(
            text.contains("/no/such/folder") && text.contains("unset"),
            "{text}"
        );
        let unset = surroundings(None, &layout.path().join("deep"));
        let found = NONE.find_with(&unset).unwrap();
        assert_eq!(found, cached.join("no-such-server"));
    }
}
