//! The pages: the reply to each path.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use hyper::body::Bytes;
use hyper::header::{
    ACCEPT, ACCEPT_ENCODING, ALLOW, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, HeaderName, HeaderValue,
    VARY, WWW_AUTHENTICATE,
};
use hyper::http::request::Parts;
use hyper::{Method, Response, StatusCode};
use rustls::ServerConfig;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until};

use super::connections::ConnectionSignals;
use super::events::{Events, ResponseBody};
use super::guard::{Refusal, judge};
use super::metrics::Format;
use super::{Site, Stage, dashboard, json, metrics};
use crate::log;
use crate::ready::reasons_against;
use crate::shared::Shared;
use crate::stats::StatGroup;
use crate::time::thread_cpu;

/// At most 1/`SHARE` of the thread's time is spent on making pages.
const SHARE: u32 = 10;

/// The site, and the schedule for making pages.
pub(super) struct Pages {
    pub(super) site: Arc<Site>,
    pub(super) events: Events,
    maker: Mutex<PageMaker>,
    /// A clone exists for each request that waits for its page.
    waiting: Arc<()>,
}

/// The schedule for making pages, and pages that several requests share.
#[derive(Default)]
struct PageMaker {
    /// The earliest time at which the next page is made.
    next: Option<Instant>,
    /// Pages made while requests wait, each with the time at which it was begun. Requests from before that
    /// time get the same page.
    ready: HashMap<Page, (Instant, PageBody)>,
}

/// The content of a page.
#[derive(Clone)]
struct PageBody {
    content_type: &'static str,
    text: Bytes,
}

/// The name of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Page {
    Dashboard,
    Events,
    List,
    Metrics(Format),
    Health,
    Readiness,
    Group(StatGroup),
    Leases,
    Slow,
    Hot,
    Nodes,
    Advice,
}

/// All paths, each with its text in the list of pages.
const PATHS: &[(&str, Page, &str)] = &[
    ("/", Page::Dashboard, "the dashboard, for browsers"),
    ("/pages", Page::List, "this list"),
    ("/events", Page::Events, "server-sent events: the figures of the dashboard, once a second"),
    ("/metrics", Page::Metrics(Format::Prometheus), "all figures, for Prometheus and what reads its formats"),
    ("/healthz", Page::Health, "200 while the process answers"),
    (
        "/readyz",
        Page::Readiness,
        "200 when clients may come; 503 while starting or draining, or when a loader's template has failed",
    ),
    ("/stats", Page::Group(StatGroup::General), "JSON: stats"),
    ("/cattlegrid", Page::Group(StatGroup::Own), "JSON: stats cattlegrid"),
    ("/rules", Page::Group(StatGroup::Rules), "JSON: stats rules"),
    ("/leases", Page::Leases, "JSON: stats leases"),
    ("/slow", Page::Slow, "JSON: get @slow"),
    ("/hot", Page::Hot, "JSON: keys and shapes of keys that are asked for most, by a sample"),
    ("/advice", Page::Advice, "JSON: what to change in the rule file, by what was counted"),
    ("/nodes", Page::Nodes, "JSON: get @nodes"),
    ("/tags", Page::Group(StatGroup::Tags), "JSON: stats tags"),
    ("/loaders", Page::Group(StatGroup::Loaders), "JSON: stats loaders"),
    ("/objects", Page::Group(StatGroup::Objects), "JSON: stats objects"),
    ("/follow", Page::Group(StatGroup::Follow), "JSON: stats follow"),
    ("/shares", Page::Group(StatGroup::Shares), "JSON: stats shares"),
    ("/latency", Page::Group(StatGroup::Latency), "JSON: stats latency"),
];

impl Pages {
    pub(super) fn new(site: Arc<Site>) -> Self {
        Self { site, events: Events::default(), maker: Mutex::default(), waiting: Arc::default() }
    }

    /// The TLS configuration of new connections.
    pub(super) fn tls(&self) -> Option<Arc<ServerConfig>> {
        self.site.secrets.tls()
    }

    /// Calls `make` when the schedule allows it.
    pub(super) async fn paced<T>(&self, make: impl FnOnce() -> T) -> T {
        self.maker.lock().await.when_due(make).await
    }

    /// Makes a page when the schedule allows it, unless it was made while this request waited.
    async fn once(&self, which: Page, make: impl FnOnce() -> PageBody) -> PageBody {
        let (asked, own) = (Instant::now(), Arc::clone(&self.waiting));
        let mut maker = self.maker.lock().await;
        let reply = match maker.ready.get(&which) {
            Some((began, reply)) if *began >= asked => reply.clone(),
            _ => {
                let (began, reply) = maker.when_due(|| (Instant::now(), make())).await;
                maker.ready.insert(which, (began, reply.clone()));
                reply
            }
        };
        drop(own);
        // The only reference is that of `self`: no request waits.
        if Arc::strong_count(&self.waiting) == 1 {
            maker.ready.clear();
        }
        reply
    }
}

impl PageMaker {
    async fn when_due<T>(&mut self, make: impl FnOnce() -> T) -> T {
        if let Some(at) = self.next {
            sleep_until(at).await;
        }
        // Processor time is measured, since elapsed time would make pages rare where other processes have the
        // processor.
        let before = thread_cpu();
        let result = make();
        self.next = Some(Instant::now() + thread_cpu().saturating_sub(before) * (SHARE - 1));
        result
    }
}

/// The reply to a request of `peer`.
pub(super) async fn answer(
    pages: &Arc<Pages>,
    request: &Parts,
    peer: SocketAddr,
    line: &Arc<ConnectionSignals>,
) -> Response<ResponseBody> {
    if let Err(Refusal { status, text }) = judge(request, &pages.site.hosts, &pages.site.secrets) {
        if status == StatusCode::UNAUTHORIZED {
            log::warning(format_args!("admin: {peer} has asked without the right token"));
        } else {
            log::info(format_args!("admin: {peer} is refused: {text}"));
        }
        return plain(status, format!("{text}\n"));
    }
    if let Some(file) = dashboard::file(request.uri.path()) {
        return dashboard_file(file, takes_gzip(request));
    }
    let Some((_, page, _)) = PATHS.iter().find(|(path, ..)| *path == request.uri.path()) else {
        return plain(StatusCode::NOT_FOUND, "no such page; /pages lists them\n".to_owned());
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
    if *page == Page::Events {
        return events(pages, &stage, request, line);
    }
    let page = match page {
        Page::Metrics(_) => Page::Metrics(Format::of(request.headers.get_all(ACCEPT).iter())),
        other => *other,
    };
    let PageBody { content_type, text } = pages.once(page, || make_page(page, shared)).await;
    reply(StatusCode::OK, content_type, text)
}

/// The stream of a dashboard.
fn events(
    pages: &Arc<Pages>,
    stage: &Stage,
    request: &Parts,
    line: &Arc<ConnectionSignals>,
) -> Response<ResponseBody> {
    if stage.is_leaving() {
        return plain(StatusCode::SERVICE_UNAVAILABLE, "draining\n".to_owned());
    }
    let packed = takes_gzip(request);
    let body = if request.method == Method::HEAD {
        Some(ResponseBody::from(String::new()))
    } else {
        super::events::subscribe(pages, line, packed)
    };
    match body {
        Some(body) => encoded(reply(StatusCode::OK, "text/event-stream", body), packed),
        None => {
            plain(StatusCode::SERVICE_UNAVAILABLE, "as many dashboards as there may be are open\n".to_owned())
        }
    }
}

fn dashboard_file(file: &dashboard::File, packed: bool) -> Response<ResponseBody> {
    let bytes = if packed { file.packed() } else { file.plain() };
    let mut reply = encoded(reply(StatusCode::OK, file.content_type, bytes), packed);
    reply.headers_mut().insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(dashboard::POLICY));
    reply
}

/// The reply with the header that says that it is compressed, if it is.
fn encoded(mut reply: Response<ResponseBody>, packed: bool) -> Response<ResponseBody> {
    let headers = reply.headers_mut();
    headers.insert(VARY, HeaderValue::from_static("Accept-Encoding"));
    if packed {
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    reply
}

/// Whether the client accepts a compressed reply.
fn takes_gzip(request: &Parts) -> bool {
    let values = request.headers.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|one| {
        let (name, quality) = one.split_once(';').unwrap_or((one, ""));
        let is_refused = quality.trim().strip_prefix("q=").is_some_and(|q| q.parse() == Ok(0.0_f32));
        name.trim().eq_ignore_ascii_case("gzip") && !is_refused
    })
}

/// Makes a page with figures.
fn make_page(page: Page, shared: &Shared) -> PageBody {
    let now = shared.now_at(shared.clock.now());
    let text = match page {
        Page::Metrics(format) => metrics::text(shared, now, format),
        Page::Leases => json::leases(shared, now),
        Page::Hot => json::hot(shared),
        Page::Slow => shared.engine.shared().slow().json(now.ms) + "\n",
        Page::Group(group) => json::group(group, shared, now),
        Page::Nodes => shared.engine.shared().nodes_json(now.ms) + "\n",
        Page::Advice => json::advice(shared),
        // These pages are answered earlier.
        Page::Dashboard | Page::Events | Page::List | Page::Health | Page::Readiness => String::new(),
    };
    let content_type = if let Page::Metrics(format) = page { format.content_type() } else { JSON };
    PageBody { content_type, text: text.into() }
}

/// Whether clients may connect, and the reasons if not.
fn readiness(stage: &Stage) -> Response<ResponseBody> {
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

fn plain(status: StatusCode, text: String) -> Response<ResponseBody> {
    reply(status, "text/plain; charset=utf-8", text)
}

/// Headers that keep browsers from showing a page inside another site's, and from guessing its type.
const HEADERS: [(HeaderName, &str); 5] = [
    (CACHE_CONTROL, "no-store"),
    (HeaderName::from_static("x-content-type-options"), "nosniff"),
    (HeaderName::from_static("x-frame-options"), "DENY"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'"),
];
const CONTENT_SECURITY_POLICY: HeaderName = HeaderName::from_static("content-security-policy");

fn reply(
    status: StatusCode,
    content_type: &'static str,
    body: impl Into<ResponseBody>,
) -> Response<ResponseBody> {
    let mut reply = Response::new(body.into());
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

#[cfg(test)]
mod tests {
    use hyper::Request;

    use super::*;

    /// A browser finds all pages, those without a script as well.
    #[test]
    fn the_dashboard_links_to_every_page() {
        let page = dashboard::file("/").unwrap().plain();
        let page = std::str::from_utf8(&page).unwrap();
        for (path, ..) in PATHS {
            assert!(page.contains(&format!("<a href=\"{path}\">{path}</a>")), "{path}");
        }
        assert_eq!(page.matches("<footer>").count(), 1);
        let (_, footer) = page.split_once("<footer>").unwrap();
        assert_eq!(footer.matches("<a href=").count(), PATHS.len());
    }

    #[test]
    fn replies_are_compressed_where_that_is_understood() {
        for (accept, expected) in [
            ("gzip, deflate, br", true),
            ("br;q=1.0, GZIP;q=0.5", true),
            ("gzip;q=0", false),
            ("gzip; q=0.000", false),
            ("br, deflate", false),
            ("", false),
        ] {
            let request = Request::builder().header(ACCEPT_ENCODING, accept).body(()).unwrap();
            assert_eq!(takes_gzip(&request.into_parts().0), expected, "{accept}");
        }
    }
}
