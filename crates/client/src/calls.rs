//! Lists of methods that differ in little more than their names: calls that several types have, of which each
//! is written once, and options.

/// Methods that only call the method of the same name: `run FIELD;` that of a field, whose future the driver
/// of the blocking client runs, `of METHOD;` that of what this method returns, `of_async METHOD;` the same
/// for async methods. Bounds behind `where` stand in brackets.
macro_rules! calls {
    ($way:ident $inner:ident; impl $owner:ident { $(
        $(#[$attribute:meta])*
        pub $(async)? fn $name:ident $(<$(
            $generic:ident $(: $bound:ident $(+ $more:tt $($sized:ident)?)?)?
        ),+>)? (&$self:ident $(, $argument:ident: $type:ty)*) -> $output:ty $(where [$($bounds:tt)*])?;
    )* }) => {
        impl $owner { $(
            $crate::calls::calls! {
                @$way $inner $self $name ($($argument),*) [$(#[$attribute])*]
                [
                    fn $name $(<$($generic $(: $bound $(+ $more $($sized)?)?)?),+>)? (
                        &$self $(, $argument: $type)*
                    ) -> $output $(where $($bounds)*)?
                ]
            }
        )* }
    };
    (@run $field:ident $self:ident $name:ident $arguments:tt [$($attributes:tt)*] [$($head:tt)*]) => {
        $($attributes)*
        ///
        /// # Errors
        /// As the method of the same name of the async type.
        pub $($head)* { $self.driver.run($self.$field.$name $arguments) }
    };
    (@of $method:ident $self:ident $name:ident $arguments:tt [$($attributes:tt)*] [$($head:tt)*]) => {
        $($attributes)* pub $($head)* { $self.$method().$name $arguments }
    };
    (@of_async $method:ident $self:ident $name:ident $arguments:tt [$($attributes:tt)*] [$($head:tt)*]) => {
        $($attributes)* pub async $($head)* { $self.$method().$name $arguments.await }
    };
}

/// Options that are set by a method of their own: `pub fn NAME(ARGUMENTS) => FIELD = VALUE;`.
macro_rules! setters {
    (impl $owner:ident { $(
        $(#[$attribute:meta])*
        pub fn $name:ident($($argument:ident: $type:ty),+) => $($field:ident).+ = $value:expr;
    )* }) => {
        impl $owner { $(
            $(#[$attribute])*
            pub fn $name(mut self, $($argument: $type),+) -> Self {
                self.$($field).+ = $value;
                self
            }
        )* }
    };
}

pub(crate) use {calls, setters};
