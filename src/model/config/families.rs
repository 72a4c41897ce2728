//! The families' differences, as data (`families.json`): the keys that a family reads, and transformers' defaults for absent ones.

use super::FamilyTraits;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::sync::LazyLock;

/// A decoder-only text model of transformers.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Family {
    /// In `architectures`.
    pub architecture: String,
    /// In `text_config` of a multimodal checkpoint.
    pub model_type: String,
    /// Keys of `config.json` besides [`Families::common`], with the defaults of absent ones in transformers' config class; `null`:
    /// no default, as for sizes that every checkpoint has. All other keys are ignored, as in transformers.
    pub keys: Map<String, Value>,
    /// Settings that no key changes.
    pub fixed: Map<String, Value>,
    pub traits: FamilyTraits,
    /// The embedding is multiplied by √hidden_size.
    pub scaled_embedding: bool,
    /// q, k and v have a bias whatever `attention_bias` is, and o has none.
    pub qkv_bias: bool,
    /// `hidden_act: gelu` means its tanh form.
    pub gelu_is_tanh: bool,
    pub slides: Slides,
    /// The last layer never slides.
    pub last_is_full: bool,
    /// Sliding layers have their own rotary table.
    pub local_rope: bool,
}

/// Which layers slide if there is no `layer_types`.
#[derive(Clone, Copy, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
pub(super) enum Slides {
    Never,
    /// Every layer, if there is a `sliding_window`.
    All,
    /// All but every n-th (`sliding_window_pattern`).
    Pattern(usize),
    /// Those from `max_window_layers` on.
    FromMaxWindowLayers,
    /// Those without rotary positions.
    WithoutRope,
}

/// A multimodal checkpoint whose text model is one of [`Families::families`].
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Multimodal {
    pub architecture: String,
    pub model_type: String,
    /// The `model_type` of its text model if `text_config` has none.
    pub text_model_type: String,
    /// Whether the head is tied if nothing says so.
    pub tied: bool,
}

/// `families.json`
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Families {
    /// Keys that every family reads.
    pub common: Map<String, Value>,
    #[serde(deserialize_with = "inherited")]
    pub families: Vec<Family>,
    pub multimodal: Vec<Multimodal>,
}

pub(super) static FAMILIES: LazyLock<Families> =
    LazyLock::new(|| serde_json::from_str(include_str!("families.json")).expect("a constant table"));

/// Families with what they leave out: as in the earlier one that `like` names, trait by trait.
fn inherited<'de, D: serde::Deserializer<'de>>(tables: D) -> Result<Vec<Family>, D::Error> {
    let mut whole: Vec<Map<String, Value>> = Vec::new();
    for mut own in Vec::<Map<String, Value>>::deserialize(tables)? {
        let like = own.remove("like");
        let mut table =
            like.and_then(|like| whole.iter().find(|known| known["model_type"] == like)).cloned().unwrap_or_default();
        if let (Some(Value::Object(traits)), Some(Value::Object(more))) =
            (table.get_mut("traits"), own.get_mut("traits"))
        {
            traits.append(more);
            own.remove("traits");
        }
        table.append(&mut own);
        whole.push(table);
    }
    whole
        .into_iter()
        .map(|table| serde_json::from_value(Value::Object(table)).map_err(serde::de::Error::custom))
        .collect()
}
