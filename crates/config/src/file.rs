//! Opening of files that an option names.
//!
//! # Invariants
//! * Opening never waits: a file that is not a regular file is refused.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rustix::fs::OFlags;

/// Opens a file that an option names. It must be a regular file: a pipe without a writer would block the
/// thread that opens it, and with it the server, for ever.
///
/// # Errors
/// The system's, and `InvalidInput` if the file is not a regular file.
pub fn open_file(path: &Path) -> io::Result<File> {
    // Without O_NONBLOCK, opening a pipe waits; without O_NOCTTY, a terminal could become the process's
    // controlling terminal.
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    Ok(file)
}

/// The contents of a file, opened with [`open_file`].
///
/// # Errors
/// Those of [`open_file`], and of reading.
pub fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_file(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_are_opened() {
        let dir = tempfile::tempdir().unwrap();
        let [pipe, file, link] = ["pipe", "file", "link"].map(|name| dir.path().join(name));
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).unwrap();
        std::fs::write(&file, "text").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert_eq!(read_file(&link).unwrap(), b"text", "links are followed");
        for other in [pipe.as_path(), dir.path(), Path::new("/dev/null")] {
            assert_eq!(read_file(other).unwrap_err().to_string(), "it is not a regular file");
        }
        assert!(read_file(&dir.path().join("absent")).is_err());
    }
}
