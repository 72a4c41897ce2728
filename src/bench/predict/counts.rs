//! What `tests/cuda_host/sass.py` has counted in the kernels' machine code.

/// The committed budget; its columns are said there.
const BUDGET: &str = include_str!("../../../tests/cuda_host/sass_budget.tsv");

/// Instructions of the hot loop for each unit of work of a kernel, compiled for sm_90a; `None` of one that is not counted.
pub fn instructions(kernel: &str) -> Option<f64> {
    BUDGET.lines().find_map(|line| {
        let cells: Vec<&str> = line.split('\t').collect();
        (cells[..2] == [kernel, "sm_90a"]).then(|| cells[5].parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_that_predictions_ask_for_is_counted() {
        for kernel in [
            "gemv_f16_r8",
            "gemv_qkv_f16_r16",
            "gemm_m128",
            "gemm_hopper",
            "attn_prefill_kf32_vf16_d128_t2",
            "attn_prefill_hopper_kf32_vf16_d64_t2",
        ] {
            assert!(instructions(kernel).is_some_and(|n| n > 1.0), "{kernel}");
        }
        assert_eq!(instructions("gemv"), None);
    }
}
