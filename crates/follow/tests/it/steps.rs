//! Single steps of the follower: its times and its limits.

use cattlegrid_follow::{
    Action, FlushReason, Follower, FollowerEvent, HEADS_MAX, NAMES_BYTES_MAX, NUDGE_AFTER_MS, Names,
    PROBE_EVERY_MS, RETRY_MS_MAX, Settings,
};

use crate::world::{Memory, Seen};

struct Scene {
    follower: Follower<Memory>,
    now_ms: u64,
}

fn names(tags: &[&str]) -> Names {
    let mut names = Names::default();
    for tag in tags {
        names.add(0, tag.as_bytes());
    }
    names
}

impl Scene {
    fn new(again_ms: u64) -> Self {
        Self { follower: Follower::new(Settings { max_lag_ms: 3000, again_ms }), now_ms: 1000 }
    }

    /// Connected, flushed and confirmed at position 10.
    fn confirmed(again_ms: u64) -> Self {
        let mut scene = Self::new(again_ms);
        scene.follower.tick(scene.now_ms);
        assert_eq!(scene.actions(), [Action::Connect { resume: None }]);
        let actions = scene.tell(FollowerEvent::Connected { identity: 1, resumes: false });
        assert_eq!(actions, [Action::Probe { number: 1 }]);
        assert_eq!(scene.probed(1, 10, Seen::all(100)), [Action::Flush(FlushReason::Begins)]);
        let actions = scene.tell(FollowerEvent::Passed { position: 10 });
        assert_eq!(actions, [Action::Confirmed { asked_at_ms: 1000 }, Action::Acknowledge(10)]);
        scene
    }

    /// Lost: from where the next connection goes on.
    fn resume(&mut self) -> Option<u64> {
        self.tell(FollowerEvent::Lost { reason: "lost".to_owned() });
        match self.wait().1.as_slice() {
            [Action::Connect { resume }] => *resume,
            other => panic!("{other:?}"),
        }
    }

    fn actions(&mut self) -> Vec<Action<u64>> {
        std::iter::from_fn(|| self.follower.poll_action()).collect()
    }

    fn tell(&mut self, told: FollowerEvent<Memory>) -> Vec<Action<u64>> {
        self.follower.handle(told, self.now_ms);
        self.actions()
    }

    fn probed(&mut self, number: u64, head: u64, snapshot: Seen) -> Vec<Action<u64>> {
        self.tell(FollowerEvent::Probed { number, identity: 1, head, snapshot, works: false })
    }

    /// Time passes until something is due.
    fn wait(&mut self) -> (u64, Vec<Action<u64>>) {
        loop {
            let next_ms = self.follower.next_ms().expect("something is due");
            assert!(next_ms >= self.now_ms, "it would spin");
            let passed_ms = next_ms - self.now_ms;
            self.now_ms = next_ms;
            self.follower.tick(next_ms);
            let actions = self.actions();
            if !actions.is_empty() {
                return (passed_ms, actions);
            }
        }
    }

    fn entry(&mut self, position: u64, transaction: u64, names: Names) -> Vec<Action<u64>> {
        self.tell(FollowerEvent::Entry { position, transaction, names, is_own: false })
    }
}

#[test]
fn time_of_its_own_is_no_silence() {
    let mut scene = Scene::confirmed(0);
    let (_, actions) = scene.wait();
    assert_eq!(actions, [Action::Probe { number: 2 }]);
    scene.follower.stalled(8000);
    scene.now_ms += 8000;
    let asked_at_ms = scene.now_ms - 8000;
    let actions = scene.probed(2, 10, Seen::all(100));
    assert_eq!(actions, [Action::Confirmed { asked_at_ms }, Action::Probe { number: 3 }]);
    // A suspended machine.
    scene.follower.stalled(3_600_000);
    scene.now_ms += 3_600_000;
    scene.follower.tick(scene.now_ms);
    assert!(matches!(scene.actions()[..], [Action::Disconnect { .. }]));
}

#[test]
fn a_slot_that_outlives_its_process_goes_on_without_a_flush() {
    let mut scene = Scene::new(0);
    scene.follower.tick(scene.now_ms);
    assert_eq!(scene.actions(), [Action::Connect { resume: None }]);
    assert_eq!(
        scene.tell(FollowerEvent::Connected { identity: 1, resumes: true }),
        [Action::Probe { number: 1 }]
    );
    assert_eq!(scene.probed(1, 10, Seen::all(100)), []);
    let actions = scene.tell(FollowerEvent::Passed { position: 10 });
    assert_eq!(actions, [Action::Confirmed { asked_at_ms: 1000 }, Action::Acknowledge(10)]);
}

#[test]
fn heads_are_asked_for_regularly() {
    let mut scene = Scene::confirmed(0);
    assert_eq!(scene.wait(), (PROBE_EVERY_MS, vec![Action::Probe { number: 2 }]));
    let actions = scene.probed(2, 10, Seen::all(100));
    assert_eq!(actions, [Action::Confirmed { asked_at_ms: 1500 }]);
    assert_eq!(scene.wait().0, PROBE_EVERY_MS);
}

#[test]
fn an_entry_is_looked_at_at_once_and_bumped_when_it_is_seen() {
    let mut scene = Scene::confirmed(0);
    assert_eq!(scene.entry(20, 7, names(&["a"])), [Action::Probe { number: 2 }]);
    assert_eq!(scene.probed(2, 20, Seen::but(100, 7)), []);
    let (passed_ms, actions) = scene.wait();
    assert!(passed_ms < 20 && actions == [Action::Probe { number: 3 }], "{passed_ms}");
    // One behind it is seen earlier, and is not kept waiting.
    assert_eq!(scene.entry(30, 8, names(&["b"])), []);
    let actions = scene.probed(3, 30, Seen::but(100, 7));
    assert_eq!(actions, [Action::Bump(names(&["b"])), Action::Probe { number: 4 }]);
    let actions = scene.probed(4, 30, Seen::all(100));
    let confirmed = Action::Confirmed { asked_at_ms: scene.now_ms };
    assert_eq!(actions, [Action::Bump(names(&["a"])), confirmed, Action::Acknowledge(30)]);
}

#[test]
fn tags_are_bumped_once_more() {
    let mut scene = Scene::confirmed(200);
    assert_eq!(scene.entry(20, 7, names(&["a"])), [Action::Probe { number: 2 }]);
    let actions = scene.probed(2, 20, Seen::all(100));
    assert_eq!(actions[0], Action::Bump(names(&["a"])));
    assert!(scene.follower.state().names_bytes > 0);
    // A sixteenth later at most: with what is bumped until then.
    assert_eq!(scene.wait(), (212, vec![Action::Bump(names(&["a"]))]));
    assert_eq!(scene.follower.state().names_bytes, 0);
}

#[test]
fn a_log_that_does_not_pass_its_head_is_nudged_and_given_up() {
    let mut scene = Scene::confirmed(0);
    assert_eq!(scene.wait().1, [Action::Probe { number: 2 }]);
    assert_eq!(scene.probed(2, 11, Seen::all(100)), []);
    let (mut nudges, mut number, begin_ms) = (0, 2, scene.now_ms);
    let reason = loop {
        for action in scene.wait().1 {
            match action {
                Action::Nudge => {
                    assert!(nudges > 0 || scene.now_ms == begin_ms + NUDGE_AFTER_MS);
                    nudges += 1;
                }
                Action::Probe { number: next } => number = next,
                Action::Disconnect { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        if !scene.follower.state().is_connected {
            break scene.now_ms - begin_ms;
        }
        scene.probed(number, 11, Seen::all(100));
    };
    assert!(reason >= 6000 && nudges > 5, "{reason} {nudges}");
    assert_eq!(scene.wait().1, [Action::Connect { resume: Some(10) }]);
}

/// PostgreSQL is silent while it reads a large transaction, and starts again at each connection.
#[test]
fn a_stream_for_which_the_server_works_is_not_given_up() {
    let mut scene = Scene::confirmed(0);
    let began_ms = scene.now_ms;
    while scene.now_ms < began_ms + 600_000 {
        for action in scene.wait().1 {
            match action {
                Action::Probe { number } => {
                    let snapshot = Seen::all(100);
                    scene.tell(FollowerEvent::Probed {
                        number,
                        identity: 1,
                        head: 11,
                        snapshot,
                        works: true,
                    });
                }
                Action::Nudge => {}
                other => panic!("{other:?}"),
            }
        }
    }
    let actions = scene.tell(FollowerEvent::Passed { position: 11 });
    assert!(matches!(&actions[..], [Action::Confirmed { .. }, Action::Acknowledge(11), ..]), "{actions:?}");
}

#[test]
fn an_idle_log_is_no_silent_one() {
    let mut scene = Scene::confirmed(0);
    for number in 2..200 {
        assert_eq!(scene.wait().1, [Action::Probe { number }]);
        scene.probed(number, 10, Seen::all(100));
    }
    // The first growth after a minute is not held against it.
    assert_eq!(scene.wait().1, [Action::Probe { number: 200 }]);
    assert_eq!(scene.probed(200, 11, Seen::all(100)), []);
    assert_eq!(scene.wait(), (NUDGE_AFTER_MS, vec![Action::Nudge]));
}

#[test]
fn a_question_that_is_not_answered_ends_the_connections() {
    let mut scene = Scene::confirmed(0);
    assert_eq!(scene.wait().1, [Action::Probe { number: 2 }]);
    let (passed_ms, actions) = scene.wait();
    assert!(matches!(&actions[..], [Action::Disconnect { .. }]), "{actions:?}");
    assert!((5000..7000).contains(&passed_ms), "{passed_ms}");
    // Its answer is late.
    assert_eq!(scene.probed(2, 10, Seen::all(100)), []);
}

#[test]
fn pauses_between_attempts_double_until_one_is_confirmed() {
    let mut scene = Scene::new(0);
    scene.follower.tick(scene.now_ms);
    let mut pauses = Vec::new();
    for _ in 0..8 {
        assert_eq!(scene.actions(), [Action::Connect { resume: None }]);
        scene.tell(FollowerEvent::Lost { reason: String::new() });
        let before_ms = scene.now_ms;
        scene.now_ms = scene.follower.next_ms().unwrap();
        pauses.push(scene.now_ms - before_ms);
        scene.follower.tick(scene.now_ms);
    }
    assert_eq!(pauses, [200, 400, 800, 1600, 3200, RETRY_MS_MAX, RETRY_MS_MAX, RETRY_MS_MAX]);
    let mut scene = Scene::confirmed(0);
    scene.tell(FollowerEvent::Lost { reason: String::new() });
    assert_eq!(scene.follower.next_ms(), Some(scene.now_ms + 200));
}

#[test]
fn another_one_that_takes_the_stream_again_and_again_is_left_more_time() {
    let mut scene = Scene::confirmed(0);
    let (mut pauses, mut number) = (Vec::new(), 1);
    for _ in 0..7 {
        scene.follower.outbid(scene.now_ms);
        scene.tell(FollowerEvent::Lost { reason: String::new() });
        let before_ms = scene.now_ms;
        scene.now_ms = scene.follower.next_ms().unwrap();
        pauses.push(scene.now_ms - before_ms);
        scene.follower.tick(scene.now_ms);
        scene.actions();
        scene.tell(FollowerEvent::Connected { identity: 1, resumes: true });
        number += 1;
        scene.probed(number, 10, Seen::all(100));
        let actions = scene.tell(FollowerEvent::Passed { position: 10 });
        assert!(actions.contains(&Action::Confirmed { asked_at_ms: scene.now_ms }), "{actions:?}");
    }
    assert_eq!(pauses, [200, 400, 800, 1600, 3200, RETRY_MS_MAX, RETRY_MS_MAX]);
    // Much later it is another one.
    scene.now_ms += 60_000;
    scene.follower.outbid(scene.now_ms);
    scene.tell(FollowerEvent::Lost { reason: String::new() });
    assert_eq!(scene.follower.next_ms(), Some(scene.now_ms + 200));
}

#[test]
fn entries_that_invalidate_everything_do_so_once_if_they_are_seen_together() {
    let mut scene = Scene::confirmed(0);
    for (position, transaction) in [(20, 7), (21, 8), (22, 9)] {
        let mut all = names(&["a"]);
        all.all("why");
        scene.entry(position, transaction, all);
    }
    scene.entry(23, 10, names(&["b"]));
    let actions = scene.probed(2, 23, Seen::all(100));
    let flushes = actions.iter().filter(|action| matches!(action, Action::Flush(_))).count();
    assert_eq!(flushes, 1, "{actions:?}");
    assert!(actions.contains(&Action::Bump(names(&["b"]))) && actions.contains(&Action::Acknowledge(23)));
    assert_eq!(scene.follower.state().names_bytes, 0);
}

#[test]
fn heads_are_bounded() {
    let mut scene = Scene::confirmed(0);
    // An entry that is not seen: heads come and are not confirmed.
    scene.entry(20, 7, names(&["a"]));
    for number in 2..2 + 3 * HEADS_MAX as u64 {
        assert_eq!(scene.probed(number, 20, Seen::but(100, 7)), []);
        while scene.wait().1 != [Action::Probe { number: number + 1 }] {}
    }
    let last_ms = scene.now_ms;
    let actions = scene.probed(2 + 3 * HEADS_MAX as u64, 20, Seen::all(100));
    assert!(actions.contains(&Action::Confirmed { asked_at_ms: last_ms }), "{actions:?}");
}

#[test]
fn names_that_wait_have_bounded_memory() {
    let mut scene = Scene::confirmed(0);
    let mut large = Names::default();
    for number in 0..400_000_u32 {
        large.add(0, &number.to_be_bytes());
    }
    for entry in 0..4 {
        scene.entry(20 + entry, 7 + entry, large.clone());
        assert!(scene.follower.state().names_bytes <= NAMES_BYTES_MAX);
    }
    let actions = scene.probed(2, 30, Seen::all(100));
    let flushes =
        actions.iter().filter(|action| matches!(action, Action::Flush(FlushReason::Entry(_)))).count();
    assert_eq!(flushes, 1, "the first has room, and the others invalidate everything once");
    assert_eq!(scene.follower.state().names_bytes, 0);
}

#[test]
fn nothing_is_confirmed_while_something_is_missing() {
    let mut scene = Scene::confirmed(0);
    scene.tell(FollowerEvent::Covers { missing: Some("a table".to_owned()) });
    assert_eq!(scene.wait().1, [Action::Probe { number: 2 }]);
    assert_eq!(scene.probed(2, 10, Seen::all(100)), []);
    assert_eq!(scene.wait().1, [Action::Probe { number: 3 }]);
    scene.tell(FollowerEvent::Covers { missing: None });
    let actions = scene.probed(3, 10, Seen::all(100));
    assert!(
        matches!(&actions[..], [Action::Flush(FlushReason::Gap(_)), Action::Confirmed { .. }]),
        "{actions:?}"
    );
}

#[test]
fn transactions_that_ran_at_the_beginning_are_flushed_for_together() {
    let mut scene = Scene::new(0);
    scene.follower.tick(scene.now_ms);
    scene.actions();
    scene.tell(FollowerEvent::Connected { identity: 1, resumes: false });
    scene.tell(FollowerEvent::Passed { position: 10 });
    let running = Seen::running_are(100, &[97, 98, 99]);
    let actions = scene.probed(1, 10, running);
    assert_eq!(actions[0], Action::Flush(FlushReason::Begins));
    // The first ends soon: it waits for the others a while, and nothing is confirmed meanwhile.
    assert_eq!(scene.wait().1, [Action::Probe { number: 2 }]);
    assert_eq!(scene.probed(2, 10, Seen::running_are(100, &[98, 99])), []);
    assert_eq!(scene.entry(20, 98, names(&["a"])), [Action::Probe { number: 3 }]);
    scene.probed(3, 20, Seen::running_are(100, &[99]));
    let (_, actions) = scene.wait();
    assert_eq!(actions, [Action::Probe { number: 4 }]);
    let actions = scene.probed(4, 20, Seen::all(100));
    assert_eq!(actions[0], Action::Flush(FlushReason::Ended));
    assert!(matches!(actions[1], Action::Confirmed { .. }), "{actions:?}");
}

#[test]
fn a_place_is_forgotten_with_its_log() {
    let mut scene = Scene::confirmed(0);
    assert_eq!(scene.resume(), Some(10));
    // Another server, whose places are others, is lost before anything of it is confirmed.
    scene.tell(FollowerEvent::Connected { identity: 2, resumes: false });
    assert_eq!(scene.resume(), None);
    let mut scene = Scene::confirmed(0);
    scene.tell(FollowerEvent::Gap { reason: "begun anew".to_owned() });
    assert_eq!(scene.resume(), None);
}
