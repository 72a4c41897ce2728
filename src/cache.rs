//! The cache folder: kernels compiled at first use, and the model that comes with the program.

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// `$UQAC_CACHE`, or `uqac` in the user's folder for caches; `None` where no variable says where that is.
pub(crate) fn folder() -> Option<PathBuf> {
    folder_with(|name| std::env::var_os(name))
}

/// [`folder`] with the environment as a function, so that tests need not change the process's own.
fn folder_with(environment: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let of = |name: &str| environment(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    of("UQAC_CACHE")
        .or_else(|| of("XDG_CACHE_HOME").map(|folder| folder.join("uqac")))
        .or_else(|| of("HOME").map(|home| home.join(".cache/uqac")))
}

/// Writes a file under another name first, so that another process never sees a part of it.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)?;
    draft(folder, bytes)?.persist(path)?;
    Ok(())
}

/// A file of `bytes`, on the disk and ready to be renamed to another one in `folder`; removed if it is not.
pub(crate) fn draft(folder: &Path, bytes: &[u8]) -> io::Result<NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666)); // less the umask, as any new file
    let mut file = builder.tempfile_in(folder)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_is_where_variables_say() {
        let found = |set: &[(&str, &str)]| {
            folder_with(|name| set.iter().find(|(n, _)| *n == name).map(|(_, value)| OsString::from(value)))
        };
        assert_eq!(found(&[]), None);
        assert_eq!(found(&[("HOME", "/h")]), Some("/h/.cache/uqac".into()));
        assert_eq!(found(&[("HOME", "/h"), ("XDG_CACHE_HOME", "/x")]), Some("/x/uqac".into()));
        assert_eq!(found(&[("HOME", "/h"), ("UQAC_CACHE", "/u")]), Some("/u".into()));
        assert_eq!(found(&[("HOME", "/h"), ("UQAC_CACHE", "")]), Some("/h/.cache/uqac".into()));
    }

    #[test]
    fn files_are_written_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b.bin");
        write(&path, b"one").unwrap();
        write(&path, b"two").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"two");
        assert_eq!(std::fs::read_dir(folder.path().join("a")).unwrap().count(), 1);
        // a folder in the way: no draft stays
        std::fs::create_dir(folder.path().join("a/c")).unwrap();
        assert!(write(&folder.path().join("a/c"), b"x").is_err());
        assert_eq!(std::fs::read_dir(folder.path().join("a")).unwrap().count(), 2);
    }
}
