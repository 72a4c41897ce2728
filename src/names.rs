//! Enumerations whose values have names: in options, in JSON and in messages.

/// An enumeration whose values have names; declared by [`named!`].
pub trait Named: Copy + PartialEq + 'static {
    /// The values in order, each with its name and its meaning.
    const VALUES: &'static [(Self, &'static str, &'static str)];

    fn name(self) -> &'static str {
        Self::VALUES.iter().find(|(value, ..)| *value == self).map_or("", |(_, name, _)| name)
    }

    fn names() -> Vec<&'static str> {
        Self::VALUES.iter().map(|(_, name, _)| *name).collect()
    }

    /// The value with this name.
    ///
    /// # Errors
    /// The valid names, and the one found.
    fn named(found: &str) -> Result<Self, String> {
        let value = Self::VALUES.iter().find(|(_, name, _)| *name == found).map(|(value, ..)| *value);
        value.ok_or_else(|| format!("expected {}, found \"{found}\"", one_of(&Self::names())))
    }
}

/// Names joined for a message: `a, b or c`.
pub fn one_of(names: &[&str]) -> String {
    match names {
        [first @ .., last] if !first.is_empty() => format!("{} or {last}", first.join(", ")),
        _ => names.concat(),
    }
}

/// Declares enumerations with the names of their values, by which they are written and parsed: `Value = "name": "meaning",`.
macro_rules! named {
    ($(
        $(#[$of_type:meta])*
        pub enum $Type:ident { $($(#[$of_value:meta])* $Value:ident = $name:literal $(: $meaning:literal)?,)+ }
    )+) => {$(
        $(#[$of_type])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $Type {
            $($(#[doc = $meaning])? $(#[$of_value])* $Value,)+
        }

        impl $crate::names::Named for $Type {
            const VALUES: &'static [(Self, &'static str, &'static str)] =
                &[$((Self::$Value, $name, concat!($($meaning)?)),)+];
        }

        impl std::fmt::Display for $Type {
            fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
                f.pad($crate::names::Named::name(*self))
            }
        }

        impl std::str::FromStr for $Type {
            type Err = String;

            fn from_str(name: &str) -> Result<Self, String> {
                $crate::names::Named::named(name)
            }
        }
    )+};
}
pub(crate) use named;
