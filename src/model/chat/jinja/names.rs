//! The filters and tests that there are.

const FILTERS: [&str; 53] = [
    "abs", "attr", "batch", "capitalize", "center", "count", "d", "default", "dictsort", "e", "escape", "first", "float",
    "forceescape", "format", "groupby", "indent", "int", "items", "join", "last", "length", "list", "lower", "map", "max",
    "min", "pprint", "reject", "rejectattr", "replace", "reverse", "round", "safe", "select", "selectattr", "slice",
    "sort", "string", "striptags", "sum", "title", "tojson", "trim", "truncate", "unique", "upper", "urlencode",
    "wordcount", "wordwrap", "xmlattr", "filesizeformat", "random",
];

const TESTS: [&str; 39] = [
    "eq", "equalto", "==", "ne", "!=", "lt", "lessthan", "<", "le", "<=", "gt", "greaterthan", ">", "ge", ">=", "in",
    "defined", "undefined", "none", "boolean", "true", "false", "integer", "float", "number", "string", "mapping",
    "sequence", "iterable", "callable", "sameas", "odd", "even", "divisibleby", "lower", "upper", "escaped", "filter",
    "test",
];

pub(crate) fn is_filter(name: &str) -> bool {
    FILTERS.contains(&name)
}

pub(crate) fn is_test(name: &str) -> bool {
    TESTS.contains(&name)
}
