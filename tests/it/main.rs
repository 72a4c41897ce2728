//! Every integration test, a module for what it is about: one program to link, and `cargo test NAME` runs the modules
//! and tests whose path contains NAME.

mod common;

mod answer;
mod architecture;
mod bad_input;
mod batch;
mod bench_command;
mod calibrate;
mod chat_templates;
mod cli_run;
mod cli_usage;
mod cpu_attention;
mod cuda_backend;
mod cuda_cublaslt;
mod cuda_engine;
mod cuda_graph;
mod cuda_memory;
mod cuda_nvrtc;
mod cuda_reads;
mod cuda_selftest;
mod determinism;
mod early;
mod embedded_model;
mod eval_run;
mod golden_generation;
mod golden_trace;
mod golden_uqac;
mod gpu_bench;
mod grading;
mod hostile_models;
mod metrics;
mod model_files;
mod pictures;
mod records;
mod reference;
mod report;
mod report_page;
mod serve;
mod tasks;
mod tiny_models;
mod tokenizer;
mod trust;
mod uq_golden;
mod uq_profiles;
mod uq_properties;
