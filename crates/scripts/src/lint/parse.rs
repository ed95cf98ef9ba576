//! Reads the tree of a source: all of Luau's syntax. What is wrong with a text is said by Luau's compiler, not here.
//!
//! # Invariants
//! * Nesting is limited, so that no text overflows the stack.

mod types;

use std::collections::BTreeSet;

use super::token::{Kind, Token, tokens};
use super::tree::{Block, Expr, ExprKind, Function, FunctionParameter, Name, Statement, TableField};

/// Deepest nesting.
const DEPTH_MAX: usize = 100;
/// Longest chain of calls, fields and operators.
const CHAIN_MAX: usize = 200;
/// Greatest height of the tree, chains within each other included.
const HEIGHT_MAX: usize = 400;

/// Why a text cannot be read, with the line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unread {
    /// It is not known here.
    Unknown(usize),
    /// It is nested or chained too deeply: Luau's compiler, too, would need much of the stack for it.
    TooDeep(usize),
}

type Result<T> = std::result::Result<T, Unread>;

/// Reads a source.
pub(crate) fn parse(text: &str) -> Result<Block<'_>> {
    let tokens = tokens(text);
    if let Some((line, _)) = tokens.strange.first() {
        return Err(Unread::Unknown(*line));
    }
    let mut optional = BTreeSet::new();
    loop {
        let known = optional.len();
        let mut parser = Parser { tokens: &tokens.list, at: 0, depth: 0, height: 0, optional };
        let block = parser.block()?;
        if parser.here().kind != Kind::End {
            return Err(parser.unread());
        }
        optional = parser.optional;
        // A name of a type may be used before it is defined.
        if optional.len() == known {
            return Ok(block);
        }
    }
}

const KEYWORDS: [&str; 21] = [
    "and", "break", "do", "else", "elseif", "end", "false", "for", "function", "if", "in", "local", "nil",
    "not", "or", "repeat", "return", "then", "true", "until", "while",
];

struct Parser<'t, 's> {
    tokens: &'t [Token<'s>],
    at: usize,
    depth: usize,
    /// Of the tree that has been read at this depth.
    height: usize,
    /// Names of types that nil is of.
    optional: BTreeSet<&'s str>,
}

impl<'s> Parser<'_, 's> {
    fn here(&self) -> Token<'s> {
        self.tokens[self.at]
    }

    /// The token that comes `more` tokens later.
    fn ahead(&self, more: usize) -> Token<'s> {
        self.tokens[(self.at + more).min(self.tokens.len() - 1)]
    }

    fn next(&mut self) -> Token<'s> {
        let token = self.here();
        self.at = (self.at + 1).min(self.tokens.len() - 1);
        token
    }

    fn unread(&self) -> Unread {
        Unread::Unknown(self.here().line)
    }

    fn too_deep(&self) -> Unread {
        Unread::TooDeep(self.here().line)
    }

    /// The token here is this keyword or sign.
    fn is(&self, text: &str) -> bool {
        is(self.here(), text)
    }

    fn take(&mut self, text: &str) -> bool {
        let found = self.is(text);
        if found {
            self.next();
        }
        found
    }

    fn expect(&mut self, text: &str) -> Result<()> {
        if self.take(text) { Ok(()) } else { Err(self.unread()) }
    }

    fn name(&mut self) -> Result<Name<'s>> {
        let token = self.here();
        if !is_name(token) {
            return Err(self.unread());
        }
        self.next();
        Ok(Name { text: token.text, line: token.line })
    }

    /// Runs `read` one level deeper.
    fn deeper<T>(&mut self, read: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.depth == DEPTH_MAX {
            return Err(self.too_deep());
        }
        self.depth += 1;
        let beside = std::mem::take(&mut self.height);
        let done = read(self);
        let height = self.height + 1;
        self.height = beside.max(height);
        self.depth -= 1;
        if height > HEIGHT_MAX { Err(self.too_deep()) } else { done }
    }

    fn block(&mut self) -> Result<Block<'s>> {
        self.deeper(|parser| {
            let mut statements = Vec::new();
            loop {
                if parser.take(";") {
                    continue;
                }
                let token = parser.here();
                let ends = ["end", "else", "elseif", "until"].iter().any(|end| is(token, end));
                if token.kind == Kind::End || ends {
                    return Ok(Block(statements));
                }
                let is_last = parser.is("return");
                if let Some(statement) = parser.statement()? {
                    statements.push(statement);
                }
                if is_last {
                    while parser.take(";") {}
                    return Ok(Block(statements));
                }
            }
        })
    }

    /// None: it does nothing that matters here.
    fn statement(&mut self) -> Result<Option<Statement<'s>>> {
        self.attributes()?;
        let token = self.here();
        if token.kind != Kind::Name {
            return self.expression_statement();
        }
        let statement = match token.text {
            "local" => {
                self.next();
                self.local()?
            }
            "const" if is_name(self.ahead(1)) || is(self.ahead(1), "function") => {
                self.next();
                self.local()?
            }
            "function" => {
                self.next();
                self.function_statement()?
            }
            "do" => {
                self.next();
                let body = self.block()?;
                self.expect("end")?;
                Statement::Do(body)
            }
            "while" => {
                self.next();
                let condition = self.expression()?;
                self.expect("do")?;
                let body = self.block()?;
                self.expect("end")?;
                Statement::While { condition, body }
            }
            "repeat" => {
                self.next();
                let body = self.block()?;
                self.expect("until")?;
                Statement::Repeat { body, condition: self.expression()? }
            }
            "if" => {
                self.next();
                self.if_statement()?
            }
            "for" => {
                self.next();
                self.for_statement()?
            }
            "return" => {
                self.next();
                let ends = [";", "end", "else", "elseif", "until"].iter().any(|end| self.is(end));
                let values =
                    if ends || self.here().kind == Kind::End { Vec::new() } else { self.expressions()? };
                Statement::Return(values)
            }
            "break" => {
                self.next();
                return Ok(None);
            }
            "export" if self.ahead(1).text == "type" && is_type_definition(self.ahead(2)) => {
                self.next();
                self.next();
                self.type_definition()?;
                return Ok(None);
            }
            "type" if is_type_definition(self.ahead(1)) => {
                self.next();
                self.type_definition()?;
                return Ok(None);
            }
            "continue" if !continues_expression(self.ahead(1)) => {
                self.next();
                return Ok(None);
            }
            _ => return self.expression_statement(),
        };
        Ok(Some(statement))
    }

    /// `@native`, `@[deprecated {use = "x"}]`.
    fn attributes(&mut self) -> Result<()> {
        while self.take("@") {
            if self.take("[") {
                while !self.take("]") {
                    self.name()?;
                    if self.take("(") {
                        self.arguments_until(")")?;
                    } else if self.is("{") || self.here().kind == Kind::Text {
                        self.simple()?;
                    }
                    self.take(",");
                }
            } else {
                self.name()?;
            }
        }
        Ok(())
    }

    fn local(&mut self) -> Result<Statement<'s>> {
        if self.take("function") {
            let name = self.name()?;
            return Ok(Statement::LocalFunction { name, function: self.function()? });
        }
        let names = self.names()?;
        let values = if self.take("=") { self.expressions()? } else { Vec::new() };
        Ok(Statement::Local { names, values })
    }

    /// Names with or without types.
    fn names(&mut self) -> Result<Vec<Name<'s>>> {
        let mut names = Vec::new();
        loop {
            names.push(self.name()?);
            if self.take(":") {
                self.any_type()?;
            }
            if !self.take(",") {
                return Ok(names);
            }
        }
    }

    fn function_statement(&mut self) -> Result<Statement<'s>> {
        let name = self.name()?;
        let mut target = Expr { line: name.line, kind: ExprKind::Name(name.text) };
        let mut of = None;
        loop {
            let is_method = self.is(":");
            if !is_method && !self.is(".") {
                break;
            }
            of = is_method.then(|| self.here().line);
            self.next();
            let field = self.name()?;
            target = Expr { line: field.line, kind: ExprKind::Field(Box::new(target), field.text) };
            if is_method {
                break;
            }
        }
        let mut function = self.function()?;
        if let Some(line) = of {
            let name = Name { text: "self", line };
            function.parameters.insert(0, FunctionParameter { name, is_required: false });
        }
        Ok(Statement::Function { target, function })
    }

    /// From its type parameters to its `end`.
    fn function(&mut self) -> Result<Function<'s>> {
        if self.is("<") {
            self.generics()?;
        }
        self.expect("(")?;
        let (mut parameters, mut is_variadic) = (Vec::new(), false);
        while !self.take(")") {
            if self.take("...") {
                is_variadic = true;
                if self.take(":") {
                    self.any_type()?;
                }
                self.expect(")")?;
                break;
            }
            let name = self.name()?;
            let is_required = self.take(":") && !self.any_type()?;
            parameters.push(FunctionParameter { name, is_required });
            if !self.take(",") && !self.is(")") {
                return Err(self.unread());
            }
        }
        if self.take(":") {
            self.any_type()?;
        }
        let body = self.block()?;
        self.expect("end")?;
        Ok(Function { parameters, is_variadic, body })
    }

    fn if_statement(&mut self) -> Result<Statement<'s>> {
        let (mut branches, mut last) = (Vec::new(), None);
        loop {
            let condition = self.expression()?;
            self.expect("then")?;
            branches.push((condition, self.block()?));
            if self.take("elseif") {
                continue;
            }
            if self.take("else") {
                last = Some(self.block()?);
            }
            self.expect("end")?;
            return Ok(Statement::If { branches, last });
        }
    }

    fn for_statement(&mut self) -> Result<Statement<'s>> {
        let names = self.names()?;
        let is_numeric = names.len() == 1 && self.take("=");
        if !is_numeric {
            self.expect("in")?;
        }
        let values = self.expressions()?;
        self.expect("do")?;
        let body = self.block()?;
        self.expect("end")?;
        Ok(Statement::For { names, values, body })
    }

    fn expression_statement(&mut self) -> Result<Option<Statement<'s>>> {
        let first = self.suffixed()?;
        if self.is("=") || self.is(",") {
            let mut targets = vec![first];
            while self.take(",") {
                targets.push(self.suffixed()?);
            }
            self.expect("=")?;
            return Ok(Some(Statement::Assign { targets, values: self.expressions()? }));
        }
        let text = self.here().text;
        if ["+=", "-=", "*=", "/=", "//=", "%=", "^=", "..="].contains(&text) {
            self.next();
            return Ok(Some(Statement::Update { target: first, value: self.expression()? }));
        }
        match first.kind {
            ExprKind::Call { .. } | ExprKind::MethodCall { .. } => Ok(Some(Statement::Call(first))),
            _ => Err(self.unread()),
        }
    }

    fn expressions(&mut self) -> Result<Vec<Expr<'s>>> {
        let mut list = vec![self.expression()?];
        while self.take(",") {
            list.push(self.expression()?);
        }
        Ok(list)
    }

    fn expression(&mut self) -> Result<Expr<'s>> {
        self.operators(0)
    }

    /// Operators that bind more strongly than `limit`.
    fn operators(&mut self, limit: u8) -> Result<Expr<'s>> {
        self.deeper(|parser| {
            let token = parser.here();
            let mut left = if parser.is("not") || parser.is("-") || parser.is("#") {
                parser.next();
                let operand = Box::new(parser.operators(12)?);
                let kind =
                    if token.text == "#" { ExprKind::Length(operand) } else { ExprKind::Unary(operand) };
                Expr { line: token.line, kind }
            } else {
                parser.simple()?
            };
            for _ in 0..CHAIN_MAX {
                parser.height += 1;
                let token = parser.here();
                let Some((_, after)) = binds(token).filter(|(before, _)| *before > limit) else {
                    return Ok(left);
                };
                parser.next();
                let operands = Box::new((left, parser.operators(after)?));
                left = Expr { line: token.line, kind: ExprKind::Binary { sign: token.text, operands } };
            }
            Err(parser.too_deep())
        })
    }

    /// Without operators, but with casts.
    fn simple(&mut self) -> Result<Expr<'s>> {
        self.attributes()?;
        let token = self.here();
        let line = token.line;
        let kind = match token.kind {
            Kind::Number => ExprKind::Number,
            Kind::Text => ExprKind::Text(token.text),
            Kind::Opens => {
                self.next();
                let mut parts = vec![self.expression()?];
                while self.here().kind == Kind::Between {
                    self.next();
                    parts.push(self.expression()?);
                }
                if self.here().kind != Kind::Closes {
                    return Err(self.unread());
                }
                ExprKind::Parts(parts)
            }
            Kind::Name if ["nil", "true", "false"].contains(&token.text) => ExprKind::Constant,
            Kind::Sign if token.text == "..." => ExprKind::Varargs,
            _ => return self.compound(),
        };
        self.next();
        self.casts(Expr { line, kind })
    }

    fn compound(&mut self) -> Result<Expr<'s>> {
        let line = self.here().line;
        let expr = if self.take("function") {
            Expr { line, kind: ExprKind::Function(self.function()?) }
        } else if self.is("{") {
            self.table()?
        } else if self.take("if") {
            let mut parts = vec![self.expression()?];
            self.expect("then")?;
            parts.push(self.expression()?);
            while self.take("elseif") {
                parts.push(self.expression()?);
                self.expect("then")?;
                parts.push(self.expression()?);
            }
            self.expect("else")?;
            parts.push(self.expression()?);
            Expr { line, kind: ExprKind::If(parts) }
        } else {
            self.suffixed()?
        };
        self.casts(expr)
    }

    fn casts(&mut self, expr: Expr<'s>) -> Result<Expr<'s>> {
        while self.take("::") {
            self.any_type()?;
        }
        Ok(expr)
    }

    fn table(&mut self) -> Result<Expr<'s>> {
        let line = self.here().line;
        self.expect("{")?;
        let mut fields = Vec::new();
        while !self.take("}") {
            fields.push(if self.take("[") {
                let key = self.expression()?;
                self.expect("]")?;
                self.expect("=")?;
                TableField::At(key, self.expression()?)
            } else if is_name(self.here()) && is(self.ahead(1), "=") {
                let name = self.name()?;
                self.next();
                TableField::Named(name, self.expression()?)
            } else {
                TableField::Item(self.expression()?)
            });
            if !self.take(",") && !self.take(";") && !self.is("}") {
                return Err(self.unread());
            }
        }
        Ok(Expr { line, kind: ExprKind::Table(fields) })
    }

    /// A name or an expression in parentheses, with fields and calls behind it.
    fn suffixed(&mut self) -> Result<Expr<'s>> {
        self.deeper(Self::chain)
    }

    fn chain(&mut self) -> Result<Expr<'s>> {
        let line = self.here().line;
        let mut expr = if self.take("(") {
            let inner = self.expression()?;
            self.expect(")")?;
            Expr { line, kind: ExprKind::Group(Box::new(inner)) }
        } else {
            Expr { line, kind: ExprKind::Name(self.name()?.text) }
        };
        for _ in 0..CHAIN_MAX {
            self.height += 1;
            let token = self.here();
            let line = token.line;
            let kind = if self.take(".") {
                ExprKind::Field(Box::new(expr), self.name()?.text)
            } else if self.take("[") {
                let key = self.expression()?;
                self.expect("]")?;
                ExprKind::At(Box::new(expr), Box::new(key))
            } else if self.take(":") {
                self.name()?;
                self.instantiation()?;
                let arguments = self.arguments()?.ok_or(self.unread())?;
                ExprKind::MethodCall { object: Box::new(expr), arguments }
            } else if self.is("<") && is(self.ahead(1), "<") {
                self.instantiation()?;
                continue;
            } else if let Some(arguments) = self.arguments()? {
                ExprKind::Call { function: Box::new(expr), arguments }
            } else {
                return Ok(expr);
            };
            expr = Expr { line, kind };
        }
        Err(self.too_deep())
    }

    /// None: there are none.
    fn arguments(&mut self) -> Result<Option<Vec<Expr<'s>>>> {
        let token = self.here();
        if self.take("(") {
            return self.arguments_until(")").map(Some);
        }
        if self.is("{") {
            return Ok(Some(vec![self.table()?]));
        }
        if token.kind == Kind::Text {
            self.next();
            return Ok(Some(vec![Expr { line: token.line, kind: ExprKind::Text(token.text) }]));
        }
        Ok(None)
    }

    fn arguments_until(&mut self, end: &str) -> Result<Vec<Expr<'s>>> {
        if self.take(end) {
            return Ok(Vec::new());
        }
        let list = self.expressions()?;
        self.expect(end)?;
        Ok(list)
    }
}

fn is(token: Token<'_>, text: &str) -> bool {
    matches!(token.kind, Kind::Name | Kind::Sign) && token.text == text
}

fn is_name(token: Token<'_>) -> bool {
    token.kind == Kind::Name && !KEYWORDS.contains(&token.text)
}

/// What follows `type` in a definition of one.
fn is_type_definition(token: Token<'_>) -> bool {
    is_name(token) || is(token, "function")
}

/// A name that is followed by this is a variable.
fn continues_expression(token: Token<'_>) -> bool {
    let signs = ["=", ",", ".", "[", ":", "(", "{", "+=", "-=", "*=", "/=", "//=", "%=", "^=", "..="];
    token.kind == Kind::Text || signs.iter().any(|sign| is(token, sign))
}

/// How strongly an operator binds what is before it and what is behind it.
fn binds(token: Token<'_>) -> Option<(u8, u8)> {
    if !matches!(token.kind, Kind::Name | Kind::Sign) {
        return None;
    }
    Some(match token.text {
        "or" => (1, 1),
        "and" => (2, 2),
        "<" | ">" | "<=" | ">=" | "~=" | "==" => (3, 3),
        ".." => (9, 8),
        "+" | "-" => (10, 10),
        "*" | "/" | "//" | "%" => (11, 11),
        "^" => (14, 13),
        _ => return None,
    })
}
