//! Names: what each stands for, and what is done with it.
//!
//! # Invariants
//! * A name is looked up as Luau does: from the block where it is used outwards, and only those defined before.

use std::collections::BTreeSet;

use super::parameters;
use super::signatures;
use super::tables::{Place, Tables};
use super::tree::{Block, Expr, ExprKind, Function, Name, Statement, TableField};
use super::{Found, Role};

/// Reports what is wrong with the names of a file.
pub(super) fn check(block: &Block<'_>, role: Role, globals: &[&str], found: &mut Found<'_>) {
    let mut assigned = BTreeSet::new();
    assigned_in(block, &mut assigned);
    let methods = parameters::methods(block);
    let mut checker = Checker {
        role,
        globals,
        found,
        scope: Vec::new(),
        locals: 0,
        depth: 0,
        assigned,
        methods: methods.iter().map(|method| (method.name, std::ptr::from_ref(method.function))).collect(),
        tables: Tables::default(),
    };
    checker.block(block);
    let tables = checker.tables;
    tables.report(found);
}

/// A local.
#[derive(Debug, Clone, Copy)]
struct Local<'s> {
    name: &'s str,
    number: usize,
    /// Functions around it.
    depth: usize,
    /// Of a function that is never assigned anew: fewest and most arguments.
    takes: Option<(usize, usize)>,
    /// It is made as a table.
    is_table: bool,
    /// It is an argument that a client gives.
    is_text: bool,
}

struct Checker<'c, 'f, 's> {
    role: Role,
    globals: &'c [&'c str],
    found: &'c mut Found<'f>,
    /// Locals that are seen, the innermost last.
    scope: Vec<Local<'s>>,
    /// Locals so far.
    locals: usize,
    /// Functions around this place.
    depth: usize,
    /// Names that are assigned somewhere after their definition.
    assigned: BTreeSet<&'s str>,
    methods: Vec<(&'s str, *const Function<'s>)>,
    tables: Tables<'s>,
}

impl<'s> Checker<'_, '_, 's> {
    fn block(&mut self, block: &Block<'s>) {
        let seen = self.scope.len();
        self.statements(block);
        self.scope.truncate(seen);
    }

    fn statements(&mut self, block: &Block<'s>) {
        for statement in &block.0 {
            self.statement(statement);
        }
    }

    fn statement(&mut self, statement: &Statement<'s>) {
        match statement {
            Statement::Local { names, values } => {
                self.expressions(values);
                for (place, name) in names.iter().enumerate() {
                    let local = self.define(*name, values.get(place));
                    match values.get(place) {
                        Some(value) => self.put(Place::Local(local), value),
                        None if values.last().is_some_and(Expr::is_many) => self.unknown(local),
                        None => {}
                    }
                }
            }
            Statement::LocalFunction { name, function } => {
                self.define(*name, None);
                self.takes(name.text, function);
                self.function(function);
            }
            Statement::Function { target, function } => {
                self.target(target);
                self.function(function);
            }
            Statement::Assign { targets, values } => {
                self.expressions(values);
                for (place, target) in targets.iter().enumerate() {
                    self.target(target);
                    if let Some(place_of) = self.place(target) {
                        match values.get(place) {
                            Some(value) => self.put(place_of, value),
                            None => self.tables.may_be_list(place_of),
                        }
                    }
                }
            }
            Statement::Update { target, value } => {
                self.expression(value);
                self.target(target);
                if let Some(place) = self.place(target) {
                    self.tables.may_be_list(place);
                }
            }
            Statement::Call(call) => self.expression(call),
            Statement::Do(body) => self.block(body),
            Statement::While { condition, body } => {
                self.expression(condition);
                self.block(body);
            }
            Statement::Repeat { body, condition } => {
                // The condition sees the locals of the body.
                let seen = self.scope.len();
                self.statements(body);
                self.expression(condition);
                self.scope.truncate(seen);
            }
            Statement::If { branches, last } => {
                for (condition, body) in branches {
                    self.expression(condition);
                    self.block(body);
                }
                if let Some(body) = last {
                    self.block(body);
                }
            }
            Statement::For { names, values, body } => {
                self.expressions(values);
                let seen = self.scope.len();
                for name in names {
                    let local = self.define(*name, None);
                    self.unknown(local);
                }
                self.block(body);
                self.scope.truncate(seen);
            }
            Statement::Return(values) => self.expressions(values),
        }
    }

    /// A new local; its number.
    fn define(&mut self, name: Name<'s>, value: Option<&Expr<'s>>) -> usize {
        let number = self.locals;
        self.locals += 1;
        let value = value.map(Expr::inner);
        let is_table = value.is_some_and(|value| matches!(value.kind, ExprKind::Table(_)));
        self.scope.push(Local {
            name: name.text,
            number,
            depth: self.depth,
            takes: None,
            is_table,
            is_text: false,
        });
        if let Some(ExprKind::Function(function)) = value.map(|value| &value.kind) {
            self.takes(name.text, function);
        }
        number
    }

    /// Notes what the newest local takes, a function.
    fn takes(&mut self, name: &str, function: &Function<'s>) {
        if self.assigned.contains(name) {
            return;
        }
        let least = function.parameters.iter().rposition(|one| one.is_required).map_or(0, |place| place + 1);
        let most = if function.is_variadic { usize::MAX } else { function.parameters.len() };
        if let Some(local) = self.scope.last_mut() {
            local.takes = Some((least, most));
        }
    }

    fn unknown(&mut self, local: usize) {
        self.tables.may_be_list(Place::Local(local));
    }

    fn local(&self, name: &str) -> Option<Local<'s>> {
        self.scope.iter().rev().find(|local| local.name == name).copied()
    }

    fn function(&mut self, function: &Function<'s>) {
        let seen = self.scope.len();
        self.depth += 1;
        let pointer = std::ptr::from_ref(function);
        let method = self.methods.iter().find(|(_, own)| std::ptr::eq(*own, pointer)).map(|(name, _)| *name);
        for (place, parameter) in function.parameters.iter().enumerate() {
            let local = self.define(parameter.name, None);
            self.unknown(local);
            let is_argument = method.is_some_and(|name| name == "new" || place > 0);
            let is_text = is_argument && !self.assigned.contains(parameter.name.text);
            self.scope.last_mut().into_iter().for_each(|local| local.is_text = is_text);
        }
        self.block(&function.body);
        self.depth -= 1;
        self.scope.truncate(seen);
    }

    /// What is assigned.
    fn target(&mut self, target: &Expr<'s>) {
        match &target.kind {
            ExprKind::Name(name) => match self.local(name) {
                None => self.found.error(
                    target.line,
                    format!("{name} is a global, and globals cannot be assigned: write `local {name}`"),
                ),
                Some(local) if local.depth == 0 && self.depth > 0 && self.role != Role::Test => {
                    self.found.warning(
                        target.line,
                        format!(
                            "{name} is kept outside of objects: each thread has its own, and it is lost at any time; \
                             keep it in the object"
                        ),
                    );
                }
                Some(_) => {}
            },
            ExprKind::Field(of, _) => {
                self.changed(of, target.line);
                self.expression(of);
                if let Some(place) = self.place(of) {
                    self.tables.named(place, target.line);
                }
            }
            ExprKind::At(of, key) => {
                self.changed(of, target.line);
                self.expression(of);
                self.expression(key);
                let key = key.inner();
                if let Some(place) = self.place(of) {
                    if self.is_text(key) {
                        self.tables.named(place, target.line);
                    } else if matches!(
                        key.kind,
                        ExprKind::Number | ExprKind::Length(_) | ExprKind::Binary { .. }
                    ) {
                        self.tables.may_be_list(place);
                    }
                }
            }
            _ => self.expression(target),
        }
    }

    /// A table is changed: those that the file keeps are read-only when it has been loaded.
    fn changed(&mut self, table: &Expr<'s>, line: usize) {
        let mut root = table.inner();
        while let ExprKind::Field(of, _) | ExprKind::At(of, _) = &root.kind {
            root = of.inner();
        }
        let ExprKind::Name(name) = root.kind else { return };
        match self.local(name) {
            Some(local)
                if local.depth == 0 && local.is_table && self.depth > 0 && self.role != Role::Test =>
            {
                self.found.warning(
                    line,
                    format!("{name} is read-only when the sources have been loaded: keep it in the object"),
                );
            }
            None if self.globals.contains(&name) => {
                self.found.error(line, format!("{name} is read-only: it is a global"));
            }
            _ => {}
        }
    }

    fn expressions(&mut self, list: &[Expr<'s>]) {
        for expr in list {
            self.expression(expr);
        }
    }

    fn expression(&mut self, expr: &Expr<'s>) {
        match &expr.kind {
            ExprKind::Constant | ExprKind::Number | ExprKind::Text(_) | ExprKind::Varargs => {}
            ExprKind::Name(name) => self.used(name, expr.line),
            ExprKind::Field(of, _) => {
                self.expression(of);
                self.member(expr);
            }
            ExprKind::At(of, key) => {
                self.expression(of);
                self.expression(key);
            }
            ExprKind::Call { function, arguments } => {
                self.expression(function);
                self.expressions(arguments);
                self.call(function, arguments, expr.line);
            }
            ExprKind::MethodCall { object, arguments, .. } => {
                self.expression(object);
                self.expressions(arguments);
                for argument in arguments {
                    self.escapes(argument);
                }
            }
            ExprKind::Function(function) => self.function(function),
            ExprKind::Table(fields) => self.table(fields),
            ExprKind::Length(of) => {
                self.expression(of);
                let (ExprKind::Name(name) | ExprKind::Field(_, name)) = of.inner().kind else { return };
                if let Some(place) = self.place(of) {
                    self.tables.length(place, name, expr.line);
                }
            }
            ExprKind::Unary(of) | ExprKind::Group(of) => self.expression(of),
            ExprKind::Binary { operands, .. } => {
                self.expression(&operands.0);
                self.expression(&operands.1);
            }
            ExprKind::If(parts) | ExprKind::Parts(parts) => self.expressions(parts),
        }
    }

    fn table(&mut self, fields: &[TableField<'s>]) {
        for field in fields {
            match field {
                TableField::Named(name, value) => {
                    self.expression(value);
                    self.put(Place::Field(name.text), value);
                }
                TableField::At(key, value) => {
                    self.expression(key);
                    self.expression(value);
                }
                TableField::Item(value) => {
                    self.expression(value);
                    self.escapes(value);
                }
            }
        }
    }

    /// A table is kept in a place.
    fn put(&mut self, place: Place<'s>, value: &Expr<'s>) {
        let value = value.inner();
        match &value.kind {
            ExprKind::Constant => {}
            ExprKind::Table(fields) => {
                for field in fields {
                    match field {
                        TableField::Named(name, _) => self.tables.named(place, name.line),
                        TableField::At(key, _) if self.is_text(key.inner()) => {
                            self.tables.named(place, key.line);
                        }
                        TableField::At(..) | TableField::Item(_) => self.tables.may_be_list(place),
                    }
                }
            }
            _ => {
                self.tables.may_be_list(place);
                self.escapes(value);
            }
        }
    }

    /// A table is known under another name from here on.
    fn escapes(&mut self, value: &Expr<'s>) {
        if let Some(place) = self.place(value) {
            self.tables.may_be_list(place);
        }
    }

    fn place(&self, expr: &Expr<'s>) -> Option<Place<'s>> {
        match &expr.inner().kind {
            ExprKind::Name(name) => self.local(name).map(|local| Place::Local(local.number)),
            ExprKind::Field(_, name) => Some(Place::Field(name)),
            _ => None,
        }
    }

    /// The value is a string.
    fn is_text(&self, expr: &Expr<'s>) -> bool {
        match &expr.kind {
            ExprKind::Text(_) | ExprKind::Parts(_) => true,
            ExprKind::Binary { sign, .. } => *sign == "..",
            ExprKind::Name(name) => self.local(name).is_some_and(|local| local.is_text),
            ExprKind::Call { function, .. } => function.name() == Some("tostring"),
            _ => false,
        }
    }

    fn used(&mut self, name: &'s str, line: usize) {
        if self.local(name).is_some() || self.globals.contains(&name) {
            return;
        }
        if self.assigned.contains(name) {
            // The assignment is reported.
            return;
        }
        if self.found.is_full() {
            return;
        }
        let locals = self.scope.iter().map(|local| local.name);
        let globals = self.globals.iter().copied().filter(|name| !name.contains('.'));
        let near = nearest(name, locals.chain(globals));
        let hint = near.map_or_else(
            || "define it before this line with `local`".to_owned(),
            |near| format!("did you mean {near}?"),
        );
        self.found.error(line, format!("unknown global {name}: {hint}"));
    }

    /// A member of a library.
    fn member(&mut self, expr: &Expr<'s>) {
        let Some(path) = self.path(expr) else { return };
        let Some((library, _)) = path.rsplit_once('.') else { return };
        if self.globals.contains(&&*path) || (self.role == Role::Test && path.starts_with("cg.test")) {
            return;
        }
        let prefix = format!("{library}.");
        let members: Vec<&str> =
            self.globals.iter().copied().filter(|name| name.starts_with(&*prefix)).collect();
        if self.globals.contains(&library) && !members.is_empty() {
            let own = &path[prefix.len()..];
            let near = nearest(own, members.into_iter().map(|member| &member[prefix.len()..]));
            let hint = near.map(|near| format!(": did you mean {prefix}{near}?"));
            self.found.error(expr.line, format!("there is no {path}{}", hint.unwrap_or_default()));
        }
    }

    /// `string.rep`, when `string` is the global.
    fn path(&self, expr: &Expr<'s>) -> Option<String> {
        match &expr.inner().kind {
            ExprKind::Name(name) => self.local(name).is_none().then(|| (*name).to_owned()),
            ExprKind::Field(of, name) => Some(format!("{}.{name}", self.path(of)?)),
            _ => None,
        }
    }

    fn call(&mut self, function: &Expr<'s>, arguments: &[Expr<'s>], line: usize) {
        let local = function.name().and_then(|name| self.local(name));
        let path = self.path(function);
        let (name, takes) = match (local, &path) {
            (Some(local), _) => (local.name, local.takes),
            (None, Some(path)) => (&**path, signatures::of(path)),
            (None, None) => ("", None),
        };
        if let Some(takes) = takes {
            self.count(name, takes, arguments, line);
        }
        let keeps = ["pairs", "next", "type", "typeof", "tostring", "cg.json.encode", "print"];
        if !path.as_deref().is_some_and(|path| keeps.contains(&path)) {
            for argument in arguments {
                self.escapes(argument);
            }
        }
        let changes = ["table.insert", "table.remove", "table.sort", "table.clear", "rawset"];
        if let (Some(path), Some(table)) = (&path, arguments.first())
            && changes.contains(&&**path)
        {
            self.changed(table, line);
        }
    }

    fn count(&mut self, name: &str, (least, most): (usize, usize), arguments: &[Expr<'s>], line: usize) {
        let count = arguments.len();
        let is_open = arguments.last().is_some_and(Expr::is_many);
        // The last one may be no value at all.
        let (fewest, may_be_more) = if is_open { (count - 1, true) } else { (count, false) };
        if fewest > most || (count < least && !may_be_more) {
            let takes = match (least, most) {
                (least, usize::MAX) => format!("at least {least}"),
                (least, most) if least == most => least.to_string(),
                (least, most) => format!("{least} to {most}"),
            };
            let noun = if takes == "1" || takes == "at least 1" { "argument" } else { "arguments" };
            self.found.error(line, format!("{name} takes {takes} {noun}, not {count}"));
        }
    }
}

/// The names that are assigned after their definition, in a block and the functions in it.
fn assigned_in<'s>(block: &Block<'s>, names: &mut BTreeSet<&'s str>) {
    let mut note = |target: &Expr<'s>| {
        if let ExprKind::Name(name) = target.kind {
            names.insert(name);
        }
    };
    for statement in &block.0 {
        match statement {
            Statement::Assign { targets, .. } => targets.iter().for_each(&mut note),
            Statement::Function { target, .. } | Statement::Update { target, .. } => note(target),
            _ => {}
        }
    }
    block.0.iter().for_each(|statement| inner_blocks(statement, &mut |inner| assigned_in(inner, names)));
}

/// Calls `visit` with the blocks in a statement, those of functions in its expressions too.
fn inner_blocks<'b, 's>(statement: &'b Statement<'s>, visit: &mut dyn FnMut(&'b Block<'s>)) {
    match statement {
        Statement::Local { values, .. } | Statement::Return(values) => in_expressions(values, visit),
        Statement::LocalFunction { function, .. } | Statement::Function { function, .. } => {
            visit(&function.body);
        }
        Statement::Assign { targets, values } => {
            in_expressions(targets, visit);
            in_expressions(values, visit);
        }
        Statement::Update { target, value } => {
            in_expression(target, visit);
            in_expression(value, visit);
        }
        Statement::Call(call) => in_expression(call, visit),
        Statement::Do(body) => visit(body),
        Statement::While { condition, body } | Statement::Repeat { body, condition } => {
            in_expression(condition, visit);
            visit(body);
        }
        Statement::If { branches, last } => {
            for (condition, body) in branches {
                in_expression(condition, visit);
                visit(body);
            }
            last.iter().for_each(visit);
        }
        Statement::For { values, body, .. } => {
            in_expressions(values, visit);
            visit(body);
        }
    }
}

fn in_expressions<'b, 's>(list: &'b [Expr<'s>], visit: &mut dyn FnMut(&'b Block<'s>)) {
    for expr in list {
        in_expression(expr, visit);
    }
}

fn in_expression<'b, 's>(expr: &'b Expr<'s>, visit: &mut dyn FnMut(&'b Block<'s>)) {
    match &expr.kind {
        ExprKind::Constant | ExprKind::Number | ExprKind::Text(_) | ExprKind::Varargs | ExprKind::Name(_) => {
        }
        ExprKind::Field(of, _) | ExprKind::Length(of) | ExprKind::Unary(of) | ExprKind::Group(of) => {
            in_expression(of, visit);
        }
        ExprKind::At(of, key) => {
            in_expression(of, visit);
            in_expression(key, visit);
        }
        ExprKind::Call { function: of, arguments } | ExprKind::MethodCall { object: of, arguments, .. } => {
            in_expression(of, visit);
            in_expressions(arguments, visit);
        }
        ExprKind::Function(function) => visit(&function.body),
        ExprKind::Table(fields) => {
            for field in fields {
                match field {
                    TableField::Named(_, value) | TableField::Item(value) => in_expression(value, visit),
                    TableField::At(key, value) => {
                        in_expression(key, visit);
                        in_expression(value, visit);
                    }
                }
            }
        }
        ExprKind::Binary { operands, .. } => {
            in_expression(&operands.0, visit);
            in_expression(&operands.1, visit);
        }
        ExprKind::If(parts) | ExprKind::Parts(parts) => in_expressions(parts, visit),
    }
}

/// The name with the fewest changes: one for a name of three characters, two from five on.
fn nearest<'n>(name: &str, names: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let most = (name.len().saturating_sub(1) / 2).min(2);
    let near = names.map(|other| (changes(name, other), other)).filter(|(changes, _)| *changes <= most);
    near.min().map(|(_, other)| other)
}

/// Characters to change, insert or remove to make one name of another, at most 3.
fn changes(one: &str, other: &str) -> usize {
    if one.len().abs_diff(other.len()) > 2 {
        return 3;
    }
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (place, byte) in one.bytes().enumerate() {
        let mut before = row[0];
        row[0] = place + 1;
        for (column, other) in other.bytes().enumerate() {
            let replaced = before + usize::from(byte != other);
            before = row[column + 1];
            row[column + 1] = replaced.min(row[column] + 1).min(before + 1);
        }
    }
    row[other.len()].min(3)
}
