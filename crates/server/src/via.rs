//! A database's log that one node of the fleet follows for all nodes. The thread of such a log waits until
//! this node leads.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use cattlegrid_config::FollowSettings;
use cattlegrid_engine::BumpWaiter;
use cattlegrid_follow::ResumePoint;
use cattlegrid_follow::etcd::{Bump, Feed, FeedLead, Mailbox};
use cattlegrid_follow::postgres::Missing;
use cattlegrid_tags::BumpKind;
use tokio::sync::watch;

use crate::followed::LogView;
use crate::follows::{FollowContext, database, lock, until_found};
use crate::log;

/// The number of checks after which a leading node without a connection to the database resigns.
const LOST_MAX: u32 = 6;

/// The time between two checks whether the log is behind.
const LOOK: Duration = Duration::from_millis(500);

/// The way by which a database's log is written into the log of etcd.
#[derive(Debug, Clone)]
pub(crate) struct Via {
    pub(crate) feed: Arc<Feed>,
    pub(crate) mail: Arc<Mailbox<BumpWaiter>>,
    /// The state of the database's log.
    pub(crate) view: Arc<Mutex<LogView>>,
    /// The ticket of the last bump that was handed to the log of etcd.
    ticket: u64,
    standing: Option<ResumePoint>,
}

impl Via {
    pub(crate) fn new(feed: Arc<Feed>, mail: Arc<Mailbox<BumpWaiter>>, view: Arc<Mutex<LogView>>) -> Self {
        Self { feed, mail, view, ticket: 0, standing: None }
    }

    /// The feeds of a rule file's logs that are relayed by the log `name`: names and marks.
    pub(crate) fn feeds(follows: &[FollowSettings], name: &str) -> Vec<(String, u64)> {
        let own = follows.iter().filter(|own| own.via().is_some_and(|via| via.name == name));
        own.map(|own| (own.name.clone(), own.mark())).collect()
    }

    /// The name of the log, if this node leads.
    pub(crate) fn leads(&self) -> Option<&str> {
        self.feed.lead().borrow().is_own.then_some(&*self.feed.name)
    }

    /// Hands a bump of the database to the other nodes.
    ///
    /// `prefix`: the prefix behind which the tag is; None: behind all prefixes that each node knows.
    pub(crate) fn bump(&mut self, kind: BumpKind, prefix: Option<&[u8]>, name: &[u8]) {
        let (is_soft, name) = (kind == BumpKind::Soft, name.to_vec());
        self.push(&match prefix {
            Some(prefix) => Bump::Tag { is_soft, prefix: prefix.to_vec(), name },
            None => Bump::Each { is_soft, name },
        });
    }

    /// Hands a bump of everything to the other nodes.
    pub(crate) fn flush(&mut self, reason: &str) {
        let reason = format!("{}: {reason}", self.feed.name);
        self.push(&Bump::All { reason });
    }

    fn push(&mut self, bump: &Bump) {
        self.ticket = self.ticket.max(self.mail.push(bump));
    }

    /// Notes that all bumps before this position were handed over.
    pub(crate) fn note_resume_point(&mut self, standing: ResumePoint) {
        self.standing = Some(standing);
    }

    /// Reports what keeps this node from following; None: nothing.
    pub(crate) fn report(&self, says: Option<String>) {
        self.mail.report(&self.feed, says);
    }

    /// Notes that the database's log was confirmed.
    pub(crate) fn confirmed(&self, asked_at_ms: u64) {
        self.mail.confirm(&self.feed, asked_at_ms, self.ticket, self.standing.clone());
    }
}

/// Follows the database's log while this node leads, until it is told to stop.
pub(crate) async fn follow(
    node: &mut FollowContext,
    mut wished: watch::Receiver<cattlegrid_follow::SourceRequest>,
) {
    let Some(feed) = node.via.as_ref().map(|via| Arc::clone(&via.feed)) else { return };
    let view = Arc::clone(&node.view);
    let (mut lead, mut said) = (feed.lead(), FeedLead::default());
    loop {
        let now = lead.borrow_and_update().clone();
        node.note_lead(&said, &now);
        said = now.clone();
        if now.is_own {
            feed.begin();
            if let Some(via) = &mut node.via {
                via.standing = None;
            }
            let make = |node: &FollowContext| database(&node.settings);
            let Some(Some(database)) = until_found(node, &mut wished, make).await else { return };
            tokio::select! {
                () = database.at(now.standing).follow(node, wished.clone()) => return,
                () = lead_on(&mut lead, &view) => {}
                () = resign(&feed, &view) => {}
            }
            continue;
        }
        node.look();
        tokio::select! {
            _ = lead.changed() => {}
            // An error means that the sender was dropped.
            _ = wished.wait_for(|wish| wish.stops) => return,
            () = tokio::time::sleep(LOOK) => {}
        }
    }
}

/// Waits until this node leads no longer. Its name changes meanwhile, if it had to wait for its own.
async fn lead_on(lead: &mut watch::Receiver<FeedLead>, view: &Mutex<LogView>) {
    while lead.changed().await.is_ok() {
        let now = lead.borrow_and_update().clone();
        if !now.is_own {
            return;
        }
        lock(view).leader = Some(now.leader.unwrap_or_default());
    }
}

/// Resigns when there has been no connection to the database for a while, and returns when another node may
/// lead.
async fn resign(feed: &Feed, view: &Mutex<LogView>) {
    let mut looks = 0;
    while looks < LOST_MAX {
        tokio::time::sleep(LOOK).await;
        looks = if lock(view).lost.is_some() { looks + 1 } else { 0 };
    }
    feed.resign();
    std::future::pending::<()>().await;
}

impl FollowContext {
    /// Logs a change of the leader, and notes it.
    fn note_lead(&mut self, said: &FeedLead, now: &FeedLead) {
        let name = &self.settings.name;
        let mut view = lock(&self.view);
        let leader = now.leader.clone().unwrap_or_default();
        view.leader = Some(leader.clone());
        if !now.is_own {
            (view.state, view.missing) = (None, Vec::new());
            view.lost = now.leader.is_none().then(|| "no node leads".to_owned());
            if now.is_other {
                view.missing.push(Missing {
                    what: format!(
                        "{leader}, which follows it for all, follows other tables, or in another way"
                    ),
                    mend: format!("give all nodes the same [follow.{name}]"),
                    is_fatal: false,
                });
            }
            if let Some(says) = &now.says {
                let what = if leader.is_empty() { "the node that followed it for all" } else { &leader };
                view.missing.push(Missing {
                    what: format!("{what} says"),
                    mend: says.to_string(),
                    is_fatal: false,
                });
            }
        } else if !said.is_own {
            (view.lost, view.missing) = (None, Vec::new());
        }
        let missing = view.missing.first().map(ToString::to_string);
        drop(view);
        let how = if now.standing.is_some() { "from where it stood" } else { "from now on" };
        let line = match (said.is_own, now.is_own) {
            (false, true) => Some(format!("this node follows it for all, {how}")),
            (true, false) => Some("this node leaves it to another one".to_owned()),
            _ if now.leader != said.leader && !leader.is_empty() => {
                Some(format!("{leader} follows it for all"))
            }
            _ => None,
        };
        // While no node reaches the database, the nodes lead in turn.
        if let Some(line) = line.filter(|line| self.said.is_new(line)) {
            log::notice(format_args!("log {name}: {line}"));
        }
        let is_new =
            now.is_other && !said.is_other || !now.is_own && now.says.is_some() && now.says != said.says;
        if let Some(missing) = missing.filter(|missing| is_new && self.said.is_new(missing)) {
            log::warning(format_args!("log {name}: is behind until this is mended: {missing}"));
        }
    }
}
