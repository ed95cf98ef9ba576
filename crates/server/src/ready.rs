//! Whether clients may connect, for probes and load balancers: `/readyz`, and `ready` in `stats cattlegrid`.

use std::sync::atomic::Ordering::Relaxed;

use crate::shared::Shared;

/// The reasons for which clients should go elsewhere, a line each; empty: they may connect.
pub(crate) fn reasons_against(shared: &Shared) -> Vec<String> {
    if shared.gauges.leaving.load(Relaxed) {
        return vec!["draining".to_owned()];
    }
    let views = shared.loaders.views();
    let failing = views.iter().filter(|view| view.pool.template_missing > 0);
    failing.map(|view| format!("loader {}: its template has failed", view.name)).collect()
}
