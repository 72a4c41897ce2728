//! Differences between a model's layers besides their windows: sizes, and shared keys and values (Gemma 4).

use super::{Config, LayerSpec, Size, Wrong};
use crate::model::config::LayerInputSpec;
use serde::{Deserialize, Deserializer, de::Error};
use std::collections::HashMap;

/// An entry of `per_layer_config`: a layer's own sizes.
#[derive(Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Sizes {
    head_dim: Option<Size>,
    num_key_value_heads: Option<Size>,
}

/// `per_layer_config` if present: even `null` then means that no layer has other sizes. Layers may be zero-padded: "02".
pub(super) fn written<'de, D: Deserializer<'de>>(found: D) -> Result<Option<HashMap<usize, Sizes>>, D::Error> {
    let written: HashMap<String, Sizes> = Option::deserialize(found)?.unwrap_or_default();
    let layer = |(layer, sizes): (String, Sizes)| Ok((layer.parse().map_err(D::Error::custom)?, sizes));
    written.into_iter().map(layer).collect::<Result<_, _>>().map(Some)
}

impl Config {
    /// Sets the sizes of layers that differ, and the source layer of those that share keys and values.
    pub(super) fn differ(&self, layers: &mut [LayerSpec]) -> Result<(), Wrong> {
        let k_eq_v = self.attention_k_eq_v == Some(true);
        let global = Sizes {
            head_dim: self.global_head_dim,
            num_key_value_heads: self.num_global_key_value_heads.filter(|_| k_eq_v),
        };
        for (index, layer) in layers.iter_mut().enumerate() {
            let full = layer.window.is_none();
            let own = match &self.per_layer_config {
                Some(written) => written.get(&index).copied(),
                None => full.then_some(global),
            };
            let Sizes { head_dim, num_key_value_heads } = own.unwrap_or_default();
            layer.head_dim = head_dim.map_or(layer.head_dim, |dim| dim.0);
            layer.num_key_value_heads = num_key_value_heads.map_or(layer.num_key_value_heads, |heads| heads.0);
            layer.keys_are_values = full && k_eq_v;
        }
        self.share(layers)?;
        layers.iter().try_for_each(|layer| self.check(layer, layers))
    }

    /// The last `num_kv_shared_layers` layers read the keys and values of the last layer of their type among the rest.
    fn share(&self, layers: &mut [LayerSpec]) -> Result<(), Wrong> {
        let wrong = |message| Err(("num_kv_shared_layers", message));
        let (count, shared) = (layers.len(), self.num_kv_shared_layers.unwrap_or(0));
        let (own, sharing) = match count.checked_sub(shared) {
            Some(own) if own > 0 => layers.split_at_mut(own),
            _ => return wrong(format!("expected less than num_hidden_layers ({count}), found {shared}")),
        };
        for layer in sharing {
            let Some(from) = own.iter().rposition(|other| other.window == layer.window) else {
                return wrong("expected a layer of each type among those before, found none".to_owned());
            };
            layer.kv_layer = from;
            let sizes = |layer: &LayerSpec| (layer.head_dim, layer.num_key_value_heads);
            if sizes(layer) != sizes(&own[from]) {
                return Err(("per_layer_config", "expected one size for layers that share keys and values".to_owned()));
            }
            layer.intermediate_size *= if self.use_double_wide_mlp == Some(true) { 2 } else { 1 };
        }
        Ok(())
    }

    fn check(&self, layer: &LayerSpec, layers: &[LayerSpec]) -> Result<(), Wrong> {
        let (heads, kv_heads, head_dim) = (self.num_attention_heads.0, layer.num_key_value_heads, layer.head_dim);
        if !heads.is_multiple_of(kv_heads) {
            let message = format!("{kv_heads} does not divide num_attention_heads ({heads})");
            return Err(("num_key_value_heads", message));
        }
        if head_dim == 0 || !head_dim.is_multiple_of(2) {
            return Err(("head_dim", format!("expected an even number, found {head_dim}")));
        }
        match layers.iter().find(|other| other.rope == layer.rope && other.head_dim != head_dim) {
            None => Ok(()),
            Some(LayerSpec { head_dim: other, .. }) => {
                let message = format!("expected one for all layers of a type, found {head_dim} and {other}");
                Err(("per_layer_config.head_dim", message))
            }
        }
    }

    pub(super) fn layer_input(&self) -> Option<LayerInputSpec> {
        let hidden_size = self.hidden_size_per_layer_input.filter(|size| *size > 0)? as usize;
        Some(LayerInputSpec { hidden_size, vocab_size: self.vocab_size_per_layer_input?.0 })
    }
}
