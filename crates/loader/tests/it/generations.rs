//! Reloads: a new generation replaces the old one, or nothing changes.

#![expect(clippy::unwrap_used, reason = "a test may panic, its helpers too")]

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::common::{End, PAGES, World, descriptors, processes, until, value};
use cattlegrid_engine::LoadFailure;
use cattlegrid_loader::Loaders;

const MIB: usize = 1 << 20;

/// A rule file whose loader has this mode; its processes have the directory's name among their words.
fn world(mode: &str, extra: &str) -> (World, String) {
    let world = World::new("");
    let name = world.path("").display().to_string();
    world.write("rules.toml", &rules(mode, &name, extra));
    (world, name)
}

fn rules(mode: &str, name: &str, extra: &str) -> String {
    format!(
        "[[rule]]\nmatch = \"page:{{id}}\"\nloader = \"pages\"\nlease = \"100s\"\n\
         [loader.pages]\ncommand = [\"python3\", \"pages.py\", \"{name}\"]\nmode = \"{mode}\"\ntimeout = \"90s\"\n{extra}\n"
    )
}

/// The program, with another answer.
fn program(answer: &str) -> String {
    PAGES.replace("value of ", answer)
}

fn reload(world: &World, loaders: &Loaders) {
    let prepared = loaders.prepare(&world.file().loaders, &|| true).unwrap();
    loaders.commit(prepared, || Ok::<(), ()>(())).unwrap();
}

fn broken(world: &World, loaders: &Loaders) -> String {
    loaders.prepare(&world.file().loaders, &|| true).unwrap_err().to_string()
}

#[test]
fn a_new_generation_has_the_new_program_and_the_old_one_ends_its_jobs() {
    for mode in ["template", "exec", "jsonl"] {
        let (world, name) = world(mode, "max = 1");
        let loaders = world.start(MIB).unwrap();
        assert_eq!(world.run(&loaders, "page:1"), value("value of page:1"), "{mode}");
        loaders.submit(0, vec![world.order("page:sleep-1")]);
        until("it is begun", || world.path("begun").exists());
        world.write("pages.py", &program("newer "));
        if mode == "template" {
            reload(&world, &loaders);
        } else {
            // The only worker has a job: its place is free when it has ended.
            std::thread::scope(|scope| scope.spawn(|| reload(&world, &loaders)).join().unwrap());
        }
        loaders.submit(0, vec![world.order("page:2")]);
        assert_eq!(world.end(), ("page:sleep-1".to_owned(), value("value of page:sleep-1")), "{mode}");
        assert_eq!(world.end(), ("page:2".to_owned(), value("newer page:2")), "{mode}");
        until("the old generation has ended", || loaders.views()[0].draining == 0);
        assert_eq!(loaders.views()[0].counts.jobs.load(Relaxed), 3, "counters go on");
        loaders.stop();
        until("nothing is left", || processes(&name).is_empty());
    }
}

#[test]
fn a_generation_that_does_not_start_changes_nothing() {
    for mode in ["template", "exec"] {
        let (world, name) = world(mode, "max = 1");
        let loaders = world.start(MIB).unwrap();
        assert_eq!(world.run(&loaders, "page:1"), value("value of page:1"));
        for _ in 0..3 {
            world.write("pages.py", "raise RuntimeError('this is broken')");
            let error = broken(&world, &loaders);
            assert!(error.starts_with("loader pages: ") && error.contains("this is broken"), "{error}");
        }
        world.write("pages.py", PAGES);
        // What was given up for the attempt is there again, also for a program that is started for each
        // worker.
        assert_eq!(world.run(&loaders, "page:2"), value("value of page:2"), "{mode}");
        // The rules do not come into force: nor does the generation.
        world.write("pages.py", &program("newer "));
        let prepared = loaders.prepare(&world.file().loaders, &|| true).unwrap();
        assert_eq!(loaders.commit(prepared, || Err::<(), _>("no memory")), Err("no memory"));
        if mode == "template" {
            assert_eq!(world.run(&loaders, "page:3"), value("value of page:3"));
        }
        loaders.stop();
        until("nothing is left", || processes(&name).is_empty());
    }
}

#[test]
fn loaders_come_and_go_with_the_rules() {
    let (world, name) = world("template", "");
    let loaders = world.start(MIB).unwrap();
    let old = world.order("page:old");
    let both = format!(
        "{}[[rule]]\nmatch = \"b:{{id}}\"\nloader = \"more\"\n[loader.more]\ncommand = [\"python3\", \"pages.py\", \"{name}\"]\ntimeout = \"90s\"\n",
        rules("template", &name, "")
    );
    world.write("rules.toml", &both);
    let file = world.file();
    let prepared = loaders.prepare(&file.loaders, &|| true).unwrap();
    loaders
        .commit(prepared, || {
            // The new rules are in force, and loads under the old ones are on their way.
            assert_eq!(world.run(&loaders, "b:1"), value("value of b:1"));
            loaders.submit(0, vec![old]);
            assert_eq!(world.end().1, value("value of page:old"));
            Ok::<(), ()>(())
        })
        .unwrap();
    assert_eq!(loaders.views().len(), 2);
    let gone = world.order("b:2");
    world.write("rules.toml", &rules("template", &name, ""));
    reload(&world, &loaders);
    loaders.submit(0, vec![gone]);
    assert!(matches!(world.end().1, End::Failed(LoadFailure::Refused, _)));
    world.write("rules.toml", "");
    reload(&world, &loaders);
    assert!(loaders.is_empty());
    until("nothing is left", || processes(&name).is_empty());
}

/// The workers of templates that live at one moment: those that are there in two looks, one after the other.
fn workers(name: &str, max: usize) -> usize {
    let both: BTreeSet<u32> = &children(name) & &children(name);
    assert!(both.len() <= max, "{} workers", both.len());
    both.len()
}

/// Processes of Python whose parent is one, too. `python3` may be a script, which has children of its own
/// before it becomes Python.
fn children(name: &str) -> BTreeSet<u32> {
    let is_python = |pid: &u32| {
        let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        comm.starts_with("python")
    };
    let all: BTreeSet<u32> = processes(name).into_iter().filter(is_python).collect();
    let parent = |pid: &u32| -> Option<u32> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit(')').next()?.split_ascii_whitespace().nth(1)?.parse().ok()
    };
    all.iter().copied().filter(|pid| parent(pid).is_some_and(|parent| all.contains(&parent))).collect()
}

#[test]
fn twenty_reloads_under_load_lose_no_job_and_leave_nothing() {
    let (world, name) = world("template", "max = 2\nidle = 1");
    let loaders = world.start(MIB).unwrap();
    let mut most = 0;
    let ends = AtomicBool::new(false);
    let descriptors_before = descriptors();
    std::thread::scope(|scope| {
        let reloads = scope.spawn(|| {
            for number in 0..20 {
                if number % 3 == 2 {
                    world.write("pages.py", "raise RuntimeError('this is broken')");
                    assert!(broken(&world, &loaders).contains("this is broken"));
                    world.write("pages.py", PAGES);
                } else {
                    reload(&world, &loaders);
                }
            }
            ends.store(true, Relaxed);
        });
        let mut jobs = 0;
        while !ends.load(Relaxed) {
            let orders = (0..10).map(|number| world.order(&format!("page:{number}"))).collect();
            loaders.submit(0, orders);
            jobs += 10;
            most = most.max(workers(&name, 2));
            let mut left = 10;
            while left > 0 {
                let (key, end) = world.end();
                if matches!(end, End::Failed(LoadFailure::Cancelled, _)) {
                    // It was not begun when its loader was replaced: the engine orders it anew.
                    loaders.submit(0, vec![world.order(&key)]);
                } else {
                    assert_eq!(end, value(format!("value of {key}")));
                    left -= 1;
                }
            }
        }
        reloads.join().unwrap();
        assert_eq!(loaders.views()[0].counts.values.load(Relaxed), jobs);
    });
    // In a busy moment two looks may find none of the same.
    until("workers are seen", || most.max(workers(&name, 2)) > 0);
    until("old generations have ended", || loaders.views()[0].draining == 0 && processes(&name).len() <= 3);
    until("their descriptors are closed", || descriptors() < descriptors_before + 20);
    loaders.stop();
    until("nothing is left", || processes(&name).is_empty());
}
