//! What a source says, as a tree. Types are left out: Luau checks none of them when it runs.

/// A row of statements.
#[derive(Debug, Default)]
pub(crate) struct Block<'s>(pub(crate) Vec<Statement<'s>>);

/// A name with its line.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Name<'s> {
    pub(crate) text: &'s str,
    pub(crate) line: usize,
}

#[derive(Debug)]
pub(crate) enum Statement<'s> {
    Local {
        names: Vec<Name<'s>>,
        values: Vec<Expr<'s>>,
    },
    LocalFunction {
        name: Name<'s>,
        function: Function<'s>,
    },
    /// `function a.b.c() end`.
    Function {
        target: Expr<'s>,
        function: Function<'s>,
    },
    Assign {
        targets: Vec<Expr<'s>>,
        values: Vec<Expr<'s>>,
    },
    /// `a += 1`: the target is read, too.
    Update {
        target: Expr<'s>,
        value: Expr<'s>,
    },
    Call(Expr<'s>),
    Do(Block<'s>),
    While {
        condition: Expr<'s>,
        body: Block<'s>,
    },
    Repeat {
        body: Block<'s>,
        condition: Expr<'s>,
    },
    If {
        branches: Vec<(Expr<'s>, Block<'s>)>,
        last: Option<Block<'s>>,
    },
    /// Both forms: the expressions are seen outside of the names.
    For {
        names: Vec<Name<'s>>,
        values: Vec<Expr<'s>>,
        body: Block<'s>,
    },
    Return(Vec<Expr<'s>>),
}

/// An expression with the line of its first token.
#[derive(Debug)]
pub(crate) struct Expr<'s> {
    pub(crate) line: usize,
    pub(crate) kind: ExprKind<'s>,
}

#[derive(Debug)]
pub(crate) enum ExprKind<'s> {
    /// nil, true, false.
    Constant,
    Number,
    /// A string as it is written, quotes included.
    Text(&'s str),
    /// An interpolated string.
    Parts(Vec<Expr<'s>>),
    /// `...`
    Varargs,
    Name(&'s str),
    /// `a.b`
    Field(Box<Expr<'s>>, &'s str),
    /// `a[b]`
    At(Box<Expr<'s>>, Box<Expr<'s>>),
    Call {
        function: Box<Expr<'s>>,
        arguments: Vec<Expr<'s>>,
    },
    /// `a:b()`
    MethodCall {
        object: Box<Expr<'s>>,
        arguments: Vec<Expr<'s>>,
    },
    Function(Function<'s>),
    Table(Vec<TableField<'s>>),
    /// `#a`
    Length(Box<Expr<'s>>),
    /// `-a`, `not a`
    Unary(Box<Expr<'s>>),
    Binary {
        sign: &'s str,
        operands: Box<(Expr<'s>, Expr<'s>)>,
    },
    /// `if a then b else c`
    If(Vec<Expr<'s>>),
    /// `(a)`: one value.
    Group(Box<Expr<'s>>),
}

#[derive(Debug)]
pub(crate) enum TableField<'s> {
    Named(Name<'s>, Expr<'s>),
    At(Expr<'s>, Expr<'s>),
    Item(Expr<'s>),
}

#[derive(Debug)]
pub(crate) struct Function<'s> {
    pub(crate) parameters: Vec<FunctionParameter<'s>>,
    pub(crate) is_variadic: bool,
    pub(crate) body: Block<'s>,
}

#[derive(Debug)]
pub(crate) struct FunctionParameter<'s> {
    pub(crate) name: Name<'s>,
    /// It has a type, and the type is not that of nil too.
    pub(crate) is_required: bool,
}

impl<'s> Expr<'s> {
    /// Without parentheses around it.
    pub(crate) fn inner(&self) -> &Self {
        let mut inner = self;
        while let ExprKind::Group(next) = &inner.kind {
            inner = next;
        }
        inner
    }

    /// It may be any number of values.
    pub(crate) fn is_many(&self) -> bool {
        matches!(self.kind, ExprKind::Varargs | ExprKind::Call { .. } | ExprKind::MethodCall { .. })
    }

    pub(crate) fn name(&self) -> Option<&'s str> {
        match self.inner().kind {
            ExprKind::Name(name) => Some(name),
            _ => None,
        }
    }
}

/// A string as it is written without its quotes, if it has no escapes.
pub(crate) fn plain(text: &str) -> Option<&str> {
    let inner = text.strip_prefix(['"', '\'', '`'])?.strip_suffix(['"', '\'', '`'])?;
    (!inner.contains('\\')).then_some(inner)
}
