//! The pages: what each path answers.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{ACCEPT, ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue, WWW_AUTHENTICATE};
use hyper::http::request::Parts;
use hyper::{Response, StatusCode};
use rustls::ServerConfig;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until};

use super::guard::{Refusal, judge};
use super::metrics::Format;
use super::{Site, Stage, json, metrics};
use crate::log;
use crate::ready::reasons_against;
use crate::state::Shared;
use crate::stats::Group;

/// Making pages takes at most one part in this many of the thread's time.
const SHARE: u32 = 10;

/// The site, and when the next page may be made.
pub(super) struct Pages {
    site: Arc<Site>,
    pace: Mutex<Pace>,
    /// A clone for each request that waits for its page.
    waiting: Arc<()>,
}

/// How fast pages are made.
#[derive(Default)]
struct Pace {
    /// The next page is made then at the earliest.
    next: Option<Instant>,
    /// Pages that were made while requests wait, and when each was begun: requests from before take the same one.
    made: HashMap<Page, (Instant, Response<Full<Bytes>>)>,
}

/// A page, before it is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Page {
    List,
    Metrics(Format),
    Health,
    Readiness,
    Group(Group),
    Leases,
    Slow,
    Hot,
}

/// All paths, each with what the list says of it.
const PATHS: &[(&str, Page, &str)] = &[
    ("/", Page::List, "this list"),
    ("/metrics", Page::Metrics(Format::Prometheus), "all figures, for Prometheus and what reads its formats"),
    ("/healthz", Page::Health, "200 while the process answers"),
    (
        "/readyz",
        Page::Readiness,
        "200 when clients may come; 503 while starting or draining, or when a loader's template has failed",
    ),
    ("/stats", Page::Group(Group::General), "JSON: stats"),
    ("/cattlegrid", Page::Group(Group::Own), "JSON: stats cattlegrid"),
    ("/rules", Page::Group(Group::Rules), "JSON: stats rules"),
    ("/leases", Page::Leases, "JSON: stats leases"),
    ("/slow", Page::Slow, "JSON: get @slow"),
    ("/hot", Page::Hot, "JSON: keys and shapes of keys that are asked for most, by a sample"),
    ("/tags", Page::Group(Group::Tags), "JSON: stats tags"),
    ("/loaders", Page::Group(Group::Loaders), "JSON: stats loaders"),
    ("/objects", Page::Group(Group::Objects), "JSON: stats objects"),
    ("/follow", Page::Group(Group::Follow), "JSON: stats follow"),
    ("/shares", Page::Group(Group::Shares), "JSON: stats shares"),
    ("/latency", Page::Group(Group::Latency), "JSON: stats latency"),
];

impl Pages {
    pub(super) fn new(site: Arc<Site>) -> Self {
        Self { site, pace: Mutex::default(), waiting: Arc::default() }
    }

    /// What new connections are encrypted with.
    pub(super) fn tls(&self) -> Option<Arc<ServerConfig>> {
        self.site.secrets.tls()
    }

    /// Makes a page when its time has come, unless it was made while this request waited.
    async fn paced(
        &self,
        which: Page,
        make: impl FnOnce() -> Response<Full<Bytes>>,
    ) -> Response<Full<Bytes>> {
        let (asked, own) = (Instant::now(), Arc::clone(&self.waiting));
        let mut pace = self.pace.lock().await;
        let reply = match pace.made.get(&which) {
            Some((began, reply)) if *began >= asked => reply.clone(),
            _ => {
                if let Some(at) = pace.next {
                    sleep_until(at).await;
                }
                let began = Instant::now();
                let reply = make();
                pace.next = Some(began + began.elapsed() * SHARE);
                pace.made.insert(which, (began, reply.clone()));
                reply
            }
        };
        drop(own);
        // Only the one of `self`: no request waits.
        if Arc::strong_count(&self.waiting) == 1 {
            pace.made.clear();
        }
        reply
    }
}

/// The reply to a request of `peer`.
pub(super) async fn answer(pages: &Pages, request: &Parts, peer: SocketAddr) -> Response<Full<Bytes>> {
    if let Err(Refusal { status, text }) = judge(request, &pages.site.hosts, &pages.site.secrets) {
        if status == StatusCode::UNAUTHORIZED {
            log::warning(format_args!("admin: {peer} has asked without the right token"));
        } else {
            log::info(format_args!("admin: {peer} is refused: {text}"));
        }
        return plain(status, format!("{text}\n"));
    }
    let Some((_, page, _)) = PATHS.iter().find(|(path, ..)| *path == request.uri.path()) else {
        return plain(StatusCode::NOT_FOUND, "no such page; / lists them\n".to_owned());
    };
    let stage = pages.site.now();
    let shared = match (page, &stage) {
        (Page::List, _) => return plain(StatusCode::OK, list()),
        (Page::Health, _) => return plain(StatusCode::OK, "ok\n".to_owned()),
        (Page::Readiness, _) => return readiness(&stage),
        (_, Stage::Serving(shared)) => shared,
        (_, Stage::Starting) => return plain(StatusCode::SERVICE_UNAVAILABLE, "starting\n".to_owned()),
        (_, Stage::Gone) => return plain(StatusCode::SERVICE_UNAVAILABLE, "leaving\n".to_owned()),
    };
    let page = match page {
        Page::Metrics(_) => Page::Metrics(Format::of(request.headers.get_all(ACCEPT).iter())),
        other => *other,
    };
    pages.paced(page, || made(page, shared)).await
}

/// A page that reads figures.
fn made(page: Page, shared: &Shared) -> Response<Full<Bytes>> {
    let now = shared.now_at(shared.clock.now());
    match page {
        Page::Metrics(format) => {
            reply(StatusCode::OK, format.content_type(), metrics::text(shared, now, format))
        }
        Page::Leases => reply(StatusCode::OK, JSON, json::leases(shared, now)),
        Page::Hot => reply(StatusCode::OK, JSON, json::hot(shared)),
        Page::Slow => reply(StatusCode::OK, JSON, shared.engine.shared().slow().json(now.ms) + "\n"),
        Page::Group(group) => reply(StatusCode::OK, JSON, json::group(group, shared, now)),
        Page::List | Page::Health | Page::Readiness => plain(StatusCode::OK, String::new()),
    }
}

/// Whether clients may come, and if not why.
fn readiness(stage: &Stage) -> Response<Full<Bytes>> {
    let against = match stage {
        Stage::Starting => vec!["starting".to_owned()],
        Stage::Gone => vec!["draining".to_owned()],
        Stage::Serving(shared) => reasons_against(shared),
    };
    if against.is_empty() {
        plain(StatusCode::OK, "ready\n".to_owned())
    } else {
        plain(StatusCode::SERVICE_UNAVAILABLE, against.join("\n") + "\n")
    }
}

fn list() -> String {
    PATHS.iter().map(|(path, _, what)| format!("{path:<12} {what}\n")).collect::<Vec<_>>().concat()
}

const JSON: &str = "application/json";

fn plain(status: StatusCode, text: String) -> Response<Full<Bytes>> {
    reply(status, "text/plain; charset=utf-8", text)
}

/// Headers that keep browsers from showing a page inside of another site's, or from taking it for something else.
const HEADERS: [(HeaderName, &str); 5] = [
    (CACHE_CONTROL, "no-store"),
    (HeaderName::from_static("x-content-type-options"), "nosniff"),
    (HeaderName::from_static("x-frame-options"), "DENY"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (HeaderName::from_static("content-security-policy"), "default-src 'none'; frame-ancestors 'none'"),
];

fn reply(status: StatusCode, content_type: &'static str, text: String) -> Response<Full<Bytes>> {
    let mut reply = Response::new(Full::new(Bytes::from(text)));
    *reply.status_mut() = status;
    let headers = reply.headers_mut();
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    match status {
        StatusCode::METHOD_NOT_ALLOWED => {
            headers.insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        }
        StatusCode::UNAUTHORIZED => {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        _ => {}
    }
    reply
}
