//! `consistent`: the server of a key by consistent hashing (`cattlegrid_ring`).
//!
//! The names of the methods are Cacheismo's; each can also be written in lower case. The ring is that of
//! libmemcached's `ketama_weighted`: 160 points for a server of average weight. The points are hashes of its
//! name without the port 11211, which libketama would include. Servers that are not available keep their
//! points, and their keys go to the next points.
//!
//! The state is a collection of members, which `new` makes; a call reads a few of them:
//! ```text
//!   0                        number of servers, 2 bytes; available servers, a bit each, 8 bytes
//!   1 hash server            up to 128 points, 6 bytes each, in order; the key is the last of them
//!   2 place                  weight, 4 bytes; name
//! ```
//! (Numbers are big-endian. A point is its hash, 4 bytes, and the place of its server, 2 bytes.)

use std::ops::Bound;

use cattlegrid_ring::{Layout, Point, Ring, RingError, Server, key_hash};

use crate::arguments::{ARGUMENTS_MAX, Arguments};
use crate::call::{CallContext, CallError, MethodReply};
use crate::listing::json;
use crate::method::{ObjectType, OnAbsent, method};
use crate::native::sketch::{HEADER, MemberKey, inline, key};
use crate::number::push_whole;
use crate::object::{Object, StateView};

/// The most servers: `new` takes about 12 us for each.
const SERVERS_MAX: usize = 64;
/// The number of points in a member.
const PART: usize = 128;
/// The size of a point, in bytes.
const POINT: usize = 6;

const POINTS: u8 = 1;
const SERVERS: u8 = 2;

const LIST: &str = "server [server ...]";
const NEW_REPLIES: &str = "CREATED. A server is host:port or host:port=weight; an argument may have several, separated by `,` or blanks; \
                           at most 64";
const FIND_REPLIES: &str = "the server's name; a miss: none is available";
const AVAILABLE_REPLIES: &str = "1, 0: it is not, or there is no such server";
const SET_REPLIES: &str = "SUCCESS, NOT_FOUND; the two arguments may change places";

/// The type `consistent`.
pub(crate) static CONSISTENT: ObjectType = ObjectType {
    name: "consistent",
    id: 5,
    doc: "Servers of keys, by consistent hashing.",
    methods: &[
        method("new", (1, ARGUMENTS_MAX), LIST, NEW_REPLIES, OnAbsent::Runs, new),
        method("newConsistent", (1, ARGUMENTS_MAX), LIST, NEW_REPLIES, OnAbsent::Runs, new),
        method("newconsistent", (1, ARGUMENTS_MAX), LIST, NEW_REPLIES, OnAbsent::Runs, new),
        method("findServerForKey", (1, 1), "key", FIND_REPLIES, OnAbsent::Miss, find),
        method("findserverforkey", (1, 1), "key", FIND_REPLIES, OnAbsent::Miss, find),
        method("getServerCount", (0, 0), "", "number of servers", OnAbsent::Miss, count),
        method("getservercount", (0, 0), "", "number of servers", OnAbsent::Miss, count),
        method("isServerAvailable", (1, 1), "server", AVAILABLE_REPLIES, OnAbsent::Miss, is_available),
        method("isserveravailable", (1, 1), "server", AVAILABLE_REPLIES, OnAbsent::Miss, is_available),
        method("setServerAvailable", (2, 2), "server 1|0", SET_REPLIES, OnAbsent::Miss, set_available),
        method("setserveravailable", (2, 2), "server 1|0", SET_REPLIES, OnAbsent::Miss, set_available),
    ],
    dump: Some(dump),
};

/// The parameters, from the first member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct RingHeader {
    servers: u16,
    available: u64,
}

impl RingHeader {
    fn read(view: StateView<'_>) -> Option<Self> {
        let bytes = inline(view.member(&HEADER)?);
        let (servers, available) = bytes.split_first_chunk::<2>()?;
        let available = u64::from_be_bytes(available.try_into().ok()?);
        Some(Self { servers: u16::from_be_bytes(*servers), available })
    }

    fn write(self) -> [u8; 10] {
        let mut bytes = [0; 10];
        bytes[..2].copy_from_slice(&self.servers.to_be_bytes());
        bytes[2..].copy_from_slice(&self.available.to_be_bytes());
        bytes
    }

    fn is_available(self, server: u16) -> bool {
        server < self.servers && self.available >> server & 1 == 1
    }
}

fn new(
    object: &mut Object<'_>,
    arguments: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    let mut servers = Vec::new();
    for (place, list) in arguments.iter().enumerate() {
        let names = list.split(|byte| matches!(byte, b',' | b' ' | b'\t' | b'\r' | b'\n'));
        for name in names.filter(|name| !name.is_empty()) {
            let server = Server::parse(name);
            servers.push(server.map_err(|error| CallError::Client(format!("arg {}: {error}", place + 1)))?);
            if servers.len() > SERVERS_MAX {
                return Err(CallError::Client(format!("there are more than {SERVERS_MAX} servers")));
            }
        }
    }
    // Names are not repeated in errors, since they may contain any bytes.
    let ring = Ring::new(servers, Layout::Weighted).map_err(|error| match error {
        RingError::Twice(_) => CallError::Client("a server occurs twice".to_owned()),
        error => CallError::Client(error.to_string()),
    })?;
    store(object, &ring)?;
    Ok(context.created())
}

/// Stores the ring as the object's state.
fn store(object: &mut Object<'_>, ring: &Ring) -> Result<(), CallError> {
    object.set(&[]);
    let mut members = object.members();
    let servers = ring.servers().len() as u16;
    let available = u64::MAX >> (64 - servers);
    members.put(&HEADER, &RingHeader { servers, available }.write())?;
    let mut value = Vec::with_capacity(PART * POINT);
    for part in ring.points().chunks(PART) {
        value.clear();
        value.extend(part.iter().flat_map(|point| write_point(*point)));
        if let Some(last) = value.last_chunk::<POINT>() {
            members.put(&key(POINTS, [last, &[]]), &value)?;
        }
    }
    for (place, server) in ring.servers().iter().enumerate() {
        value.clear();
        value.extend_from_slice(&server.weight().to_be_bytes());
        value.extend_from_slice(server.name());
        members.put(&server_key(place as u16), &value)?;
    }
    Ok(())
}

fn find(
    object: &mut Object<'_>,
    arguments: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    let view = object.view();
    let Some(header) = RingHeader::read(view).filter(|header| header.available != 0) else {
        return Ok(MethodReply::Miss);
    };
    let from = write_point(Point { hash: key_hash(arguments.get(0).unwrap_or_default()), server: 0 });
    let server = first_available(view, header, from).or_else(|| first_available(view, header, [0; POINT]));
    match server.and_then(|server| view.member(&server_key(server))) {
        Some(value) => Ok(context.text(name_of(inline(value)))),
        None => Ok(MethodReply::Miss),
    }
}

/// The server of the first point at or after `from` that is available; None: there is none up to the last
/// point.
fn first_available(view: StateView<'_>, header: RingHeader, from: [u8; POINT]) -> Option<u16> {
    let mut found = None;
    view.scan(Bound::Included(&key(POINTS, [&from, &[]])), |part, value| {
        if part.first() != Some(&POINTS) {
            return false;
        }
        let (points, _) = inline(value).as_chunks::<POINT>();
        let after = &points[points.partition_point(|point| *point < from)..];
        let mut servers = after.iter().map(|point| u16::from_be_bytes([point[4], point[5]]));
        found = servers.find(|server| header.is_available(*server));
        found.is_none()
    });
    found
}

fn count(
    object: &mut Object<'_>,
    _: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    push_whole(context.out, RingHeader::read(object.view()).map_or(0, |header| header.servers.into()));
    Ok(MethodReply::Value)
}

fn is_available(
    object: &mut Object<'_>,
    arguments: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    let view = object.view();
    let header = RingHeader::read(view);
    let server = place_of(view, arguments.get(0).unwrap_or_default());
    let is_available = header.zip(server).is_some_and(|(header, server)| header.is_available(server));
    Ok(context.text(if is_available { b"1" } else { b"0" }))
}

fn set_available(
    object: &mut Object<'_>,
    arguments: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    let view = object.view();
    let [first, second] = [0, 1].map(|place| arguments.get(place).unwrap_or_default());
    // Cacheismo has the other order.
    let (name, value) = if matches!(second, b"0" | b"1") { (first, second) } else { (second, first) };
    let is_available = match value {
        b"0" => false,
        b"1" => true,
        _ => return Err(CallError::argument(1, "1 or 0")),
    };
    let (Some(mut header), Some(server)) = (RingHeader::read(view), place_of(view, name)) else {
        return Ok(context.text(b"NOT_FOUND"));
    };
    if header.is_available(server) != is_available {
        header.available ^= 1 << server;
        if let Some(bytes) = object.members().get_mut(&HEADER) {
            bytes.copy_from_slice(&header.write());
        }
    }
    Ok(context.text(b"SUCCESS"))
}

fn dump(view: StateView<'_>, _: &CallContext<'_>, out: &mut Vec<u8>) {
    let Some(header) = RingHeader::read(view) else { return };
    out.extend_from_slice(b"{\"servers\":[");
    each_server(view, |place, server| {
        out.extend_from_slice(if place == 0 { b"{\"name\":" } else { b",{\"name\":" });
        json::string(name_of(server), out);
        out.extend_from_slice(b",\"weight\":");
        push_whole(out, server.first_chunk().map_or(0, |weight| u32::from_be_bytes(*weight)).into());
        out.extend_from_slice(b",\"available\":");
        out.extend_from_slice(if header.is_available(place) { b"true}" } else { b"false}" });
        true
    });
    out.extend_from_slice(b"]}");
}

/// The number of the server with this name.
fn place_of(view: StateView<'_>, name: &[u8]) -> Option<u16> {
    let mut found = None;
    each_server(view, |place, server| {
        found = (name_of(server) == name).then_some(place);
        found.is_none()
    });
    found
}

/// Calls `each` with the numbers and values of servers, until it returns false.
fn each_server(view: StateView<'_>, mut each: impl FnMut(u16, &[u8]) -> bool) {
    view.scan(Bound::Included(&[SERVERS]), |key, value| match key {
        [SERVERS, high, low] => each(u16::from_be_bytes([*high, *low]), inline(value)),
        _ => false,
    });
}

/// The name in a server's value.
fn name_of(server: &[u8]) -> &[u8] {
    server.get(4..).unwrap_or_default()
}

fn server_key(place: u16) -> MemberKey {
    key(SERVERS, [&place.to_be_bytes(), &[]])
}

fn write_point(point: Point) -> [u8; POINT] {
    let mut bytes = [0; POINT];
    bytes[..4].copy_from_slice(&point.hash.to_be_bytes());
    bytes[4..].copy_from_slice(&point.server.to_be_bytes());
    bytes
}
