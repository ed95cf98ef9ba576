//! The parameters of the methods that a source returns.
//!
//! The returned table is followed through the file's own names: `return T`, where `function T.m`, `T.m = function` and fields of
//! `local T = {...}` are found, and `return {m = f}`, where `f` is a function of the file.

use std::collections::BTreeMap;

use super::parse::parse;
use super::tree::{Block, Expr, ExprKind, Function, Statement, TableField};
use crate::source::Source;

/// A parameter of a method.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameter {
    /// Its name.
    pub name: String,
    /// It must be given: it has a type without `?`, and so do those before it.
    pub required: bool,
}

/// The parameters of a method. Methods other than `new` have the object first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Parameters {
    /// In their order.
    pub list: Vec<Parameter>,
    /// It takes more: `...`.
    pub variadic: bool,
}

/// The parameters of each method in the table that a source returns, those in its `read` too. A source that cannot be read, or
/// a method that comes from elsewhere, has none.
pub fn parameters(source: &Source) -> BTreeMap<String, Parameters> {
    let Ok(block) = parse(&source.text) else { return BTreeMap::new() };
    let found = methods(&block);
    found.into_iter().map(|method| (method.name.to_owned(), of(method.name, method.function))).collect()
}

/// A method that a source returns.
#[derive(Debug)]
pub(super) struct Method<'b, 's> {
    pub(super) name: &'s str,
    pub(super) function: &'b Function<'s>,
}

/// The methods that a source returns.
pub(super) fn methods<'b, 's>(block: &'b Block<'s>) -> Vec<Method<'b, 's>> {
    let file = File::new(block);
    let mut found = Vec::new();
    if let Some(Statement::Return(values)) = block.0.last()
        && let Some(value) = values.first()
    {
        for Field { name, value, .. } in file.fields(value) {
            match name {
                "read" => {
                    let inner = file.fields_of(value);
                    found.extend(inner.into_iter().filter_map(|one| file.method(one.name, one.value)));
                }
                _ => found.extend(file.method(name, value)),
            }
        }
    }
    found
}

/// The lines of what a source returns: of the value under "", of its fields, and of theirs, as `read.left`.
pub(crate) fn lines(source: &Source) -> BTreeMap<String, usize> {
    let Ok(block) = parse(&source.text) else { return BTreeMap::new() };
    let file = File::new(&block);
    let Some(Statement::Return(values)) = block.0.last() else { return BTreeMap::new() };
    let Some(value) = values.first() else { return BTreeMap::new() };
    let mut lines = BTreeMap::from([(String::new(), value.line)]);
    for field in file.fields(value) {
        lines.insert(field.name.to_owned(), field.line);
        for inner in file.fields_of(field.value) {
            lines.insert(format!("{}.{}", field.name, inner.name), inner.line);
        }
    }
    lines
}

fn of(name: &str, function: &Function<'_>) -> Parameters {
    let mut required = true;
    let parameter = |(place, one): (usize, &super::tree::FunctionParameter<'_>)| {
        let is_object = place == 0 && name != "new";
        required &= one.is_required || is_object;
        Parameter { name: one.name.text.to_owned(), required }
    };
    let list = function.parameters.iter().enumerate().map(parameter).collect();
    Parameters { list, variadic: function.is_variadic }
}

/// What a name or a field stands for.
#[derive(Debug, Clone, Copy)]
enum Value<'b, 's> {
    Function(&'b Function<'s>),
    Expr(&'b Expr<'s>),
    /// A table's name and the field of it that holds a table: `T.read`.
    Path(&'b str, &'b str),
}

/// A field of a table, and the line where it is named.
#[derive(Debug, Clone, Copy)]
struct Field<'b, 's> {
    name: &'s str,
    line: usize,
    value: Value<'b, 's>,
}

/// The names of a file, as its outermost statements define them.
struct File<'b, 's> {
    locals: BTreeMap<&'s str, Value<'b, 's>>,
    /// What is put into fields: the table's name, a field of it that is a table itself or "", the field.
    fields: Vec<(&'s str, &'s str, Field<'b, 's>)>,
}

impl<'b, 's> File<'b, 's> {
    fn new(block: &'b Block<'s>) -> Self {
        let mut file = Self { locals: BTreeMap::new(), fields: Vec::new() };
        for statement in &block.0 {
            match statement {
                Statement::Local { names, values } => {
                    for (name, value) in names.iter().zip(values) {
                        file.locals.insert(name.text, Value::Expr(value));
                    }
                }
                Statement::LocalFunction { name, function } => {
                    file.locals.insert(name.text, Value::Function(function));
                }
                Statement::Function { target, function } => file.put(target, Value::Function(function)),
                Statement::Assign { targets, values } => {
                    for (target, value) in targets.iter().zip(values) {
                        file.put(target, Value::Expr(value));
                    }
                }
                _ => {}
            }
        }
        file
    }

    fn put(&mut self, target: &'b Expr<'s>, value: Value<'b, 's>) {
        let (of, name) = match &target.kind {
            ExprKind::Name(name) => {
                self.locals.insert(name, value);
                return;
            }
            ExprKind::Field(of, name) => (of.inner(), *name),
            ExprKind::At(of, key) => match &key.inner().kind {
                ExprKind::Text(text) => match super::tree::plain(text) {
                    Some(name) => (of.inner(), name),
                    None => return,
                },
                _ => return,
            },
            _ => return,
        };
        let put = Field { name, line: target.line, value };
        match &of.kind {
            ExprKind::Name(table) => self.fields.push((table, "", put)),
            ExprKind::Field(table, field) => {
                if let Some(table) = table.name() {
                    self.fields.push((table, field, put));
                }
            }
            _ => {}
        }
    }

    /// The expression that a name of the file stands for.
    fn resolve(&self, expr: &'b Expr<'s>) -> Option<&'b Expr<'s>> {
        let mut expr = expr.inner();
        // A name may stand for another.
        for _ in 0..8 {
            match &expr.kind {
                ExprKind::Name(name) => match self.locals.get(name)? {
                    Value::Expr(value) => expr = value.inner(),
                    _ => return None,
                },
                // `table.freeze(T)`, `setmetatable(T, ...)`
                ExprKind::Call { arguments, .. } => expr = arguments.first()?.inner(),
                _ => return Some(expr),
            }
        }
        None
    }

    /// The fields of a table that is returned.
    fn fields(&self, value: &'b Expr<'s>) -> Vec<Field<'b, 's>> {
        let mut named = value.inner();
        while let ExprKind::Call { arguments, .. } = &named.kind {
            let Some(first) = arguments.first() else { break };
            named = first.inner();
        }
        let mut found = self.resolve(named).map(own_fields).unwrap_or_default();
        if let ExprKind::Name(table) = named.kind {
            for (_, inside, field) in self.fields.iter().filter(|(of, ..)| *of == table) {
                found.push(match *inside {
                    "" => *field,
                    // Its fields come from here and from where it was made.
                    inside => Field { name: inside, value: Value::Path(table, inside), ..*field },
                });
            }
        }
        found
    }

    /// The fields of a field that is a table.
    fn fields_of(&self, value: Value<'b, 's>) -> Vec<Field<'b, 's>> {
        match value {
            Value::Expr(expr) => self.resolve(expr).map(own_fields).unwrap_or_default(),
            Value::Function(_) => Vec::new(),
            Value::Path(table, inside) => {
                let own = self.fields.iter().filter(|(of, at, _)| *of == table && *at == inside);
                own.map(|(_, _, field)| *field).collect()
            }
        }
    }

    fn method(&self, name: &'s str, value: Value<'b, 's>) -> Option<Method<'b, 's>> {
        let function = match value {
            Value::Function(function) => function,
            Value::Path(..) => return None,
            Value::Expr(expr) => match &expr.inner().kind {
                ExprKind::Function(function) => function,
                ExprKind::Name(other) => match self.locals.get(other)? {
                    Value::Function(function) => function,
                    Value::Expr(expr) => match &expr.inner().kind {
                        ExprKind::Function(function) => function,
                        _ => return None,
                    },
                    Value::Path(..) => return None,
                },
                _ => return None,
            },
        };
        Some(Method { name, function })
    }
}

fn own_fields<'b, 's>(table: &'b Expr<'s>) -> Vec<Field<'b, 's>> {
    let ExprKind::Table(fields) = &table.kind else { return Vec::new() };
    let one = |field: &'b TableField<'s>| match field {
        TableField::Named(name, value) => {
            Some(Field { name: name.text, line: name.line, value: Value::Expr(value) })
        }
        TableField::At(key, value) => match &key.inner().kind {
            ExprKind::Text(text) => {
                Some(Field { name: super::tree::plain(text)?, line: key.line, value: Value::Expr(value) })
            }
            _ => None,
        },
        TableField::Item(_) => None,
    };
    fields.iter().filter_map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of each method `name(a b [c] ...)`, in the order of names.
    fn read(text: &str) -> Vec<String> {
        let source = Source { name: "t".to_owned(), path: "t.luau".into(), text: text.to_owned() };
        let show = |(name, parameters): (String, Parameters)| {
            let one = |one: &Parameter| {
                if one.required { one.name.clone() } else { format!("[{}]", one.name) }
            };
            let mut list: Vec<_> = parameters.list.iter().map(one).collect();
            if parameters.variadic {
                list.push("...".to_owned());
            }
            format!("{name}({})", list.join(" "))
        };
        parameters(&source).into_iter().map(show).collect()
    }

    #[test]
    fn methods_are_found_in_each_form() {
        let text = "local T = { version = 1, a = function(self, x) end }
            function T.new(limit: string, window: string?, more: number) end
            function T:b(x: number, ...: string) end
            T.c = function(self, n: number | nil, m: (number?), o: { [string]: number? }) end
            local function d(object, n: (a: string) -> nil, s: 'a' | 'b') end
            T.d, T['e'] = d, d
            T.read = { f = function(self) end }
            function T.read.g(self, x: number) end
            return T";
        assert_eq!(
            read(text),
            [
                "a(self [x])",
                "b(self x ...)",
                "c(self [n] [m] [o])",
                "d(object n s)",
                "e(object n s)",
                "f(self)",
                "g(self x)",
                "new(limit [window] [more])",
            ]
        );
    }

    #[test]
    fn a_table_of_local_functions_has_theirs() {
        let text = "local function new(limit, kind) end
            local reset = function(object) end
            return { new = new, ['reset'] = reset, other = require('lib/x').other }";
        assert_eq!(read(text), ["new([limit] [kind])", "reset(object)"]);
        assert_eq!(
            read("local t = {} function t.new(a: any, b: unknown) end return table.freeze(t)"),
            ["new([a] [b])"]
        );
    }

    #[test]
    fn a_source_that_returns_no_table_has_none() {
        for text in [
            "",
            "return",
            "return 1",
            "return f()",
            "return x",
            "local x = x return x",
            "local a = {",
            "return {1, f}",
        ] {
            assert_eq!(read(text), [""; 0], "{text}");
        }
    }
}
