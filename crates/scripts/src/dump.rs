//! `dump`: a state as JSON, with its fields, without a VM.

use cattlegrid_objects::{FieldKind, Moved, Order, Pending, Rows, World, dump_field, push_json_string};

use crate::names::Names;
use crate::natives::Handle;
use crate::state;

/// Appends the state of the call's object. False: the result has more than `most` bytes.
pub(crate) fn dump(
    plain: &[u8],
    names: &Names,
    world: &mut dyn World,
    most: usize,
    out: &mut Vec<u8>,
) -> Result<bool, Moved> {
    let from = out.len();
    let mut moved = None;
    state::to_json(plain, names, out, &mut |handle, out| {
        if moved.is_none() && out.len() - from <= most {
            moved = field(handle, world, from + most, out).err();
        }
    });
    moved.map_or(Ok(out.len() - from <= most), Err)
}

fn field(handle: Handle, world: &mut dyn World, end: usize, out: &mut Vec<u8>) -> Result<(), Moved> {
    let Some(kind) = FieldKind::numbered(handle.kind) else {
        out.extend_from_slice(b"null");
        return Ok(());
    };
    let (open, close) = match kind {
        FieldKind::Set | FieldKind::Zset => (b'[', b']'),
        FieldKind::Map => (b'{', b'}'),
        _ => return world.read(0, &mut |view| dump_field(view, kind, handle.field, out)),
    };
    out.push(open);
    let mut rows = Rows::new(kind, handle.field, Order::First, u64::MAX);
    let (mut goes_on, mut is_first) = (true, true);
    while goes_on && out.len() <= end {
        world.read(0, &mut |view| {
            goes_on = rows.read(view, &Pending::NONE, |member, value| {
                if !std::mem::replace(&mut is_first, false) {
                    out.push(b',');
                }
                let mut bytes = Vec::new();
                value.copy_to(&mut bytes);
                if kind == FieldKind::Zset {
                    out.push(b'[');
                }
                push_json_string(member, out);
                match kind {
                    FieldKind::Map => {
                        out.push(b':');
                        push_json_string(&bytes, out);
                    }
                    FieldKind::Zset => {
                        out.push(b',');
                        out.extend_from_slice(&bytes);
                        out.push(b']');
                    }
                    _ => {}
                }
                out.len() <= end
            });
        })?;
    }
    out.push(close);
    Ok(())
}
