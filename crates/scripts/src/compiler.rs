//! Luau's compiler.

use std::thread;

use mlua::chunk::Compiler;

use crate::call;

/// Stack of the compiler for each byte of a text. It has frames for each level: up to 480 bytes of stack were used for a byte of
/// text, in a build without optimization.
const STACK_BYTES: usize = 1024;
/// Some stack for any text, and the most: of levels the compiler has a limit of some 1,000, in a chain of operators or calls and
/// around it, so that texts of more than half a megabyte have no more levels. 256 MiB were enough for those with the most.
const STACK_MIN: usize = 1 << 20;
const STACK_MAX: usize = 512 << 20;

/// As sources are run.
pub(crate) fn to_run() -> Compiler {
    Compiler::new().set_optimization_level(1).set_debug_level(1)
}

/// With the names of locals, and the types of parameters.
pub(crate) fn to_describe() -> Compiler {
    Compiler::new().set_optimization_level(1).set_debug_level(2).set_type_info_level(1)
}

/// The bytecode of a text.
///
/// # Errors
/// The line of a mistake, and what it is.
pub(crate) fn compile(text: &str, compiler: &Compiler) -> Result<Vec<u8>, (Option<usize>, String)> {
    let result = thread::scope(|scope| {
        let compile = || compiler.compile(text).map_err(|fault| call::text_of(&fault));
        let stack = (STACK_MIN + text.len() * STACK_BYTES).min(STACK_MAX);
        let thread = thread::Builder::new().name("compiler".to_owned()).stack_size(stack);
        let thread = thread.spawn_scoped(scope, compile).map_err(|fault| fault.to_string())?;
        thread.join().unwrap_or_else(|_| Err("the compiler has failed".to_owned()))
    });
    result.map_err(|text| {
        // The compiler leaves out the name that it was not given.
        let placed = text.trim_start_matches(':').split_once(": ");
        let placed = placed.and_then(|(line, text)| Some((line.parse().ok()?, text)));
        placed.map_or_else(|| (None, text.clone()), |(line, text)| (Some(line), text.to_owned()))
    })
}
