//! The output of Luau's compiler for a source: its functions, the names that they use, and the lines of both.
//!
//! The format is that of the built-in compiler; the tests read its output. It is defined by `luau_load` of
//! Luau (`VM/src/lvmload.cpp`) and by `Luau/Bytecode.h`.
//!
//! # Invariants
//! * Bytes of another version, and truncated bytes, are read as None, so that no mistakes are reported for
//!   them.

use std::collections::HashSet;
use std::ops::Range;

/// The versions of bytecode that are read. Version 11 also has slots for call targets.
const VERSIONS: [u8; 2] = [9, 11];
const TYPES_VERSION: u8 = 3;
/// The type "any", which a parameter without a type has too. The bit means that the parameter may be nil.
const TYPE_ANY: u8 = 15;
const TYPE_NIL: u8 = 0;
const TYPE_OPTIONAL: u8 = 1 << 7;
/// A captured value of a closure that is an upvalue of the enclosing function.
const CAPTURE_UPVALUE: u8 = 2;

mod opcode {
    pub(super) const GET_GLOBAL: u8 = 7;
    pub(super) const SET_GLOBAL: u8 = 8;
    pub(super) const SET_UPVALUE: u8 = 10;
    pub(super) const GET_IMPORT: u8 = 12;
    pub(super) const LOAD_BOOLEAN: u8 = 3;
    pub(super) const GET_MEMBER: u8 = 15;
    pub(super) const NEW_CLOSURE: u8 = 19;
    pub(super) const RETURN: u8 = 22;
    pub(super) const DUPLICATE_CLOSURE: u8 = 64;
    pub(super) const CAPTURE: u8 = 70;
    pub(super) const JUMP_LONG: u8 = 67;
    /// The instructions that may go on at a place that their upper half says.
    pub(super) const JUMPS: [u8; 21] =
        [23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 56, 57, 58, 59, 61, 76, 77, 78, 79, 80, 88];
    /// The instructions of two words.
    pub(super) const LONG: [u8; 29] = [
        7, 8, 12, 15, 16, 20, 27, 28, 29, 30, 31, 32, 53, 55, 58, 60, 66, 74, 75, 77, 78, 79, 80, 83, 84, 85,
        86, 87, 88,
    ];
}

/// The functions of a source.
#[derive(Debug)]
pub(crate) struct Bytecode {
    pub(crate) functions: Vec<FunctionInfo>,
    /// The position in `functions` of the source itself.
    pub(crate) main: usize,
}

/// A function.
#[derive(Debug, Default)]
pub(crate) struct FunctionInfo {
    /// The name in its definition; empty: it has none.
    pub(crate) name: String,
    /// The line of its definition.
    pub(crate) line: usize,
    /// The names of the parameters, and whether each is required: it has a type, which does not include nil.
    pub(crate) parameters: Vec<(String, bool)>,
    /// The names of the locals.
    pub(crate) locals: Vec<String>,
    /// The uses of names with their lines, in the order of the code.
    pub(crate) uses: Vec<(usize, NameUse)>,
    /// The enclosing function. For each upvalue: whether it is an upvalue there too, and its number there.
    pub(crate) around: Option<(usize, Vec<(bool, usize)>)>,
}

/// A use of a name by a function.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum NameUse {
    /// A read of a global, or of a member of one: `string.rep`.
    Read(String),
    /// An assignment of a global.
    Assigned(String),
    /// An assignment of the upvalue with this number and name.
    Upvalue(usize, String),
    Return,
}

impl Bytecode {
    /// Parses bytecode; None: it has another version, or is truncated.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        let mut reader = BytecodeReader { rest: bytes, strings: Vec::new() };
        let version = reader.byte()?;
        if !VERSIONS.contains(&version) || reader.byte()? != TYPES_VERSION {
            return None;
        }
        for _ in 0..reader.number()? {
            let length = reader.number()?;
            let text = String::from_utf8_lossy(reader.take(length)?).into_owned();
            reader.strings.push(text);
        }
        // The types of userdata are skipped.
        while reader.byte()? != 0 {
            reader.number()?;
        }
        let mut functions: Vec<FunctionInfo> = Vec::new();
        for place in 0..reader.number()? {
            let (function, closures) = reader.function(version)?;
            for (inner, captures) in closures {
                functions.get_mut(inner)?.around = Some((place, captures));
            }
            functions.push(function);
        }
        let main = reader.number()?;
        (main < functions.len() && reader.rest.is_empty()).then_some(Self { functions, main })
    }

    /// The enclosing function that has this upvalue as a local.
    pub(crate) fn owner(&self, function: usize, upvalue: usize) -> Option<usize> {
        let (around, captures) = self.functions[function].around.as_ref()?;
        match *captures.get(upvalue)? {
            (true, number) => self.owner(*around, number),
            (false, _) => Some(*around),
        }
    }

    /// The names of the locals of a function and of the enclosing functions.
    pub(crate) fn locals(&self, function: usize) -> Vec<&str> {
        let mut names = Vec::new();
        let mut next = Some(function);
        while let Some(place) = next {
            names.extend(self.functions[place].locals.iter().map(String::as_str));
            next = self.functions[place].around.as_ref().map(|(around, _)| *around);
        }
        names
    }

    /// The last line of the source.
    pub(crate) fn end(&self) -> Option<usize> {
        let uses = &self.functions[self.main].uses;
        uses.iter().rev().find(|(_, one)| *one == NameUse::Return).map(|(line, _)| *line)
    }

    /// The parameters of the function that is defined in this line with this name and number of parameters.
    /// For each: its name, and whether it is required, as are those before it. If several functions match, no
    /// parameter counts as required. None: there is no such function, or the bytecode has no names.
    pub(crate) fn parameters(&self, line: usize, name: &str, count: usize) -> Option<Vec<(String, bool)>> {
        let is_it =
            |one: &&FunctionInfo| one.line == line && one.name == name && one.parameters.len() == count;
        let mut found = self.functions.iter().filter(is_it);
        let mut parameters = found.next()?.parameters.clone();
        if parameters.iter().any(|(name, _)| name.is_empty()) {
            return None;
        }
        if found.any(|other| other.parameters != parameters) {
            for (_, is_required) in &mut parameters {
                *is_required = false;
            }
        }
        Some(parameters)
    }
}

/// A constant, if it can be a part of a name.
#[derive(Debug, Clone, Copy)]
enum Constant {
    /// The number of a string.
    String(usize),
    Closure(usize),
    Other,
}

/// The functions that a function creates, and the values that each captures.
type Closures = Vec<(usize, Vec<(bool, usize)>)>;

struct BytecodeReader<'b> {
    rest: &'b [u8],
    strings: Vec<String>,
}

impl<'b> BytecodeReader<'b> {
    fn take(&mut self, length: usize) -> Option<&'b [u8]> {
        let (taken, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        Some(self.take(1)?[0])
    }

    fn word(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    /// A number in groups of seven bits.
    fn number(&mut self) -> Option<usize> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 127) << shift;
            if byte & 128 == 0 {
                return usize::try_from(number).ok();
            }
        }
        None
    }

    /// The string with this number; 0: none.
    fn string(&mut self) -> Option<String> {
        match self.number()? {
            0 => Some(String::new()),
            number => self.strings.get(number - 1).cloned(),
        }
    }

    fn function(&mut self, version: u8) -> Option<(FunctionInfo, Closures)> {
        let head = self.take(5)?;
        let count = usize::from(head[1]);
        let types = self.types(count)?;
        let code: Vec<u32> = (0..self.number()?).map(|_| self.word()).collect::<Option<_>>()?;
        let constants: Vec<Constant> = (0..self.number()?).map(|_| self.constant()).collect::<Option<_>>()?;
        let children: Vec<usize> = (0..self.number()?).map(|_| self.number()).collect::<Option<_>>()?;
        let (line, name) = (self.number()?, self.string()?);
        let lines = self.lines(code.len())?;
        let (mut locals, mut upvalues, mut names) = (Vec::new(), Vec::new(), vec![String::new(); count]);
        let mut scopes = Vec::new();
        if self.byte()? != 0 {
            for _ in 0..self.number()? {
                let (name, scope) = (self.string()?, self.number()?..self.number()?);
                let register = self.byte()?;
                scopes.push((register, scope));
                // Only parameters have the first registers.
                if let Some(parameter) = names.get_mut(usize::from(register)) {
                    parameter.clone_from(&name);
                }
                locals.push(name);
            }
            for _ in 0..self.number()? {
                upvalues.push(self.string()?);
            }
        }
        if version == VERSIONS[1] {
            for _ in 0..self.number()? {
                self.byte()?;
                self.number()?;
            }
        }
        let body = FunctionBody {
            code: &code,
            constants: &constants,
            strings: &self.strings,
            lines: &lines,
            scopes: &scopes,
        };
        let (uses, closures) = body.uses(&upvalues, &children)?;
        let parameters = names.into_iter().zip(types).collect();
        Some((FunctionInfo { name, line, parameters, locals, uses, around: None }, closures))
    }

    /// For each parameter, whether it has a type that does not include nil.
    fn types(&mut self, count: usize) -> Option<Vec<bool>> {
        let length = self.number()?;
        let mut part = BytecodeReader { rest: self.take(length)?, strings: Vec::new() };
        if length == 0 {
            return Some(vec![false; count]);
        }
        let (length, _upvalues, _locals) = (part.number()?, part.number()?, part.number()?);
        if length == 0 {
            return Some(vec![false; count]);
        }
        // The first byte says that it is a function, the second is the number of parameters.
        let types = part.take(length)?.get(2..)?;
        let is_required = |kind: &u8| ![TYPE_ANY, TYPE_NIL].contains(kind) && kind & TYPE_OPTIONAL == 0;
        (types.len() == count).then(|| types.iter().map(is_required).collect())
    }

    fn constant(&mut self) -> Option<Constant> {
        match self.byte()? {
            // nil
            0 => {}
            // A boolean, a number, an import, a vector.
            1 => drop(self.take(1)?),
            2 => drop(self.take(8)?),
            3 => return Some(Constant::String(self.number()?.checked_sub(1)?)),
            4 => drop(self.take(4)?),
            7 => drop(self.take(16)?),
            // The keys of a table; type 8 also has the constants under them.
            5 => {
                for _ in 0..self.number()? {
                    self.number()?;
                }
            }
            8 => {
                for _ in 0..self.number()? {
                    self.number()?;
                    self.word()?;
                }
            }
            6 => return Some(Constant::Closure(self.number()?)),
            // An integer: its sign and its bits.
            9 => {
                self.byte()?;
                self.number()?;
            }
            _ => return None,
        }
        Some(Constant::Other)
    }

    /// The line of each word of code.
    fn lines(&mut self, count: usize) -> Option<Vec<usize>> {
        if self.byte()? == 0 || count == 0 {
            return Some(vec![0; count]);
        }
        let gap = u32::from(self.byte()?);
        let mut offset = 0u8;
        let offsets: Vec<u8> = self
            .take(count)?
            .iter()
            .map(|step| {
                offset = offset.wrapping_add(*step);
                offset
            })
            .collect();
        let mut base = 0u32;
        let mut bases = Vec::new();
        for _ in 0..=(count - 1).checked_shr(gap)? {
            base = base.wrapping_add(self.word()?);
            bases.push(base as usize);
        }
        let line = |(place, offset): (usize, &u8)| Some(bases.get(place >> gap)? + usize::from(*offset));
        offsets.iter().enumerate().map(line).collect()
    }
}

/// The first constant that the short form of a name has no room for.
const IMPORTED_MAX: u32 = 1024;

/// The code of a function, with its tables.
struct FunctionBody<'f> {
    code: &'f [u32],
    constants: &'f [Constant],
    strings: &'f [String],
    lines: &'f [usize],
    /// The register of each local, and the places at which it has it.
    scopes: &'f [(u8, Range<usize>)],
}

impl FunctionBody<'_> {
    fn text(&self, constant: u32) -> Option<&str> {
        match self.constants.get(constant as usize)? {
            Constant::String(place) => self.strings.get(*place).map(String::as_str),
            _ => None,
        }
    }

    /// A name such as `string.rep`, from two bits for the number of parts, and up to three times ten bits for
    /// constants.
    fn import(&self, word: u32) -> Option<String> {
        let parts = (0..word >> 30).map(|part| self.text((word >> (20 - 10 * part)) & 1023));
        Some(parts.collect::<Option<Vec<_>>>()?.join("."))
    }

    /// Places at which an instruction other than the one before may go on.
    fn targets(&self) -> HashSet<usize> {
        let mut targets = HashSet::new();
        let mut place = 0;
        while let Some(word) = self.code.get(place) {
            let [code, _, _, c] = word.to_le_bytes();
            // The bits of the word that are signed offsets.
            let offset = match code {
                opcode::LOAD_BOOLEAN => Some(i32::from(c)),
                opcode::JUMP_LONG => Some(word.cast_signed() >> 8),
                code if opcode::JUMPS.contains(&code) => Some(word.cast_signed() >> 16),
                _ => None,
            };
            let target = offset.and_then(|offset| (place + 1).checked_add_signed(offset as isize));
            targets.extend(target.filter(|target| *target != place + 1));
            place += if opcode::LONG.contains(&code) { 2 } else { 1 };
        }
        targets
    }

    fn uses(&self, upvalues: &[String], children: &[usize]) -> Option<(Vec<(usize, NameUse)>, Closures)> {
        let (mut uses, mut closures) = (Vec::<(usize, NameUse)>::new(), Closures::new());
        let targets = self.targets();
        // The register that has this name's value at the next instruction, and whether the name does not fit into
        // the short form.
        let mut read: Option<(u8, String, bool)> = None;
        let mut place = 0;
        while let Some(word) = self.code.get(place) {
            let [code, a, b, _] = word.to_le_bytes();
            let operand = (word >> 16) as usize;
            let is_long = opcode::LONG.contains(&code);
            let next = if is_long { *self.code.get(place + 1)? } else { 0 };
            let mut note = |one: NameUse| uses.push((self.lines[place], one));
            let before = read.take().filter(|_| !targets.contains(&place));
            match code {
                opcode::GET_GLOBAL => {
                    let name = self.text(next)?.to_owned();
                    note(NameUse::Read(name.clone()));
                    read = Some((a, name, true));
                }
                // Only members in the text itself are noted. The value in a register is unknown, and may come
                // from elsewhere, unless the instruction before has read it.
                opcode::GET_IMPORT => {
                    let name = self.import(next)?;
                    note(NameUse::Read(name.clone()));
                    read = Some((a, name, false));
                }
                // Behind 1,023 other constants, a member has an instruction of its own. Of a local, any has.
                opcode::GET_MEMBER => {
                    if let (Some((register, of, is_far)), Some(member)) = (before, self.text(next))
                        && register == b
                        && (next >= IMPORTED_MAX || is_far)
                        && !self.scopes.iter().any(|(of, scope)| *of == b && scope.contains(&place))
                    {
                        let name = format!("{of}.{member}");
                        note(NameUse::Read(name.clone()));
                        read = Some((a, name, true));
                    }
                }
                opcode::SET_GLOBAL => note(NameUse::Assigned(self.text(next)?.to_owned())),
                opcode::SET_UPVALUE => {
                    let name = upvalues.get(usize::from(b)).cloned().unwrap_or_default();
                    note(NameUse::Upvalue(usize::from(b), name));
                }
                opcode::RETURN => note(NameUse::Return),
                opcode::NEW_CLOSURE => closures.push((*children.get(operand)?, Vec::new())),
                opcode::DUPLICATE_CLOSURE => match self.constants.get(operand)? {
                    Constant::Closure(inner) => closures.push((*inner, Vec::new())),
                    _ => return None,
                },
                opcode::CAPTURE => {
                    let (_, captures) = closures.last_mut()?;
                    captures.push((a == CAPTURE_UPVALUE, usize::from(b)));
                }
                _ => {}
            }
            place += if is_long { 2 } else { 1 };
        }
        Some((uses, closures))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compiler;

    /// Of each named function `name(a [b])`, in the order of its source.
    fn parameters(text: &str) -> Vec<String> {
        let bytes = compiler::compile(text, &compiler::to_describe()).unwrap();
        let bytecode = Bytecode::read(&bytes).unwrap();
        let named = bytecode.functions.iter().filter(|function| !function.name.is_empty());
        let show = |(name, is_required): &(String, bool)| match is_required {
            true => name.clone(),
            false => format!("[{name}]"),
        };
        let one = |function: &FunctionInfo| {
            format!(
                "{}({})",
                function.name,
                function.parameters.iter().map(show).collect::<Vec<_>>().join(" ")
            )
        };
        named.map(one).collect()
    }

    #[test]
    fn parameters_have_names_and_must_be_there_by_their_types() {
        let text = "type Maybe = Later type Later = number? type Sure = string
            local T = { a = function(self, x) end }
            function T.new(limit: string, window: string?, more: number) end
            function T:b(x: number, ...: string) end
            function T.c(self: Sure, n: number | nil, m: (number?), o: { [string]: number? }, p: { number }?) end
            local function d(object, n: (a: string) -> nil, s: 'a' | 'b') end
            local function e(a: any, b: unknown, c: Maybe, d: Sure, e: string | number) end
            return T";
        assert_eq!(
            parameters(text),
            [
                "a([self] [x])",
                "new(limit [window] more)",
                "b(self x)",
                "c(self [n] [m] o [p])",
                "d([object] n s)",
                "e([a] [b] [c] d [e])",
            ]
        );
    }

    #[test]
    fn bytecode_of_both_kinds_is_read() {
        // The first VM of a process switches the slots of calls on.
        for _ in 0..2 {
            assert_eq!(parameters("local function f(a: string) print(a) end return f"), ["f(a)"]);
            drop(mlua::Lua::new());
        }
    }

    #[test]
    fn bytes_that_end_early_are_none() {
        let text = "local t = { a = 1, b = 'x' } for k, v in pairs(t) do print(k, v, 1.5, true) end return t";
        let bytes = compiler::compile(text, &compiler::to_describe()).unwrap();
        assert!(Bytecode::read(&bytes).is_some());
        for end in 0..bytes.len() {
            assert!(Bytecode::read(&bytes[..end]).is_none(), "{end}");
        }
    }
}
