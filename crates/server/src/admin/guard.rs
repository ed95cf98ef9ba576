//! Access to pages, decided by method, headers and token before any figure is read.
//!
//! A page of another site in a browser must not read what is meant for this machine. Such a page could use a
//! host name that its own DNS server resolves to this address (DNS rebinding), or send cross-site requests.
//! The first shows in `Host`, the second in `Sec-Fetch-Site` and `Origin`.

use std::net::IpAddr;

use hyper::header::{AUTHORIZATION, HOST, HeaderMap, HeaderName, ORIGIN};
use hyper::http::request::Parts;
use hyper::{Method, StatusCode, Version};

use super::dashboard;
use super::secrets::Secrets;

/// Pages that only tell whether the server is well, and need no token, since probes have none.
const OPEN: [&str; 2] = ["/healthz", "/readyz"];

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const SEC_FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");

/// The host names that `Host` may have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hosts {
    /// The host of the option; None: any host is allowed, since readers have a token, which a page of another
    /// site has not.
    own: Option<String>,
}

impl Hosts {
    /// The hosts for a loopback address: the option's own host `own`, `localhost`, and loopback addresses.
    pub(super) fn local(own: &str) -> Self {
        Self { own: Some(own.to_ascii_lowercase()) }
    }

    pub(super) fn any() -> Self {
        Self { own: None }
    }

    pub(super) fn is_local(&self) -> bool {
        self.own.is_some()
    }

    /// Whether this `host:port` is allowed.
    fn has(&self, authority: &str) -> bool {
        let Some(own) = &self.own else { return true };
        let host = host_of(authority).to_ascii_lowercase();
        let host = host.strip_suffix('.').unwrap_or(&host);
        host == "localhost"
            || host == own
            || host.parse().is_ok_and(|ip: IpAddr| ip.to_canonical().is_loopback())
    }
}

/// The host, without port and brackets.
fn host_of(authority: &str) -> &str {
    if let Some((host, _)) = authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        return host;
    }
    match authority.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') && port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => authority,
    }
}

/// The reply to a refused request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) status: StatusCode,
    pub(super) text: &'static str,
}

const fn refuse(status: StatusCode, text: &'static str) -> Result<(), Refusal> {
    Err(Refusal { status, text })
}

/// Checks whether the request may be answered.
///
/// # Errors
/// The refusal, with status and reason.
pub(super) fn judge(request: &Parts, hosts: &Hosts, secrets: &Secrets) -> Result<(), Refusal> {
    if request.method != Method::GET && request.method != Method::HEAD {
        return refuse(StatusCode::METHOD_NOT_ALLOWED, "pages can be read only: GET or HEAD");
    }
    if request.uri.authority().is_some() {
        return refuse(StatusCode::BAD_REQUEST, "this is no proxy: ask for a path");
    }
    let Ok(host) = only(&request.headers, &HOST) else {
        return refuse(StatusCode::BAD_REQUEST, "more than one Host");
    };
    match host {
        None if request.version >= Version::HTTP_11 => {
            return refuse(StatusCode::BAD_REQUEST, "no Host");
        }
        // Browsers always send `Host`.
        None => {}
        Some(host) if hosts.has(host) => {}
        Some(_) => {
            return refuse(
                StatusCode::MISDIRECTED_REQUEST,
                "another Host: ask for localhost, or for the address of --admin",
            );
        }
    }
    let is_static = dashboard::has(request.uri.path());
    if is_cross_site(&request.headers, host) && !(is_static && is_link(&request.headers)) {
        return refuse(StatusCode::FORBIDDEN, "pages of other sites may not read this");
    }
    if secrets.wants_token() && !is_static && !OPEN.contains(&request.uri.path()) {
        let given = only(&request.headers, &AUTHORIZATION).ok().flatten().and_then(bearer);
        if !given.is_some_and(|token| secrets.is_token(token.as_bytes())) {
            return refuse(
                StatusCode::UNAUTHORIZED,
                "send the token of --admin-token as Authorization: Bearer",
            );
        }
    }
    Ok(())
}

/// The value of a header that may occur once.
///
/// # Errors
/// The header occurs several times, or is not text.
fn only<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Result<Option<&'h str>, ()> {
    let mut all = headers.get_all(name).iter();
    let Some(first) = all.next() else { return Ok(None) };
    if all.next().is_some() {
        return Err(());
    }
    first.to_str().map(Some).map_err(|_| ())
}

fn bearer(value: &str) -> Option<&str> {
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// Whether a browser says that the request comes from another site. The page's own origin is any scheme with
/// `host`.
fn is_cross_site(headers: &HeaderMap, host: Option<&str>) -> bool {
    let is_foreign = |site: &str| !matches!(site, "same-origin" | "none");
    let is_other = |origin: &str| {
        let authority = origin.split_once("://").map(|(_, authority)| authority);
        authority.is_none() || authority != host
    };
    match (only(headers, &SEC_FETCH_SITE), only(headers, &ORIGIN)) {
        (Ok(site), Ok(origin)) => site.is_some_and(is_foreign) || origin.is_some_and(is_other),
        _ => true,
    }
}

/// Whether a person has followed a link to this page, in which case no other page sees the reply.
fn is_link(headers: &HeaderMap) -> bool {
    matches!(only(headers, &SEC_FETCH_MODE), Ok(Some("navigate"))) && !headers.contains_key(ORIGIN)
}

#[cfg(test)]
mod tests {
    use hyper::Request;

    use super::*;

    fn status(hosts: &Hosts, method: &str, headers: &[(&str, &str)]) -> u16 {
        let mut request = Request::builder().method(method).uri("/metrics");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        judge(&parts, hosts, &Secrets::default()).map_or_else(|refusal| refusal.status.as_u16(), |()| 200)
    }

    #[test]
    fn only_names_of_this_machine_are_asked_for() {
        let hosts = Hosts::local("cache.internal");
        for host in [
            "localhost",
            "localhost:11280",
            "LOCALHOST:1",
            "localhost.",
            "127.0.0.1:11280",
            "127.9.9.9",
            "[::1]:11280",
            "cache.internal:11280",
        ] {
            assert_eq!(status(&hosts, "GET", &[("host", host)]), 200, "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:11280",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "10.0.0.1",
            "[2001:db8::1]:80",
            "localhost:11280@evil.example",
            "",
        ] {
            assert_eq!(status(&hosts, "GET", &[("host", host)]), 421, "{host}");
        }
        assert_eq!(status(&hosts, "GET", &[]), 400);
        assert_eq!(status(&hosts, "GET", &[("host", "localhost"), ("host", "localhost")]), 400);
        assert_eq!(status(&Hosts::any(), "GET", &[("host", "cache7.example:11280")]), 200);
    }

    #[test]
    fn pages_of_other_sites_read_nothing() {
        let hosts = Hosts::local("127.0.0.1");
        let own = ("host", "localhost:11280");
        for (header, expected) in [
            (("sec-fetch-site", "none"), 200),
            (("sec-fetch-site", "same-origin"), 200),
            (("sec-fetch-site", "same-site"), 403),
            (("sec-fetch-site", "cross-site"), 403),
            (("origin", "http://localhost:11280"), 200),
            (("origin", "http://localhost:80"), 403),
            (("origin", "null"), 403),
            (("origin", "https://evil.example"), 403),
        ] {
            assert_eq!(status(&hosts, "GET", &[own, header]), expected, "{header:?}");
        }
    }

    /// A link in a chat to the dashboard; figures are not for other sites, and the page is not for their
    /// scripts.
    #[test]
    fn the_dashboard_can_be_linked_to() {
        let judged = |path: &str, headers: &[(&str, &str)]| {
            let mut request = Request::builder().uri(path).header("host", "localhost:1");
            for (name, value) in [("sec-fetch-site", "cross-site")].iter().chain(headers) {
                request = request.header(*name, *value);
            }
            let (parts, ()) = request.body(()).unwrap().into_parts();
            judge(&parts, &Hosts::local("127.0.0.1"), &Secrets::default()).is_ok()
        };
        let link = ("sec-fetch-mode", "navigate");
        assert!(judged("/", &[link]));
        assert!(!judged("/", &[]) && !judged("/", &[("sec-fetch-mode", "no-cors")]));
        assert!(!judged("/", &[link, ("origin", "https://evil.example")]));
        assert!(!judged("/stats", &[link]) && !judged("/events", &[link]));
    }

    #[test]
    fn nothing_but_reading() {
        let hosts = Hosts::local("127.0.0.1");
        for (method, expected) in [
            ("GET", 200),
            ("HEAD", 200),
            ("POST", 405),
            ("PUT", 405),
            ("DELETE", 405),
            ("OPTIONS", 405),
            ("TRACE", 405),
        ] {
            assert_eq!(status(&hosts, method, &[("host", "localhost")]), expected, "{method}");
        }
    }
}
