//! `dump`: a state with its fields as JSON, made without a VM.

use cattlegrid_objects::{
    FieldKind, FieldRows, ObjectMoved, PendingChanges, RowOrder, ScriptWorld, dump_field, push_json_string,
};

use crate::names::Names;
use crate::natives::FieldHandle;
use crate::state;

/// Appends the state of the call's object. False: the result has more than `most` bytes.
pub(crate) fn dump(
    plain: &[u8],
    names: &Names,
    world: &mut dyn ScriptWorld,
    most: usize,
    out: &mut Vec<u8>,
) -> Result<bool, ObjectMoved> {
    let from = out.len();
    let mut moved = None;
    state::to_json(plain, names, out, &mut |handle, out| {
        if moved.is_none() && out.len() - from <= most {
            moved = field(handle, world, from + most, out).err();
        }
    });
    moved.map_or(Ok(out.len() - from <= most), Err)
}

fn field(
    handle: FieldHandle,
    world: &mut dyn ScriptWorld,
    end: usize,
    out: &mut Vec<u8>,
) -> Result<(), ObjectMoved> {
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
    let mut rows = FieldRows::new(kind, handle.field, RowOrder::First, u64::MAX);
    let (mut goes_on, mut is_first) = (true, true);
    while goes_on && out.len() <= end {
        world.read(0, &mut |view| {
            goes_on = rows.read(view, &PendingChanges::NONE, |member, value| {
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
