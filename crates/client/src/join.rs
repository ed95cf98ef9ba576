//! Several futures at once, in one task.

use std::future::{Future, poll_fn};
use std::task::Poll;

/// All outputs, in order. The futures run concurrently in this task.
pub(crate) async fn join<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut futures: Vec<_> = futures.into_iter().map(|future| (Box::pin(future), None)).collect();
    poll_fn(|cx| {
        let mut ready = true;
        for (future, output) in &mut futures {
            if output.is_none() {
                match future.as_mut().poll(cx) {
                    Poll::Ready(done) => *output = Some(done),
                    Poll::Pending => ready = false,
                }
            }
        }
        if ready { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    futures.into_iter().filter_map(|(_, output)| output).collect()
}
