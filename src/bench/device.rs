//! Which device, for the engine and for the program's own measurements of the machine.

use super::machine::{self, Machine, MachineError};
use crate::backend::DeviceChoice;
use crate::engine::EngineOptions;

/// `auto` decided once, so that engine and machine cannot be two devices.
pub fn decided(choice: DeviceChoice) -> DeviceChoice {
    match choice {
        DeviceChoice::Auto if machine::has_cuda() => DeviceChoice::Cuda(0),
        DeviceChoice::Auto => DeviceChoice::Cpu,
        other => other,
    }
}

/// What measures the machine; `bytes`: of each buffer.
pub fn machine(choice: DeviceChoice, threads: usize, bytes: usize) -> Result<Machine, MachineError> {
    match decided(choice) {
        DeviceChoice::Cuda(ordinal) => Machine::cuda(ordinal, bytes),
        DeviceChoice::Auto | DeviceChoice::Cpu | DeviceChoice::Reference => Ok(Machine::cpu(threads, bytes)),
    }
}

/// The engine's defaults on this device.
pub fn engine_options(choice: DeviceChoice, threads: usize) -> EngineOptions {
    EngineOptions { device: decided(choice), threads, ..EngineOptions::default() }
}
