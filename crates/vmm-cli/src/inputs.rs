//! From the command line's paths to trace files.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Endings of files that are taken from a folder.
const ENDINGS: [&str; 3] = [".pickle", ".pickle.gz", ".csv"];

/// The trace files that a path stands for: itself, or what lies in the folder, in the order of names.
///
/// # Errors
/// One line that names the folder, if it cannot be read or holds no trace.
pub(crate) fn trace_files(input: &Path) -> Result<Vec<PathBuf>, String> {
    // A path that does not exist goes to the reader, which has the words for it.
    if !input.is_dir() {
        return Ok(vec![input.to_owned()]);
    }
    let shown = input.display();
    let files = folder(input).map_err(|e| {
        format!("{shown}: cannot be read ({e}); check the path and its permissions")
    })?;
    if files.is_empty() {
        return Err(format!(
            "{shown}: no traces in this folder; name a folder with *.pickle, *.pickle.gz or *.csv files"
        ));
    }
    Ok(files)
}

/// Numbers names that come again: files of one name in several folders, as the ranks of a job write them.
pub(crate) fn tell_apart<'a>(names: impl Iterator<Item = &'a mut String>) {
    let mut given = HashSet::new();
    for name in names {
        let numbered = (2..).map(|number| format!("{name} ({number})"));
        let free = |name: &String| !given.contains(name);
        *name = std::iter::once(name.clone()).chain(numbered).find(free).expect("a free number");
        given.insert(name.clone());
    }
}

fn folder(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        if path.is_file() && ENDINGS.iter().any(|ending| name.ends_with(ending)) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_gives_its_traces_in_order() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        for name in ["b.pickle.gz", "a.csv", "c.pickle", "readme.md", "x.gz"] {
            fs::write(dir.path().join(name), "").expect("writable");
        }
        fs::create_dir(dir.path().join("d.pickle")).expect("writable");
        let files = trace_files(dir.path()).expect("has traces");
        let names: Vec<_> =
            files.iter().map(|f| f.file_name().unwrap().to_str().unwrap()).collect();
        assert_eq!(names, ["a.csv", "b.pickle.gz", "c.pickle"]);
    }

    #[test]
    fn names_that_come_again_get_numbers() {
        let mut names = ["run", "other", "run", "run"].map(str::to_owned);
        tell_apart(names.iter_mut());
        assert_eq!(names, ["run", "other", "run (2)", "run (3)"]);
        let mut names = ["run", "run (2)", "run"].map(str::to_owned);
        tell_apart(names.iter_mut());
        assert_eq!(names, ["run", "run (2)", "run (3)"]);
    }

    #[test]
    fn a_folder_without_traces_is_an_error() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let error = trace_files(dir.path()).expect_err("empty");
        assert!(error.starts_with(&dir.path().display().to_string()), "{error}");
    }
}
