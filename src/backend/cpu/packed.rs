//! Weights in the backend's own format.

use super::matmul::{Matrix, Numbers};
use super::threads::ThreadPool;
use crate::backend::WeightFormat;
use crate::backend::q8::{Q8Block, quantize};
use crate::model::Weights;
use crate::model::weights::Weight;
use std::collections::HashMap;

/// Matrices held in another format, by name; the rest are read from their files, as rows of the embedding always are.
#[derive(Default)]
pub struct Packed {
    q8: HashMap<String, Vec<Q8Block>>,
}

impl Packed {
    pub fn new(weights: &Weights, format: WeightFormat, pool: &ThreadPool) -> Packed {
        if format == WeightFormat::File {
            return Packed::default();
        }
        let products: Vec<&Weight> = weights.products().collect();
        let packed = pool.map(products.len(), |i| quantize(products[i].elements(), products[i].in_features));
        let named = products.iter().zip(packed).filter_map(|(weight, q8)| Some((weight.name.clone(), q8?)));
        Packed { q8: named.collect() }
    }

    /// The matrix of a product.
    pub fn matrix<'a>(&'a self, weight: &'a Weight) -> Matrix<'a> {
        let numbers = match self.q8.get(&weight.name) {
            Some(blocks) => Numbers::Q8(blocks),
            None => Numbers::File(weight.elements()),
        };
        Matrix { numbers, rows: weight.rows, k: weight.in_features }
    }

    /// Bytes of a matrix.
    pub fn bytes_of(&self, weight: &Weight) -> usize {
        self.q8.get(&weight.name).map_or(weight.byte_len(), |blocks| size_of_val(&blocks[..]))
    }

    /// Bytes held in addition to the files.
    pub fn bytes(&self) -> usize {
        self.q8.values().map(|blocks| size_of_val(&blocks[..])).sum()
    }
}
