//! Lines on standard error, a JSON object each. What was asked and answered is not in them.

use serde_json::{Map, Value};
use std::io::Write;

/// Writes a line. That nobody may be listening is no error.
pub fn line(event: &str, fields: Value) {
    let mut line = Map::new();
    line.insert("time".to_owned(), jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.3fZ").to_string().into());
    line.insert("event".to_owned(), event.into());
    if let Value::Object(fields) = fields {
        line.extend(fields);
    }
    let _ = writeln!(std::io::stderr(), "{}", Value::Object(line));
}
