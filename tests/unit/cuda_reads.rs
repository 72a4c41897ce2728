//! Device memory reads of a decode step, as counted from the host-run kernels' copies.

use super::families::trace;
use serde_json::json;
use std::sync::Arc;
use test_support::{cuda_host, tiny};
use uqac::backend::DType::{F16, F32};
use uqac::backend::cuda::{CudaBackend, CudaOptions};
use uqac::backend::forward::{extend, forward};
use uqac::backend::{Backend, BackendError, Next, Pass, Prediction, Row, SequenceId};
use uqac::model::{ModelSpec, Weights};

const LAYERS: u64 = 3;
const HIDDEN: u64 = 64;
const INNER: u64 = 96;
const HEADS: u64 = 6;
const KV_HEADS: u64 = 2;
const HEAD_DIM: u64 = 16;
const VOCAB: u64 = 288;

/// Every weight and every cached key and value is read once per step, regardless of the number of rows, in whole
/// sectors: nothing is fetched twice, and nothing unused is fetched.
#[test]
fn a_decode_step_reads_every_byte_once() {
    if !cuda_host::alone("unit::cuda_reads::a_decode_step_reads_every_byte_once") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut config = tiny::config();
    // outputs in whole tiles of both product variants: a partial tile reads its last row again
    for (key, value) in [("hidden_size", HIDDEN), ("head_dim", HEAD_DIM), ("vocab_size", VOCAB)] {
        config[key] = json!(value);
    }
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    tiny::write_weights(folder.path(), &config, |_, _| ());
    let spec = ModelSpec::from_folder(folder.path()).unwrap();
    let weights = Arc::new(Weights::open(folder.path(), &spec).unwrap());
    let options = CudaOptions { ordinal: 0, k_cache: Some(F32), v_cache: Some(F16), ..CudaOptions::default() };
    let mut backend = CudaBackend::new(spec, weights, &options, &mut |_, _| ()).unwrap();

    let matrices = 2 * HIDDEN * HEADS * HEAD_DIM + 2 * HIDDEN * KV_HEADS * HEAD_DIM + 3 * HIDDEN * INNER;
    let weight_bytes = 2 * (LAYERS * matrices + VOCAB * HIDDEN);
    for rows in [1, 8, 9, 16] {
        let prompt = |row: usize| 20 + 3 * row;
        let ids: Vec<SequenceId> = (0..rows)
            .map(|row| {
                let id = backend.open(trace(4)).unwrap();
                let tokens = vec![5; prompt(row)];
                extend::<BackendError>(&mut backend, id, 0, &tokens, true, |_| true, |_, _| Ok(())).unwrap();
                id
            })
            .collect();
        let entering: Vec<Row> =
            ids.iter().enumerate().map(|(row, id)| Row { sequence: *id, position: prompt(row), token: 7 }).collect();
        backend.hidden(0).unwrap(); // waits for the preceding work
        let [products, attention] = cuda_host::copies(["gemv_", "attn_decode_"], || {
            forward(&mut backend, &Pass::all(&entering, true)).unwrap();
            let request = |row| Prediction { row, next: Next::Given(None), detail: true };
            backend.predict(&(0..rows).map(request).collect::<Vec<_>>()).unwrap();
        });
        let positions: u64 = entering.iter().map(|row| row.position as u64 + 1).sum();
        let cached_bytes = LAYERS * KV_HEADS * HEAD_DIM * (4 + 2) * positions;
        for (what, found, bytes) in [("weights", products, weight_bytes), ("keys and values", attention, cached_bytes)]
        {
            let once = cuda_host::Copies { sectors: bytes / 32, requests: bytes / 32, wasted: 0 };
            assert_eq!(found, once, "{what}, {rows} rows");
        }
        ids.into_iter().for_each(|id| backend.close(id));
    }
}
