//! Setters of builders, of which each takes the builder, changes some of its fields and gives the builder back.

/// Declares setters inside an `impl`: `name(argument: type, …) { field = value; … }`.
macro_rules! setters {
    ($($(#[$meta:meta])* $name:ident($($argument:ident: $ty:ty),*) { $($($field:ident).+ = $value:expr);+ })*) => {$(
        $(#[$meta])*
        pub fn $name(mut self, $($argument: $ty),*) -> Self {
            $(self.$($field).+ = $value;)+
            self
        }
    )*};
}
pub(crate) use setters;
