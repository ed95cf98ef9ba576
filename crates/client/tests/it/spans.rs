//! Traces of a computation. Under cargo-nextest it is the only test of its process, as it must be, since a
//! subscriber belongs to the process.

#![allow(clippy::unwrap_used, reason = "a test may panic, its helpers too")]

use std::sync::Arc;
use std::time::Duration;

use crate::fake::Fake;
use cattlegrid_client::{Compute, Expiration, Fetched, Outcome};

/// Notes the spans that are opened, and in which span the program's own events are.
#[derive(Clone, Default)]
struct Spans(Arc<std::sync::Mutex<SpansSeen>>);

#[derive(Default)]
struct SpansSeen {
    opened: Vec<String>,
    entered: Vec<u64>,
    inside: Vec<String>,
}

impl tracing::Subscriber for Spans {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        let mut seen = self.0.lock().unwrap();
        seen.opened.push(span.metadata().name().to_owned());
        tracing::span::Id::from_u64(seen.opened.len() as u64)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut seen = self.0.lock().unwrap();
        if event.metadata().target() == "the program"
            && let Some(span) = seen.entered.last().map(|id| seen.opened[*id as usize - 1].clone())
        {
            seen.inside.push(span);
        }
    }

    fn enter(&self, id: &tracing::span::Id) {
        self.0.lock().unwrap().entered.push(id.into_u64());
    }

    fn exit(&self, _: &tracing::span::Id) {
        self.0.lock().unwrap().entered.pop();
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_function_traces_is_inside_the_span_of_its_call() {
    let spans = Spans::default();
    // Before any other thread can register a place that traces, which it would then leave out.
    tracing::subscriber::set_global_default(spans.clone()).unwrap();
    let (fake, options) = (Fake::new(), Compute::new());
    let herd = fake.herd();
    let traced = || async {
        tokio::task::yield_now().await;
        tracing::info!(target: "the program", "a query");
        Ok::<_, &'static str>("v".to_owned())
    };
    let computed = Outcome::Computed { value: "v".to_owned(), stored: true };
    assert_eq!(herd.get_or_compute("k", &options, traced).await, Ok(computed));
    let many = |keys: Vec<&'static str>| async move {
        tracing::info!(target: "the program", "a query");
        Ok::<_, &'static str>(keys.into_iter().map(|key| (key, "v".to_owned())).collect::<Vec<_>>())
    };
    let keys = [("many", Expiration::Never)];
    assert_eq!(herd.get_or_compute_many(keys, &options, many).await.unwrap().len(), 1);
    let fetched = herd.fetch_or_compute::<_, String>("k", Duration::from_secs(1), b"").await.unwrap();
    assert!(matches!(fetched, Fetched::Hit(_)));
    let seen = spans.0.lock().unwrap();
    assert_eq!(seen.opened, ["get_or_compute", "get_or_compute_many", "fetch_or_compute"]);
    assert_eq!(seen.inside, ["get_or_compute", "get_or_compute_many"]);
}
