//! Types, which are passed over.

use super::{Kind, Parser, Result, is, is_name};

impl Parser<'_, '_> {
    /// A type, or the types that a function returns. Whether it is that of nil too.
    pub(super) fn any_type(&mut self) -> Result<bool> {
        self.deeper(|parser| {
            let mut may_be_nil = false;
            // A union may begin with its sign.
            let _ = parser.take("|") || parser.take("&");
            loop {
                may_be_nil |= parser.one_type()?;
                while parser.take("?") {
                    may_be_nil = true;
                }
                if !parser.take("|") && !parser.take("&") {
                    return Ok(may_be_nil);
                }
            }
        })
    }

    /// Without `|`, `&` and `?`.
    fn one_type(&mut self) -> Result<bool> {
        if self.here().kind == Kind::Text {
            self.next();
        } else if self.take("...") {
            self.any_type()?;
        } else if self.take("{") {
            self.table_type()?;
        } else if self.is("(") || self.is("<") {
            if self.is("<") {
                self.generics()?;
            }
            return self.function_type();
        } else if self.take("nil") {
            return Ok(true);
        } else if self.take("true") || self.take("false") {
        } else if self.here().text == "typeof" && is(self.ahead(1), "(") {
            self.next();
            self.next();
            self.expression()?;
            self.expect(")")?;
        } else {
            let name = self.name()?;
            if self.take("...") {
                return Ok(false);
            }
            if self.take(".") {
                self.name()?;
            }
            if self.is("<") {
                self.generics()?;
            }
            return Ok(["any", "unknown"].contains(&name.text) || self.optional.contains(name.text));
        }
        Ok(false)
    }

    /// `(a: T, ...U) -> V`, or a type in parentheses.
    fn function_type(&mut self) -> Result<bool> {
        self.expect("(")?;
        let (mut count, mut may_be_nil) = (0, false);
        while !self.take(")") {
            if is_name(self.here()) && is(self.ahead(1), ":") {
                self.next();
                self.next();
            }
            may_be_nil = self.any_type()?;
            count += 1;
            if !self.take(",") && !self.is(")") {
                return Err(self.unread());
            }
        }
        if self.take("->") {
            self.any_type()?;
            return Ok(false);
        }
        Ok(count == 1 && may_be_nil)
    }

    fn table_type(&mut self) -> Result<()> {
        while !self.take("}") {
            let is_access = ["read", "write"].contains(&self.here().text);
            if is_access && (is_name(self.ahead(1)) || is(self.ahead(1), "[")) {
                self.next();
            }
            if self.take("[") {
                self.any_type()?;
                self.expect("]")?;
                self.expect(":")?;
            } else if is_name(self.here()) && is(self.ahead(1), ":") {
                self.next();
                self.next();
            }
            self.any_type()?;
            if !self.take(",") && !self.take(";") && !self.is("}") {
                return Err(self.unread());
            }
        }
        Ok(())
    }

    /// `<T, U... = V>`, where types are defined and where they are given.
    pub(super) fn generics(&mut self) -> Result<()> {
        self.expect("<")?;
        while !self.take(">") {
            self.any_type()?;
            if self.take("=") {
                self.any_type()?;
            }
            if !self.take(",") && !self.is(">") {
                return Err(self.unread());
            }
        }
        Ok(())
    }

    /// `<<T>>` before arguments.
    pub(super) fn instantiation(&mut self) -> Result<()> {
        if self.is("<") && is(self.ahead(1), "<") {
            self.next();
            self.generics()?;
            self.expect(">")?;
        }
        Ok(())
    }

    /// Behind `type`.
    pub(super) fn type_definition(&mut self) -> Result<()> {
        if self.take("function") {
            self.name()?;
            self.function()?;
            return Ok(());
        }
        let name = self.name()?;
        if self.is("<") {
            self.generics()?;
        }
        self.expect("=")?;
        if self.any_type()? {
            self.optional.insert(name.text);
        }
        Ok(())
    }
}
