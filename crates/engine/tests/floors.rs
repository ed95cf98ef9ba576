//! The source reads downwards: no file uses one that uses it, directly or by way of others, and lists of
//! modules are in that order.
//!
//! The methods of a shard and of the engine are spread over many files, and the language lets each call any
//! other. So the source is parsed here, and every use of an item, call of a function and call of a method is
//! an arrow from file to file. Types of receivers are followed through parameters, fields, results and
//! patterns; a receiver whose type is not found counts if one type only has such a method, and its name is
//! not also one of the standard library's. Methods of traits are no arrows: who calls them need not know who
//! has them. Tests in the source are left out.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a test of the source, which shows its floors")]

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

use syn::punctuated::Punctuated;
use syn::spanned::Spanned as _;
use syn::visit::{self, Visit};
use syn::{Expr, FnArg, Item, Member, Pat, ReturnType, Stmt, Token, Type, UseTree};

/// A type as far as it matters here: its last name, and what it is made of.
#[derive(Debug, Clone, Default)]
struct Ty {
    name: String,
    of: Vec<Self>,
}

impl Ty {
    /// `this`: what `Self` is.
    fn read(ty: &Type, this: &str) -> Self {
        match ty {
            Type::Reference(reference) => Self::read(&reference.elem, this),
            Type::Paren(paren) => Self::read(&paren.elem, this),
            Type::Tuple(tuple) => {
                Self { name: String::new(), of: tuple.elems.iter().map(|ty| Self::read(ty, this)).collect() }
            }
            Type::Slice(slice) => Self { name: "Vec".to_owned(), of: vec![Self::read(&slice.elem, this)] },
            Type::Array(array) => Self { name: "Vec".to_owned(), of: vec![Self::read(&array.elem, this)] },
            Type::Path(path) => {
                let Some(last) = path.path.segments.last() else { return Self::default() };
                let mut of = Vec::new();
                if let syn::PathArguments::AngleBracketed(arguments) = &last.arguments {
                    of.extend(arguments.args.iter().filter_map(|argument| match argument {
                        syn::GenericArgument::Type(ty) => Some(Self::read(ty, this)),
                        _ => None,
                    }));
                }
                match last.ident.to_string().as_str() {
                    "Self" => Self { name: this.to_owned(), of },
                    "Box" | "Arc" | "Ref" | "RefMut" | "MutexGuard" | "Guard" if !of.is_empty() => {
                        of.remove(0)
                    }
                    "ShardGuard" => Self { name: "Shard".to_owned(), of },
                    name => Self { name: name.to_owned(), of },
                }
            }
            _ => Self::default(),
        }
    }

    /// What is in an `Option`, a list or the like.
    fn inner(self) -> Self {
        self.of.into_iter().next().unwrap_or_default()
    }
}

/// A file and the names that it has brought in.
struct Source {
    /// As `shard/put.rs`.
    file: String,
    items: Vec<Item>,
    /// Names of other modules: where they are.
    uses: HashMap<String, usize>,
}

/// Everything that the files define.
#[derive(Default)]
struct Definitions {
    /// Files by the path of their module.
    modules: HashMap<String, usize>,
    items: HashSet<(usize, String)>,
    anywhere: HashMap<String, BTreeSet<usize>>,
    methods: HashMap<String, Vec<(String, usize, Ty)>>,
    fields: HashMap<(String, String), Ty>,
    functions: HashMap<String, Ty>,
}

/// Methods that the standard library or another crate has, too, so that a receiver of an unknown type says
/// nothing. An arrow "by its name" that is none shows that a name is missing here.
const COMMON: &str = "add allow append apply as_slice begin bits by bytes call clear clock count end expire extend find \
    finish finish_job fits flags flush forget get has has_any held insert is_current is_done is_empty \
    is_quiet iter key key_state keys last left len line load lock match_key max name named \
    names new next next_timeout_ms note now number of or order park pop position push put read register \
    release remove request reserve reset rest rules shards shown size slices split_off stamp \
    start state store tags take text tick to_owned touch unix_ms usage value wait wake wants with write";

/// Files of the crate with their texts; the list of its modules is not among them.
fn texts() -> Vec<(String, String)> {
    let mut paths = Vec::new();
    walk(Path::new(ROOT), &mut paths);
    paths.sort();
    let is_wanted = |path: &PathBuf| !path.ends_with("src/lib.rs") && !path.ends_with("tests.rs");
    let named = |path: PathBuf| {
        let file = path.strip_prefix(ROOT).unwrap().to_str().unwrap().to_owned();
        (file, fs::read_to_string(&path).unwrap())
    };
    paths.into_iter().filter(is_wanted).map(named).collect()
}

/// Methods that give what is in an `Option`.
const OPENS: [&str; 3] = ["unwrap", "expect", "unwrap_or_default"];

/// Methods of types that are not ours whose result has the methods of its receiver, as far as it matters.
const PASSES: [&str; 20] = [
    "clone",
    "as_ref",
    "as_mut",
    "as_deref",
    "as_deref_mut",
    "take",
    "cloned",
    "filter",
    "iter",
    "iter_mut",
    "into_iter",
    "get",
    "get_mut",
    "first",
    "borrow",
    "borrow_mut",
    "next",
    "last",
    "pop",
    "find",
];

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src");

fn sources(texts: Vec<(String, String)>) -> Vec<Source> {
    let read = |(file, text): (String, String)| {
        let items = syn::parse_file(&text).unwrap_or_else(|error| panic!("{file}: {error}")).items;
        Source {
            file,
            items: items.into_iter().filter(|item| !is_test(item)).collect(),
            uses: HashMap::new(),
        }
    };
    texts.into_iter().map(read).collect()
}

fn is_test(item: &Item) -> bool {
    let attributes = match item {
        Item::Mod(module) => &module.attrs,
        Item::Impl(block) => &block.attrs,
        _ => return false,
    };
    attributes.iter().any(|attribute| match &attribute.meta {
        syn::Meta::List(list) => list.path.is_ident("cfg") && list.tokens.to_string() == "test",
        _ => false,
    })
}

fn walk(folder: &Path, paths: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            walk(&path, paths);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            paths.push(path);
        }
    }
}

fn names_of(path: &syn::Path) -> Vec<String> {
    path.segments.iter().map(|segment| segment.ident.to_string()).collect()
}

fn type_name(ty: &Type) -> String {
    Ty::read(ty, "").name
}

fn result(output: &ReturnType, this: &str) -> Ty {
    match output {
        ReturnType::Default => Ty::default(),
        ReturnType::Type(_, ty) => Ty::read(ty, this),
    }
}

impl Definitions {
    fn of(sources: &[Source]) -> Self {
        let mut all = Self::default();
        for (at, source) in sources.iter().enumerate() {
            all.modules.insert(source.file.trim_end_matches(".rs").replace('/', "::"), at);
            for item in &source.items {
                let name = match item {
                    Item::Struct(item) => {
                        let name = item.ident.to_string();
                        for (number, field) in item.fields.iter().enumerate() {
                            let member =
                                field.ident.as_ref().map_or_else(|| number.to_string(), ToString::to_string);
                            all.fields.insert((name.clone(), member), Ty::read(&field.ty, &name));
                        }
                        name
                    }
                    Item::Enum(item) => item.ident.to_string(),
                    Item::Type(item) => item.ident.to_string(),
                    Item::Trait(item) => item.ident.to_string(),
                    Item::Const(item) => item.ident.to_string(),
                    Item::Static(item) => item.ident.to_string(),
                    Item::Fn(item) => {
                        let name = item.sig.ident.to_string();
                        all.functions.insert(name.clone(), result(&item.sig.output, ""));
                        name
                    }
                    Item::Impl(block) if block.trait_.is_none() => {
                        all.block(block, at);
                        continue;
                    }
                    _ => continue,
                };
                all.items.insert((at, name.clone()));
                all.anywhere.entry(name).or_default().insert(at);
            }
        }
        all
    }

    fn block(&mut self, block: &syn::ItemImpl, at: usize) {
        let this = type_name(&block.self_ty);
        for item in &block.items {
            let (name, gives) = match item {
                syn::ImplItem::Fn(method) => {
                    (method.sig.ident.to_string(), result(&method.sig.output, &this))
                }
                syn::ImplItem::Const(constant) => (constant.ident.to_string(), Ty::default()),
                _ => continue,
            };
            self.methods.entry(name).or_default().push((this.clone(), at, gives));
        }
    }

    /// The file of a path that begins in this crate, without `crate`.
    fn place(&self, path: &[String]) -> Option<usize> {
        for most in (1..=path.len()).rev() {
            let Some(&module) = self.modules.get(&path[..most].join("::")) else { continue };
            let Some(name) = path.get(most) else { return Some(module) };
            if self.items.contains(&(module, name.clone())) {
                return Some(module);
            }
            // What it has of a module below itself, or a macro has made.
            let elsewhere = self.anywhere.get(name).filter(|places| places.len() == 1);
            return Some(elsewhere.map_or(module, |places| *places.first().unwrap()));
        }
        // What the list of modules hands on.
        let places = self.anywhere.get(path.first()?)?;
        (places.len() == 1).then(|| *places.first().unwrap())
    }

    fn method(&self, ty: &str, name: &str) -> Option<&(String, usize, Ty)> {
        self.methods.get(name)?.iter().find(|(of, ..)| of == ty)
    }
}

fn flatten(tree: &UseTree, path: &mut Vec<String>, out: &mut Vec<(Vec<String>, String, usize)>) {
    match tree {
        UseTree::Path(next) => {
            path.push(next.ident.to_string());
            flatten(&next.tree, path, out);
            path.pop();
        }
        UseTree::Group(group) => group.items.iter().for_each(|tree| flatten(tree, path, out)),
        UseTree::Name(name) => {
            let line = name.span().start().line;
            let own = name.ident.to_string();
            out.push(([&path[..], std::slice::from_ref(&own)].concat(), own, line));
        }
        UseTree::Rename(name) => {
            let line = name.span().start().line;
            out.push(([&path[..], &[name.ident.to_string()]].concat(), name.rename.to_string(), line));
        }
        UseTree::Glob(_) => {}
    }
}

/// The arrows between files, each with the first line that draws it.
type Arrows = BTreeMap<(usize, usize), String>;

/// Reads the bodies of a file.
struct Reader<'a> {
    all: &'a Definitions,
    source: &'a Source,
    at: usize,
    this: String,
    /// The types of local names; inner scopes may leave theirs behind.
    locals: HashMap<String, Ty>,
    arrows: &'a mut Arrows,
    unknown: &'a mut usize,
}

impl Reader<'_> {
    fn arrow(&mut self, to: usize, line: usize, what: &str) {
        if to != self.at {
            self.arrows
                .entry((self.at, to))
                .or_insert_with(|| format!("{}:{line}: {what}", self.source.file));
        }
    }

    fn bind(&mut self, pat: &Pat, ty: Ty) {
        match pat {
            Pat::Ident(name) => {
                self.locals.insert(name.ident.to_string(), ty);
            }
            Pat::Reference(reference) => self.bind(&reference.pat, ty),
            Pat::Type(typed) => {
                let ty = Ty::read(&typed.ty, &self.this);
                self.bind(&typed.pat, ty);
            }
            Pat::Tuple(tuple) => {
                for (pat, ty) in
                    tuple.elems.iter().zip(ty.of.into_iter().chain(std::iter::repeat_with(Ty::default)))
                {
                    self.bind(pat, ty);
                }
            }
            Pat::TupleStruct(tuple) => {
                let path = tuple.path.segments.last().map(|last| last.ident.to_string());
                let inner = match path.as_deref() {
                    Some("Some" | "Ok") => ty.inner(),
                    _ => Ty::default(),
                };
                if let Some(first) = tuple.elems.first() {
                    self.bind(first, inner);
                }
                for pat in tuple.elems.iter().skip(1) {
                    self.bind(pat, Ty::default());
                }
            }
            Pat::Struct(fields) => {
                let name = fields.path.segments.last().map(|last| last.ident.to_string()).unwrap_or_default();
                for field in &fields.fields {
                    if let Member::Named(member) = &field.member {
                        let ty = self.all.fields.get(&(name.clone(), member.to_string())).cloned();
                        self.bind(&field.pat, ty.unwrap_or_default());
                    }
                }
            }
            _ => {}
        }
    }

    /// The type of an expression; empty if it is not found.
    fn ty(&self, expr: &Expr) -> Ty {
        match expr {
            Expr::Path(path) => {
                let names = names_of(&path.path);
                match &names[..] {
                    [one] if one == "self" => Ty { name: self.this.clone(), of: Vec::new() },
                    [one] => self.locals.get(one).cloned().unwrap_or_default(),
                    _ => Ty::default(),
                }
            }
            Expr::Field(field) => {
                let base = self.ty(&field.base);
                let member = match &field.member {
                    Member::Named(name) => name.to_string(),
                    Member::Unnamed(index) => index.index.to_string(),
                };
                if base.name.is_empty()
                    && let Ok(place) = member.parse::<usize>()
                {
                    return base.of.get(place).cloned().unwrap_or_default();
                }
                self.all.fields.get(&(base.name, member)).cloned().unwrap_or_default()
            }
            Expr::MethodCall(call) => {
                let base = self.ty(&call.receiver);
                let name = call.method.to_string();
                if let Some((.., gives)) = self.all.method(&base.name, &name) {
                    return gives.clone();
                }
                if matches!(base.name.as_str(), "Option" | "Result") && OPENS.contains(&name.as_str()) {
                    return base.inner();
                }
                match name.as_str() {
                    "load" | "lock" => base.inner(),
                    // A clone of an `Arc`, an `Option` of a reference.
                    name if PASSES.contains(&name) => base,
                    _ => Ty::default(),
                }
            }
            Expr::Call(call) => {
                let Expr::Path(path) = &*call.func else { return Ty::default() };
                let names = names_of(&path.path);
                match &names[..] {
                    [.., ty, method] if ty.chars().next().is_some_and(char::is_uppercase) => {
                        let ty = if ty == "Self" { self.this.clone() } else { ty.clone() };
                        if ty == "Arc" && method == "clone"
                            || ty == "Box" && method == "new"
                            || ty == "Arc" && method == "new"
                        {
                            return call.args.first().map(|arg| self.ty(arg)).unwrap_or_default();
                        }
                        self.all.method(&ty, method).map(|(.., gives)| gives.clone()).unwrap_or_default()
                    }
                    [.., function] if function == "Some" => {
                        let inner = call.args.first().map(|arg| self.ty(arg)).unwrap_or_default();
                        Ty { name: "Option".to_owned(), of: vec![inner] }
                    }
                    [.., function] => self.all.functions.get(function).cloned().unwrap_or_default(),
                    [] => Ty::default(),
                }
            }
            Expr::Reference(reference) => self.ty(&reference.expr),
            Expr::Paren(paren) => self.ty(&paren.expr),
            Expr::Unary(unary) => self.ty(&unary.expr),
            Expr::Try(tried) => self.ty(&tried.expr).inner(),
            Expr::Index(index) => self.ty(&index.expr).inner(),
            Expr::Struct(made) => {
                let name = made.path.segments.last().map(|last| last.ident.to_string()).unwrap_or_default();
                Ty { name: if name == "Self" { self.this.clone() } else { name }, of: Vec::new() }
            }
            Expr::Tuple(tuple) => {
                Ty { name: String::new(), of: tuple.elems.iter().map(|expr| self.ty(expr)).collect() }
            }
            _ => Ty::default(),
        }
    }

    fn function(&mut self, sig: &syn::Signature) {
        self.locals.clear();
        for input in &sig.inputs {
            if let FnArg::Typed(typed) = input {
                let ty = Ty::read(&typed.ty, &self.this);
                self.bind(&typed.pat, ty);
            }
        }
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item_impl(&mut self, block: &'ast syn::ItemImpl) {
        self.this = type_name(&block.self_ty);
        visit::visit_item_impl(self, block);
        self.this.clear();
    }

    fn visit_impl_item_fn(&mut self, method: &'ast syn::ImplItemFn) {
        self.function(&method.sig);
        visit::visit_impl_item_fn(self, method);
    }

    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        self.function(&function.sig);
        visit::visit_item_fn(self, function);
    }

    fn visit_item_use(&mut self, _: &'ast syn::ItemUse) {}

    fn visit_stmt(&mut self, stmt: &'ast Stmt) {
        if let Stmt::Local(local) = stmt
            && let Some(init) = &local.init
        {
            self.visit_local(local);
            let ty = self.ty(&init.expr);
            self.bind(&local.pat, ty);
        } else {
            visit::visit_stmt(self, stmt);
        }
    }

    fn visit_expr_let(&mut self, condition: &'ast syn::ExprLet) {
        self.visit_expr(&condition.expr);
        let ty = self.ty(&condition.expr);
        self.bind(&condition.pat, ty);
        self.visit_pat(&condition.pat);
    }

    fn visit_expr_match(&mut self, matched: &'ast syn::ExprMatch) {
        self.visit_expr(&matched.expr);
        let ty = self.ty(&matched.expr);
        for arm in &matched.arms {
            self.bind(&arm.pat, ty.clone());
            self.visit_arm(arm);
        }
    }

    fn visit_expr_for_loop(&mut self, each: &'ast syn::ExprForLoop) {
        self.visit_expr(&each.expr);
        let ty = self.ty(&each.expr).inner();
        self.bind(&each.pat, ty);
        self.visit_block(&each.body);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names = names_of(path);
        let line = path.span().start().line;
        let text = names.join("::");
        let this = self.this.clone();
        let own = |name: &String| if name == "Self" { this.clone() } else { name.clone() };
        match &names[..] {
            [first, rest @ ..] if first == "crate" => {
                if let Some(to) = self.all.place(rest) {
                    self.arrow(to, line, &text);
                }
            }
            [first, ..] => {
                if let Some(&to) = self.source.uses.get(first) {
                    self.arrow(to, line, &text);
                }
                if let [.., ty, method] = &names[..]
                    && let Some(&(_, to, _)) = self.all.method(&own(ty), method)
                {
                    self.arrow(to, line, &text);
                }
            }
            [] => {}
        }
        visit::visit_path(self, path);
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        let name = call.method.to_string();
        let line = call.method.span().start().line;
        let ty = self.ty(&call.receiver);
        if let Some(&(ref ty, to, _)) = self.all.method(&ty.name, &name) {
            let what = format!("{ty}::{name}");
            self.arrow(to, line, &what);
        } else if ty.name.is_empty()
            && let Some(all) = self.all.methods.get(&name)
            && !COMMON.split_whitespace().any(|common| common == name)
        {
            if let [(ty, to, _)] = &all[..] {
                let what = format!("{ty}::{name}, by its name");
                self.arrow(*to, line, &what);
            } else {
                *self.unknown += 1;
            }
        }
        visit::visit_expr_method_call(self, call);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        // Of other macros than those with a list of expressions nothing is seen.
        if let Ok(exprs) = call.parse_body_with(Punctuated::<Expr, Token![,]>::parse_terminated) {
            exprs.iter().for_each(|expr| {
                // Its tokens live as long as this function.
                let mut inner = Reader {
                    all: self.all,
                    source: self.source,
                    at: self.at,
                    this: self.this.clone(),
                    locals: self.locals.clone(),
                    arrows: self.arrows,
                    unknown: self.unknown,
                };
                inner.visit_expr(expr);
            });
        }
        visit::visit_macro(self, call);
    }
}

fn arrows(sources: &mut [Source]) -> (Arrows, usize) {
    let all = Definitions::of(sources);
    let mut arrows = Arrows::new();
    for (at, source) in sources.iter_mut().enumerate() {
        let module: Vec<String> = source.file.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
        let mut found = Vec::new();
        for item in &source.items {
            // What a module hands on of those below it, it does not use by that.
            if let Item::Use(item) = item
                && matches!(item.vis, syn::Visibility::Inherited)
            {
                flatten(&item.tree, &mut Vec::new(), &mut found);
            }
        }
        for (path, name, line) in found {
            let to = match path[0].as_str() {
                "crate" => all.place(&path[1..]),
                "super" => all.place(&[&module[..module.len() - 1], &path[1..]].concat()),
                // A module below itself.
                first => {
                    let below = [&module[..], &[first.to_owned()]].concat().join("::");
                    all.modules
                        .contains_key(&below)
                        .then(|| all.place(&[&module[..], &path].concat()))
                        .flatten()
                }
            };
            if let Some(to) = to {
                if to != at {
                    let text = format!("{}:{line}: use {}", source.file, path.join("::"));
                    arrows.entry((at, to)).or_insert(text);
                }
                source.uses.insert(name, to);
            }
        }
    }
    let mut unknown = 0;
    for (at, source) in sources.iter().enumerate() {
        let mut reader = Reader {
            all: &all,
            source,
            at,
            this: String::new(),
            locals: HashMap::new(),
            arrows: &mut arrows,
            unknown: &mut unknown,
        };
        source.items.iter().for_each(|item| reader.visit_item(item));
    }
    (arrows, unknown)
}

/// Whether arrows lead from one file to another.
fn reaches(arrows: &Arrows, from: usize, to: usize) -> bool {
    let (mut seen, mut open) = (BTreeSet::from([from]), vec![from]);
    while let Some(at) = open.pop() {
        let next = arrows.range((at, 0)..=(at, usize::MAX)).map(|((_, next), _)| *next);
        open.extend(next.filter(|next| seen.insert(*next)));
    }
    seen.contains(&to)
}

/// The files by floor: each uses lower floors only. Those of circles, and what uses them, are on none.
fn floors(arrows: &Arrows, count: usize) -> Vec<Vec<usize>> {
    let mut left: BTreeSet<usize> = (0..count).collect();
    let mut floors = Vec::new();
    loop {
        let is_free = |at: &usize| !arrows.keys().any(|(from, to)| from == at && left.contains(to));
        let floor: Vec<usize> = left.iter().copied().filter(is_free).collect();
        if floor.is_empty() {
            return floors;
        }
        left.retain(|at| !floor.contains(at));
        floors.push(floor);
    }
}

/// The arrows that are part of a circle.
fn circles(arrows: &Arrows, sources: &[Source]) -> Vec<String> {
    let is_in = |((from, to), _): &(&(usize, usize), &String)| reaches(arrows, *to, *from);
    arrows.iter().filter(is_in).map(|((_, to), line)| format!("{line} -> {}", sources[*to].file)).collect()
}

/// The modules of a list, in its order.
fn listed(file: &str) -> Vec<String> {
    let text = fs::read_to_string(format!("{ROOT}/{file}")).unwrap();
    let modules = syn::parse_file(&text).unwrap().items.into_iter().filter_map(|item| match item {
        Item::Mod(module) => Some(module.ident.to_string()),
        _ => None,
    });
    modules.collect()
}

/// Arrows to a module that stands behind its user in the list of both.
fn against_lists(arrows: &Arrows, sources: &[Source]) -> Vec<String> {
    let module = |at: usize| sources[at].file.trim_end_matches(".rs").split('/').collect::<Vec<_>>();
    let mut lists: HashMap<String, Vec<String>> = HashMap::new();
    let mut wrong = Vec::new();
    for ((from, to), line) in arrows {
        let (from, file) = (module(*from), &sources[*to].file);
        let to = module(*to);
        let same = from.iter().zip(&to).take_while(|(from, to)| from == to).count();
        let (Some(by), Some(used)) = (from.get(same), to.get(same)) else { continue };
        let list = if same == 0 { "lib.rs".to_owned() } else { format!("{}.rs", from[..same].join("/")) };
        let modules = lists.entry(list.clone()).or_insert_with(|| listed(&list));
        let place = |module: &str| modules.iter().position(|name| name == module).expect("all are listed");
        if place(used) > place(by) {
            wrong.push(format!("{line} -> {file}: in {list}, {used} must stand before {by}"));
        }
    }
    wrong
}

#[test]
fn no_file_uses_one_that_uses_it() {
    let mut sources = sources(texts());
    let (arrows, unknown) = arrows(&mut sources);
    let floors = floors(&arrows, sources.len());
    let names =
        |floor: &Vec<usize>| floor.iter().map(|at| sources[*at].file.as_str()).collect::<Vec<_>>().join(" ");
    for (number, floor) in floors.iter().enumerate() {
        println!("{:>2}  {}", number + 1, names(floor));
    }
    let count = arrows.len();
    println!("{} files, {count} arrows, {unknown} calls of methods whose type is not found", sources.len());
    let circles = circles(&arrows, &sources);
    assert!(circles.is_empty(), "arrows of circles:\n{}", circles.join("\n"));
    let wrong = against_lists(&arrows, &sources);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // What is not seen is not checked.
    assert!(count > 6 * sources.len() && unknown < sources.len(), "{count} arrows, {unknown} unknown");
}

#[test]
fn arrows_are_found_however_they_are_drawn() {
    let of = |texts: &[(&str, &str)]| {
        let texts = texts.iter().map(|(file, text)| ((*file).to_owned(), (*text).to_owned())).collect();
        let mut sources = sources(texts);
        let (arrows, _) = arrows(&mut sources);
        circles(&arrows, &sources).len()
    };
    let lower =
        ("lower.rs", "pub struct Low { pub up: Up } pub struct Up; impl Low { pub fn low(&self) {} }");
    let user = |body: &str| {
        let upper =
            format!("use crate::lower::{{Low, Up}}; impl Up {{ pub fn high(&self) -> u8 {{ 1 }} {body} }}");
        of(&[
            lower,
            ("upper.rs", &upper),
            ("lowest.rs", "use crate::upper::NONE; impl Up { pub fn deep(&self) {} }"),
        ])
    };
    assert_eq!(user("fn plain(&self) { self.high(); }"), 0);
    for body in [
        "fn by_self(&self) { self.deep(); }",
        "fn by_path(&self) { Self::deep(self); Up::deep(self); }",
        "fn by_parameter(&self, low: &mut Low) { low.up.deep(); }",
        "fn by_local(&self, low: Option<&Low>) { if let Some(low) = low { let up = &low.up; up.deep(); } }",
        "fn by_name(&self) { unknown().deep(); }",
        "fn in_a_macro(&self) { assert!(self.deep() == 1); }",
        "fn in_a_closure(&self) { call(|up: &Up| { up.deep(); }); }",
    ] {
        // Both ways: what is used, and that it uses `upper`.
        assert_eq!(user(body), 2, "{body}");
    }
}
