//! Models whose layers differ in sizes, share keys and values, or have their own inputs (Gemma 4).

use super::families::trace;
use super::random_models::{RandomModel, open};
use serde_json::{Value, json};
use uqac::backend::cpu::{CpuBackend, CpuOptions};
use uqac::backend::forward::{enter, forward};
use uqac::backend::{Backend, BackendError, DType, Pass, Row, WeightFormat};
use uqac::model::ModelSpec;

/// With four sharing layers, three of the seven have their own keys and values.
fn config(shared: usize) -> Value {
    let [sliding, full] = ["sliding_attention", "full_attention"];
    json!({
        "architectures": ["Gemma4ForCausalLM"], "hidden_size": 32, "intermediate_size": 48, "vocab_size": 90,
        "num_attention_heads": 4, "num_key_value_heads": 2, "num_global_key_value_heads": 1, "attention_k_eq_v": true,
        "head_dim": 8, "global_head_dim": 12, "num_hidden_layers": 7, "num_kv_shared_layers": shared,
        "layer_types": [sliding, sliding, full, sliding, full, sliding, full], "sliding_window": 9,
        "use_double_wide_mlp": true, "hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": 80,
        "max_position_embeddings": 512, "tie_word_embeddings": true
    })
}

fn model(shared: usize) -> RandomModel {
    RandomModel { config: config(shared), dtype: DType::Bf16, seed: 3 }
}

fn cpu(shared: usize, weights: WeightFormat, threads: usize) -> CpuBackend {
    let folder = model(shared).write();
    let (spec, opened) = open(folder.path());
    CpuBackend::new(spec, opened, CpuOptions { weights, threads, ..CpuOptions::default() })
}

fn rows(backend: &mut dyn Backend, tokens: &[u32]) -> Vec<Row> {
    let sequence = backend.open(trace(5)).unwrap();
    (0..).zip(tokens).map(|(position, token)| Row { sequence, position, token: *token }).collect()
}

#[test]
fn layers_that_share_keys_and_values_take_no_cache() {
    // per position two heads of 8 in a sliding layer, one of 12 in a full one; the CPU pads values to whole vectors of
    // 16
    for (shared, sliding, full) in [(0, 4, 3), (2, 3, 2), (4, 2, 1)] {
        let tokens = model(shared).tokens(128, 1).into_iter().map(|token| token % 80).collect::<Vec<_>>();
        let mut backend = cpu(shared, WeightFormat::File, 2);
        let rows = rows(&mut backend, &tokens);
        forward(&mut backend, &Pass::all(&rows, true)).unwrap();
        let numbers = sliding * 2 * (8 + 16) + full * (12 + 16);
        assert_eq!(backend.memory(rows[0].sequence).0, 128 * 4 * numbers, "{shared} shared");
        let expected = backend.expected_memory(1, trace(5).unwrap()).cache_row;
        assert_eq!(expected, 4 * 2 * (sliding * 2 * 8 + full * 12), "{shared} shared");
    }
}

/// Rows that are neither requested nor traced stop after the last keys and values, before the layers that share them:
/// all rows of a pass, or most.
#[test]
fn rows_that_are_not_wanted_change_nothing() {
    for weights in [WeightFormat::File, WeightFormat::Q8] {
        let tokens: Vec<u32> = model(4).tokens(150, 2).into_iter().map(|token| token % 80).collect();
        let last = tokens.len() - 1;
        let mut backend = cpu(4, weights, 3);
        let all = rows(&mut backend, &tokens);
        forward(&mut backend, &Pass::all(&all, true)).unwrap();
        let expected = backend.hidden(last).unwrap();
        for first in [last, 140, 60] {
            let mut backend = cpu(4, weights, 1);
            let rows = rows(&mut backend, &tokens);
            let id = rows[0].sequence;
            enter(&mut backend, id, 0, &tokens[..first / 2]).unwrap();
            let pass = Pass { rows: &rows[first / 2..first], record: false, wanted: &|row| row % 7 == 3 };
            forward(&mut backend, &pass).unwrap();
            forward(&mut backend, &Pass::all(&rows[first..], true)).unwrap();
            assert_eq!(backend.hidden(last - first).unwrap(), expected, "{weights:?}, {first} rows before");
        }
    }
}

#[test]
fn tokens_without_an_input_of_the_layers_are_refused() {
    let mut backend = cpu(2, WeightFormat::File, 1);
    let rows = rows(&mut backend, &[79, 80]);
    forward(&mut backend, &Pass::all(&rows[..1], true)).unwrap();
    let refused = forward(&mut backend, &Pass::all(&rows[1..], true));
    assert!(matches!(refused, Err(BackendError::TokenRange { token: 80, vocab_size: 80 })), "{refused:?}");
}

/// As transformers writes it for ten or more layers.
#[test]
fn layers_of_per_layer_config_may_be_padded() {
    let mut config = config(0);
    config["per_layer_config"] = json!({"02": {"head_dim": 12}, "04": {"head_dim": 12}, "06": {"head_dim": 12}});
    let spec = ModelSpec::from_config(&config).unwrap();
    assert_eq!(spec.layers.iter().map(|layer| layer.head_dim).collect::<Vec<_>>(), [8, 8, 12, 8, 12, 8, 12]);
}

#[test]
fn settings_that_cannot_be_are_refused_by_name() {
    let says = |edit: fn(&mut Value), end: &str| {
        let mut config = config(2);
        edit(&mut config);
        let message = ModelSpec::from_config(&config).unwrap_err().to_string();
        assert!(message.ends_with(end), "{message}");
    };
    says(
        |c| c["num_kv_shared_layers"] = json!(7),
        "num_kv_shared_layers: expected less than num_hidden_layers (7), found 7",
    );
    says(
        |c| c["num_kv_shared_layers"] = json!(6),
        "num_kv_shared_layers: expected a layer of each type among those before, found none",
    );
    says(
        |c| c["num_global_key_value_heads"] = json!(3),
        "num_key_value_heads: 3 does not divide num_attention_heads (4)",
    );
    says(|c| c["global_head_dim"] = json!(11), "head_dim: expected an even number, found 11");
    says(
        |c| {
            c["num_kv_shared_layers"] = json!(0);
            c["per_layer_config"] = json!({"4": {"head_dim": 12}});
        },
        "per_layer_config.head_dim: expected one for all layers of a type, found 8 and 12",
    );
    says(
        |c| c["per_layer_config"] = json!({"4": {"num_key_value_heads": 1}, "2": {"num_key_value_heads": 4}}),
        "per_layer_config: expected one size for layers that share keys and values",
    );
    says(
        |c| c["per_layer_config"] = json!({"4": {"sliding_window": 1}}),
        "per_layer_config.4.sliding_window: unknown field `sliding_window`, expected `head_dim` or `num_key_value_heads`",
    );
    says(
        |c| c["enable_moe_block"] = json!(true),
        "enable_moe_block: expected num_experts, top_k_experts and moe_intermediate_size beside it",
    );
    says(
        |c| c["use_bidirectional_attention"] = json!("all"),
        "use_bidirectional_attention: expected false: only causal models are supported",
    );
}
