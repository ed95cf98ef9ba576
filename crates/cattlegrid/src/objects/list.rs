//! `cattlegrid objects list`: what the registry knows, as text.

use cattlegrid_config::{UsageError, nearest};
use cattlegrid_objects::{Method, ObjectType, Registry, native};

/// All types that are switched on, or the one of this name, with their methods, arguments and replies.
///
/// # Errors
/// There is no such type.
pub(super) fn list(registry: &Registry, name: Option<&str>) -> Result<String, UsageError> {
    let types: Vec<&ObjectType> =
        registry.types().filter(|one| name.is_none_or(|name| one.name == name)).collect();
    if types.is_empty() {
        let name = name.unwrap_or_default();
        let near = nearest(name, registry.types().map(|one| one.name));
        return Err(UsageError::new(format!("objects list {name}: there is no such type; {near}")));
    }
    let mut text = String::new();
    let prefix = String::from_utf8_lossy(&registry.settings().prefix);
    for one in types {
        text.extend([one.name, ": ", one.doc, "\n"]);
        text.extend(one.methods.iter().map(|method| line(&prefix, one.name, method)));
        text.push('\n');
    }
    text.push_str("of every type:\n");
    text.extend(native::RESERVED.iter().map(|method| line(&prefix, "TYPE", method)));
    Ok(text)
}

/// How it is called, and what it replies.
fn line(prefix: &str, type_name: &str, method: &Method) -> String {
    let form = method.form(&format!("{prefix}{type_name}"));
    let line = format!("  {form:<44} {}", method.replies);
    format!("{}\n", line.trim_end())
}

#[cfg(test)]
mod tests {
    use cattlegrid_objects::Settings;

    use super::*;

    fn list(name: Option<&str>) -> Result<String, UsageError> {
        super::list(&Registry::new(Settings::default()).unwrap(), name)
    }

    #[test]
    fn every_method_has_a_line() {
        let text = list(None).unwrap();
        for one in native::TYPES {
            assert!(text.contains(&format!("{}: {}\n", one.name, one.doc)), "{text}");
            for method in one.methods {
                let start = format!("\n  {}:{}:KEY", one.name, method.name);
                let found = text.split(&start).nth(1).unwrap_or_else(|| panic!("{start} in {text}"));
                assert!(found.lines().next().unwrap().ends_with(method.replies));
            }
            assert!(list(Some(one.name)).unwrap().starts_with(&format!("{}: ", one.name)));
        }
        assert!(text.contains("\n  counter:add:KEY:n[:ttl]"), "{text}");
        assert!(text.contains("\n  TYPE:methods "), "{text}");
    }

    #[test]
    fn names_have_the_prefix() {
        let settings = Settings { prefix: b"p:".to_vec(), ..Settings::default() };
        let text = super::list(&Registry::new(settings).unwrap(), Some("counter")).unwrap();
        assert!(text.starts_with("counter: ") && text.contains("\n  p:counter:add:KEY:n[:ttl]"), "{text}");
        assert!(text.contains("\n  p:TYPE:methods "), "{text}");
    }

    #[test]
    fn an_unknown_type() {
        let error = list(Some("quote")).unwrap_err().to_string();
        assert_eq!(error, "objects list quote: there is no such type; did you mean quota?");
    }
}
