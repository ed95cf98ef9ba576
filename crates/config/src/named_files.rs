//! The files that settings name. All are read at the start, and again at a reload, as the user that the
//! server has then.

use std::path::{Path, PathBuf};

use crate::{FollowSettings, Settings};

/// A file that the settings name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedFile {
    /// The option that names it: `-Y`, `ssl_key`.
    pub by: String,
    /// The path as it was written.
    pub path: PathBuf,
    /// Whether other users must not be able to read it.
    pub is_secret: bool,
}

impl Settings {
    /// All files that the settings name; programs of loaders and directories are not among them.
    pub fn named_files(&self) -> Vec<NamedFile> {
        let mut files = Vec::new();
        let mut add = |by: String, path: &Path, is_secret: bool| {
            files.push(NamedFile { by, path: path.to_owned(), is_secret });
        };
        if let Some(file) = &self.rule_file {
            let has_password = |log: &FollowSettings| {
                let of_database = log.postgres().is_some_and(|log| log.address.password.is_some());
                let of_mysql = log.mysql().is_some_and(|log| log.address.password.is_some());
                of_database || of_mysql || log.etcd().is_some_and(|log| log.place.password.is_some())
            };
            add("--config".to_owned(), &file.path, self.follows().iter().any(has_password));
        }
        if let Some(path) = &self.auth_file {
            add("-Y".to_owned(), path, true);
        } else if let Some(path) = std::env::var_os("MEMCACHED_SASL_PWDB").filter(|_| self.auth_binary()) {
            add("MEMCACHED_SASL_PWDB".to_owned(), Path::new(&path), true);
        }
        if let Some(path) = &self.admin_token {
            add("--admin-token".to_owned(), path, true);
        }
        if let Some(tls) = self.tls.as_ref().or(self.admin_tls.as_ref()) {
            add("ssl_chain_cert".to_owned(), &tls.chain_cert, tls.key.is_none());
            if let Some(path) = &tls.key {
                add("ssl_key".to_owned(), path, true);
            }
            if let Some(path) = &tls.ca_cert {
                add("ssl_ca_cert".to_owned(), path, false);
            }
        }
        for log in self.follows() {
            let mut own = |what: &str, path: &Path, is_secret| {
                add(format!("[follow.{}] {what}", log.name), path, is_secret);
            };
            if let Some(path) = &log.password_file {
                own("password_file", path, true);
            }
            if let Some(path) = &log.ssl_ca {
                own("ssl_ca", path, false);
            }
            if let Some((certificate, key)) = &log.ssl_own {
                own("certificate", certificate, false);
                own("key", key, true);
            }
        }
        files
    }
}
