//! Options in a rule file's `[server]`, named by their long name with `_` for `-`.

use crate::apply::apply;
use crate::error::UsageError;
use crate::option_row::{OptionName, OptionRow};
use crate::options::rows;
use crate::settings::Settings;
use crate::table::Class;
use crate::value::{ValueKind, ValueSyntax};

/// An option that a rule file can set.
#[derive(Clone, Copy)]
pub(crate) struct FileOption(&'static OptionRow);

impl FileOption {
    /// The option with this name.
    pub(crate) fn find(name: &str) -> Option<Self> {
        Self::all().find(|option| option.name() == name)
    }

    /// The names of all options that a rule file can set.
    pub(crate) fn names() -> impl Iterator<Item = String> {
        Self::all().filter(|option| !option.0.is_refused()).map(Self::name)
    }

    fn all() -> impl Iterator<Item = Self> {
        rows().filter(|row| matches!(row.name, OptionName::Switch { long: Some(_), .. })).map(Self)
    }

    pub(crate) fn name(self) -> String {
        self.0.name.shown().trim_start_matches('-').replace('-', "_")
    }

    pub(crate) fn is_switch(self) -> bool {
        !self.0.kind.is_wanted()
    }

    /// Whether the option may be given more than once.
    pub(crate) fn is_list(self) -> bool {
        matches!(self.0.class, Class::List) || self.name() == "listen"
    }

    pub(crate) fn is_octal(self) -> bool {
        matches!(self.0.kind, ValueKind::Octal)
    }

    /// For a size, the number of bytes in one unit of its value.
    pub(crate) fn size_unit(self) -> Option<u64> {
        match self.0.kind {
            ValueKind::Size { .. } => Some(1),
            ValueKind::Number { unit: "MiB", .. } => Some(1 << 20),
            _ => None,
        }
    }

    /// The allowed values, in words.
    pub(crate) fn describe(self) -> String {
        self.0.kind.describe(ValueSyntax::CommandLine)
    }

    /// Applies the option; `text`: its value as on the command line, None for a switch.
    ///
    /// # Errors
    /// The text begins with the option's name.
    pub(crate) fn apply(self, text: Option<&str>, settings: &mut Settings) -> Result<(), UsageError> {
        let name = self.name();
        if matches!(name.as_str(), "config" | "options_file")
            || matches!(self.0.class, Class::Help | Class::Version | Class::License)
        {
            return Err(UsageError::new(format!("{name}: is for the command line only; leave it out")));
        }
        apply(self.0, &name, text, settings).map(|_| ())
    }
}
