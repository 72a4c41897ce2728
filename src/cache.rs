//! The cache folder: kernels compiled at first use, and the embedded model.
//!
//! Its contents are executed, so they must be this user's own even in a shared folder: subfolders are accessible to their
//! owner alone; symbolic links and folders of other users (except root) are refused. Files are written under random names
//! and renamed, so that no reader sees a partial file, even after a kill.

use crate::{files, units};
use sha2::{Digest, Sha256};
use std::io::{self, ErrorKind, Write};
use std::{ffi::OsString, path::Path, path::PathBuf, time::Duration};
use tempfile::{NamedTempFile, TempDir};

/// Name prefix of files and folders not yet complete.
const DRAFT: &str = ".draft-";

/// Age at which a draft counts as abandoned; writing one takes seconds.
const DRAFT_AGE: Duration = Duration::from_secs(3600);

/// Max bytes read from a cache file.
const MAX_FILE: u64 = 256 << 20;

/// `$UQAC_CACHE`, else `uqac` in the user's cache folder (on Windows, `$LOCALAPPDATA`); `None` if no variable locates one.
pub(crate) fn folder() -> Option<PathBuf> {
    let local = |name: &str| if name == "XDG_CACHE_HOME" { std::env::var_os("LOCALAPPDATA") } else { None };
    folder_of("UQAC_CACHE", "uqac", |name| std::env::var_os(name).or_else(|| local(name)))
}

/// The folder named by `variable`, else `name` in the user's cache folder; takes the environment as a function so that tests need
/// not modify the process's own.
pub(crate) fn folder_of(variable: &str, name: &str, environment: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let of = |name: &str| environment(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let home = || of("HOME").or_else(|| of("USERPROFILE")).map(|home| home.join(".cache"));
    of(variable).or_else(|| Some(of("XDG_CACHE_HOME").or_else(home)?.join(name)))
}

/// The subfolder `name` of the cache folder `cache`, created if missing and cleared of abandoned drafts.
///
/// # Errors
/// The offending folder: it cannot be created, is not a folder, or is writable by another user.
pub(crate) fn private(cache: &Path, name: &str) -> Result<PathBuf, (PathBuf, io::Error)> {
    let make = |folder: &Path, inside: bool| {
        let mut builder = std::fs::DirBuilder::new();
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        let made = builder.recursive(!inside).create(folder).or_else(|error| match error.kind() {
            ErrorKind::AlreadyExists => Ok(()),
            _ => Err(error),
        });
        made.and_then(|()| check(folder, inside)).map_err(|error| (folder.to_owned(), error))
    };
    let folder = cache.join(name);
    make(cache, false)?;
    make(&folder, true)?;
    remove_leftovers(&folder);
    Ok(folder)
}

/// Checks that a folder belongs to this user or root. One `inside` the cache must not be a link, and is restricted to its owner.
#[cfg(unix)]
fn check(folder: &Path, inside: bool) -> io::Result<()> {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    const OTHERS: u32 = 0o077;
    const OTHERS_WRITE: u32 = 0o002;
    const STICKY: u32 = 0o1000;
    let metadata = if inside { folder.symlink_metadata()? } else { folder.metadata()? };
    let refused = |why: &str| Err(io::Error::new(ErrorKind::PermissionDenied, why));
    if !metadata.is_dir() {
        return refused("it is no folder (a link is not followed)");
    }
    // SAFETY: it has no preconditions and cannot fail.
    let user = unsafe { libc::geteuid() };
    let (owner, mode) = (metadata.uid(), metadata.mode());
    if owner != user && owner != 0 {
        return refused("it belongs to another user, who could change what is in it");
    }
    if inside && owner == user && mode & OTHERS != 0 {
        std::fs::set_permissions(folder, PermissionsExt::from_mode(0o700))
    } else if mode & OTHERS_WRITE != 0 && mode & STICKY == 0 {
        refused("every user could change what is in it; take that right away: chmod o-w")
    } else {
        Ok(())
    }
}

#[cfg(not(unix))]
fn check(folder: &Path, _inside: bool) -> io::Result<()> {
    if folder.is_dir() { Ok(()) } else { Err(ErrorKind::NotADirectory.into()) }
}

/// Removes abandoned drafts.
pub(crate) fn remove_leftovers(folder: &Path) {
    for entry in folder.read_dir().into_iter().flatten().flatten() {
        let metadata = entry.metadata();
        let age = metadata.and_then(|metadata| metadata.modified()).ok().and_then(|time| time.elapsed().ok());
        if entry.file_name().to_string_lossy().starts_with(DRAFT) && age.is_some_and(|age| age > DRAFT_AGE) {
            // harmless if it stays
            let _ = std::fs::remove_dir_all(entry.path()).or_else(|_| std::fs::remove_file(entry.path()));
        }
    }
}

/// Writes a file atomically: under another name first, then renamed.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)?;
    draft(folder, bytes)?.persist(path)?;
    Ok(())
}

/// A synced file of `bytes` to be renamed within `folder`; removed on drop otherwise.
pub(crate) fn draft(folder: &Path, bytes: &[u8]) -> io::Result<NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666)); // minus the umask, as for any new file
    let mut file = builder.prefix(DRAFT).tempfile_in(folder)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    Ok(file)
}

/// An empty folder to be filled and renamed within `folder`; removed on drop otherwise.
pub(crate) fn draft_folder(folder: &Path) -> io::Result<TempDir> {
    let mut builder = tempfile::Builder::new();
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o700));
    builder.prefix(DRAFT).tempdir_in(folder)
}

/// Writes a text preceded by a comment line with its SHA-256.
pub(crate) fn write_sealed(path: &Path, text: &[u8]) -> io::Result<()> {
    write(path, &[seal(text).as_bytes(), text].concat())
}

/// The text written by [`write_sealed`]; `None` if the file is missing, damaged or not a regular file.
pub(crate) fn read_sealed(path: &Path) -> Option<Vec<u8>> {
    let bytes = read(path).ok()?;
    let (start, text) = bytes.split_at_checked(seal(b"").len())?;
    (start == seal(text).as_bytes()).then(|| text.to_vec())
}

/// A comment line in C and PTX.
fn seal(text: &[u8]) -> String {
    format!("// SHA-256 of what follows: {}\n", units::hex(&Sha256::digest(text)))
}

/// The bytes of a regular file; no link is followed.
pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    match path.symlink_metadata()?.is_file() {
        true => files::read(path, MAX_FILE),
        false => Err(io::Error::new(ErrorKind::InvalidInput, "expected a regular file")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_is_where_variables_say() {
        let found = |set: &[(&str, &str)]| {
            folder_of("UQAC_CACHE", "uqac", |name| {
                set.iter().find(|(n, _)| *n == name).map(|(_, value)| OsString::from(value))
            })
        };
        assert_eq!(found(&[]), None);
        assert_eq!(found(&[("HOME", "/h")]), Some("/h/.cache/uqac".into()));
        assert_eq!(found(&[("HOME", "/h"), ("XDG_CACHE_HOME", "/x")]), Some("/x/uqac".into()));
        assert_eq!(found(&[("HOME", "/h"), ("UQAC_CACHE", "/u")]), Some("/u".into()));
        assert_eq!(found(&[("HOME", "/h"), ("UQAC_CACHE", "")]), Some("/h/.cache/uqac".into()));
        assert_eq!(found(&[("USERPROFILE", "/p")]), Some("/p/.cache/uqac".into()));
    }

    #[test]
    fn files_are_written_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b.bin");
        write(&path, b"one").unwrap();
        write(&path, b"two").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"two");
        assert_eq!(std::fs::read_dir(folder.path().join("a")).unwrap().count(), 1);
        // a folder in the way: no draft is left behind
        std::fs::create_dir(folder.path().join("a/c")).unwrap();
        assert!(write(&folder.path().join("a/c"), b"x").is_err());
        assert_eq!(std::fs::read_dir(folder.path().join("a")).unwrap().count(), 2);
    }

    #[test]
    fn what_is_sealed_is_read_only_if_it_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kernel");
        assert_eq!(read_sealed(&path), None);
        write_sealed(&path, b"code").unwrap();
        assert_eq!(read_sealed(&path).unwrap(), b"code");
        let whole = std::fs::read(&path).unwrap();
        for damaged in [&whole[..whole.len() - 1], &whole[1..], b"code", b""] {
            std::fs::write(&path, damaged).unwrap();
            assert_eq!(read_sealed(&path), None);
        }
        let mut flipped = whole.clone();
        *flipped.last_mut().unwrap() ^= 1;
        std::fs::write(&path, flipped).unwrap();
        assert_eq!(read_sealed(&path), None);
    }

    #[cfg(unix)]
    #[test]
    fn folders_are_closed_and_neither_links_nor_strangers_are_trusted() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let cache = tempfile::tempdir().unwrap();
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        let models = private(&cache.path().join("new"), "models").unwrap();
        assert_eq!((mode(&cache.path().join("new")), mode(&models)), (0o700, 0o700));
        // one created by an older version is restricted
        std::fs::set_permissions(&models, PermissionsExt::from_mode(0o775)).unwrap();
        private(&cache.path().join("new"), "models").unwrap();
        assert_eq!(mode(&models), 0o700);
        let elsewhere = tempfile::tempdir().unwrap();
        symlink(elsewhere.path(), cache.path().join("kernels")).unwrap();
        let (path, error) = private(cache.path(), "kernels").unwrap_err();
        assert_eq!((path, error.kind()), (cache.path().join("kernels"), ErrorKind::PermissionDenied));
        // like /tmp, world-writable but sticky: entries are safe from other users; without the sticky bit they are not
        let open = tempfile::tempdir().unwrap();
        std::fs::set_permissions(open.path(), PermissionsExt::from_mode(0o1777)).unwrap();
        private(open.path(), "models").unwrap();
        std::fs::set_permissions(open.path(), PermissionsExt::from_mode(0o777)).unwrap();
        assert!(private(open.path(), "models").unwrap_err().1.to_string().contains("chmod o-w"));
    }

    #[test]
    fn what_a_kill_left_is_removed_after_a_while() {
        let cache = tempfile::tempdir().unwrap();
        let folder = private(cache.path(), "kernels").unwrap();
        let old = std::time::SystemTime::now() - 2 * DRAFT_AGE;
        let put = |name: &str, time| {
            std::fs::write(folder.join(name), "x").unwrap();
            std::fs::File::options().append(true).open(folder.join(name)).unwrap().set_modified(time).unwrap();
        };
        put(".draft-old", old);
        put(".draft-new", std::time::SystemTime::now());
        put("kernel.ptx", old);
        private(cache.path(), "kernels").unwrap();
        let mut left: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|e| e.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, [".draft-new", "kernel.ptx"]);
    }
}
