//! Tests of the parser as a whole: recorded answers, single cases, properties, and a soak test.

mod cases;
mod common;
mod numbers;
mod prop;
mod soak;
mod transcript;
