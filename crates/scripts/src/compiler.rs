//! The interface to Luau's compiler.

use std::thread;

use mlua::chunk::Compiler;

use crate::call;

/// The compiler's stack for each byte of a text. It uses stack frames for each level of nesting: up to 480
/// bytes of stack for a byte of text, in a build without optimization.
const STACK_BYTES: usize = 1024;
/// The least stack, and the most. The compiler has a limit of about 1,000 levels, in and around a chain of
/// operators or calls, so that texts above half a megabyte have no further levels. 256 MiB were enough for
/// the deepest texts.
const STACK_MIN: usize = 1 << 20;
const STACK_MAX: usize = 512 << 20;

/// The compiler for running sources.
pub(crate) fn to_run() -> Compiler {
    Compiler::new().set_optimization_level(1).set_debug_level(1)
}

/// The compiler for analysis, which keeps the names of locals and the types of parameters.
pub(crate) fn to_describe() -> Compiler {
    Compiler::new().set_optimization_level(1).set_debug_level(2).set_type_info_level(1)
}

/// Compiles a text.
///
/// # Errors
/// The line of a mistake, and its description.
pub(crate) fn compile(text: &str, compiler: &Compiler) -> Result<Vec<u8>, (Option<usize>, String)> {
    let result = thread::scope(|scope| {
        let compile = || compiler.compile(text).map_err(|fault| call::text_of(&fault));
        let stack = (STACK_MIN + text.len() * STACK_BYTES).min(STACK_MAX);
        let thread = thread::Builder::new().name("compiler".to_owned()).stack_size(stack);
        let thread = thread.spawn_scoped(scope, compile).map_err(|fault| fault.to_string())?;
        thread.join().unwrap_or_else(|_| Err("the compiler has failed".to_owned()))
    });
    result.map_err(|text| {
        // Without a name of the text, the compiler's message begins with a colon.
        let placed = text.trim_start_matches(':').split_once(": ");
        let placed = placed.and_then(|(line, text)| Some((line.parse().ok()?, text)));
        placed.map_or_else(|| (None, text.clone()), |(line, text)| (Some(line), text.to_owned()))
    })
}
