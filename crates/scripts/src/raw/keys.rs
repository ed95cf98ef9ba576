//! Names of fields as strings of the VM. The strings of a type's names stay in the VM once they were read, so
//! that the next state with them needs no look-up, and a table's keys are recognised by their addresses.
//!
//! A table for each number of names is kept as a template: a copy of it has the keys, and only values are
//! set.
//!
//! # Invariants
//! * A known address is that of a string that [`KeyNumbers::strings`] holds, as long as the VM exists.
//! * A template has no value of an object.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ptr;

use mlua::{Lua, Table, ffi};

use super::{StateDecoder, push_string};
use crate::names::{NAMES_MAX, Names};
use crate::state::format::{FormatError, StateReader, StateToken, TableKey};

/// The most names of a template.
const TEMPLATE_MAX: usize = 16;
/// The most states from which a template may be made.
const LOOKS_MAX: u8 = 32;
/// The size of the table of addresses: a power of two.
const SLOTS: usize = 64;

/// The names of a template, ascending; their number is its position.
type Template = [u8; TEMPLATE_MAX];

/// The names of a type in a VM.
#[derive(Debug)]
pub(crate) struct KeyNumbers {
    /// The names by their numbers, from 1, and after them the templates; an upvalue of the type's methods.
    strings: Table,
    /// The numbers of names, by the addresses of their strings.
    numbers: [Cell<(*const c_void, u8)>; SLOTS],
    templates: [Cell<Option<Template>>; TEMPLATE_MAX],
    looks: Cell<u8>,
}

impl KeyNumbers {
    /// An empty table.
    pub(crate) fn new(lua: &Lua) -> mlua::Result<Self> {
        Ok(Self {
            strings: lua.create_table_with_capacity(NAMES_MAX + TEMPLATE_MAX, 0)?,
            numbers: [const { Cell::new((ptr::null(), 0)) }; SLOTS],
            templates: [const { Cell::new(None) }; TEMPLATE_MAX],
            looks: Cell::new(0),
        })
    }

    pub(super) fn strings(&self) -> &Table {
        &self.strings
    }

    /// The number of the name whose string has this address, if it is known.
    #[inline]
    pub(super) fn number(&self, address: *const c_void) -> Option<u8> {
        let (own, number) = self.slot(address).get();
        (own == address).then_some(number)
    }

    #[inline]
    fn slot(&self, address: *const c_void) -> &Cell<(*const c_void, u8)> {
        &self.numbers[(address.addr() / 32) % SLOTS]
    }

    /// Pushes a name.
    ///
    /// # Safety
    /// As [`StateDecoder::root`].
    #[inline]
    unsafe fn push(&self, state: *mut ffi::lua_State, number: u8, names: &Names) -> Result<(), FormatError> {
        // SAFETY: the caller's.
        unsafe {
            let kind = ffi::lua_rawgeti_(state, ffi::lua_upvalueindex(2), c_int::from(number) + 1);
            if kind == ffi::LUA_TSTRING { Ok(()) } else { self.push_new(state, number, names) }
        }
    }

    /// Replaces the nil at the top by a name.
    #[cold]
    unsafe fn push_new(
        &self,
        state: *mut ffi::lua_State,
        number: u8,
        names: &Names,
    ) -> Result<(), FormatError> {
        let name = names.get(number).ok_or(FormatError)?;
        // SAFETY: the caller's; there is room for two more values.
        unsafe {
            ffi::lua_pop(state, 1);
            push_string(state, name);
            ffi::lua_pushvalue(state, -1);
            ffi::lua_rawseti_(state, ffi::lua_upvalueindex(2), c_int::from(number) + 1);
            let address = ffi::lua_topointer(state, -1);
            self.slot(address).set((address, number));
        }
        Ok(())
    }

    /// Makes a template of the table at the top, which is that of this state, unless there is one with this
    /// number of names.
    #[cold]
    unsafe fn learn(
        &self,
        state: *mut ffi::lua_State,
        from: StateReader<'_>,
        names: &Names,
    ) -> Result<(), FormatError> {
        if self.looks.get() == LOOKS_MAX {
            return Ok(());
        }
        self.looks.set(self.looks.get() + 1);
        let Some((template, count)) = template_of(from) else { return Ok(()) };
        // SAFETY: the caller's; the copy is the function's own.
        unsafe {
            ffi::lua_clonetable(state, -1);
            for name in &template[..count] {
                self.push(state, *name, names)?;
                ffi::lua_pushboolean(state, 0);
                ffi::lua_rawset(state, -3);
            }
            ffi::lua_rawseti_(state, ffi::lua_upvalueindex(2), place(count));
        }
        self.templates[count - 1].set(Some(template));
        Ok(())
    }
}

/// The position among the strings of the template with this number of names.
fn place(count: usize) -> c_int {
    (NAMES_MAX + count) as c_int
}

/// The names of a table that has only named entries, and their number.
fn template_of(mut state: StateReader<'_>) -> Option<(Template, usize)> {
    let Ok(StateToken::Table { items: 0, entries: entries @ 1..=TEMPLATE_MAX, .. }) = state.value(0) else {
        return None;
    };
    let mut template = [0; TEMPLATE_MAX];
    for name in &mut template[..entries] {
        let Ok(TableKey::Name(own)) = state.key() else { return None };
        *name = own;
        state.skip(1).ok()?;
    }
    Some((template, entries))
}

impl StateDecoder<'_> {
    /// Pushes the table of the state on an empty stack.
    ///
    /// # Safety
    /// As [`StateDecoder::state`]; the second upvalue of the running function is [`KeyNumbers::strings`].
    pub(super) unsafe fn root(&mut self, keys: &KeyNumbers) -> Result<(), FormatError> {
        let from = self.reader.clone();
        let count = match self.reader.value(0)? {
            StateToken::Table { items: 0, entries: entries @ 1..=TEMPLATE_MAX, .. } => entries,
            _ => 0,
        };
        let template = if count > 0 { keys.templates[count - 1].get() } else { None };
        // SAFETY: the caller's. The table is the first of the stack.
        unsafe {
            if let Some(template) = template {
                if self.copy(&template[..count], keys)? {
                    return if self.reader.is_over() { Ok(()) } else { Err(FormatError) };
                }
                ffi::lua_settop(self.state, 0);
            }
            self.reader = from.clone();
            self.state()?;
            if count > 0 && template.is_none() { keys.learn(self.state, from, self.names) } else { Ok(()) }
        }
    }

    /// Pushes a copy of a template with the values of the state; false: the state has other names.
    unsafe fn copy(&mut self, template: &[u8], keys: &KeyNumbers) -> Result<bool, FormatError> {
        let state = self.state;
        // SAFETY: the caller's.
        unsafe {
            ffi::lua_rawgeti_(state, ffi::lua_upvalueindex(2), place(template.len()));
            ffi::lua_clonetable(state, 1);
            ffi::lua_replace(state, 1);
            for name in template {
                if self.reader.key()? != TableKey::Name(*name) {
                    return Ok(false);
                }
                keys.push(state, *name, self.names)?;
                self.value(1)?;
                ffi::lua_rawset(state, 1);
            }
        }
        Ok(true)
    }
}
