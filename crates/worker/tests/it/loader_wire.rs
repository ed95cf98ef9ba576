//! Jobs and answers of loaders: what is written is read, and any bytes are read without a panic.

use cattlegrid_worker::List;
use cattlegrid_worker::list::put_list;
use cattlegrid_worker::loader::wire::{Answer, Job, TAG_BYTES_MAX, TAGS_MAX, Tags, put_job};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

fn bytes(max: usize) -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 0..=max)
}

/// A part of a list that is often close to a valid one.
fn part() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => "[VN]|1|-?[0-9]{0,11}|tag:[a-z]{1,5}".prop_map(String::into_bytes),
        1 => bytes(20),
        1 => bytes(TAG_BYTES_MAX + 1),
    ]
}

fn tag() -> impl Strategy<Value = Vec<u8>> {
    let byte = any::<u8>().prop_filter("no blank", |byte| *byte > b' ' && *byte != 0x7f);
    vec(byte, 1..=TAG_BYTES_MAX)
}

proptest! {
    #[test]
    fn jobs_are_read_as_written(
        key in bytes(250),
        rule in ".{0,40}",
        hint in bytes(20),
        stale in option::of(bytes(300)),
        captures in vec((bytes(20), bytes(200)), 0..=8),
    ) {
        let mut out = b"before".to_vec();
        put_job(&mut out, &key, &rule, &hint, stale.as_deref(), &captures);
        let job = Job::parse(List::parse(&out[6..]).unwrap()).unwrap();
        prop_assert_eq!((job.key, job.rule, job.stale), (&key[..], &rule[..], stale.as_deref()));
        prop_assert_eq!(job.hint.unwrap_or_default(), &hint[..]);
        prop_assert_ne!(job.hint, Some(&b""[..]));
        let read: Vec<_> = job.captures.map(|(name, value)| (name.to_vec(), value.to_vec())).collect();
        prop_assert_eq!(read, captures);
    }

    #[test]
    fn answers_are_read_as_written(
        value in bytes(300),
        ttl in option::of(any::<i32>()),
        flags in any::<u32>(),
        tags in vec(tag(), 0..=TAGS_MAX),
        negative in option::of(1..=i32::MAX.unsigned_abs()),
    ) {
        let tags = Tags::new(tags.iter().map(Vec::as_slice)).unwrap();
        for answer in [Answer::Value { value: &value, ttl, flags, tags }, Answer::NotFound { ttl: negative }] {
            let mut out = b"before".to_vec();
            answer.put(&mut out);
            prop_assert_eq!(Answer::parse(List::parse(&out[6..]).unwrap()), Ok(answer));
        }
    }

    #[test]
    fn any_list_is_an_answer_that_can_be_written_again_or_an_error_with_a_text(parts in vec(part(), 0..14)) {
        let mut out = Vec::new();
        put_list(&mut out, &parts);
        let list = List::parse(&out).unwrap();
        match Answer::parse(list) {
            Ok(answer) => {
                let mut again = Vec::new();
                answer.put(&mut again);
                prop_assert_eq!(Answer::parse(List::parse(&again).unwrap()), Ok(answer));
            }
            Err(error) => {
                let text = error.to_string();
                prop_assert!((20..400).contains(&text.len()), "{}", text);
            }
        }
    }

    #[test]
    fn any_list_is_a_job_that_is_the_same_when_written_again_or_an_error(parts in vec(part(), 0..12)) {
        let mut out = Vec::new();
        put_list(&mut out, &parts);
        if let Ok(job) = Job::parse(List::parse(&out).unwrap()) {
            let captures: Vec<_> = job.captures.collect();
            let mut again = Vec::new();
            put_job(&mut again, job.key, job.rule, job.hint.unwrap_or_default(), job.stale, &captures);
            prop_assert_eq!(again, out);
        }
    }

    #[test]
    fn any_bytes_are_read_without_a_panic(bytes in bytes(60)) {
        if let Some(list) = List::parse(&bytes) {
            drop((Job::parse(list), Answer::parse(list)));
        }
    }
}
