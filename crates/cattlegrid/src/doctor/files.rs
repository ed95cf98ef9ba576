//! Files that the settings name: whether the server can read them, now and after it has become another user,
//! and who else can.

use std::ffi::CString;
use std::fs::{File, Metadata};
use std::io::Read as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use cattlegrid_config::{LoaderSettings, NamedFile, Settings};
use nix::unistd::{Gid, Uid, User, getgrouplist};
use rustix::fs::{Access as Mode, access};

use super::finding::Findings;

/// A user, as the system asks for permissions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileUser {
    pub(crate) name: String,
    pub(crate) uid: u32,
    pub(crate) groups: Vec<u32>,
}

/// The access to a file that the server needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
    Execute,
}

impl Access {
    const fn bit(self) -> u32 {
        match self {
            Self::Read => 4,
            Self::Write => 2,
            Self::Execute => 1,
        }
    }

    const fn verb(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "make files in",
            Self::Execute => "run",
        }
    }
}

impl FileUser {
    /// The user that the server becomes; None: it stays who starts it.
    pub(crate) fn of(name: &str) -> Option<Self> {
        let user = User::from_name(name).ok()??;
        let c_name = CString::new(name).ok()?;
        let groups = getgrouplist(&c_name, user.gid).unwrap_or_else(|_| vec![user.gid]);
        Some(Self {
            name: name.to_owned(),
            uid: user.uid.as_raw(),
            groups: groups.into_iter().map(Gid::as_raw).collect(),
        })
    }

    /// Whether a file of these permissions may be used by it.
    fn may(&self, mode: u32, owner: (u32, u32), want: Access) -> bool {
        let (uid, gid) = owner;
        if self.uid == 0 {
            return want != Access::Execute || mode & 0o111 != 0;
        }
        let shift = if uid == self.uid {
            6
        } else if self.groups.contains(&gid) {
            3
        } else {
            0
        };
        mode >> shift & want.bit() != 0
    }

    /// The first part of the path that it may not pass, or use at its end. Access lists beyond the bits are
    /// not looked at.
    fn stopped_by(&self, path: &Path, want: Access) -> Option<PathBuf> {
        let path = path.canonicalize().ok()?;
        let mut parts: Vec<&Path> = path.ancestors().collect();
        parts.reverse();
        let (last, dirs) = parts.split_last()?;
        let allowed = |path: &Path, want| {
            path.metadata().is_ok_and(|data: Metadata| self.may(data.mode(), (data.uid(), data.gid()), want))
        };
        let stop = dirs.iter().find(|dir| !allowed(dir, Access::Execute));
        stop.or_else(|| Some(last).filter(|last| !allowed(last, want))).map(|part| part.to_path_buf())
    }
}

/// All of this file. `runs_as`: the user that a running server has.
pub(crate) fn judge(settings: &Settings, runs_as: Option<u32>, to: &mut Findings) {
    let is_root = Uid::effective().is_root();
    let stays_root = runs_as.map_or(is_root, |uid| uid == 0);
    let who = match &settings.user {
        Some(name) if is_root => match FileUser::of(name) {
            None => {
                let mend = format!("useradd --system {name}, or -u with another user");
                to.problem(
                    "user",
                    format!("-u {name}: there is no such user"),
                    "The server does not start.",
                    mend,
                );
                return;
            }
            who => who,
        },
        Some(name) => {
            to.passed("user", format!("-u {name} has no effect: only root can become another user"));
            None
        }
        None if stays_root => {
            to.advice(
                "user",
                if runs_as.is_some() { "the server runs as root" } else { "the server would run as root" },
                "A fault of it, or a loader's, has the rights of root.",
                "-u memcache (or another user of its own), or User= in its unit file",
            );
            None
        }
        None => None,
    };
    for file in settings.named_files() {
        judge_file(&file, who.as_ref(), to);
    }
    if let Some(path) = &settings.pid_file {
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        judge_directory("pid file", dir, who.as_ref(), to);
    }
    for loader in settings.loaders() {
        judge_loader(loader, who.as_ref(), to);
    }
}

fn judge_file(file: &NamedFile, who: Option<&FileUser>, to: &mut Findings) {
    let NamedFile { by, path, is_secret } = file;
    let shown = path.display();
    let opened = cattlegrid_config::open_file(path).and_then(|file: File| file.metadata());
    let data = match opened {
        Ok(data) => data,
        Err(error) => {
            to.problem(
                "file",
                format!("{by} {shown} cannot be read by this user: {error}"),
                "Started by this user the server does not start, or does without what is in it.",
                format!("the right path, or chown and chmod so that the server's user can read it: `namei -l {shown}` shows who can"),
            );
            return;
        }
    };
    let mut is_good = true;
    if let Some(who) = who
        && let Some(part) = who.stopped_by(path, Access::Read)
    {
        is_good = false;
        to.problem(
            "file",
            format!("{by} {shown} cannot be read by {} (-u): {} keeps it out", who.name, part.display()),
            "The server starts, since root reads it; it is not read again: SIGHUP, a new password or certificate changes nothing.",
            format!("setfacl -m u:{}:rX {}, or chgrp and chmod g+rX", who.name, part.display()),
        );
    }
    let mode = data.permissions().mode();
    if *is_secret && mode & 0o004 != 0 && reachable_by_all(path) {
        is_good = false;
        let why = "Every user of this machine can read the secret in it.";
        to.problem(
            "secrets",
            format!("{by} {shown} has mode {:04o}", mode & 0o7777),
            why,
            format!("chmod o-rwx {shown}"),
        );
    }
    if mode & 0o002 != 0 {
        is_good = false;
        let why = "Every user of this machine can change it, and with it what the server does.";
        to.problem(
            "secrets",
            format!("{by} {shown} has mode {:04o}", mode & 0o7777),
            why,
            format!("chmod o-w {shown}"),
        );
    }
    if is_good {
        to.passed("file", format!("{by} {shown}"));
    }
}

/// Whether no directory above keeps other users out.
fn reachable_by_all(path: &Path) -> bool {
    let Ok(path) = path.canonicalize() else { return true };
    let passes = |dir: &Path| dir.metadata().map_or(true, |data| data.mode() & 0o001 != 0);
    path.ancestors().skip(1).all(passes)
}

/// Whether files can be made in a directory.
fn judge_directory(name: &'static str, dir: &Path, who: Option<&FileUser>, to: &mut Findings) {
    let shown = dir.display();
    let user = who.map_or("this user".to_owned(), |who| who.name.clone());
    let stopped = match who {
        Some(who) if dir.is_dir() => who.stopped_by(dir, Access::Write).is_some(),
        Some(_) => true,
        None => access(dir, Mode::WRITE_OK | Mode::EXEC_OK).is_err(),
    };
    if stopped {
        to.problem(
            name,
            format!("{user} cannot {} {shown}", Access::Write.verb()),
            "The file is not written: a program that waits for it takes the server for dead.",
            "RuntimeDirectory= in its unit file and a path there, or chown of a directory of its own",
        );
    } else {
        to.passed(name, format!("{user} can {} {shown}", Access::Write.verb()));
    }
}

/// The program of a loader, and the interpreter of a script.
fn judge_loader(loader: &LoaderSettings, who: Option<&FileUser>, to: &mut Findings) {
    let name = "loader";
    let Some(program) = loader.command.first() else { return };
    let who = loader.user.as_deref().and_then(FileUser::of).or_else(|| who.cloned());
    let why = "Misses of its rules are not loaded; the server does not start if it is there at the start.";
    let Some(path) = find_program(program, &loader.dir) else {
        to.problem(
            name,
            format!(
                "{}: there is no program {program}, in PATH or from {}",
                loader.name,
                loader.dir.display()
            ),
            why,
            format!("install it, or write its whole path in [loader.{}] command", loader.name),
        );
        return;
    };
    let shown = path.display();
    let may_run = match &who {
        Some(who) => who.stopped_by(&path, Access::Execute).is_none(),
        None => access(&path, Mode::EXEC_OK).is_ok(),
    };
    if !may_run {
        let user = who.map_or("this user".to_owned(), |who| who.name);
        let mend = format!("chmod +x {shown}, and x on the directories above it (`namei -l {shown}`)");
        to.problem(
            name,
            format!("{}: {user} cannot {} {shown}", loader.name, Access::Execute.verb()),
            why,
            mend,
        );
        return;
    }
    if let Some(missing) = interpreter(&path).filter(|path| !Path::new(path).exists()) {
        let found = format!("{}: the interpreter of {shown}, {missing}, does not exist", loader.name);
        to.problem(name, found, why, format!("install it, or correct the first line of {shown}"));
        return;
    }
    // A file among the arguments is most often the script: python3 loaders/pages.py.
    let is_script =
        |word: &&String| !word.starts_with('-') && Path::new(word).extension().is_some_and(|end| end == "py");
    let script = loader.command.iter().skip(1).find(is_script);
    if let Some(script) = script
        && !loader.dir.join(script).exists()
    {
        let found = format!("{}: {script} does not exist in {}", loader.name, loader.dir.display());
        to.problem(
            name,
            found,
            why,
            format!("the right path in [loader.{}] command, or its dir", loader.name),
        );
        return;
    }
    let open = path.metadata().is_ok_and(|data| data.mode() & 0o002 != 0);
    if open {
        let why = "Every user of this machine can replace what the server runs.";
        to.problem(
            "secrets",
            format!("[loader.{}] {shown} can be written by all", loader.name),
            why,
            format!("chmod o-w {shown}"),
        );
        return;
    }
    to.passed(name, format!("{}: {shown}", loader.name));
}

/// Where a program is: a path from `dir`, or a name in `PATH`.
fn find_program(program: &str, dir: &Path) -> Option<PathBuf> {
    if program.contains('/') {
        return Some(dir.join(program)).filter(|path| path.is_file());
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(program)).find(|path| path.is_file())
}

/// The interpreter in the first line of a script, such as `#!/usr/bin/python3 -u`.
fn interpreter(path: &Path) -> Option<String> {
    let mut begin = [0; 256];
    let count = File::open(path).ok()?.read(&mut begin).ok()?;
    let line = std::str::from_utf8(begin[..count].split(|byte| *byte == b'\n').next()?).ok()?;
    line.strip_prefix("#!")?.split_ascii_whitespace().next().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn who(uid: u32, groups: &[u32]) -> FileUser {
        FileUser { name: "user".to_owned(), uid, groups: groups.to_vec() }
    }

    #[test]
    fn the_bits_of_the_owner_the_group_and_all_others() {
        for (user, mode, want, may) in [
            (who(7, &[7]), 0o600, Access::Read, true),
            (who(7, &[7]), 0o060, Access::Read, false),
            (who(8, &[9, 5]), 0o640, Access::Read, true),
            (who(8, &[9]), 0o640, Access::Read, false),
            (who(8, &[9]), 0o604, Access::Read, true),
            (who(8, &[5]), 0o604, Access::Read, false),
            (who(7, &[7]), 0o400, Access::Write, false),
            (who(7, &[7]), 0o600, Access::Execute, false),
            (who(0, &[0]), 0o000, Access::Read, true),
            (who(0, &[0]), 0o644, Access::Execute, false),
            (who(0, &[0]), 0o645, Access::Execute, true),
        ] {
            assert_eq!(user.may(mode, (7, 5), want), may, "{user:?} {mode:o} {want:?}");
        }
    }

    #[test]
    fn a_directory_above_keeps_a_user_out() {
        let dir = tempfile::tempdir().unwrap();
        let (inner, file) = (dir.path().join("inner"), dir.path().join("inner/file"));
        std::fs::create_dir(&inner).unwrap();
        std::fs::write(&file, "x").unwrap();
        let set =
            |path: &Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
        let other = who(54_321, &[54_321]);
        set(dir.path(), 0o755);
        set(&inner, 0o750);
        set(&file, 0o644);
        assert_eq!(other.stopped_by(&file, Access::Read), Some(inner.canonicalize().unwrap()));
        assert!(!reachable_by_all(&file));
        set(&inner, 0o755);
        assert_eq!(other.stopped_by(&file, Access::Read), None);
        assert_eq!(other.stopped_by(&file, Access::Execute), Some(file.canonicalize().unwrap()));
        set(&file, 0o640);
        assert_eq!(other.stopped_by(&file, Access::Read), Some(file.canonicalize().unwrap()));
        assert_eq!(other.stopped_by(&inner, Access::Write), Some(inner.canonicalize().unwrap()));
    }

    #[test]
    fn secrets_that_all_can_read_and_files_that_all_can_write() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let path = dir.path().join("users");
        std::fs::write(&path, "a:b\n").unwrap();
        let judged = |mode, secret| {
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            let mut to = Findings::default();
            judge_file(
                &NamedFile { by: "-Y".to_owned(), path: path.clone(), is_secret: secret },
                None,
                &mut to,
            );
            to.list
                .iter()
                .map(|finding| finding.mend.split(' ').nth(1).unwrap().to_owned())
                .collect::<Vec<_>>()
        };
        assert!(judged(0o640, true).is_empty());
        assert_eq!(judged(0o644, true), ["o-rwx"]);
        assert!(judged(0o644, false).is_empty());
        assert_eq!(judged(0o666, true), ["o-rwx", "o-w"]);
        assert_eq!(judged(0o602, false), ["o-w"]);
    }

    #[test]
    fn programs_and_interpreters() {
        let dir = tempfile::tempdir().unwrap();
        let script = dir.path().join("load");
        std::fs::write(&script, "#!/nonexistent/python -u\nx\n").unwrap();
        assert_eq!(interpreter(&script).as_deref(), Some("/nonexistent/python"));
        assert_eq!(find_program("./load", dir.path()).as_deref(), Some(dir.path().join("./load").as_path()));
        assert!(
            find_program("./other", dir.path()).is_none()
                && find_program("no-such-program", dir.path()).is_none()
        );
        assert!(find_program("sh", dir.path()).is_some());
    }
}
