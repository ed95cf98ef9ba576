//! The dashboard's files: a page, its style and its script. They contain no figures, which arrive by
//! [`super::events`].

use std::io::Write as _;
use std::sync::OnceLock;

use flate2::Compression;
use flate2::write::GzEncoder;
use hyper::body::Bytes;

/// The content security policy: only the server's own style, script, picture and stream are allowed, and no
/// other page may frame this one.
pub(super) const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

/// A file of the dashboard.
pub(super) struct File {
    path: &'static str,
    pub(super) content_type: &'static str,
    text: &'static str,
    packed: OnceLock<Bytes>,
}

static FILES: [File; 4] = [
    File::new("/", "text/html; charset=utf-8", include_str!("page/index.html")),
    File::new("/dashboard.css", "text/css; charset=utf-8", include_str!("page/dashboard.css")),
    File::new("/dashboard.js", "text/javascript; charset=utf-8", include_str!("page/dashboard.js")),
    File::new("/dashboard.svg", "image/svg+xml", include_str!("page/dashboard.svg")),
];

/// The file with this path.
pub(super) fn file(path: &str) -> Option<&'static File> {
    FILES.iter().find(|file| file.path == path)
}

/// Whether there is a file with this path.
pub(super) fn has(path: &str) -> bool {
    file(path).is_some()
}

impl File {
    const fn new(path: &'static str, content_type: &'static str, text: &'static str) -> Self {
        Self { path, content_type, text, packed: OnceLock::new() }
    }

    pub(super) fn plain(&self) -> Bytes {
        Bytes::from_static(self.text.as_bytes())
    }

    /// The compressed file, made at the first request.
    pub(super) fn packed(&self) -> Bytes {
        self.packed.get_or_init(|| gzip(self.text.as_bytes())).clone()
    }
}

fn gzip(bytes: &[u8]) -> Bytes {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    // A write to memory cannot fail.
    encoder.write_all(bytes).unwrap_or_default();
    encoder.finish().unwrap_or_default().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_files_are_small_and_name_nothing_outside() {
        let bytes: usize = FILES.iter().map(|file| file.packed().len()).sum();
        assert!(bytes < 30 << 10, "{bytes} bytes");
        for file in &FILES {
            let names = file.text.replace("http://www.w3.org/2000/svg", "");
            assert!(!names.contains("://"), "{}", file.path);
            for word in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("] {
                assert!(!file.text.contains(word), "{} has {word}", file.path);
            }
        }
        assert!(!FILES[0].text.contains("style=") && !FILES[0].text.contains("onclick"));
    }
}
