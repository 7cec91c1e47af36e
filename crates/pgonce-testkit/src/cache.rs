use std::{collections::BTreeMap, env, ffi::OsString, iter, path::Path, path::PathBuf};

/// What programs are looked for with; values, so that a test can choose them.
pub(crate) struct Surroundings {
    pub(crate) variables: BTreeMap<String, OsString>,
    pub(crate) start: PathBuf,
}

impl Surroundings {
    pub(crate) fn of_this_process() -> Self {
        let variables = env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
            .filter(|(_, value)| !value.is_empty())
            .collect();
        let start = env::current_dir().unwrap_or_default();
        Self { variables, start }
    }

    pub(crate) fn variable(&self, name: &str) -> Option<&Path> {
        self.variables.get(name).map(Path::new)
    }

    /// The folders of `PATH`.
    pub(crate) fn path(&self) -> Vec<PathBuf> {
        let path = self.variables.get("PATH").cloned().unwrap_or_default();
        env::split_paths(&path).collect()
    }

    /// The part of the cache that `scripts/setup` fills with `what`, if there is one: in
    /// `PGONCE_CACHE`, else in `.cache` of the nearest folder above.
    pub(crate) fn cached(&self, what: &str) -> Option<PathBuf> {
        if let Some(cache) = self.variable("PGONCE_CACHE") {
            return Some(cache.join(what));
        }
        self.variable("CARGO_MANIFEST_DIR")
            .into_iter()
            .chain(iter::once(&*self.start))
            .flat_map(Path::ancestors)
            .map(|parent| parent.join(".cache").join(what))
            .find(|cache| cache.is_dir())
    }
}
