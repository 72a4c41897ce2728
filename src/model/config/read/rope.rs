//! The rotary tables of `rope_parameters` and `rope_scaling`.

use super::{Config, Family, Positive, Rope, Wrong};
use crate::model::config::{RopeScaling, RopeSpec};

impl Config {
    /// `max_position_embeddings`, or longer if YaRN stretches the trained context beyond it: model cards add only `rope_scaling`.
    pub(super) fn context(&self) -> usize {
        let context = self.max_position_embeddings.0;
        let yarn = |table: &&Rope| table.rope_type.as_ref().or(table.kind.as_ref()).is_some_and(|kind| kind == "yarn");
        let table = self.rope_scaling.as_ref().or(self.rope_parameters.as_ref());
        let table = table.map(|table| table.full_attention.as_deref().unwrap_or(table)).filter(yarn);
        let stretched = table.and_then(|table| Some((self.trained(table) * table.factor?.0) as usize));
        stretched.map_or(context, |stretched| stretched.clamp(context, u32::MAX as usize))
    }

    /// The rotary tables.
    pub(super) fn rope(&self, family: &Family, head_dim: impl Fn(usize) -> usize) -> Result<Vec<RopeSpec>, Wrong> {
        let parameters = self.rope_parameters.as_ref();
        if family.local_rope {
            // rope_scaling, the older key, applies to full layers
            let nested = |table: fn(&Rope) -> Option<&Rope>| parameters.and_then(table).cloned().unwrap_or_default();
            let full = nested(|tables| tables.full_attention.as_deref());
            let full = match self.rope_scaling.clone() {
                Some(scaling) => scaling.or(full),
                None => full,
            };
            let local = nested(|tables| tables.sliding_attention.as_deref());
            let full = self.table(&full, self.rope_theta, head_dim(0))?;
            return Ok(vec![full, self.table(&local, self.rope_local_base_freq, head_dim(1))?]);
        }
        let written = self.rope_scaling.as_ref().or(parameters);
        if written.is_some_and(|table| table.full_attention.is_some() || table.sliding_attention.is_some()) {
            return Err(("rope_parameters", "expected one table, found one by layer type".to_owned()));
        }
        let table = self.table(written.unwrap_or(&Rope::default()), self.rope_theta, head_dim(0))?;
        let still = RopeSpec::plain(table.theta, 0);
        let has_still = self.no_rope_layers.is_some() || self.no_rope_layer_interval.is_some();
        Ok(if has_still { vec![table, still] } else { vec![table] })
    }

    /// Positions that a table was trained on.
    fn trained(&self, table: &Rope) -> f64 {
        let trained = self.original_max_position_embeddings.or(table.original_max_position_embeddings);
        trained.map_or(self.max_position_embeddings.0 as f64, |trained| trained.0)
    }

    /// [`ModelSpec`](crate::model::ModelSpec)'s `query_growth` and `query_period`.
    pub(super) fn query_scaling(&self) -> (f32, usize) {
        let table = self.rope_scaling.as_ref().or(self.rope_parameters.as_ref());
        let scaled = table.and_then(|table| Some((table.llama_4_scaling_beta?.f32(), self.trained(table) as f32)));
        scaled.map_or((0.0, 1), |(growth, period)| (growth, (period as usize).clamp(1, i32::MAX as usize)))
    }

    /// One rotary table; `theta` is used if it has none of its own.
    fn table(&self, table: &Rope, theta: Option<Positive>, head_dim: usize) -> Result<RopeSpec, Wrong> {
        // only families that rotate part of each head read the outer key
        let part = self.partial_rotary_factor.map(|outer| table.partial_rotary_factor.unwrap_or(outer).0);
        let rotary_dim = part.map_or(head_dim, |part| (head_dim as f64 * part) as usize);
        if rotary_dim > head_dim || !rotary_dim.is_multiple_of(2) {
            let message = format!("expected an even part of head_dim ({head_dim}), found {rotary_dim} components");
            return Err(("partial_rotary_factor", message));
        }
        let (context, trained) = (self.max_position_embeddings.0 as f32, self.trained(table) as f32);
        let theta = table.rope_theta.or(theta).map_or(10_000.0, Positive::f32);
        let (scaling, attention_factor) = table.scaling(trained, context, rotary_dim)?;
        Ok(RopeSpec { theta, scaling, attention_factor, rotary_dim })
    }
}

impl Rope {
    /// This table, with missing entries taken from another: an older checkpoint splits them over two keys.
    fn or(self, other: Rope) -> Rope {
        Rope {
            rope_theta: self.rope_theta.or(other.rope_theta),
            rope_type: self.rope_type.or(self.kind.clone()).or(other.rope_type),
            ..self
        }
    }

    /// The scaling and the factor on cosines and sines, for a context trained on `trained` positions.
    fn scaling(&self, trained: f32, context: f32, rotary_dim: usize) -> Result<(RopeScaling, f32), Wrong> {
        let need = |key, value: Option<Positive>| {
            value.map(Positive::f32).ok_or((key, "expected a positive number, found nothing".to_owned()))
        };
        let factor = || need("rope_scaling.factor", self.factor);
        match self.rope_type.as_ref().or(self.kind.as_ref()).map_or("default", String::as_str) {
            // "dynamic" stretches only beyond max_position_embeddings
            "default" | "dynamic" => Ok((RopeScaling::None, 1.0)),
            "linear" => Ok((RopeScaling::Linear { factor: factor()? }, 1.0)),
            "proportional" => {
                let part = self.partial_rotary_factor.map_or(1.0, |part| part.0.min(1.0));
                let pairs = (part * rotary_dim as f64 / 2.0) as usize;
                Ok((RopeScaling::Proportional { pairs, factor: self.factor.map_or(1.0, Positive::f32) }, 1.0))
            }
            "llama3" => {
                let scaling = RopeScaling::Llama3 {
                    factor: factor()?,
                    low_freq_factor: need("rope_scaling.low_freq_factor", self.low_freq_factor)?,
                    high_freq_factor: need("rope_scaling.high_freq_factor", self.high_freq_factor)?,
                    original_max_position_embeddings: trained,
                };
                Ok((scaling, 1.0))
            }
            // Phi-3 formerly used both names for longrope
            "yarn" if self.short_factor.is_none() => {
                let factor = factor()?;
                let scaling = RopeScaling::Yarn {
                    factor,
                    beta_fast: self.beta_fast.map_or(32.0, Positive::f32),
                    beta_slow: self.beta_slow.map_or(1.0, Positive::f32),
                    original_max_position_embeddings: trained,
                    truncate: self.truncate.unwrap_or(true),
                };
                Ok((scaling, self.yarn_attention(factor)))
            }
            "longrope" | "su" | "yarn" => {
                let divisors = |key, list: &Option<Vec<Positive>>| {
                    let divisors: Vec<f32> = list.iter().flatten().map(|x| x.f32()).collect();
                    let (found, expected) = (divisors.len(), rotary_dim / 2);
                    let wrong = || (key, format!("expected {expected} numbers, found {found}"));
                    Some(divisors).filter(|_| found == expected).ok_or_else(wrong)
                };
                let stretched = f64::from(self.factor.map_or(context / trained, Positive::f32));
                let by_length = (1.0 + libm::log(stretched).max(0.0) / libm::log(trained.into())).sqrt() as f32;
                let attention = self.attention_factor.map_or(by_length, Positive::f32);
                let scaling = RopeScaling::LongRope {
                    short_factor: divisors("rope_scaling.short_factor", &self.short_factor)?,
                    long_factor: divisors("rope_scaling.long_factor", &self.long_factor)?,
                    original_max_position_embeddings: trained as usize,
                };
                Ok((scaling, attention))
            }
            other => {
                let known = "default, linear, llama3, yarn, longrope, proportional or dynamic";
                Err(("rope_scaling.rope_type", format!("expected {known}, found {other}")))
            }
        }
    }

    /// YaRN's factor on cosines and sines: stated, or 0.1 ln(factor) + 1, or a ratio of two such terms.
    fn yarn_attention(&self, factor: f32) -> f32 {
        let by_factor = |scale: f64| 0.1 * scale * libm::log(factor.into()).max(0.0) + 1.0;
        let inferred = match (self.mscale, self.mscale_all_dim) {
            (Some(scale), Some(all_dim)) => by_factor(scale.0) / by_factor(all_dim.0),
            _ => by_factor(1.0),
        };
        self.attention_factor.map_or(inferred as f32, Positive::f32)
    }
}
