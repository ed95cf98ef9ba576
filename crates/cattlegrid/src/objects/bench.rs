//! `cattlegrid objects bench`: the time of calls, in this process, without sockets.
//!
//! Calls of `new` are made once, in their place, and prepare the objects of those that follow; every other call is made as often
//! as asked for, each timed. Parsing and the engine's work are part of it. A type of users' own that has taken the place of a
//! shipped one is followed by that one, with the same calls.

use cattlegrid_config::{Settings, TypeSelection, UsageError};
use cattlegrid_objects::{VirtualKey, native};
use cattlegrid_server::time::nanos;

use super::client::{ObjectClient, SendResult};
use super::{ObjectsError, check_call, now_ms};

/// The times of a call.
#[derive(Debug, PartialEq, Eq)]
struct Times {
    /// Nanoseconds.
    mean: u64,
    p50: u64,
    p99: u64,
    longest: u64,
    /// The first line of the last reply.
    reply: String,
}

/// A table of the calls `names`, each made `count` times.
pub(super) fn bench(settings: &Settings, count: usize, names: &[String]) -> Result<String, ObjectsError> {
    let mut own = ObjectClient::new(settings, now_ms())?;
    let mut shipped = ObjectClient::new(&super::settings(&TypeSelection::Shipped)?, own.unix_ms())?;
    let mut text =
        format!("{:<44} {:>9} {:>9} {:>9} {:>9}  last reply\n", "call", "ns", "p50", "p99", "longest");
    for name in names {
        check_call(&own, "bench", name)?;
    }
    if names.iter().all(|name| names_of(&own, name).1 == "new") {
        let problem = "objects bench: needs a call besides new, which is made once and not timed";
        return Err(UsageError::new(problem).into());
    }
    for name in names {
        let (object_type, method) = names_of(&own, name);
        let prefix = settings.objects.as_ref().map_or(&[][..], |objects| &objects.settings.prefix);
        let plain = &name[prefix.len()..];
        let twin = has_taken_a_place(&own, object_type) && is_call(&shipped, plain);
        if method == "new" {
            refused(&once(&mut own, name)).map_or(Ok(()), |line| Err(no_object(name, &line)))?;
            if twin {
                once(&mut shipped, plain);
            }
            continue;
        }
        text.push_str(&line(name, &time(&mut own, name, count)));
        if twin {
            text.push_str(&line("  the shipped type", &time(&mut shipped, plain, count)));
        }
    }
    Ok(text)
}

fn no_object(name: &str, reply: &str) -> UsageError {
    UsageError::new(format!("objects bench {name}: {reply}"))
}

fn is_call(client: &ObjectClient, name: &str) -> bool {
    matches!(client.registry().named(name.as_bytes()), Some(VirtualKey::Call(_)))
}

/// The names of the type and the method that a call names.
fn names_of(client: &ObjectClient, name: &str) -> (&'static str, &'static str) {
    match client.registry().named(name.as_bytes()) {
        Some(VirtualKey::Call(call)) => client.registry().names(call.method),
        _ => unreachable!("it was checked"),
    }
}

/// Whether the type of this name is not the shipped type of the name.
fn has_taken_a_place(client: &ObjectClient, name: &str) -> bool {
    let shipped = native::TYPES.iter().find(|one| one.name == name);
    shipped.is_some_and(|shipped| !client.registry().has_type(shipped.id))
}

/// Makes a call; its replies.
fn once(client: &mut ObjectClient, name: &str) -> Vec<u8> {
    match client.send(format!("get {name}\r\n").as_bytes()) {
        SendResult::Replies(replies) => replies,
        SendResult::Incomplete => unreachable!("a line is whole"),
    }
}

/// The error that a reply is.
fn refused(reply: &[u8]) -> Option<String> {
    let is_error = [&b"CLIENT_ERROR"[..], b"SERVER_ERROR"].iter().any(|error| reply.starts_with(error));
    is_error.then(|| first_line(reply))
}

/// Makes a call `count` times, after as many as a tenth of them that are not timed.
fn time(client: &mut ObjectClient, name: &str, count: usize) -> Times {
    let request = format!("get {name}\r\n");
    (0..count.div_ceil(10).min(1000)).for_each(|_| drop(client.send(request.as_bytes())));
    let mut times = Vec::with_capacity(count);
    let mut last = Vec::new();
    for _ in 0..count {
        let begun = nanos();
        let sent = client.send(request.as_bytes());
        times.push(nanos().saturating_sub(begun));
        if let SendResult::Replies(replies) = sent {
            last = replies;
        }
    }
    summary(times, &last)
}

fn summary(mut times: Vec<u64>, reply: &[u8]) -> Times {
    times.sort_unstable();
    let count = times.len();
    let at = |percent: usize| times[(count * percent).div_ceil(100).clamp(1, count) - 1];
    // The value's first line, behind the line that announces it.
    let value = match reply.strip_prefix(b"VALUE ") {
        Some(rest) => rest.iter().position(|byte| *byte == b'\n').map_or(rest, |at| &rest[at + 1..]),
        None => reply,
    };
    Times {
        mean: times.iter().sum::<u64>() / count as u64,
        p50: at(50),
        p99: at(99),
        longest: at(100),
        reply: first_line(value),
    }
}

fn first_line(bytes: &[u8]) -> String {
    let line = bytes.split(|byte| *byte == b'\r').next().unwrap_or_default();
    line.escape_ascii().to_string()
}

fn line(name: &str, times: &Times) -> String {
    let Times { mean, p50, p99, longest, reply } = times;
    format!("{name:<44} {mean:>9} {p50:>9} {p99:>9} {longest:>9}  {reply}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_times_in_order() {
        let times = summary((1..=100).rev().collect(), b"VALUE k 0 2\r\nhi\r\nEND\r\n");
        assert_eq!(times, Times { mean: 50, p50: 50, p99: 99, longest: 100, reply: "hi".to_owned() });
        let one = summary(vec![7], b"END\r\n");
        assert_eq!(one, Times { mean: 7, p50: 7, p99: 7, longest: 7, reply: "END".to_owned() });
    }

    #[test]
    fn calls_are_made_and_new_prepares() {
        let settings = super::super::settings(&TypeSelection::Shipped).unwrap();
        let run = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            bench(&settings, 3, &names).map_err(|error| error.to_string())
        };
        let text = run(&["quota:new:k:2:hour", "quota:addandcheck:k:1", "counter:add:c:1"]).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert!(
            lines[1].starts_with("quota:addandcheck:k:1 ") && lines[1].ends_with("  QUOTA_EXCEEDED"),
            "{text}"
        );
        // One to begin with, three timed.
        assert!(lines[2].ends_with("  4"), "{text}");
        assert_eq!(
            run(&["quota:new:k", "quota:addandcheck:k:1"]).unwrap_err(),
            "objects bench quota:new:k: CLIENT_ERROR quota.new: takes limit window"
        );
        assert_eq!(
            run(&["quota:new:k:2:hour"]).unwrap_err(),
            "objects bench: needs a call besides new, which is made once and not timed"
        );
        assert!(run(&["nothing:at:all"]).unwrap_err().contains("is no name of a call"));
    }
}
